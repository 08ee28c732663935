//! Which graphs gain from being joined with their neighbours.

use crate::analysis::is_lazy;
use neuron_ir::{BinaryOp, Graph, Op};

/// True if a graph is elementwise, or works along rows, and cannot fail: joined to others of the kind, it saves passes over
/// memory, and no error is ever seen under another operator's name.
pub(crate) fn is_fusible(graph: &Graph) -> bool {
    let divides =
        |op: &Op| matches!(op, Op::Binary(BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Remainder | BinaryOp::Fmod));
    let is_integer = |v| !graph.shape(v).dtype.is_float();
    !graph.outputs.is_empty()
        && graph.nodes.iter().all(|n| {
            (is_lazy(&n.op) && !(divides(&n.op) && is_integer(n.first)))
                || matches!(
                    n.op,
                    Op::Reduce { .. }
                        | Op::Variance { .. }
                        | Op::Softmax { .. }
                        | Op::SoftmaxBackward { .. }
                        | Op::LayerNorm { .. }
                        | Op::RmsNorm { .. }
                        | Op::Once
                )
        })
        && graph.outputs.iter().all(|o| o.layout.is_contiguous())
}
