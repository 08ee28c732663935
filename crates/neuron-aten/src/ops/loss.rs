//! Losses.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Op, ReduceOp, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::nll_loss_forward", "aten::nll_loss_forward.output"], nll_loss),
    (&["aten::nll_loss_backward", "aten::nll_loss_backward.grad_input"], nll_loss_backward),
    (&["aten::mse_loss", "aten::mse_loss.out"], mse_loss),
    (&["aten::mse_loss_backward", "aten::mse_loss_backward.grad_input"], mse_loss_backward),
];

/// `(self, target, weight?, reduction, ignore_index)`: results `output, total_weight`
fn nll_loss(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    if !l.ty(1)?.dtype.is_int() || ty.rank() == 0 || ty.rank() > 2 {
        return Err(LowerError::unsupported("targets that are no classes or inputs that are not a matrix"));
    }
    let weight = l.has_tensor(2);
    let target = l.tensor(1)?;
    let mut operands = vec![l.tensor(0)?, l.g.convert(target, DType::I64)];
    if weight {
        operands.push(l.tensor(2)?);
    }
    let op = Op::NllLoss { reduction: l.int(3)?, ignore_index: l.int(4)?, weight };
    let total = Shape::new(l.out(1)?.dtype, &[]);
    let loss = l.out(0)?.shape();
    let first = l.g.push(op, &operands, &[loss, total]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// `(grad_output, self, target, weight?, reduction, ignore_index, total_weight)`
fn nll_loss_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(1)?.clone();
    if !l.ty(2)?.dtype.is_int() {
        return Err(LowerError::unsupported("targets that are no classes"));
    }
    let weight = l.has_tensor(3);
    let target = l.tensor(2)?;
    let mut operands = vec![l.tensor(0)?, l.g.convert(target, DType::I64), l.tensor(6)?];
    if weight {
        operands.push(l.tensor(3)?);
    }
    let op = Op::NllLossBackward { reduction: l.int(4)?, ignore_index: l.int(5)?, weight };
    let value = l.g.op(op, &operands, ty.shape());
    l.store_value(value)
}

/// Reduces `value` as `at::Reduction` says: 0 none, 1 mean, 2 sum.
fn reduced(l: &mut Lower, value: Value, reduction: i64, dtype: DType) -> Lowered {
    if reduction == 0 {
        return l.store(Typed { value, dtype });
    }
    let shape = l.g.shape(value).clone();
    let n = shape.numel();
    let dims = (0..shape.rank() as i64).collect();
    let mut kept = shape;
    kept.sizes.fill(1);
    let total = l.g.op(Op::Reduce { op: ReduceOp::Sum, dims }, &[value], kept);
    let value = if reduction == 1 { l.with_constant(BinaryOp::Div, total, n as f64) } else { total };
    l.store(Typed { value, dtype })
}

/// `(self, target, reduction)`
fn mse_loss(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let d = l.bin(BinaryOp::Sub, a, b);
    let square = l.bin(BinaryOp::Mul, d, d);
    let reduction = l.int(2)?;
    reduced(l, square, reduction, dtype)
}

/// `(grad_output, self, target, reduction)`
fn mse_loss_backward(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[1, 2])?;
    let (a, b) = (l.operand(1, dtype)?, l.operand(2, dtype)?);
    let grad = l.operand(0, dtype)?;
    let d = l.bin(BinaryOp::Sub, a, b);
    let n = if l.int(3)? == 1 { l.g.shape(d).numel() as f64 } else { 1.0 };
    let scaled = l.with_constant(BinaryOp::Mul, d, 2.0 / n);
    let value = l.bin(BinaryOp::Mul, scaled, grad);
    l.store(Typed { value, dtype })
}
