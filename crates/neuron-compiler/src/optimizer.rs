//! Fused optimizer steps, and samples of distributions whose parameters are tensors.

use crate::plan::{Place, Planner};
use crate::pointwise;
use crate::program::Slot;
use neuron_ir::{CheckOp, Destination, Node, Op, OptimizerOp, SampleOp, TensorType, Value};
use neuron_kernels::check::Check;
use neuron_kernels::optimizer::{Adagrad, AdagradOptions, Adam, AdamOptions, Number, Sgd, SgdOptions};
use neuron_kernels::random::Sample;
use neuron_kernels::{Kernel, KernelError};

/// Emits the kernel of [`Op::Sample`].
pub(crate) fn sample(p: &mut Planner, node: &Node, op: SampleOp) -> Result<(), KernelError> {
    let [parameter, seed, offset] = node.operands[..] else { unreachable!("a sample has three operands") };
    let parameter = p.realize_contiguous(parameter)?;
    let out = p.result_where(node.first, |ty| ty.is_contiguous());
    let kernel = Sample::new(op, &parameter.ty, &out.ty)?;
    let random = [p.scalar(seed)?, p.scalar(offset)?];
    p.push_with_scalars(Box::new(kernel), &[parameter.slot, out.slot], &random);
    Ok(())
}

/// Emits the kernel of [`Op::Check`]. Its result is there for the graph's sake.
pub(crate) fn check(p: &mut Planner, node: &Node, op: CheckOp) -> Result<(), KernelError> {
    let x = p.realize_contiguous(node.operands[0])?;
    let out = p.temporary(node.results[0].dtype, &[]);
    p.set_place(node.first, out);
    p.push(Box::new(Check::new(op, &x.ty)?), &[x.slot]);
    Ok(())
}

/// Emits the kernel of [`Op::Optimizer`]: in place where the tensors have one dense layout, else on copies.
pub(crate) fn step(p: &mut Planner, node: &Node, op: OptimizerOp) -> Result<(), KernelError> {
    let (tensors, rest) = node.operands.split_at(op.tensors());
    let (flags, numbers) = rest.split_at(rest.len() - op.numbers());
    let layout = p.graph.shape(node.operands[0]).clone();
    let given = tensors.iter().map(|v| p.realize(*v)).collect::<Result<Vec<_>, _>>()?;
    if given.iter().any(|g| g.ty.sizes != layout.sizes) {
        return Err(KernelError::Unsupported { kernel: "optimizer", what: "tensors of different sizes".into() });
    }
    let dense = given.iter().all(|g| g.ty.strides == given[0].ty.strides)
        && is_dense(&given[0].ty)
        && p.graph.aliases.is_empty();
    let mut places: Vec<Place> = Vec::new();
    for (i, from) in given.iter().enumerate() {
        let result = Value(node.first.0 + i as u32);
        // The gradient changes only by its scale; without one it is read where it is.
        let unchanged = i == 1 && !op.scales_gradient();
        let place = if dense && unchanged {
            from.clone()
        } else {
            match output_in_place(p, result, from).filter(|_| dense) {
                Some(k) => {
                    p.mark_stored(k);
                    from.clone()
                }
                None => {
                    let copy = p.temporary(from.ty.dtype, &from.ty.sizes);
                    pointwise::copy(p, from, &copy)?;
                    copy
                }
            }
        };
        p.set_place(result, place.clone());
        places.push(place);
    }
    if places.iter().any(|place| place.ty.strides != places[0].ty.strides) {
        return Err(KernelError::Unsupported { kernel: "optimizer", what: "tensors of different layouts".into() });
    }
    let mut buffers: Vec<Slot> = places.iter().map(|place| place.slot).collect();
    for flag in flags {
        buffers.push(p.realize(*flag)?.slot);
    }
    let mut known = Vec::new();
    for number in numbers {
        known.push(match p.graph.def(*number).op {
            Op::ScalarParam { index } => Number::Scalar(index),
            Op::Constant(c) => Number::Constant(c.to_f64()),
            _ => {
                buffers.push(p.realize(*number)?.slot);
                Number::Buffer(buffers.len() - 1)
            }
        });
    }
    let kernel = kernel(op, &places, &known)?;
    p.push(kernel, &buffers);
    Ok(())
}

fn kernel(op: OptimizerOp, places: &[Place], numbers: &[Number]) -> Result<Box<dyn Kernel>, KernelError> {
    let numel = places[0].ty.numel() as usize;
    let [param, grad] = [0, 1].map(|i| places[i].ty.dtype);
    let state = places.get(2).map_or(param, |place| place.ty.dtype);
    if places[2..].iter().any(|place| place.ty.dtype != state) {
        return Err(KernelError::dtype("optimizer", state));
    }
    let four = || std::array::from_fn(|i| numbers[i]);
    Ok(match op {
        OptimizerOp::Adam { adamw, amsgrad, maximize, grad_scale, found_inf } => {
            let options = AdamOptions { adamw, amsgrad, maximize, grad_scale, found_inf };
            Box::new(Adam::new(options, std::array::from_fn(|i| numbers[i]), numel, param, grad, state)?)
        }
        OptimizerOp::Sgd { momentum, first_step, nesterov, maximize, grad_scale, found_inf } => {
            let options = SgdOptions { momentum, first_step, nesterov, maximize, grad_scale, found_inf };
            Box::new(Sgd::new(options, four(), numel, param, grad, state)?)
        }
        OptimizerOp::Adagrad { maximize, grad_scale, found_inf } => {
            let options = AdagradOptions { maximize, grad_scale, found_inf };
            Box::new(Adagrad::new(options, four(), numel, param, grad, state)?)
        }
    })
}

/// The output that the result becomes in the memory of the operand it came from.
fn output_in_place(p: &Planner, result: Value, from: &Place) -> Option<usize> {
    let Slot::Argument { index, offset: 0 } = from.slot else { return None };
    p.graph.outputs.iter().position(|o| o.value == result && o.to == Destination::Param(index) && o.layout == from.ty)
}

/// True if the elements fill a run of memory, in whatever order.
fn is_dense(ty: &TensorType) -> bool {
    let mut dims: Vec<(i64, i64)> =
        ty.strides.iter().copied().zip(ty.sizes.iter().copied()).filter(|(_, size)| *size != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.iter().all(|(stride, size)| {
        let fits = *stride == expected;
        expected *= size;
        fits
    })
}
