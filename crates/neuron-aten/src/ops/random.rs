//! Random tensors. A value depends on seed, offset and its position alone: neither on threads nor on layout.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, CheckOp, DType, Op, RandomOp, ReduceOp, SampleOp, Scalar, Shape, UnaryOp, Value};

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
    (&["aten::geometric_"], geometric),
    (&["aten::cauchy_"], cauchy),
    (&["aten::log_normal_"], log_normal),
    (&["aten::normal.Tensor_float", "aten::normal.Tensor_float_out"], normal_of),
    (&["aten::normal.float_Tensor", "aten::normal.float_Tensor_out"], normal_of),
    (&["aten::normal.Tensor_Tensor", "aten::normal.Tensor_Tensor_out"], normal_of),
    (&["aten::randperm.generator_out"], permutation),
    (&["aten::multinomial", "aten::multinomial.out"], multinomial),
    (&["aten::poisson"], |l| sample(l, SampleOp::Poisson)),
    (&["aten::_standard_gamma"], |l| sample(l, SampleOp::Gamma)),
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
    let u = below_one(l, u, ty.dtype);
    let value = if (from, to) == (0.0, 1.0) {
        u
    } else {
        let scaled = l.with_constant(BinaryOp::Mul, u, to - from);
        l.with_constant(BinaryOp::Add, scaled, from)
    };
    l.store(Typed { value, dtype: ty.dtype })
}

/// Uniform numbers with as many bits as a half float holds: rounding more of them would reach 1.
fn below_one(l: &mut Lower, u: Value, dtype: DType) -> Value {
    let steps = match dtype {
        DType::BF16 => 256.0,
        DType::F16 => 2048.0,
        _ => return u,
    };
    let scaled = l.with_constant(BinaryOp::Mul, u, steps);
    let whole = l.un(UnaryOp::Floor, scaled);
    l.with_constant(BinaryOp::Mul, whole, 1.0 / steps)
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
            l.require(CheckOp::Probability, value);
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
    let bits = draw(l, RandomOp::Bits, DType::I64, &ty.sizes);
    if from == i64::MIN && matches!(l.arg(2), Arg::None) {
        return l.store(Typed { value: bits, dtype: ty.dtype });
    }
    if span <= 0 {
        return Err(LowerError::unsupported("a range wider than half of int64"));
    }
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
        DType::F8E5M2 => (1 << 3) + 1,
        DType::F8E4M3 => (1 << 4) + 1,
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

/// `(self, p)`: how many trials of probability `p` up to the first success, `ceil(log(1 - u) / log(1 - p))`
fn geometric(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = match ty.dtype {
        DType::Bool => return Err(LowerError::unsupported("bool, as on the CPU")),
        d if d.is_float() => drawn_in(d)?,
        _ => DType::F64,
    };
    let p = l.float_or(1, 0.5);
    check(p > 0.0 && p < 1.0)?;
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let negative = l.un(UnaryOp::Neg, u);
    let log = l.un(UnaryOp::Log1p, negative);
    let trials = l.with_constant(BinaryOp::Div, log, (-p).ln_1p());
    let trials = l.un(UnaryOp::Ceil, trials);
    let value = l.with_constant(BinaryOp::Maximum, trials, 1.0);
    let value = l.g.convert(value, ty.dtype);
    l.store_value(value)
}

/// `(self, median, sigma)`: `median + sigma tan(pi (u - 1/2))`
fn cauchy(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let (median, sigma) = (l.float_or(1, 0.0), l.float_or(2, 1.0));
    check(sigma > 0.0)?;
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let centred = l.with_constant(BinaryOp::Sub, u, 0.5);
    let angle = l.with_constant(BinaryOp::Mul, centred, std::f64::consts::PI);
    let tangent = l.un(UnaryOp::Tan, angle);
    let scaled = l.with_constant(BinaryOp::Mul, tangent, sigma);
    let value = l.with_constant(BinaryOp::Add, scaled, median);
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(self, mean, std)` of the logarithm
fn log_normal(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let (mean, std) = (l.float_or(1, 1.0), l.float_or(2, 2.0));
    check(std > 0.0)?;
    let n = draw(l, RandomOp::Normal, compute, &ty.sizes);
    let scaled = l.with_constant(BinaryOp::Mul, n, std);
    let log = l.with_constant(BinaryOp::Add, scaled, mean);
    let value = l.un(UnaryOp::Exp, log);
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(mean, std)`, each a tensor or a float
fn normal_of(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let compute = drawn_in(out.dtype)?;
    let mut parameter = |i| match l.arg(i) {
        Arg::Float(v) => Ok(l.constant(compute, *v)),
        _ => l.operand(i, compute),
    };
    let (mean, std) = (parameter(0)?, parameter(1)?);
    match l.arg(1) {
        Arg::Float(std) => check(*std >= 0.0)?,
        _ => l.require(CheckOp::Deviation, std),
    }
    let n = draw(l, RandomOp::Normal, compute, &out.sizes);
    let scaled = l.bin(BinaryOp::Mul, n, std);
    let value = l.bin(BinaryOp::Add, scaled, mean);
    l.store(Typed { value, dtype: out.dtype })
}

/// `(n)`: where random keys go when they are sorted; keys of 64 bits are equal as good as never
fn permutation(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let n = l.int(0)?;
    let keys = draw(l, RandomOp::Bits, DType::I64, &[n]);
    let shape = Shape::new(DType::I64, &[n]);
    let sorted = l.g.push(Op::Sort { dim: 0, descending: false, k: n }, &[keys], &[shape.clone(), shape]);
    let value = l.g.convert(Value(sorted.0 + 1), out.dtype);
    l.store_value(value)
}

/// `(self, num_samples, replacement)`: rows of weights that need not sum to 1.
///
/// Without replacement, the order in which events of these rates happen first: the largest `p / e`, `e` exponential.
fn multinomial(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    let (samples, replacement) = (l.int(1)?, l.flag(2));
    let rank = ty.rank();
    if !(1..=2).contains(&rank) || ty.numel() == 0 || l.out(0)?.dtype != DType::I64 {
        return Err(LowerError::unsupported("weights or an output of another kind"));
    }
    let dim = rank - 1;
    // More categories than a float counts are refused.
    check(samples > 0 && ty.sizes[dim] <= 1 << 24)?;
    let weights = l.tensor(0)?;
    l.require(CheckOp::Weight, weights);
    let p = l.operand(0, compute)?;
    let mut totals = l.g.shape(p).clone();
    totals.sizes[dim] = 1;
    let total = l.g.op(Op::Reduce { op: ReduceOp::Sum, dims: [dim as i64].into_iter().collect() }, &[p], totals);
    l.require(CheckOp::Total, total);
    if replacement && samples > 1 {
        let (seed, offset) = l.reserve_random(4 * l.out(0)?.numel() as u64);
        let out = l.out(0)?.shape();
        let value = l.g.op(Op::Sample(SampleOp::Multinomial), &[p, seed, offset], out);
        return l.store_value(value);
    }
    check(samples <= ty.sizes[dim])?;
    let u = draw(l, RandomOp::Uniform, compute, &ty.sizes);
    let negative = l.un(UnaryOp::Neg, u);
    let log = l.un(UnaryOp::Log1p, negative);
    // The logarithm of 1 is -0: of two infinities none would be a number, so it is made the smallest one instead.
    let time = l.un(UnaryOp::Neg, log);
    let time = l.with_constant(BinaryOp::Maximum, time, 1e-30);
    let rate = l.bin(BinaryOp::Div, p, time);
    let mut sizes = ty.sizes.clone();
    sizes[dim] = samples;
    let shapes = [Shape::new(compute, &sizes), Shape::new(DType::I64, &sizes)];
    let first = if samples == 1 {
        l.g.push(Op::MinMax { max: true, dim }, &[rate], &shapes)
    } else {
        l.g.push(Op::Sort { dim, descending: true, k: samples }, &[rate], &shapes)
    };
    l.store_value(Value(first.0 + 1))
}

/// `(parameter)`
fn sample(l: &mut Lower, op: SampleOp) -> Lowered {
    let ty = l.ty(0)?.clone();
    let compute = drawn_in(ty.dtype)?;
    if op == SampleOp::Poisson {
        let rate = l.tensor(0)?;
        l.require(CheckOp::Rate, rate);
    }
    let parameter = l.operand(0, compute)?;
    let (seed, offset) = l.reserve_random(4 * ty.numel() as u64);
    let shape = l.g.shape(parameter).clone();
    let value = l.g.op(Op::Sample(op), &[parameter, seed, offset], shape);
    l.store(Typed { value, dtype: ty.dtype })
}
