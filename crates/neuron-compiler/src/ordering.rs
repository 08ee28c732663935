//! Kernels of the operators that move, order, search and count: [`OrderingOp`].

use crate::kernels::{Emitted, begin_update, push, second};
use crate::plan::{Place, Planner};
use neuron_ir::{Node, OrderingOp};
use neuron_kernels::cumulative::{LogCumSumExp, RunningExtreme};
use neuron_kernels::distance::{Distance, DistanceBackward};
use neuron_kernels::movement::Movement;
use neuron_kernels::scatter::IndexCopy;
use neuron_kernels::search::Search;
use neuron_kernels::segment::{SegmentReduce, SegmentReduceBackward};
use neuron_kernels::sort::Select;
use neuron_kernels::{Kernel, KernelError};

/// Emits the kernel of one node.
pub(crate) fn emit(p: &mut Planner, node: &Node, op: &OrderingOp) -> Emitted {
    let v = node.first;
    match op {
        OrderingOp::Flip { dims } => {
            let x = p.realize(node.operands[0])?;
            let out = p.result(v);
            push(p, Movement::flip(&x.ty, dims, &out.ty)?, &[&x, &out])
        }
        OrderingOp::Roll { shifts } => {
            let x = p.realize(node.operands[0])?;
            let out = p.result(v);
            push(p, Movement::roll(&x.ty, shifts, &out.ty)?, &[&x, &out])
        }
        OrderingOp::IndexCopy { dim } => {
            let (rest, out) = begin_update(p, node)?;
            push(p, IndexCopy::new(*dim, &rest[0].ty, &rest[1].ty, &out.ty)?, &[&rest[0], &rest[1], &out])
        }
        OrderingOp::RunningExtreme { dim, max } => {
            let x = p.realize(node.operands[0])?;
            let (values, indices) = (p.result(v), p.result(second(v)));
            let kernel = RunningExtreme::new(*max, &x.ty, *dim, &values.ty, &indices.ty)?;
            push(p, kernel, &[&x, &values, &indices])
        }
        OrderingOp::LogCumSumExp { dim } => {
            let x = p.realize(node.operands[0])?;
            let out = p.result(v);
            push(p, LogCumSumExp::new(&x.ty, *dim, &out.ty)?, &[&x, &out])
        }
        OrderingOp::Select { dim, selection } => {
            let x = p.realize(node.operands[0])?;
            let (values, indices) = (p.result(v), p.result(second(v)));
            let kernel = Select::new(&x.ty, *dim, *selection, &values.ty, &indices.ty)?;
            push(p, kernel, &[&x, &values, &indices])
        }
        OrderingOp::Search { right } => {
            row_major(p, node, |[sequence, values], out| Search::new(*right, &sequence.ty, &values.ty, &out.ty))
        }
        OrderingOp::Distance { order } => {
            row_major(p, node, |[x1, x2], out| Distance::new(*order, &x1.ty, &x2.ty, &out.ty))
        }
        OrderingOp::DistanceBackward { order } => row_major(p, node, |[grad, x1, x2, distances], out| {
            DistanceBackward::new(*order, &grad.ty, &x1.ty, &x2.ty, &distances.ty, &out.ty)
        }),
        OrderingOp::SegmentReduce { op, initial } => {
            row_major(p, node, |[data, offsets], out| SegmentReduce::new(*op, *initial, &data.ty, &offsets.ty, &out.ty))
        }
        OrderingOp::SegmentReduceBackward { op, initial } => {
            row_major(p, node, |[grad, result, data, offsets], out| {
                let results = [&grad.ty, &result.ty];
                SegmentReduceBackward::new(*op, *initial, results, &data.ty, &offsets.ty, &out.ty)
            })
        }
    }
}

/// A kernel of one result whose operands and result are row-major.
fn row_major<K: Kernel + 'static, const N: usize>(
    p: &mut Planner,
    node: &Node,
    kernel: impl FnOnce([&Place; N], &Place) -> Result<K, KernelError>,
) -> Emitted {
    let operands = node.operands.iter().map(|v| p.realize_contiguous(*v)).collect::<Result<Vec<_>, _>>()?;
    let out = p.result_where(node.first, |ty| ty.is_contiguous());
    let kernel = kernel(std::array::from_fn(|i| &operands[i]), &out)?;
    let mut buffers: Vec<&Place> = operands.iter().collect();
    buffers.push(&out);
    push(p, kernel, &buffers)
}
