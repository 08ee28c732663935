//! Kernels of windows and planes, and the layouts they want.

use crate::kernels::{Emitted, push};
use crate::plan::{Place, Planner};
use crate::program::Slot;
use neuron_ir::{Node, SpatialOp, Taps, TensorType, Value};
use neuron_kernels::KernelError;
use neuron_kernels::spatial::{
    AvgPool, AvgPoolBackward, EmbeddingBag, Fold, FractionalMaxPool, GridSample, GridSampleBackward, MaxPool, Pick,
    PickBackward, Resample, ToPositions, Unfold, channels_last, is_channels_last,
};

/// Emits the kernel of one node.
pub(crate) fn emit(p: &mut Planner, node: &Node, op: &SpatialOp) -> Emitted {
    match op {
        SpatialOp::MaxPool { windows } => {
            let (operands, results) = planes(p, node)?;
            let kernel = MaxPool::new(&operands[0].ty, *windows, &results[0].ty, &results[1].ty)?;
            push(p, kernel, &[&operands[0], &results[0], &results[1]])
        }
        SpatialOp::ToPositions { accumulate } => {
            let (operands, results) = planes(p, node)?;
            let kernel = ToPositions::new(&operands[0].ty, &operands[1].ty, *accumulate, &results[0].ty)?;
            push(p, kernel, &[&operands[0], &operands[1], &results[0]])
        }
        SpatialOp::AvgPool { windows, divisor } => {
            let (operands, results) = planes(p, node)?;
            let kernel = AvgPool::new(&operands[0].ty, *windows, *divisor, &results[0].ty)?;
            push(p, kernel, &[&operands[0], &results[0]])
        }
        SpatialOp::AvgPoolBackward { windows, divisor } => {
            let (operands, results) = planes(p, node)?;
            let kernel = AvgPoolBackward::new(&operands[0].ty, *windows, *divisor, &results[0].ty)?;
            push(p, kernel, &[&operands[0], &results[0]])
        }
        SpatialOp::Resample { taps } => {
            let (operands, results) = planes(p, node)?;
            let (x, out) = (&operands[0], &results[0]);
            if taps.iter().any(|t| matches!(t, Taps::Filter { .. })) {
                push(p, Resample::new(&x.ty, *taps, false, &out.ty)?, &[x, out])
            } else {
                push(p, Pick::new(&x.ty, *taps, &out.ty)?, &[x, out])
            }
        }
        SpatialOp::ResampleBackward { taps } => {
            let (operands, results) = planes(p, node)?;
            let (grad, out) = (&operands[0], &results[0]);
            if taps.iter().any(|t| matches!(t, Taps::Reflect { .. } | Taps::Replicate { .. })) {
                push(p, PickBackward::new(&grad.ty, *taps, &out.ty)?, &[grad, out])
            } else {
                push(p, Resample::new(&grad.ty, *taps, true, &out.ty)?, &[grad, out])
            }
        }
        SpatialOp::FractionalMaxPool { kernel } => {
            let (operands, results) = row_major(p, node)?;
            let [x, samples] = [&operands[0].ty, &operands[1].ty];
            let kernel = FractionalMaxPool::new(x, samples, *kernel, &results[0].ty, &results[1].ty)?;
            push_all(p, kernel, &operands, &results)
        }
        SpatialOp::GridSample { sampling, outside, align_corners } => {
            let (operands, results) = row_major(p, node)?;
            let [x, grid] = [&operands[0].ty, &operands[1].ty];
            let kernel = GridSample::new(x, grid, *sampling, *outside, *align_corners, &results[0].ty)?;
            push_all(p, kernel, &operands, &results)
        }
        SpatialOp::GridSampleBackward { sampling, outside, align_corners } => {
            let (operands, results) = row_major(p, node)?;
            let [grad, x, grid] = [0, 1, 2].map(|i: usize| &operands[i].ty);
            let kernel = GridSampleBackward::new(grad, x, grid, *sampling, *outside, *align_corners)?;
            push_all(p, kernel, &operands, &results)
        }
        SpatialOp::Unfold(blocks) => {
            let (operands, results) = row_major(p, node)?;
            let kernel = Unfold::new(&operands[0].ty, *blocks, &results[0].ty)?;
            push_all(p, kernel, &operands, &results)
        }
        SpatialOp::Fold(blocks) => {
            let (operands, results) = row_major(p, node)?;
            let kernel = Fold::new(&operands[0].ty, *blocks, &results[0].ty)?;
            push_all(p, kernel, &operands, &results)
        }
        SpatialOp::EmbeddingBag { mode, include_last_offset, padding, weights } => {
            let (operands, results) = row_major(p, node)?;
            let [table, index, offsets] = [0, 1, 2].map(|i: usize| &operands[i].ty);
            let weights = weights.then(|| &operands[3].ty);
            let out = &results[0].ty;
            let kernel = EmbeddingBag::new(table, index, offsets, weights, *mode, *include_last_offset, *padding, out)?;
            push_all(p, kernel, &operands, &results)
        }
    }
}

fn push_all(
    p: &mut Planner,
    kernel: impl neuron_kernels::Kernel + 'static,
    operands: &[Place],
    results: &[Place],
) -> Emitted {
    let places: Vec<&Place> = operands.iter().chain(results).collect();
    push(p, kernel, &places)
}

fn results_of(node: &Node) -> impl Iterator<Item = Value> {
    let first = node.first.0;
    (0..node.results.len() as u32).map(move |i| Value(first + i))
}

/// Operands and results, all row-major.
fn row_major(p: &mut Planner, node: &Node) -> Result<(Vec<Place>, Vec<Place>), KernelError> {
    let operands = node.operands.iter().map(|v| p.realize_contiguous(*v)).collect::<Result<Vec<_>, _>>()?;
    let results = results_of(node).map(|v| p.result_where(v, TensorType::is_contiguous)).collect();
    Ok((operands, results))
}

/// Operands and results `[n, c, d, h, w]`: with channels last if the first operand has them so, else row-major.
fn planes(p: &mut Planner, node: &Node) -> Result<(Vec<Place>, Vec<Place>), KernelError> {
    let first = p.realize(node.operands[0])?;
    if first.ty.is_contiguous() || !is_channels_last(&first.ty) {
        return row_major(p, node);
    }
    let mut operands = vec![first];
    for v in &node.operands[1..] {
        let place = p.realize(*v)?;
        operands.push(if is_channels_last(&place.ty) {
            place
        } else {
            let to = last(p.temporary(place.ty.dtype, &place.ty.sizes.clone()));
            crate::pointwise::copy(p, &place, &to)?;
            to
        });
    }
    let mut results = Vec::new();
    for v in results_of(node) {
        let mut place = p.result_where(v, is_channels_last);
        if matches!(place.slot, Slot::Temporary { .. }) {
            place = last(place);
            p.set_place(v, place.clone());
        }
        results.push(place);
    }
    Ok((operands, results))
}

/// The same memory as a tensor with channels last.
fn last(place: Place) -> Place {
    Place { ty: channels_last(&place.ty), ..place }
}
