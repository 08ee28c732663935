//! Checks that a graph is well formed: run on every graph in debug builds and tests.

use crate::{DType, Graph, Node, Op};
use thiserror::Error;

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// An operand is not defined before its use.
    #[error("{op}: operand %{value} is not defined before its use")]
    Undefined {
        /// Operator name.
        op: &'static str,
        /// The operand.
        value: u32,
    },
    /// Wrong number of operands.
    #[error("{op}: {got} operands, expected {expected}")]
    Arity {
        /// Operator name.
        op: &'static str,
        /// Operands present.
        got: usize,
        /// Operands wanted.
        expected: usize,
    },
    /// Operand and result types do not fit the operator.
    #[error("{op}: {detail}")]
    Type {
        /// Operator name.
        op: &'static str,
        /// What does not fit.
        detail: String,
    },
}

/// Verifies definition order, arity, element types and shapes.
///
/// # Errors
/// The first fault found, in order of execution.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    for node in &graph.nodes {
        let op = node.op.name();
        if let Some(v) = node.operands.iter().find(|v| **v >= node.first) {
            return Err(VerifyError::Undefined { op, value: v.0 });
        }
        verify_node(graph, node)?;
    }
    for o in &graph.outputs {
        if o.value.0 as usize >= graph.values() {
            return Err(VerifyError::Undefined { op: "store", value: o.value.0 });
        }
        let shape = graph.shape(o.value);
        if *shape != o.layout.shape() {
            return Err(VerifyError::Type { op: "store", detail: format!("value is {shape}, layout is {}", o.layout) });
        }
    }
    Ok(())
}

fn verify_node(graph: &Graph, node: &Node) -> Result<(), VerifyError> {
    let op = node.op.name();
    let wrong = |detail: String| Err(VerifyError::Type { op, detail });
    let arity = match node.op {
        Op::Param { .. } | Op::ScalarParam { .. } | Op::Constant(_) | Op::Iota { .. } => Some(0),
        Op::Unary(_)
        | Op::Convert
        | Op::Broadcast
        | Op::Reshape
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::Reduce { .. }
        | Op::Once => Some(1),
        Op::Binary(_) | Op::Dot | Op::SoftmaxBackward { .. } => Some(2),
        Op::Select => Some(3),
        _ => None,
    };
    if let Some(expected) = arity.filter(|n| *n != node.operands.len()) {
        return Err(VerifyError::Arity { op, got: node.operands.len(), expected });
    }
    let result = &node.results[0];
    let operand = |i: usize| graph.shape(node.operands[i]);
    match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select => {
            for i in 0..node.operands.len() {
                if operand(i).sizes != result.sizes {
                    return wrong(format!("operand {i} is {}, result is {result}", operand(i)));
                }
            }
            let first = usize::from(matches!(node.op, Op::Select));
            let dtype = operand(first).dtype;
            if dtype.compute() != dtype && !matches!(node.op, Op::Select) {
                return wrong(format!("arithmetic on storage type {dtype}"));
            }
            if (first..node.operands.len()).any(|i| operand(i).dtype != dtype) {
                return wrong(format!("operands of different types, first {dtype}"));
            }
            if first == 1 && operand(0).dtype != DType::Bool {
                return wrong(format!("condition is {}", operand(0)));
            }
        }
        Op::Convert if operand(0).sizes != result.sizes => {
            return wrong(format!("operand is {}, result is {result}", operand(0)));
        }
        Op::Reshape if operand(0).numel() != result.numel() => {
            return wrong(format!("operand is {}, result is {result}", operand(0)));
        }
        Op::Broadcast
            if crate::broadcast_sizes(&operand(0).sizes, &result.sizes).as_deref() != Some(result.sizes.as_slice()) =>
        {
            return wrong(format!("{} does not expand to {result}", operand(0)));
        }
        Op::Transpose { permutation } => {
            let from = operand(0);
            let fits = permutation.len() == from.rank()
                && result.rank() == from.rank()
                && permutation.iter().zip(&result.sizes).all(|(&p, &s)| from.sizes.get(p as usize) == Some(&s));
            if !fits {
                return wrong(format!("{from} permuted by {permutation:?} is not {result}"));
            }
        }
        Op::Slice { dim, start, step } => {
            let from = operand(0);
            let fits = *start >= 0
                && *step >= 1
                && from.rank() == result.rank()
                && *dim < from.rank()
                && start + (result.sizes[*dim] - 1) * step < from.sizes[*dim]
                && (0..from.rank()).all(|d| d == *dim || from.sizes[d] == result.sizes[d]);
            if !fits {
                return wrong(format!("{from} from {start} by {step} along {dim} is not {result}"));
            }
        }
        Op::Dot => {
            let (a, b) = (operand(0), operand(1));
            let r = a.rank();
            let fits = r >= 2
                && b.rank() == r
                && result.rank() == r
                && a.sizes[..r - 2] == b.sizes[..r - 2]
                && a.sizes[..r - 2] == result.sizes[..r - 2]
                && a.sizes[r - 1] == b.sizes[r - 2]
                && a.sizes[r - 2] == result.sizes[r - 2]
                && b.sizes[r - 1] == result.sizes[r - 1];
            if !fits {
                return wrong(format!("{a} times {b} is not {result}"));
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BinaryOp, GraphBuilder, Shape, TensorType, Value};

    #[test]
    fn arithmetic_on_half_is_refused() {
        let mut g = GraphBuilder::default();
        let a = g.param(TensorType::contiguous(DType::BF16, &[2]));
        g.binary(BinaryOp::Add, a, a);
        let e = verify(&g.finish()).unwrap_err();
        assert_eq!(e.to_string(), "add: arithmetic on storage type bf16");
    }

    #[test]
    fn use_before_definition_is_refused() {
        let mut g = GraphBuilder::default();
        g.op(Op::Convert, &[Value(5)], Shape::new(DType::F32, &[]));
        assert!(matches!(verify(&g.finish()), Err(VerifyError::Undefined { value: 5, .. })));
    }

    #[test]
    fn dot_shapes_must_agree() {
        let mut g = GraphBuilder::default();
        let a = g.param(TensorType::contiguous(DType::F32, &[2, 3]));
        let b = g.param(TensorType::contiguous(DType::F32, &[4, 5]));
        g.op(Op::Dot, &[a, b], Shape::new(DType::F32, &[2, 5]));
        assert!(verify(&g.finish()).is_err());
    }
}
