//! Elementwise operators of two tensors, or a tensor and a number, with type promotion.

use super::{Row, overloads};
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::add.Tensor", "aten::add_.Tensor", "aten::add.out"], |l| sum(l, 0, 1)),
    (&["aten::sub.Tensor", "aten::sub_.Tensor", "aten::sub.out"], |l| difference(l, 0, 1)),
    (&["aten::rsub.Tensor"], |l| difference(l, 1, 0)),
    (&["aten::mul.Tensor", "aten::mul_.Tensor", "aten::mul.out"], |l| arithmetic(l, BinaryOp::Mul)),
    (&["aten::div.Tensor", "aten::div_.Tensor", "aten::div.out"], divide),
    (&["aten::div.Tensor_mode", "aten::div_.Tensor_mode", "aten::div.out_mode"], divide_mode),
    (&["aten::floor_divide", "aten::floor_divide_.Tensor", "aten::floor_divide.out"], |l| {
        arithmetic(l, BinaryOp::FloorDiv)
    }),
    (&["aten::remainder.Tensor", "aten::remainder_.Tensor", "aten::remainder.Tensor_out"], |l| {
        arithmetic(l, BinaryOp::Remainder)
    }),
    (&["aten::fmod.Tensor", "aten::fmod_.Tensor", "aten::fmod.Tensor_out"], |l| arithmetic(l, BinaryOp::Fmod)),
    (&["aten::pow.Tensor_Tensor", "aten::pow_.Tensor", "aten::pow.Tensor_Tensor_out"], |l| exact(l, BinaryOp::Pow)),
    (&["aten::pow.Tensor_Scalar", "aten::pow_.Scalar", "aten::pow.Tensor_Scalar_out"], power_of_number),
    (&["aten::pow.Scalar", "aten::pow.Scalar_out"], |l| exact(l, BinaryOp::Pow)),
    (overloads!("atan2"), |l| float(l, BinaryOp::Atan2)),
    (overloads!("hypot"), |l| exact(l, BinaryOp::Hypot)),
    (&["aten::copysign.Tensor", "aten::copysign_.Tensor", "aten::copysign.out"], |l| float(l, BinaryOp::Copysign)),
    (&["aten::maximum", "aten::maximum.out"], |l| exact(l, BinaryOp::Maximum)),
    (&["aten::minimum", "aten::minimum.out"], |l| exact(l, BinaryOp::Minimum)),
    (&["aten::fmax", "aten::fmax.out"], |l| exact(l, BinaryOp::Fmax)),
    (&["aten::fmin", "aten::fmin.out"], |l| exact(l, BinaryOp::Fmin)),
    (&["aten::bitwise_and.Tensor", "aten::bitwise_and_.Tensor", "aten::bitwise_and.Tensor_out"], |l| {
        exact(l, BinaryOp::And)
    }),
    (&["aten::bitwise_or.Tensor", "aten::bitwise_or_.Tensor", "aten::bitwise_or.Tensor_out"], |l| {
        exact(l, BinaryOp::Or)
    }),
    (&["aten::bitwise_xor.Tensor", "aten::bitwise_xor_.Tensor", "aten::bitwise_xor.Tensor_out"], |l| {
        exact(l, BinaryOp::Xor)
    }),
    (
        &["aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift_.Tensor", "aten::bitwise_left_shift.Tensor_out"],
        |l| exact(l, BinaryOp::Shl),
    ),
    (
        &[
            "aten::bitwise_right_shift.Tensor",
            "aten::bitwise_right_shift_.Tensor",
            "aten::bitwise_right_shift.Tensor_out",
        ],
        |l| exact(l, BinaryOp::Shr),
    ),
    (overloads!("logical_and"), |l| logical(l, BinaryOp::And)),
    (overloads!("logical_or"), |l| logical(l, BinaryOp::Or)),
    (overloads!("logical_xor"), |l| logical(l, BinaryOp::Xor)),
    (overloads!("eq", "Tensor"), |l| compare(l, BinaryOp::Eq)),
    (overloads!("eq", "Scalar"), |l| compare(l, BinaryOp::Eq)),
    (overloads!("ne", "Tensor"), |l| compare(l, BinaryOp::Ne)),
    (overloads!("ne", "Scalar"), |l| compare(l, BinaryOp::Ne)),
    (overloads!("lt", "Tensor"), |l| compare(l, BinaryOp::Lt)),
    (overloads!("lt", "Scalar"), |l| compare(l, BinaryOp::Lt)),
    (overloads!("le", "Tensor"), |l| compare(l, BinaryOp::Le)),
    (overloads!("le", "Scalar"), |l| compare(l, BinaryOp::Le)),
    (overloads!("gt", "Tensor"), |l| compare(l, BinaryOp::Gt)),
    (overloads!("gt", "Scalar"), |l| compare(l, BinaryOp::Gt)),
    (overloads!("ge", "Tensor"), |l| compare(l, BinaryOp::Ge)),
    (overloads!("ge", "Scalar"), |l| compare(l, BinaryOp::Ge)),
];

/// Both operands, numbers at full precision, and their common type.
fn wide(l: &mut Lower, a: usize, b: usize) -> Result<(Value, Value, DType), LowerError> {
    let dtype = l.common(&[0, 1])?;
    Ok((l.wide_operand(a, dtype)?, l.wide_operand(b, dtype)?, dtype))
}

fn arithmetic(l: &mut Lower, op: BinaryOp) -> Lowered {
    let (a, b, dtype) = wide(l, 0, 1)?;
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype })
}

/// Operands rounded to the common type first.
fn exact(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype })
}

fn sum(l: &mut Lower, i: usize, j: usize) -> Lowered {
    let (a, b, dtype) = wide(l, i, j)?;
    let b = l.scaled(b, 2)?;
    let value = l.bin(BinaryOp::Add, a, b);
    l.store(Typed { value, dtype })
}

fn difference(l: &mut Lower, i: usize, j: usize) -> Lowered {
    let (a, b, dtype) = wide(l, i, j)?;
    let b = l.scaled(b, 2)?;
    let value = l.bin(BinaryOp::Sub, a, b);
    l.store(Typed { value, dtype })
}

/// The common type, or the default float where that is an integer.
pub(super) fn common_float(l: &Lower) -> Result<DType, LowerError> {
    let common = l.common(&[0, 1])?;
    let out = l.out(0)?.dtype;
    Ok(match common {
        d if d.is_float() => d,
        _ if l.is_fresh(0) && out.is_float() => out,
        _ => DType::F32,
    })
}

fn float(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = common_float(l)?;
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype })
}

fn divide(l: &mut Lower) -> Lowered {
    let dtype = common_float(l)?;
    let (a, b) = (l.wide_operand(0, dtype)?, l.wide_operand(1, dtype)?);
    let value = l.bin(BinaryOp::Div, a, b);
    l.store(Typed { value, dtype })
}

fn divide_mode(l: &mut Lower) -> Lowered {
    match l.str(2) {
        "floor" => arithmetic(l, BinaryOp::FloorDiv),
        "trunc" => {
            let (a, b, dtype) = wide(l, 0, 1)?;
            let quotient = l.bin(BinaryOp::Div, a, b);
            // The quotient of half floats is a half float before it is truncated.
            let value = match dtype.is_float() {
                true => {
                    let quotient = l.round(quotient, dtype);
                    l.un(UnaryOp::Trunc, quotient)
                }
                false => quotient,
            };
            l.store(Typed { value, dtype })
        }
        _ => divide(l),
    }
}

/// Powers with the exponent a number. Squares are products; other exponents are not known when the plan is made.
fn power_of_number(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let a = l.operand(0, dtype)?;
    if dtype.is_int() && l.known(1, 0.0)? < 0.0 {
        return Err(LowerError::unsupported("a negative power of integers"));
    }
    let value = if l.scalar(1)?.two {
        l.bin(BinaryOp::Mul, a, a)
    } else {
        let b = l.wide_operand(1, dtype)?;
        l.bin(BinaryOp::Pow, a, b)
    };
    l.store(Typed { value, dtype })
}

fn logical(l: &mut Lower, op: BinaryOp) -> Lowered {
    let mut truth = |i| {
        let x = l.tensor(i)?;
        Ok::<_, LowerError>(l.g.convert(x, DType::Bool))
    };
    let (a, b) = (truth(0)?, truth(1)?);
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype: DType::Bool })
}

fn compare(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype: DType::Bool })
}
