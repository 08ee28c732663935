//! Connectionist temporal classification: kernels of contiguous operands.

use crate::kernels::{Emitted, contiguous_result};
use crate::plan::{Place, Planner};
use crate::program::Slot;
use neuron_ir::{CtcOp, Node, Value};
use neuron_kernels::Kernel;
use neuron_kernels::ctc::{CtcLengths, CtcLoss, CtcLossBackward};

/// Emits the kernel of a loss or its gradient.
pub(crate) fn emit(p: &mut Planner, node: &Node, op: &CtcOp) -> Emitted {
    let operands = node.operands.iter().map(|v| p.realize_contiguous(*v)).collect::<Result<Vec<_>, _>>()?;
    let results: Vec<Place> =
        (0..node.results.len() as u32).map(|i| contiguous_result(p, Value(node.first.0 + i))).collect();
    let lengths = CtcLengths { input: op.input_lengths.clone(), target: op.target_lengths.clone(), blank: op.blank };
    let kernel: Box<dyn Kernel> = if op.backward {
        let [log_probs, targets, alpha] = [1, 2, 4].map(|i: usize| &operands[i].ty);
        Box::new(CtcLossBackward::new(log_probs, targets, &lengths, alpha, op.zero_infinity)?)
    } else {
        Box::new(CtcLoss::new(&operands[0].ty, &operands[1].ty, &lengths, &results[1].ty)?)
    };
    let slots: Vec<Slot> = operands.iter().chain(&results).map(|b| b.slot).collect();
    p.push(kernel, &slots);
    Ok(())
}
