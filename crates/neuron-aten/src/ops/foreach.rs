//! Operators over lists of tensors: one launch for a whole optimizer step's worth of parameters.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed, as_tensor, standing_of};
use crate::promote::{Standing, result_type};
use neuron_ir::{BinaryOp, DType, Scalar, UnaryOp, Value};

macro_rules! lists {
    ($name:literal, $overload:literal) => {
        &[concat!("aten::_foreach_", $name, ".", $overload), concat!("aten::_foreach_", $name, "_.", $overload)]
    };
    ($name:literal) => {
        &[concat!("aten::_foreach_", $name), concat!("aten::_foreach_", $name, "_")]
    };
}

pub(super) const ROWS: &[Row] = &[
    (lists!("add", "List"), |l| binary(l, BinaryOp::Add, Some(2))),
    (lists!("add", "Scalar"), |l| binary(l, BinaryOp::Add, None)),
    (lists!("add", "ScalarList"), |l| binary(l, BinaryOp::Add, None)),
    (lists!("sub", "List"), |l| binary(l, BinaryOp::Sub, Some(2))),
    (lists!("sub", "Scalar"), |l| binary(l, BinaryOp::Sub, None)),
    (lists!("sub", "ScalarList"), |l| binary(l, BinaryOp::Sub, None)),
    (lists!("mul", "List"), |l| binary(l, BinaryOp::Mul, None)),
    (lists!("mul", "Scalar"), |l| binary(l, BinaryOp::Mul, None)),
    (lists!("mul", "ScalarList"), |l| binary(l, BinaryOp::Mul, None)),
    (lists!("mul", "Tensor"), |l| binary(l, BinaryOp::Mul, None)),
    (lists!("div", "List"), |l| binary(l, BinaryOp::Div, None)),
    (lists!("div", "Scalar"), |l| binary(l, BinaryOp::Div, None)),
    (lists!("div", "ScalarList"), |l| binary(l, BinaryOp::Div, None)),
    (lists!("div", "Tensor"), |l| binary(l, BinaryOp::Div, None)),
    (lists!("maximum", "List"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("minimum", "List"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("addcmul", "Scalar"), |l| with_product(l, BinaryOp::Mul)),
    (lists!("addcmul", "ScalarList"), |l| with_product(l, BinaryOp::Mul)),
    (lists!("addcdiv", "Scalar"), |l| with_product(l, BinaryOp::Div)),
    (lists!("addcdiv", "ScalarList"), |l| with_product(l, BinaryOp::Div)),
    (lists!("lerp", "Scalar"), lerp),
    (lists!("sqrt"), |l| unary(l, UnaryOp::Sqrt)),
    (lists!("neg"), |l| unary(l, UnaryOp::Neg)),
    (lists!("abs"), |l| unary(l, UnaryOp::Abs)),
    (lists!("exp"), |l| unary(l, UnaryOp::Exp)),
    (lists!("reciprocal"), |l| unary(l, UnaryOp::Reciprocal)),
    (&["aten::_foreach_zero_"], zero),
];

/// Element `k` of argument `i`, a list or one value for all, in the compute type of `common`.
fn element(l: &mut Lower, i: usize, k: usize, common: DType) -> Result<Value, LowerError> {
    let compute = common.compute();
    match pick(l, i, k)? {
        Arg::Scalar(s) => Ok(l.number(*s, compute)),
        arg => {
            let t = as_tensor(arg, i)?;
            let value = l.value_of(t);
            let value = l.g.convert(value, common);
            Ok(l.g.convert(value, compute))
        }
    }
}

fn pick<'a>(l: &Lower<'a>, i: usize, k: usize) -> Result<&'a Arg, LowerError> {
    match l.arg(i) {
        Arg::List(list) => list.get(k).ok_or_else(|| LowerError::unsupported("lists of different lengths")),
        arg => Ok(arg),
    }
}

fn standing(l: &Lower, i: usize, k: usize) -> Result<(DType, Standing), LowerError> {
    Ok(match pick(l, i, k)? {
        Arg::Scalar(s) => (
            match s.kind {
                crate::ScalarKind::Int => DType::I64,
                crate::ScalarKind::Float => DType::F64,
                crate::ScalarKind::Bool => DType::Bool,
            },
            Standing::Number,
        ),
        arg => standing_of(as_tensor(arg, i)?),
    })
}

/// Calls `f(k, dtype)` for each element of the lists, `dtype` the common type of `args`.
fn for_each(
    l: &mut Lower,
    args: &[usize],
    f: impl Fn(&mut Lower, usize, DType) -> Result<Value, LowerError>,
) -> Lowered {
    for k in 0..l.list(0)?.len() {
        let operands = args.iter().map(|i| standing(l, *i, k)).collect::<Result<Vec<_>, _>>()?;
        let dtype = result_type(&operands);
        if !dtype.is_float() {
            return Err(LowerError::unsupported("lists of integers"));
        }
        let value = f(l, k, dtype)?;
        l.store(Typed { value, dtype })?;
    }
    Ok(())
}

fn binary(l: &mut Lower, op: BinaryOp, alpha: Option<usize>) -> Lowered {
    for_each(l, &[0, 1], |l, k, dtype| {
        let (a, b) = (element(l, 0, k, dtype)?, element(l, 1, k, dtype)?);
        let b = match alpha {
            Some(i) => l.scaled(b, i)?,
            None => b,
        };
        Ok(l.bin(op, a, b))
    })
}

fn unary(l: &mut Lower, op: UnaryOp) -> Lowered {
    for_each(l, &[0], |l, k, dtype| {
        let x = element(l, 0, k, dtype)?;
        Ok(l.un(op, x))
    })
}

/// `self + value * (tensor1 op tensor2)`
fn with_product(l: &mut Lower, op: BinaryOp) -> Lowered {
    for_each(l, &[0, 1, 2], |l, k, dtype| {
        let (x, a, b) = (element(l, 0, k, dtype)?, element(l, 1, k, dtype)?, element(l, 2, k, dtype)?);
        let factor = element(l, 3, k, dtype)?;
        let scaled = l.bin(BinaryOp::Mul, factor, a);
        let product = l.bin(op, scaled, b);
        Ok(l.bin(BinaryOp::Add, x, product))
    })
}

fn lerp(l: &mut Lower) -> Lowered {
    for_each(l, &[0, 1], |l, k, dtype| {
        let (start, end) = (element(l, 0, k, dtype)?, element(l, 1, k, dtype)?);
        let weight = element(l, 2, k, dtype)?;
        Ok(super::ternary::lerp_values(l, start, end, weight, dtype))
    })
}

fn zero(l: &mut Lower) -> Lowered {
    for k in 0..l.list(0)?.len() {
        let dtype = as_tensor(pick(l, 0, k)?, 0)?.ty.dtype;
        let value = l.g.constant(dtype.compute(), Scalar::I64(0));
        l.store(Typed { value, dtype })?;
    }
    Ok(())
}
