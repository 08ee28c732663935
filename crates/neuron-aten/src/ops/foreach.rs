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
    (lists!("add", "Tensor"), |l| binary(l, BinaryOp::Add, Some(2))),
    (lists!("maximum", "List"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("maximum", "Scalar"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("maximum", "ScalarList"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("minimum", "List"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("minimum", "Scalar"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("minimum", "ScalarList"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("clamp_min", "List"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("clamp_min", "Scalar"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("clamp_min", "ScalarList"), |l| binary(l, BinaryOp::Maximum, None)),
    (lists!("clamp_max", "List"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("clamp_max", "Scalar"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("clamp_max", "ScalarList"), |l| binary(l, BinaryOp::Minimum, None)),
    (lists!("pow", "List"), |l| binary(l, BinaryOp::Pow, None)),
    (lists!("pow", "Scalar"), |l| binary(l, BinaryOp::Pow, None)),
    (lists!("pow", "ScalarList"), |l| binary(l, BinaryOp::Pow, None)),
    (&["aten::_foreach_pow.ScalarAndTensor"], power_of),
    (lists!("addcmul", "Scalar"), |l| with_product(l, BinaryOp::Mul)),
    (lists!("addcmul", "ScalarList"), |l| with_product(l, BinaryOp::Mul)),
    (lists!("addcdiv", "Scalar"), |l| with_product(l, BinaryOp::Div)),
    (lists!("addcdiv", "ScalarList"), |l| with_product(l, BinaryOp::Div)),
    (lists!("lerp", "Scalar"), lerp),
    (lists!("lerp", "List"), lerp),
    (lists!("lerp", "ScalarList"), lerp),
    (lists!("sqrt"), |l| unary(l, UnaryOp::Sqrt)),
    (lists!("neg"), |l| unary(l, UnaryOp::Neg)),
    (lists!("abs"), |l| unary(l, UnaryOp::Abs)),
    (lists!("exp"), |l| unary(l, UnaryOp::Exp)),
    (lists!("reciprocal"), |l| unary(l, UnaryOp::Reciprocal)),
    (lists!("sign"), |l| unary(l, UnaryOp::Sign)),
    (lists!("rsqrt"), |l| unary(l, UnaryOp::Rsqrt)),
    (lists!("acos"), |l| unary(l, UnaryOp::Acos)),
    (lists!("asin"), |l| unary(l, UnaryOp::Asin)),
    (lists!("atan"), |l| unary(l, UnaryOp::Atan)),
    (lists!("ceil"), |l| unary(l, UnaryOp::Ceil)),
    (lists!("cos"), |l| unary(l, UnaryOp::Cos)),
    (lists!("cosh"), |l| unary(l, UnaryOp::Cosh)),
    (lists!("erf"), |l| unary(l, UnaryOp::Erf)),
    (lists!("erfc"), |l| unary(l, UnaryOp::Erfc)),
    (lists!("expm1"), |l| unary(l, UnaryOp::Expm1)),
    (lists!("floor"), |l| unary(l, UnaryOp::Floor)),
    (lists!("lgamma"), |l| unary(l, UnaryOp::Lgamma)),
    (lists!("log"), |l| unary(l, UnaryOp::Log)),
    (lists!("log10"), |l| unary(l, UnaryOp::Log10)),
    (lists!("log1p"), |l| unary(l, UnaryOp::Log1p)),
    (lists!("log2"), |l| unary(l, UnaryOp::Log2)),
    (lists!("round"), |l| unary(l, UnaryOp::Round)),
    (lists!("sigmoid"), |l| unary(l, UnaryOp::Sigmoid)),
    (lists!("sin"), |l| unary(l, UnaryOp::Sin)),
    (lists!("sinh"), |l| unary(l, UnaryOp::Sinh)),
    (lists!("tan"), |l| unary(l, UnaryOp::Tan)),
    (lists!("tanh"), |l| unary(l, UnaryOp::Tanh)),
    (lists!("trunc"), |l| unary(l, UnaryOp::Trunc)),
    (&["aten::_foreach_copy_"], copy),
    (&["aten::_foreach_clone"], clone),
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

/// `(self, tensors)`: one number to the power of each tensor.
fn power_of(l: &mut Lower) -> Lowered {
    for k in 0..l.list(1)?.len() {
        let dtype = result_type(&[standing(l, 0, k)?, standing(l, 1, k)?]);
        if !dtype.is_float() {
            return Err(LowerError::unsupported("lists of integers"));
        }
        let (base, exponent) = (element(l, 0, k, dtype)?, element(l, 1, k, dtype)?);
        let value = l.bin(BinaryOp::Pow, base, exponent);
        l.store(Typed { value, dtype })?;
    }
    Ok(())
}

/// `(self, src)`
fn copy(l: &mut Lower) -> Lowered {
    for k in 0..l.list(0)?.len() {
        let value = l.value_of(as_tensor(pick(l, 1, k)?, 1)?);
        let to = as_tensor(pick(l, 0, k)?, 0)?.ty.dtype;
        let value = l.g.convert(value, to);
        l.store_value(value)?;
    }
    Ok(())
}

fn clone(l: &mut Lower) -> Lowered {
    for k in 0..l.list(0)?.len() {
        let value = l.value_of(as_tensor(pick(l, 0, k)?, 0)?);
        l.store_value(value)?;
    }
    Ok(())
}
