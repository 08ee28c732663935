//! Elementwise operators of three operands, and clamping.

use super::{Row, overloads};
use crate::call::Arg;
use crate::lower::{Lower, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::where.self", "aten::where.self_out"], where_),
    (&["aten::lerp.Scalar", "aten::lerp_.Scalar", "aten::lerp.Scalar_out"], lerp),
    (&["aten::lerp.Tensor", "aten::lerp_.Tensor", "aten::lerp.Tensor_out"], lerp),
    (overloads!("addcmul"), |l| with_product(l, BinaryOp::Mul)),
    (overloads!("addcdiv"), |l| with_product(l, BinaryOp::Div)),
    (&["aten::addr", "aten::addr_", "aten::addr.out"], addr),
    (overloads!("clamp"), clamp),
    (&["aten::clamp.Tensor", "aten::clamp_.Tensor", "aten::clamp.Tensor_out"], clamp),
    (overloads!("clamp_min"), |l| clamp_one(l, BinaryOp::Maximum)),
    (&["aten::clamp_min.Tensor", "aten::clamp_min_.Tensor", "aten::clamp_min.Tensor_out"], |l| {
        clamp_one(l, BinaryOp::Maximum)
    }),
    (overloads!("clamp_max"), |l| clamp_one(l, BinaryOp::Minimum)),
    (&["aten::clamp_max.Tensor", "aten::clamp_max_.Tensor", "aten::clamp_max.Tensor_out"], |l| {
        clamp_one(l, BinaryOp::Minimum)
    }),
    (&["aten::masked_fill.Scalar", "aten::masked_fill_.Scalar"], masked_fill),
    (&["aten::masked_fill.Tensor", "aten::masked_fill_.Tensor"], masked_fill),
];

fn where_(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[1, 2])?;
    let condition = l.tensor(0)?;
    let condition = l.g.convert(condition, DType::Bool);
    let (a, b) = (l.operand(1, dtype)?, l.operand(2, dtype)?);
    let value = l.g.select(condition, a, b);
    l.store(Typed { value, dtype })
}

fn lerp(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (start, end) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let weight = l.wide_operand(2, dtype)?;
    let value = lerp_values(l, start, end, weight, dtype);
    l.store(Typed { value, dtype })
}

/// From whichever end is nearer, so that a weight of 1 gives the end exactly.
pub(super) fn lerp_values(l: &mut Lower, start: Value, end: Value, weight: Value, dtype: DType) -> Value {
    let difference = l.bin(BinaryOp::Sub, end, start);
    let step = l.bin(BinaryOp::Mul, weight, difference);
    let near_start = l.bin(BinaryOp::Add, start, step);
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, weight);
    let back = l.bin(BinaryOp::Mul, difference, rest);
    let near_end = l.bin(BinaryOp::Sub, end, back);
    let magnitude = l.un(UnaryOp::Abs, weight);
    let is_near_start = l.with_constant(BinaryOp::Lt, magnitude, 0.5);
    l.g.select(is_near_start, near_start, near_end)
}

/// `self + value * (tensor1 op tensor2)`
fn with_product(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1, 2])?;
    let (x, a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?, l.operand(2, dtype)?);
    let value = if op == BinaryOp::Mul {
        let scaled = l.scaled(a, 3)?;
        l.bin(BinaryOp::Mul, scaled, b)
    } else {
        let scaled = l.scaled(a, 3)?;
        l.bin(BinaryOp::Div, scaled, b)
    };
    let value = l.bin(BinaryOp::Add, x, value);
    l.store(Typed { value, dtype })
}

/// `beta self + alpha vec1 vec2^T`, rounded at each step; `self` is not read where `beta` is 0.
fn addr(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1, 2])?;
    let (column, row) = (l.operand(1, dtype)?, l.operand(2, dtype)?);
    let (rows, columns) = (l.g.shape(column).numel(), l.g.shape(row).numel());
    let (column, row) = (l.g.reshape(column, &[rows, 1]), l.g.reshape(row, &[1, columns]));
    let alpha = l.operand(4, dtype)?;
    let scaled = l.bin(BinaryOp::Mul, alpha, column);
    let scaled = l.round(scaled, dtype);
    let mut value = l.bin(BinaryOp::Mul, scaled, row);
    if !l.scalar(3)?.zero {
        let value_rounded = l.round(value, dtype);
        let (beta, x) = (l.operand(3, dtype)?, l.operand(0, dtype)?);
        let kept = l.bin(BinaryOp::Mul, beta, x);
        let kept = l.round(kept, dtype);
        value = l.bin(BinaryOp::Add, kept, value_rounded);
    }
    l.store(Typed { value, dtype })
}

/// Where the bounds cross, the upper one wins. NaN of the tensor and of the bounds stays.
fn clamp(l: &mut Lower) -> Lowered {
    let present: Vec<usize> = [0, 1, 2].into_iter().filter(|i| *l.arg(*i) != Arg::None).collect();
    let dtype = l.common(&present)?;
    let mut value = l.operand(0, dtype)?;
    if present.contains(&1) {
        let low = l.operand(1, dtype)?;
        value = l.bin(BinaryOp::Maximum, value, low);
    }
    if present.contains(&2) {
        let high = l.operand(2, dtype)?;
        value = l.bin(BinaryOp::Minimum, value, high);
    }
    l.store(Typed { value, dtype })
}

fn clamp_one(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (x, bound) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let value = l.bin(op, x, bound);
    l.store(Typed { value, dtype })
}

fn masked_fill(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.tensor(0)?;
    let mask = l.tensor(1)?;
    let mask = l.g.convert(mask, DType::Bool);
    let fill = l.operand(2, dtype)?;
    let fill = l.g.convert(fill, dtype);
    let value = l.g.select(mask, fill, x);
    l.store(Typed { value, dtype })
}
