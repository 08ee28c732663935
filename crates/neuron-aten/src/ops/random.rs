//! Random tensors. A value depends on seed, offset and its position alone: neither on threads nor on layout.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, RandomOp, Scalar, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::uniform_"], uniform),
    (&["aten::normal_"], normal),
    (&["aten::exponential_"], exponential),
    (&["aten::bernoulli_.float"], |l| bernoulli(l, Some(1))),
    (&["aten::bernoulli_.Tensor"], |l| bernoulli(l, Some(1))),
    (&["aten::bernoulli", "aten::bernoulli.out"], |l| bernoulli(l, None)),
    (&["aten::random_"], |l| integers(l, Range::Dtype)),
    (&["aten::random_.to"], |l| integers(l, Range::To)),
    (&["aten::random_.from"], |l| integers(l, Range::FromTo)),
    (&["aten::native_dropout"], dropout),
    (&["aten::native_dropout_backward"], dropout_backward),
];

/// The type random numbers for a tensor of this type are drawn in.
fn drawn_in(dtype: DType) -> Result<DType, LowerError> {
    match dtype {
        DType::F64 => Ok(DType::F64),
        d if d.is_float() => Ok(DType::F32),
        d => Err(LowerError::unsupported(format!("random floats for {d}"))),
    }
}

/// Parameters outside their range go to the CPU, whose kernel has the error message for them.
fn check(in_range: bool) -> Lowered {
    if in_range { Ok(()) } else { Err(LowerError::unsupported("a parameter out of range")) }
}

/// Values of the generator one element consumes.
fn consumed(op: RandomOp, dtype: DType) -> u64 {
    if op == RandomOp::Bits || dtype == DType::F64 { 2 } else { 1 }
}

fn draw(l: &mut Lower, op: RandomOp, dtype: DType, sizes: &[i64]) -> Value {
    l.random(op, dtype, sizes, consumed(op, dtype))
}

/// `(self, from, to)`
fn uniform(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let (from, to) = (l.float_or(1, 0.0), l.float_or(2, 1.0));
    check(from <= to && (to - from).is_finite())?;
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let value = if (from, to) == (0.0, 1.0) {
        u
    } else {
        let scaled = l.with_constant(BinaryOp::Mul, u, to - from);
        l.with_constant(BinaryOp::Add, scaled, from)
    };
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(self, mean, std)`
fn normal(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let (mean, std) = (l.float_or(1, 0.0), l.float_or(2, 1.0));
    check(std >= 0.0)?;
    let n = draw(l, RandomOp::Normal, compute, &ty.sizes);
    let value = if (mean, std) == (0.0, 1.0) {
        n
    } else {
        let scaled = l.with_constant(BinaryOp::Mul, n, std);
        l.with_constant(BinaryOp::Add, scaled, mean)
    };
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(self, lambda)`: `-log(1 - u) / lambda`, never infinite since `u < 1`
fn exponential(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let lambda = l.float_or(1, 1.0);
    check(lambda > 0.0)?;
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let negative = l.un(UnaryOp::Neg, u);
    let log = l.un(UnaryOp::Log1p, negative);
    let value = l.with_constant(BinaryOp::Mul, log, -1.0 / lambda);
    l.store(Typed { value, dtype: ty.dtype })
}

/// True with the probability that argument `p`, or the tensor itself, gives.
fn bernoulli(l: &mut Lower, p: Option<usize>) -> Lowered {
    let out = l.out(0)?.clone();
    let at = p.unwrap_or(0);
    let (compute, p) = match l.arg(at) {
        Arg::Float(p) => {
            let p = *p;
            check((0.0..=1.0).contains(&p))?;
            (DType::F32, l.constant(DType::F32, p))
        }
        Arg::Tensor(t) => {
            let compute = drawn_in(t.ty.dtype)?;
            let value = l.tensor(at)?;
            (compute, l.g.convert(value, compute))
        }
        _ => return Err(LowerError::unsupported("a probability that is neither a float nor a tensor")),
    };
    let u = draw(l, RandomOp::Uniform, compute, &out.sizes);
    let value = l.bin(BinaryOp::Lt, u, p);
    l.store(Typed { value, dtype: DType::Bool })
}

enum Range {
    /// Every value the type represents exactly.
    Dtype,
    /// `[0, argument 1)`
    To,
    /// `[argument 1, argument 2)`
    FromTo,
}

fn integers(l: &mut Lower, range: Range) -> Lowered {
    let ty = l.ty(0)?.clone();
    let (from, to) = match (range, ty.dtype) {
        (Range::To, _) => (0, l.int(1)?),
        (Range::FromTo, d) => match l.arg(2) {
            Arg::Int(to) => (l.int(1)?, *to),
            _ => (l.int(1)?, largest(d)),
        },
        (Range::Dtype, d) => (0, largest(d)),
    };
    let span = to.wrapping_sub(from);
    if span <= 0 {
        return Err(LowerError::unsupported("a range of the full width of int64"));
    }
    let bits = draw(l, RandomOp::Bits, DType::I64, &ty.sizes);
    let mask = l.g.constant(DType::I64, Scalar::I64(i64::MAX));
    let positive = l.bin(BinaryOp::And, bits, mask);
    let span = l.g.constant(DType::I64, Scalar::I64(span));
    let value = l.bin(BinaryOp::Remainder, positive, span);
    let from = l.g.constant(DType::I64, Scalar::I64(from));
    let value = l.bin(BinaryOp::Add, value, from);
    l.store(Typed { value, dtype: ty.dtype })
}

/// One above the largest integer `random_()` gives for a type.
fn largest(dtype: DType) -> i64 {
    match dtype {
        DType::Bool => 2,
        DType::U8 => 1 << 8,
        DType::I8 => 1 << 7,
        DType::I16 => 1 << 15,
        DType::I32 => 1 << 31,
        DType::I64 => i64::MAX,
        DType::BF16 => (1 << 8) + 1,
        DType::F16 => (1 << 11) + 1,
        DType::F32 => (1 << 24) + 1,
        DType::F64 => (1 << 53) + 1,
    }
}

/// `(input, p, train)`: results `output, mask`
fn dropout(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let dtype = ty.dtype;
    let compute = drawn_in(dtype)?;
    let p = l.float_or(1, 0.5);
    check((0.0..=1.0).contains(&p))?;
    let x = l.operand(0, dtype)?;
    if *l.arg(2) == Arg::Bool(false) {
        l.store(Typed { value: x, dtype })?;
        let one = l.constant(DType::Bool, 1.0);
        return l.store(Typed { value: one, dtype: DType::Bool });
    }
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let kept = l.with_constant(BinaryOp::Lt, u, 1.0 - p);
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    let scaled = l.with_constant(BinaryOp::Mul, x, scale);
    let zero = l.constant(compute, 0.0);
    let value = l.g.select(kept, scaled, zero);
    l.store(Typed { value, dtype })?;
    l.store(Typed { value: kept, dtype: DType::Bool })
}

/// `(grad_output, mask, scale)`
fn dropout_backward(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let grad = l.operand(0, dtype)?;
    let mask = l.tensor(1)?;
    let scale = l.float_or(2, 1.0);
    let scaled = l.with_constant(BinaryOp::Mul, grad, scale);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(mask, scaled, zero);
    l.store(Typed { value, dtype })
}
