//! Reductions, softmax and running sums.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed, wrap_dim};
use neuron_ir::{BinaryOp, DType, Dims, Op, ReduceOp, Shape, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::sum", "aten::sum.out"], |l| additive(l, None, ReduceOp::Sum)),
    (&["aten::sum.dim_IntList", "aten::sum.IntList_out"], |l| additive(l, Some(1), ReduceOp::Sum)),
    (&["aten::nansum", "aten::nansum.out"], nansum),
    (&["aten::count_nonzero.dim_IntList"], super::vector_norm::count_nonzero),
    (&["aten::aminmax", "aten::aminmax.out"], aminmax),
    (&["aten::prod", "aten::prod.out"], |l| additive(l, None, ReduceOp::Prod)),
    (&["aten::prod.dim_int", "aten::prod.int_out"], |l| additive(l, Some(1), ReduceOp::Prod)),
    (&["aten::mean"], |l| mean(l, None)),
    (&["aten::mean.dim", "aten::mean.out"], |l| mean(l, Some(1))),
    (&["aten::amax", "aten::amax.out"], |l| extreme(l, Some(1), ReduceOp::Max)),
    (&["aten::amin", "aten::amin.out"], |l| extreme(l, Some(1), ReduceOp::Min)),
    (&["aten::max", "aten::max.unary_out"], |l| extreme(l, None, ReduceOp::Max)),
    (&["aten::min", "aten::min.unary_out"], |l| extreme(l, None, ReduceOp::Min)),
    (&["aten::max.dim", "aten::max.dim_max"], |l| extreme_with_index(l, true)),
    (&["aten::min.dim", "aten::min.dim_min"], |l| extreme_with_index(l, false)),
    (&["aten::argmax", "aten::argmax.out"], |l| position(l, ReduceOp::ArgMax)),
    (&["aten::argmin", "aten::argmin.out"], |l| position(l, ReduceOp::ArgMin)),
    (&["aten::any", "aten::any.all_out"], |l| truth(l, None, ReduceOp::Any)),
    (&["aten::any.dim", "aten::any.out"], |l| truth(l, Some(1), ReduceOp::Any)),
    (&["aten::any.dims", "aten::any.dims_out"], |l| truth(l, Some(1), ReduceOp::Any)),
    (&["aten::all", "aten::all.all_out"], |l| truth(l, None, ReduceOp::All)),
    (&["aten::all.dim", "aten::all.out"], |l| truth(l, Some(1), ReduceOp::All)),
    (&["aten::all.dims", "aten::all.dims_out"], |l| truth(l, Some(1), ReduceOp::All)),
    (&["aten::var.correction", "aten::var.correction_out"], |l| spread(l, false, false)),
    (&["aten::std.correction", "aten::std.correction_out"], |l| spread(l, true, false)),
    (&["aten::var_mean.correction"], |l| spread(l, false, true)),
    (&["aten::std_mean.correction"], |l| spread(l, true, true)),
    (&["aten::_softmax", "aten::_softmax.out"], |l| softmax(l, false)),
    (&["aten::_log_softmax", "aten::_log_softmax.out"], |l| softmax(l, true)),
    (&["aten::_softmax_backward_data", "aten::_softmax_backward_data.out"], |l| softmax_backward(l, false)),
    (&["aten::_log_softmax_backward_data", "aten::_log_softmax_backward_data.out"], |l| softmax_backward(l, true)),
    (&["aten::cumsum", "aten::cumsum_", "aten::cumsum.out"], |l| running(l, ReduceOp::Sum)),
    (&["aten::cumprod", "aten::cumprod_", "aten::cumprod.out"], |l| running(l, ReduceOp::Prod)),
];

/// The dimensions to reduce: those argument `i` names, or all.
fn dims(l: &Lower, i: Option<usize>) -> Result<Dims, LowerError> {
    let rank = l.ty(0)?.rank();
    match i {
        Some(i) => l.dims(i, rank),
        None => Ok((0..rank as i64).collect()),
    }
}

fn reduce(l: &mut Lower, op: ReduceOp, x: Value, dims: Dims, dtype: DType) -> Value {
    let mut shape = Shape { dtype, sizes: l.g.shape(x).sizes.clone() };
    for d in &dims {
        shape.sizes[*d as usize] = 1;
    }
    l.g.op(Op::Reduce { op, dims }, &[x], shape)
}

/// The elements a reduction combines into one result.
fn extent(l: &Lower, dims: &Dims) -> Result<i64, LowerError> {
    let sizes = &l.ty(0)?.sizes;
    Ok(dims.iter().map(|d| sizes[*d as usize]).product())
}

/// Sum or product, accumulated in the compute type of the result.
fn additive(l: &mut Lower, at: Option<usize>, op: ReduceOp) -> Lowered {
    let dims = dims(l, at)?;
    let dtype = l.out(0)?.dtype;
    let x = l.tensor(0)?;
    // A bool result still counts: nonzero sums are true.
    let compute = if dtype == DType::Bool { DType::I64 } else { dtype.compute() };
    let x = match (l.g.dtype(x), compute) {
        (own, c) if own.compute() == c => x,
        (own, _) if own.is_int() || own == DType::Bool => l.g.convert(x, compute),
        (_, c) => l.g.convert(x, c),
    };
    let value = reduce(l, op, x, dims, compute);
    l.store(Typed { value, dtype })
}

/// `(self, dim, keepdim, dtype)`: the sum of what is no NaN.
fn nansum(l: &mut Lower) -> Lowered {
    if !l.ty(0)?.dtype.is_float() {
        return additive(l, Some(1), ReduceOp::Sum);
    }
    let dims = dims(l, Some(1))?;
    let dtype = l.out(0)?.dtype;
    let x = l.tensor(0)?;
    let x = l.g.convert(x, dtype.compute());
    let nan = l.un(UnaryOp::IsNan, x);
    let zero = l.constant(dtype.compute(), 0.0);
    let x = l.g.select(nan, zero, x);
    let value = reduce(l, ReduceOp::Sum, x, dims, dtype.compute());
    l.store(Typed { value, dtype })
}

/// `(self, dim, keepdim)`: smallest and largest.
fn aminmax(l: &mut Lower) -> Lowered {
    let rank = l.ty(0)?.rank();
    let dims = match l.arg(1) {
        Arg::None => dims(l, None)?,
        _ if rank == 0 => Dims::new(),
        _ => Dims::from_slice(&[l.dim(1, rank)? as i64]),
    };
    if extent(l, &dims)? == 0 {
        return Err(LowerError::unsupported("an extremum of nothing"));
    }
    let x = l.tensor(0)?;
    let dtype = l.g.dtype(x);
    for op in [ReduceOp::Min, ReduceOp::Max] {
        let value = if dims.is_empty() { x } else { reduce(l, op, x, dims.clone(), dtype) };
        l.store(Typed { value, dtype })?;
    }
    Ok(())
}

fn mean(l: &mut Lower, at: Option<usize>) -> Lowered {
    let dims = dims(l, at)?;
    let dtype = l.out(0)?.dtype;
    if !dtype.is_float() {
        return Err(LowerError::unsupported("the mean of integers"));
    }
    let n = extent(l, &dims)?;
    let x = l.tensor(0)?;
    let x = if l.g.dtype(x).compute() == dtype.compute() { x } else { l.g.convert(x, dtype.compute()) };
    let total = reduce(l, ReduceOp::Sum, x, dims, dtype.compute());
    let value = l.with_constant(BinaryOp::Div, total, n as f64);
    l.store(Typed { value, dtype })
}

fn extreme(l: &mut Lower, at: Option<usize>, op: ReduceOp) -> Lowered {
    let dims = dims(l, at)?;
    if extent(l, &dims)? == 0 {
        return Err(LowerError::unsupported("an extremum of nothing"));
    }
    let x = l.tensor(0)?;
    let dtype = l.g.dtype(x);
    let value = reduce(l, op, x, dims, dtype);
    l.store(Typed { value, dtype })
}

fn extreme_with_index(l: &mut Lower, max: bool) -> Lowered {
    let ty = l.ty(0)?;
    let dim = l.dim(1, ty.rank())?;
    if ty.sizes.get(dim) == Some(&0) {
        return Err(LowerError::unsupported("an extremum of nothing"));
    }
    let x = l.tensor(0)?;
    let x = l.at_least_1d(x);
    let mut values = l.g.shape(x).clone();
    values.sizes[dim] = 1;
    let indices = Shape { dtype: DType::I64, sizes: values.sizes.clone() };
    let first = l.g.push(Op::MinMax { max, dim }, &[x], &[values, indices]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

fn position(l: &mut Lower, op: ReduceOp) -> Lowered {
    let rank = l.ty(0)?.rank();
    let dims = match l.arg(1) {
        Arg::None => dims(l, None)?,
        _ if rank == 0 => Dims::new(),
        _ => Dims::from_slice(&[l.dim(1, rank)? as i64]),
    };
    if extent(l, &dims)? == 0 {
        return Err(LowerError::unsupported("the position of an extremum of nothing"));
    }
    let x = l.tensor(0)?;
    let value = if dims.is_empty() { l.constant(DType::I64, 0.0) } else { reduce(l, op, x, dims, DType::I64) };
    l.store(Typed { value, dtype: DType::I64 })
}

fn truth(l: &mut Lower, at: Option<usize>, op: ReduceOp) -> Lowered {
    let dims = match at {
        // `dim=[]` reduces nothing here, unlike everywhere else.
        Some(i) if l.ints(i).is_some_and(|d| d.is_empty()) => Dims::new(),
        at => dims(l, at)?,
    };
    let x = l.tensor(0)?;
    let x = l.g.convert(x, DType::Bool);
    let value = if dims.is_empty() { x } else { reduce(l, op, x, dims, DType::Bool) };
    l.store(Typed { value, dtype: DType::Bool })
}

fn spread(l: &mut Lower, root: bool, with_mean: bool) -> Lowered {
    let ty = l.ty(0)?;
    let dims = dims(l, Some(1))?;
    let correction = l.known(2, 1.0)?;
    let dtype = ty.dtype;
    if !dtype.is_float() {
        return Err(LowerError::unsupported("the variance of integers"));
    }
    let x = l.tensor(0)?;
    let mut shape = Shape { dtype: dtype.compute(), sizes: ty.sizes.clone() };
    for d in &dims {
        shape.sizes[*d as usize] = 1;
    }
    let first = l.g.push(Op::Variance { dims, correction }, &[x], &[shape.clone(), shape]);
    let value = if root { l.un(UnaryOp::Sqrt, first) } else { first };
    l.store(Typed { value, dtype })?;
    if with_mean {
        l.store(Typed { value: Value(first.0 + 1), dtype })?;
    }
    Ok(())
}

fn softmax(l: &mut Lower, log: bool) -> Lowered {
    let ty = l.ty(0)?;
    let dim = l.dim(1, ty.rank())?;
    let dtype = l.out(0)?.dtype;
    let x = l.tensor(0)?;
    let x = l.g.reshape(x, &one_if_scalar(&ty.sizes));
    let shape = Shape { dtype, sizes: l.g.shape(x).sizes.clone() };
    let value = l.g.op(Op::Softmax { dim, log }, &[x], shape);
    l.store(Typed { value, dtype })
}

fn softmax_backward(l: &mut Lower, log: bool) -> Lowered {
    let ty = l.ty(0)?;
    let dim = l.dim(2, ty.rank())?;
    let dtype = l.out(0)?.dtype;
    let sizes = one_if_scalar(&ty.sizes);
    let (grad, out) = (l.tensor(0)?, l.tensor(1)?);
    let (grad, out) = (l.g.reshape(grad, &sizes), l.g.reshape(out, &sizes));
    let value = l.g.op(Op::SoftmaxBackward { dim, log }, &[grad, out], Shape { dtype, sizes });
    l.store(Typed { value, dtype })
}

/// A 0-dimensional tensor has one dimension of extent 1 for operators along a dimension.
fn one_if_scalar(sizes: &Dims) -> Dims {
    if sizes.is_empty() { Dims::from_slice(&[1]) } else { sizes.clone() }
}

fn running(l: &mut Lower, op: ReduceOp) -> Lowered {
    let ty = l.ty(0)?;
    let dim = wrap_dim(l.int(1)?, ty.rank())?;
    let dtype = l.out(0)?.dtype;
    let x = l.tensor(0)?;
    let x = l.g.convert(x, dtype);
    let x = l.g.reshape(x, &one_if_scalar(&ty.sizes));
    let shape = l.g.shape(x).clone();
    let value = l.g.op(Op::Cumulative { op, dim }, &[x], shape);
    l.store(Typed { value, dtype })
}
