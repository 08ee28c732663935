//! Elementwise operators of one tensor.

use super::{Row, overloads};
use crate::lower::{Lower, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, UnaryOp};

pub(super) const ROWS: &[Row] = &[
    (overloads!("exp"), |l| float(l, UnaryOp::Exp)),
    (overloads!("exp2"), |l| float(l, UnaryOp::Exp2)),
    (overloads!("expm1"), |l| float(l, UnaryOp::Expm1)),
    (overloads!("log"), |l| float(l, UnaryOp::Log)),
    (overloads!("log2"), |l| float(l, UnaryOp::Log2)),
    (overloads!("log10"), |l| float(l, UnaryOp::Log10)),
    (overloads!("log1p"), |l| float(l, UnaryOp::Log1p)),
    (overloads!("sqrt"), |l| float(l, UnaryOp::Sqrt)),
    (overloads!("rsqrt"), |l| float(l, UnaryOp::Rsqrt)),
    (overloads!("reciprocal"), |l| float(l, UnaryOp::Reciprocal)),
    (overloads!("sin"), |l| float(l, UnaryOp::Sin)),
    (overloads!("cos"), |l| float(l, UnaryOp::Cos)),
    (overloads!("tan"), |l| float(l, UnaryOp::Tan)),
    (overloads!("asin"), |l| float(l, UnaryOp::Asin)),
    (overloads!("acos"), |l| float(l, UnaryOp::Acos)),
    (overloads!("atan"), |l| float(l, UnaryOp::Atan)),
    (overloads!("sinh"), |l| float(l, UnaryOp::Sinh)),
    (overloads!("cosh"), |l| float(l, UnaryOp::Cosh)),
    (overloads!("tanh"), |l| float(l, UnaryOp::Tanh)),
    (overloads!("asinh"), |l| float(l, UnaryOp::Asinh)),
    (overloads!("acosh"), |l| float(l, UnaryOp::Acosh)),
    (overloads!("atanh"), |l| float(l, UnaryOp::Atanh)),
    (overloads!("erf"), |l| float(l, UnaryOp::Erf)),
    (overloads!("erfc"), |l| float(l, UnaryOp::Erfc)),
    (overloads!("erfinv"), |l| float(l, UnaryOp::Erfinv)),
    (overloads!("lgamma"), |l| float(l, UnaryOp::Lgamma)),
    (overloads!("sigmoid"), |l| float(l, UnaryOp::Sigmoid)),
    (overloads!("neg"), |l| same(l, UnaryOp::Neg)),
    (overloads!("abs"), |l| same(l, UnaryOp::Abs)),
    (overloads!("sign"), |l| same(l, UnaryOp::Sign)),
    (overloads!("sgn"), |l| same(l, UnaryOp::Sign)),
    (overloads!("floor"), |l| rounding(l, UnaryOp::Floor)),
    (overloads!("ceil"), |l| rounding(l, UnaryOp::Ceil)),
    (overloads!("trunc"), |l| rounding(l, UnaryOp::Trunc)),
    (overloads!("round"), |l| rounding(l, UnaryOp::Round)),
    (overloads!("bitwise_not"), |l| same(l, UnaryOp::Not)),
    (overloads!("logical_not"), logical_not),
    (&["aten::isnan"], |l| predicate(l, UnaryOp::IsNan)),
    (&["aten::signbit", "aten::signbit.out"], |l| predicate(l, UnaryOp::Signbit)),
    (overloads!("frac"), frac),
];

/// The type a function of real numbers computes in: the tensor's own, or the default float for integers.
pub(super) fn float_type(l: &Lower) -> Result<DType, crate::LowerError> {
    let own = l.ty(0)?.dtype;
    let out = l.out(0)?.dtype;
    Ok(match own {
        d if d.is_float() => d,
        _ if l.is_fresh(0) && out.is_float() => out,
        _ => DType::F32,
    })
}

fn float(l: &mut Lower, op: UnaryOp) -> Lowered {
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let value = l.un(op, x);
    l.store(Typed { value, dtype })
}

fn same(l: &mut Lower, op: UnaryOp) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.operand(0, dtype)?;
    // The magnitude, or sign, of a bool is the bool.
    let keeps = dtype == DType::Bool && matches!(op, UnaryOp::Abs | UnaryOp::Sign);
    let value = if keeps { x } else { l.un(op, x) };
    l.store(Typed { value, dtype })
}

fn rounding(l: &mut Lower, op: UnaryOp) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.operand(0, dtype)?;
    let value = if dtype.is_float() { l.un(op, x) } else { x };
    l.store(Typed { value, dtype })
}

fn logical_not(l: &mut Lower) -> Lowered {
    let x = l.tensor(0)?;
    let truth = l.g.convert(x, DType::Bool);
    let value = l.un(UnaryOp::Not, truth);
    l.store(Typed { value, dtype: DType::Bool })
}

fn predicate(l: &mut Lower, op: UnaryOp) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.operand(0, dtype)?;
    let value = match (op, dtype) {
        (_, d) if d.is_float() => l.un(op, x),
        (UnaryOp::Signbit, d) if d.is_int() => l.with_constant(BinaryOp::Lt, x, 0.0),
        _ => l.constant(DType::Bool, 0.0),
    };
    l.store(Typed { value, dtype: DType::Bool })
}

fn frac(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.operand(0, dtype)?;
    let whole = l.un(UnaryOp::Trunc, x);
    let value = l.bin(BinaryOp::Sub, x, whole);
    l.store(Typed { value, dtype })
}
