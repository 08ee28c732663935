//! Losses.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, CheckOp, DType, Op, ReduceOp, Shape, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::nll_loss_forward", "aten::nll_loss_forward.output"], nll_loss),
    (&["aten::nll_loss_backward", "aten::nll_loss_backward.grad_input"], nll_loss_backward),
    (&["aten::mse_loss", "aten::mse_loss.out"], mse_loss),
    (&["aten::mse_loss_backward", "aten::mse_loss_backward.grad_input"], mse_loss_backward),
    (&["aten::huber_loss", "aten::huber_loss.out"], huber_loss),
    (&["aten::huber_loss_backward", "aten::huber_loss_backward.out"], huber_loss_backward),
    (&["aten::smooth_l1_loss", "aten::smooth_l1_loss.out"], smooth_l1_loss),
    (&["aten::smooth_l1_loss_backward", "aten::smooth_l1_loss_backward.grad_input"], smooth_l1_loss_backward),
    (&["aten::binary_cross_entropy", "aten::binary_cross_entropy.out"], binary_cross_entropy),
    (
        &["aten::binary_cross_entropy_backward", "aten::binary_cross_entropy_backward.grad_input"],
        binary_cross_entropy_backward,
    ),
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

/// The difference of two tensors and their common type.
fn difference(l: &mut Lower, i: usize, j: usize) -> Result<(Value, DType), LowerError> {
    let dtype = l.common(&[i, j])?;
    if !dtype.is_float() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    let (a, b) = (l.operand(i, dtype)?, l.operand(j, dtype)?);
    Ok((l.bin(BinaryOp::Sub, a, b), dtype))
}

/// What a mean over the elements of `value` divides a gradient by; 1 for other reductions.
fn divisor(l: &Lower, reduction: i64, value: Value) -> f64 {
    if reduction == 1 { l.g.shape(value).numel() as f64 } else { 1.0 }
}

/// `quadratic` of `|d|` below `limit`, `linear` from there on.
fn below(l: &mut Lower, magnitude: Value, limit: f64, quadratic: Value, linear: Value) -> Value {
    let inside = l.with_constant(BinaryOp::Lt, magnitude, limit);
    l.g.select(inside, quadratic, linear)
}

/// `(self, target, reduction, delta)`: `d^2 / 2` up to `delta`, `delta (|d| - delta / 2)` beyond
fn huber_loss(l: &mut Lower) -> Lowered {
    let delta = l.float_or(3, 1.0);
    if delta <= 0.0 {
        return Err(LowerError::unsupported("a delta that is not positive, as on the CPU"));
    }
    let (d, dtype) = difference(l, 0, 1)?;
    let z = l.un(UnaryOp::Abs, d);
    let half = l.with_constant(BinaryOp::Mul, z, 0.5);
    let quadratic = l.bin(BinaryOp::Mul, half, z);
    let shifted = l.with_constant(BinaryOp::Sub, z, 0.5 * delta);
    let linear = l.with_constant(BinaryOp::Mul, shifted, delta);
    let value = below(l, z, delta, quadratic, linear);
    let reduction = l.int(2)?;
    let value = l.round(value, dtype);
    reduced(l, value, reduction, dtype)
}

/// `(grad, self, target, reduction, delta)`
fn huber_loss_backward(l: &mut Lower) -> Lowered {
    let delta = l.float_or(4, 1.0);
    let (d, dtype) = difference(l, 1, 2)?;
    let n = divisor(l, l.int(3)?, d);
    clipped_slope(l, d, dtype, delta, 1.0 / n)
}

/// `grad * factor * clamp(d, -limit, limit)`
fn clipped_slope(l: &mut Lower, d: Value, dtype: DType, limit: f64, factor: f64) -> Lowered {
    let grad = l.operand(0, dtype)?;
    let low = l.with_constant(BinaryOp::Maximum, d, -limit);
    let slope = l.with_constant(BinaryOp::Minimum, low, limit);
    let scaled = l.with_constant(BinaryOp::Mul, slope, factor);
    let value = l.bin(BinaryOp::Mul, scaled, grad);
    l.store(Typed { value, dtype })
}

/// `(self, target, reduction, beta)`: `d^2 / (2 beta)` below `beta`, `|d| - beta / 2` from there on
fn smooth_l1_loss(l: &mut Lower) -> Lowered {
    let beta = l.float_or(3, 1.0);
    let (d, dtype) = difference(l, 0, 1)?;
    let z = l.un(UnaryOp::Abs, d);
    let half = l.with_constant(BinaryOp::Mul, z, 0.5);
    let square = l.bin(BinaryOp::Mul, half, z);
    let quadratic = l.with_constant(BinaryOp::Div, square, beta);
    let linear = l.with_constant(BinaryOp::Sub, z, 0.5 * beta);
    let value = below(l, z, beta, quadratic, linear);
    let reduction = l.int(2)?;
    let value = l.round(value, dtype);
    reduced(l, value, reduction, dtype)
}

/// `(grad, self, target, reduction, beta)`
fn smooth_l1_loss_backward(l: &mut Lower) -> Lowered {
    let beta = l.float_or(4, 1.0);
    let (d, dtype) = difference(l, 1, 2)?;
    let n = divisor(l, l.int(3)?, d);
    if beta > 0.0 {
        return clipped_slope(l, d, dtype, beta, 1.0 / (n * beta));
    }
    let grad = l.operand(0, dtype)?;
    let sign = l.un(UnaryOp::Sign, d);
    let scaled = l.with_constant(BinaryOp::Mul, sign, 1.0 / n);
    let value = l.bin(BinaryOp::Mul, scaled, grad);
    l.store(Typed { value, dtype })
}

/// `value` times tensor argument `i`, if there is one.
fn weighted(l: &mut Lower, value: Value, i: usize, dtype: DType) -> Result<Value, LowerError> {
    if !l.has_tensor(i) {
        return Ok(value);
    }
    let weight = l.operand(i, dtype)?;
    let value = l.round(value, dtype);
    Ok(l.bin(BinaryOp::Mul, value, weight))
}

/// `(self, target, weight?, reduction)`: `(t - 1) log(1 - x) - t log(x)`, logarithms not below -100
fn binary_cross_entropy(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let prediction = l.tensor(0)?;
    l.require(CheckOp::Prediction, prediction);
    if l.ty(1)?.dtype.is_float() {
        let target = l.tensor(1)?;
        l.require(CheckOp::Target, target);
    }
    let (x, target) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let negative = l.un(UnaryOp::Neg, x);
    let rest = l.un(UnaryOp::Log1p, negative);
    let rest = l.with_constant(BinaryOp::Maximum, rest, -100.0);
    let log = l.un(UnaryOp::Log, x);
    let log = l.with_constant(BinaryOp::Maximum, log, -100.0);
    let without = l.with_constant(BinaryOp::Sub, target, 1.0);
    let without = l.bin(BinaryOp::Mul, without, rest);
    let with = l.bin(BinaryOp::Mul, target, log);
    let loss = l.bin(BinaryOp::Sub, without, with);
    let loss = weighted(l, loss, 2, dtype)?;
    let reduction = l.int(3)?;
    let loss = l.round(loss, dtype);
    reduced(l, loss, reduction, dtype)
}

/// `(grad, self, target, weight?, reduction)`: `grad (x - t) / max(x (1 - x), 1e-12)`
fn binary_cross_entropy_backward(l: &mut Lower) -> Lowered {
    let dtype = l.ty(1)?.dtype;
    let (grad, x, target) = (l.operand(0, dtype)?, l.operand(1, dtype)?, l.operand(2, dtype)?);
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, x);
    let slope = l.bin(BinaryOp::Mul, rest, x);
    let slope = l.with_constant(BinaryOp::Maximum, slope, 1e-12);
    let d = l.bin(BinaryOp::Sub, x, target);
    let numerator = l.bin(BinaryOp::Mul, grad, d);
    let value = l.bin(BinaryOp::Div, numerator, slope);
    let value = weighted(l, value, 3, dtype)?;
    let n = divisor(l, l.int(4)?, x);
    let value = if n == 1.0 { value } else { l.with_constant(BinaryOp::Div, value, n) };
    l.store(Typed { value, dtype })
}
