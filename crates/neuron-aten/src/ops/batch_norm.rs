//! Normalisation of channels: over batches and positions, or by groups of channels.

use super::Row;
use super::convolution::gradient;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Dims, Op, ReduceOp, Shape, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::native_batch_norm"], |l| {
        let training = l.flag(5);
        let running = if training { Running::Given } else { Running::Kept };
        batch_norm(l, Arguments { mean: Some(3), training, momentum: 6, eps: 7 }, running)
    }),
    (&["aten::_native_batch_norm_legit"], |l| {
        let training = l.flag(5);
        batch_norm(l, Arguments { mean: Some(3), training, momentum: 6, eps: 7 }, Running::Outputs)
    }),
    (&["aten::_native_batch_norm_legit.no_stats"], |l| {
        let training = l.flag(3);
        batch_norm(l, Arguments { mean: None, training, momentum: 4, eps: 5 }, Running::Kept)
    }),
    (&["aten::_batch_norm_with_update"], |l| {
        batch_norm(l, Arguments { mean: Some(3), training: true, momentum: 5, eps: 6 }, Running::OutputsAfterReserve)
    }),
    (&["aten::batch_norm_update_stats"], update_statistics),
    (&["aten::native_batch_norm_backward"], |l| batch_norm_backward(l, l.flag(7), 8)),
    (&["aten::batch_norm_backward"], |l| batch_norm_backward(l, l.flag(7), 8)),
    (&["aten::native_group_norm"], group_norm),
    (&["aten::native_group_norm_backward"], group_norm_backward),
];

/// Fewer positions than this per channel are summed by general reductions.
const LEAST_RUN: i64 = 16;

/// Where the arguments after `(input, weight?, bias?)` are; the running variance follows the running mean.
struct Arguments {
    mean: Option<usize>,
    training: bool,
    momentum: usize,
    eps: usize,
}

/// What happens to the running statistics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    /// Nothing.
    Kept,
    /// The arguments are written, although the schema does not say so.
    Given,
    /// They are outputs of the call.
    Outputs,
    /// They are outputs of the call, after an empty one.
    OutputsAfterReserve,
}

/// The dimensions that statistics of `[n, c, ..]` are taken over.
fn reduced(rank: usize) -> Dims {
    (0..rank as i64).filter(|d| *d != 1).collect()
}

/// `[n, c, ..]` with all extents but that of the channels 1.
fn channels(sizes: &[i64], dtype: DType) -> Shape {
    let mut shape = Shape::new(dtype, sizes);
    reduced(sizes.len()).iter().for_each(|d| shape.sizes[*d as usize] = 1);
    shape
}

fn check(l: &Lower, i: usize) -> Result<(), LowerError> {
    let ty = l.ty(i)?;
    if ty.dtype.is_float() && ty.numel() > 0 && ty.rank() >= 2 {
        Ok(())
    } else {
        Err(LowerError::unsupported(format!("normalisation of {ty}")))
    }
}

/// Tensor argument `i`, one value per channel, as `shape`; `None` if absent.
fn per_channel(l: &mut Lower, i: usize, shape: &Shape) -> Result<Option<Value>, LowerError> {
    if !l.has_tensor(i) {
        return Ok(None);
    }
    let value = l.tensor(i)?;
    let value = l.g.convert(value, shape.dtype);
    Ok(Some(l.g.reshape(value, &shape.sizes)))
}

/// As [`per_channel`] for an argument that has to be there.
fn statistic(l: &mut Lower, i: usize, shape: &Shape) -> Result<Value, LowerError> {
    per_channel(l, i, shape)?.ok_or_else(|| LowerError::unsupported(format!("argument {i} is absent")))
}

/// `value` computed once, not in every operator that uses it.
fn once(l: &mut Lower, value: Value) -> Value {
    let shape = l.g.shape(value).clone();
    l.g.op(Op::Once, &[value], shape)
}

/// `1 / sqrt(variance + eps)`
fn inverse_deviation(l: &mut Lower, variance: Value, eps: f64) -> Value {
    let sum = l.with_constant(BinaryOp::Add, variance, eps);
    let value = l.un(UnaryOp::Rsqrt, sum);
    once(l, value)
}

fn sum(l: &mut Lower, value: Value, dims: Dims) -> Value {
    let mut shape = l.g.shape(value).clone();
    shape.dtype = shape.dtype.compute();
    dims.iter().for_each(|d| shape.sizes[*d as usize] = 1);
    l.g.op(Op::Reduce { op: ReduceOp::Sum, dims }, &[value], shape)
}

/// Sums over `o` and `i` of `grad[o, c, i]` and of `grad * (x - mean[c])`.
fn channel_sums(l: &mut Lower, grad: Value, x: Value, mean: Option<Value>) -> (Value, Value) {
    let shape = l.g.shape(x);
    let result = Shape::new(shape.dtype.compute(), &shape.sizes[1..2]);
    let mut operands = vec![grad, x];
    operands.extend(mean);
    let op = Op::ChannelSums { mean: mean.is_some() };
    let first = l.g.push(op, &operands, &[result.clone(), result]);
    (first, Value(first.0 + 1))
}

/// `x * scale + shift`, stored as the next output.
fn transform(l: &mut Lower, x: Value, scale: Value, shift: Option<Value>) -> Lowered {
    let dtype = l.out(0)?.dtype;
    let compute = l.g.dtype(scale);
    let x = l.g.convert(x, compute);
    let scale = once(l, scale);
    let mut value = l.bin(BinaryOp::Mul, x, scale);
    if let Some(shift) = shift {
        let shift = once(l, shift);
        value = l.bin(BinaryOp::Add, value, shift);
    }
    l.store(Typed { value, dtype })
}

/// `momentum * new + (1 - momentum) * argument i`
fn averaged(l: &mut Lower, i: usize, new: Value, momentum: f64) -> Result<Typed, LowerError> {
    let shape = l.g.shape(new).clone();
    let old = statistic(l, i, &shape)?;
    let old = l.with_constant(BinaryOp::Mul, old, 1.0 - momentum);
    let new = l.with_constant(BinaryOp::Mul, new, momentum);
    let value = l.bin(BinaryOp::Add, new, old);
    Ok(Typed { value, dtype: l.ty(i)?.dtype })
}

/// The variance as an estimate from `n` values.
fn unbiased(l: &mut Lower, variance: Value, n: i64) -> Value {
    l.with_constant(BinaryOp::Mul, variance, n as f64 / (n - 1) as f64)
}

/// Results `out, save_mean, save_invstd`.
fn batch_norm(l: &mut Lower, at: Arguments, running: Running) -> Lowered {
    check(l, 0)?;
    let ty = l.ty(0)?.clone();
    let shape = channels(&ty.sizes, ty.dtype.compute());
    let n = ty.numel() / ty.sizes[1];
    let (eps, momentum) = (l.float_or(at.eps, 1e-5), l.float_or(at.momentum, 0.1));
    let x = l.tensor(0)?;
    let (mean, variance) = match (at.training, at.mean) {
        (true, _) => {
            let dims = reduced(ty.rank());
            let first = l.g.push(Op::Variance { dims, correction: 0.0 }, &[x], &[shape.clone(), shape.clone()]);
            (Value(first.0 + 1), first)
        }
        (false, Some(i)) => (statistic(l, i, &shape)?, statistic(l, i + 1, &shape)?),
        (false, None) => return Err(LowerError::unsupported("normalisation by running statistics that are absent")),
    };
    let invstd = inverse_deviation(l, variance, eps);
    let scale = match per_channel(l, 1, &shape)? {
        Some(weight) => l.bin(BinaryOp::Mul, invstd, weight),
        None => invstd,
    };
    let scale = once(l, scale);
    let offset = l.bin(BinaryOp::Mul, mean, scale);
    let shift = match per_channel(l, 2, &shape)? {
        Some(bias) => l.bin(BinaryOp::Sub, bias, offset),
        None => l.un(UnaryOp::Neg, offset),
    };
    transform(l, x, scale, Some(shift))?;
    for (k, value) in [(1, mean), (2, invstd)] {
        let dtype = l.out(k)?.dtype;
        // Without training nothing is saved: the results are empty.
        let value = if l.out(k)?.numel() == 0 { l.constant(dtype.compute(), 0.0) } else { value };
        l.store(Typed { value, dtype })?;
    }
    if running == Running::OutputsAfterReserve {
        let nothing = l.constant(DType::I64, 0.0);
        l.store(Typed { value: nothing, dtype: DType::U8 })?;
    }
    let (Some(i), true) = (at.mean.filter(|i| l.has_tensor(*i)), running != Running::Kept) else { return Ok(()) };
    let spread = unbiased(l, variance, n);
    for (i, new) in [(i, mean), (i + 1, spread)] {
        let result = match at.training {
            true => averaged(l, i, new, momentum)?,
            false => Typed { value: l.tensor(i)?, dtype: l.ty(i)?.dtype },
        };
        match running {
            Running::Given => l.write(i, result)?,
            _ => l.store(result)?,
        }
    }
    Ok(())
}

/// `(input, running_mean?, running_var?, momentum)`: results `mean, variance`
fn update_statistics(l: &mut Lower) -> Lowered {
    check(l, 0)?;
    let ty = l.ty(0)?.clone();
    let shape = channels(&ty.sizes, ty.dtype.compute());
    let x = l.tensor(0)?;
    let dims = reduced(ty.rank());
    let variance = l.g.push(Op::Variance { dims, correction: 0.0 }, &[x], &[shape.clone(), shape]);
    let mean = Value(variance.0 + 1);
    for (k, value) in [(0, mean), (1, variance)] {
        let dtype = l.out(k)?.dtype;
        l.store(Typed { value, dtype })?;
    }
    let spread = unbiased(l, variance, ty.numel() / ty.sizes[1]);
    let momentum = l.float_or(3, 0.1);
    for (i, new) in [(1, mean), (2, spread)] {
        if l.has_tensor(i) {
            let result = averaged(l, i, new, momentum)?;
            l.write(i, result)?;
        }
    }
    Ok(())
}

/// `(grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask)`
fn batch_norm_backward(l: &mut Lower, training: bool, eps: usize) -> Lowered {
    check(l, 1)?;
    let ty = l.ty(1)?.clone();
    let c = ty.dtype.compute();
    let shape = channels(&ty.sizes, c);
    let n = (ty.numel() / ty.sizes[1]) as f64;
    let (mean, invstd) = if training {
        (statistic(l, 5, &shape)?, statistic(l, 6, &shape)?)
    } else {
        let variance = statistic(l, 4, &shape)?;
        let eps = l.float_or(eps, 1e-5);
        (statistic(l, 3, &shape)?, inverse_deviation(l, variance, eps))
    };
    let (mean, invstd) = (once(l, mean), once(l, invstd));
    let weight = per_channel(l, 2, &shape)?;
    let (grad, x) = (l.tensor(0)?, l.tensor(1)?);
    let (grad, x) = (l.g.convert(grad, c), l.g.convert(x, c));
    let centred = l.bin(BinaryOp::Sub, x, mean);
    let scale = match weight {
        Some(weight) => l.bin(BinaryOp::Mul, invstd, weight),
        None => invstd,
    };
    let scale = once(l, scale);
    let (wants_x, wants_weight, wants_bias) = (l.out(0).is_ok(), l.out(1).is_ok(), l.out(2).is_ok());
    let wants_total = wants_bias || (wants_x && training);
    let wants_dot = wants_weight || (wants_x && training);
    let inner: i64 = ty.sizes[2..].iter().product();
    let (total, dot) = if inner >= LEAST_RUN && wants_total && wants_dot && l.ty(0)?.dtype == ty.dtype {
        let flat = [ty.sizes[0], ty.sizes[1], inner];
        let (grad, x) = (l.tensor(0)?, l.tensor(1)?);
        let (grad, x) = (l.g.reshape(grad, &flat), l.g.reshape(x, &flat));
        let mean = l.g.reshape(mean, &[ty.sizes[1]]);
        let (total, dot) = channel_sums(l, grad, x, Some(mean));
        (Some(l.g.reshape(total, &shape.sizes)), Some(l.g.reshape(dot, &shape.sizes)))
    } else {
        let total = wants_total.then(|| sum(l, grad, reduced(ty.rank())));
        let dot = wants_dot.then(|| {
            let product = l.bin(BinaryOp::Mul, centred, grad);
            sum(l, product, reduced(ty.rank()))
        });
        (total, dot)
    };
    gradient(l, 0, |l| {
        let mut value = grad;
        if let (Some(total), Some(dot), true) = (total, dot, training) {
            let average = l.with_constant(BinaryOp::Div, total, n);
            let average = once(l, average);
            let slope = l.with_constant(BinaryOp::Div, dot, n);
            let square = l.bin(BinaryOp::Mul, invstd, invstd);
            let slope = l.bin(BinaryOp::Mul, slope, square);
            let slope = once(l, slope);
            let along = l.bin(BinaryOp::Mul, centred, slope);
            value = l.bin(BinaryOp::Sub, value, average);
            value = l.bin(BinaryOp::Sub, value, along);
        }
        let value = l.bin(BinaryOp::Mul, value, scale);
        Ok(l.g.convert(value, ty.dtype))
    })?;
    gradient(l, 1, |l| Ok(l.bin(BinaryOp::Mul, dot.unwrap_or(scale), invstd)).and_then(|v| as_output(l, v, 1)))?;
    gradient(l, 2, |l| as_output(l, total.unwrap_or(scale), 2))
}

/// A value in the type of output `k`.
fn as_output(l: &mut Lower, value: Value, k: usize) -> Result<Value, LowerError> {
    let dtype = l.out(k)?.dtype;
    Ok(l.g.convert(value, dtype))
}

/// Sizes of `[n, c, hxw]` by groups.
struct Groups {
    n: i64,
    c: i64,
    hw: i64,
    groups: i64,
}

impl Groups {
    /// Arguments from `i` on: `N, C, HxW, group`.
    fn read(l: &Lower, i: usize) -> Result<Groups, LowerError> {
        let groups = Groups { n: l.int(i)?, c: l.int(i + 1)?, hw: l.int(i + 2)?, groups: l.int(i + 3)? };
        if groups.n * groups.c * groups.hw == 0 {
            return Err(LowerError::unsupported("normalisation of nothing"));
        }
        Ok(groups)
    }

    /// `[n, groups, 1]` or `[n, groups, channels]` as `[n, c, 1, ..]`.
    fn spread(&self, l: &mut Lower, value: Value, rank: usize) -> Value {
        let value = l.g.broadcast(value, &[self.n, self.groups, self.c / self.groups]);
        let value = once(l, value);
        let mut sizes = Dims::from_elem(1, rank);
        sizes[0] = self.n;
        sizes[1] = self.c;
        l.g.reshape(value, &sizes)
    }

    /// Argument `i`, one value per channel, as `[1, groups, channels]`.
    fn weight(&self, l: &mut Lower, i: usize, c: DType) -> Result<Option<Value>, LowerError> {
        if !l.has_tensor(i) {
            return Ok(None);
        }
        let value = l.tensor(i)?;
        let value = l.g.convert(value, c);
        Ok(Some(l.g.reshape(value, &[1, self.groups, self.c / self.groups])))
    }
}

/// `(input, weight?, bias?, N, C, HxW, group, eps)`: results `out, mean, rstd`
fn group_norm(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let g = Groups::read(l, 3)?;
    if !ty.dtype.is_float() || ty.rank() < 2 {
        return Err(LowerError::unsupported(format!("normalisation of {ty}")));
    }
    let c = ty.dtype.compute();
    let x = l.tensor(0)?;
    let rows = l.g.reshape(x, &[g.n, g.groups, g.c / g.groups * g.hw]);
    let shape = Shape::new(c, &[g.n, g.groups, 1]);
    let op = Op::Variance { dims: Dims::from_slice(&[2]), correction: 0.0 };
    let variance = l.g.push(op, &[rows], &[shape.clone(), shape]);
    let mean = Value(variance.0 + 1);
    let rstd = inverse_deviation(l, variance, l.float_or(7, 1e-5));
    let scale = match g.weight(l, 1, c)? {
        Some(weight) => l.bin(BinaryOp::Mul, rstd, weight),
        None => rstd,
    };
    let offset = l.bin(BinaryOp::Mul, mean, scale);
    let shift = match g.weight(l, 2, c)? {
        Some(bias) => l.bin(BinaryOp::Sub, bias, offset),
        None => l.un(UnaryOp::Neg, offset),
    };
    let (scale, shift) = (g.spread(l, scale, ty.rank()), g.spread(l, shift, ty.rank()));
    transform(l, x, scale, Some(shift))?;
    for (k, value) in [(1, mean), (2, rstd)] {
        let dtype = l.out(k)?.dtype;
        l.store(Typed { value, dtype })?;
    }
    Ok(())
}

/// `(grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask)`
fn group_norm_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(1)?.clone();
    let g = Groups::read(l, 5)?;
    if !ty.dtype.is_float() || ty.rank() < 2 {
        return Err(LowerError::unsupported(format!("normalisation of {ty}")));
    }
    let c = ty.dtype.compute();
    let per_group = g.c / g.groups;
    let (grad, x) = (l.tensor(0)?, l.tensor(1)?);
    let (grad, x) = (l.g.convert(grad, c), l.g.convert(x, c));
    let stat = |l: &mut Lower, i: usize| -> Result<Value, LowerError> {
        let value = l.tensor(i)?;
        let value = l.g.convert(value, c);
        Ok(l.g.reshape(value, &[g.n, g.groups, 1]))
    };
    let (mean, rstd) = (stat(l, 2)?, stat(l, 3)?);
    let weight = g.weight(l, 4, c)?;
    // Sums over positions, as `[n, groups, channels]`.
    let positions: Dims = (2..ty.rank() as i64).collect();
    let channel_sum = |l: &mut Lower, value: Value| {
        let total = if positions.is_empty() { value } else { sum(l, value, positions.clone()) };
        let total = once(l, total);
        l.g.reshape(total, &[g.n, g.groups, per_group])
    };
    let (ds, db) = if g.hw >= LEAST_RUN && l.ty(0)?.dtype == ty.dtype {
        let flat = [1, g.n * g.c, g.hw];
        let (grad, x) = (l.tensor(0)?, l.tensor(1)?);
        let (grad, x) = (l.g.reshape(grad, &flat), l.g.reshape(x, &flat));
        let (total, dot) = channel_sums(l, grad, x, None);
        let sizes = [g.n, g.groups, per_group];
        (l.g.reshape(dot, &sizes), l.g.reshape(total, &sizes))
    } else {
        let product = l.bin(BinaryOp::Mul, grad, x);
        (channel_sum(l, product), channel_sum(l, grad))
    };
    gradient(l, 0, |l| {
        let weighted = |l: &mut Lower, value: Value| {
            let value = match weight {
                Some(w) => l.bin(BinaryOp::Mul, value, w),
                None => value,
            };
            sum(l, value, Dims::from_slice(&[2]))
        };
        let (ds, db) = (weighted(l, ds), weighted(l, db));
        let scale = match weight {
            Some(w) => l.bin(BinaryOp::Mul, rstd, w),
            None => rstd,
        };
        let share = 1.0 / (per_group * g.hw) as f64;
        // The gradient is `scale * grad + slope * x + shift`.
        let slope = l.bin(BinaryOp::Mul, db, mean);
        let slope = l.bin(BinaryOp::Sub, slope, ds);
        let cube = l.bin(BinaryOp::Mul, rstd, rstd);
        let cube = l.bin(BinaryOp::Mul, cube, rstd);
        let slope = l.bin(BinaryOp::Mul, slope, cube);
        let slope = l.with_constant(BinaryOp::Mul, slope, share);
        let slope = once(l, slope);
        let shift = l.bin(BinaryOp::Mul, slope, mean);
        let rest = l.bin(BinaryOp::Mul, db, rstd);
        let rest = l.with_constant(BinaryOp::Mul, rest, share);
        let shift = l.bin(BinaryOp::Add, shift, rest);
        let (scale, slope, shift) =
            (g.spread(l, scale, ty.rank()), g.spread(l, slope, ty.rank()), g.spread(l, shift, ty.rank()));
        let a = l.bin(BinaryOp::Mul, grad, scale);
        let b = l.bin(BinaryOp::Mul, x, slope);
        let value = l.bin(BinaryOp::Add, a, b);
        let value = l.bin(BinaryOp::Sub, value, shift);
        Ok(l.g.convert(value, ty.dtype))
    })?;
    gradient(l, 1, |l| {
        let offset = l.bin(BinaryOp::Mul, db, mean);
        let value = l.bin(BinaryOp::Sub, ds, offset);
        let value = l.bin(BinaryOp::Mul, value, rstd);
        let value = sum(l, value, Dims::from_slice(&[0]));
        as_output(l, value, 1)
    })?;
    gradient(l, 2, |l| {
        let value = sum(l, db, Dims::from_slice(&[0]));
        as_output(l, value, 2)
    })
}
