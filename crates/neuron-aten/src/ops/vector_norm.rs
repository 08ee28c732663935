//! Norms of any order, and tensors cut down to one.

use super::{Row, overloads};
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Dims, Op, ReduceOp, Shape, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::linalg_vector_norm", "aten::linalg_vector_norm.out"], norm),
    (&["aten::norm.ScalarOpt_dim", "aten::norm.out", "aten::norm.ScalarOpt_dim_dtype", "aten::norm.dtype_out"], norm),
    (overloads!("renorm"), renorm),
];

fn reduce(l: &mut Lower, op: ReduceOp, x: Value, dims: Dims) -> Value {
    let mut shape = l.g.shape(x).clone();
    for d in &dims {
        shape.sizes[*d as usize] = 1;
    }
    l.g.op(Op::Reduce { op, dims }, &[x], shape)
}

/// The norm of order `order` over `dims`, kept as extents of 1. `x` has a compute type.
pub(super) fn p_norm(l: &mut Lower, x: Value, order: f64, dims: Dims) -> Value {
    let shape = l.g.shape(x).clone();
    if dims.iter().all(|d| shape.sizes[*d as usize] == 1) && order != 0.0 {
        return l.un(UnaryOp::Abs, x);
    }
    if order == 2.0 {
        let square = l.bin(BinaryOp::Mul, x, x);
        let total = reduce(l, ReduceOp::Sum, square, dims);
        return l.un(UnaryOp::Sqrt, total);
    }
    if order == 0.0 {
        let present = l.with_constant(BinaryOp::Ne, x, 0.0);
        let count = l.g.convert(present, shape.dtype);
        return reduce(l, ReduceOp::Sum, count, dims);
    }
    let magnitude = l.un(UnaryOp::Abs, x);
    if order.is_infinite() {
        return reduce(l, if order > 0.0 { ReduceOp::Max } else { ReduceOp::Min }, magnitude, dims);
    }
    if order == 1.0 {
        return reduce(l, ReduceOp::Sum, magnitude, dims);
    }
    let power = l.with_constant(BinaryOp::Pow, magnitude, order);
    let total = reduce(l, ReduceOp::Sum, power, dims);
    l.with_constant(BinaryOp::Pow, total, 1.0 / order)
}

/// `(self, ord, dim, keepdim, dtype)`
fn norm(l: &mut Lower) -> Lowered {
    let dtype = l.out(0)?.dtype;
    let ty = l.ty(0)?;
    let order = l.known(1, 2.0)?;
    let dims = l.dims(2, ty.rank())?;
    let extent: i64 = dims.iter().map(|d| ty.sizes[*d as usize]).product();
    if !ty.dtype.is_float() || !dtype.is_float() || (extent == 0 && (order < 0.0 || order.is_infinite())) {
        return Err(LowerError::unsupported("a norm of integers, or of nothing"));
    }
    let x = l.tensor(0)?;
    let x = l.g.convert(x, dtype);
    let x = l.g.convert(x, dtype.compute());
    let value = p_norm(l, x, order, dims);
    l.store(Typed { value, dtype })
}

/// `(self, p, dim, maxnorm)`: slices along the dimension, made no longer than the norm.
fn renorm(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let order = l.known(1, 2.0)?;
    let dim = l.dim(2, ty.rank())?;
    if !ty.dtype.is_float() || ty.rank() < 2 || matches!(l.arg(3), Arg::None) {
        return Err(LowerError::unsupported("a norm of integers"));
    }
    let c = ty.dtype.compute();
    let x = l.tensor(0)?;
    let x = l.g.convert(x, c);
    let norm = p_norm(l, x, order, (0..ty.rank() as i64).filter(|d| *d != dim as i64).collect());
    let most = l.scalar(3)?;
    let most = l.number(most, c);
    let long = l.bin(BinaryOp::Gt, norm, most);
    let longer = l.with_constant(BinaryOp::Add, norm, 1e-7);
    let factor = l.bin(BinaryOp::Div, most, longer);
    let one = l.constant(c, 1.0);
    let factor = l.g.select(long, factor, one);
    let value = l.bin(BinaryOp::Mul, x, factor);
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(self, dim)`: elements that are not 0.
pub(super) fn count_nonzero(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let dims = l.dims(1, ty.rank())?;
    let x = l.tensor(0)?;
    let present = l.g.convert(x, DType::Bool);
    let mut shape = Shape { dtype: DType::I64, sizes: ty.sizes.clone() };
    for d in &dims {
        shape.sizes[*d as usize] = 1;
    }
    let value = l.g.op(Op::Reduce { op: ReduceOp::Sum, dims }, &[present], shape);
    l.store_value(value)
}
