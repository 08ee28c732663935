//! Moving elements: reversing, shifting, cutting out, spreading over a mask.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed, wrap_dim};
use neuron_ir::{BinaryOp, DType, Dims, Op, OrderingOp, ReduceOp, Scalar, ScatterOp, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::flip"], flip),
    (&["aten::roll"], roll),
    (&["aten::narrow_copy", "aten::narrow_copy.out"], narrow_copy),
    (&["aten::channel_shuffle"], channel_shuffle),
    (&["aten::unfold_backward"], unfold_backward),
    (&["aten::trace"], trace),
    (&["aten::eye.out", "aten::eye.m_out"], eye),
    (&["aten::linalg_cross", "aten::linalg_cross.out"], cross),
    (&["aten::masked_scatter_"], masked_scatter),
    (&["aten::nonzero_static", "aten::nonzero_static.out"], nonzero_static),
];

/// `(self, dims)`
fn flip(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let rank = ty.rank();
    let given = l.ints(1).unwrap_or_default();
    let dims: Dims = given.iter().map(|d| wrap_dim(*d, rank).map(|d| d as i64)).collect::<Result<_, _>>()?;
    let x = l.tensor(0)?;
    let value = if rank == 0 { x } else { l.g.op(Op::Ordering(OrderingOp::Flip { dims }), &[x], ty.shape()) };
    l.store_value(value)
}

/// `(self, shifts, dims)`. Without dims the elements are shifted row-major.
fn roll(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let (given, dims) = (l.ints(1).unwrap_or_default(), l.ints(2).unwrap_or_default());
    let mut x = l.tensor(0)?;
    let flat = dims.is_empty();
    if flat {
        x = l.g.reshape(x, &[ty.numel()]);
    }
    let shape = l.g.shape(x).clone();
    let mut shifts = Dims::from_elem(0, shape.rank());
    if ty.numel() > 0 && shape.rank() > 0 {
        for (i, shift) in given.iter().enumerate() {
            let dim = if flat { 0 } else { wrap_dim(dims[i], shape.rank())? };
            shifts[dim] = (shifts[dim] + shift).rem_euclid(shape.sizes[dim]);
        }
    }
    let value = rolled(l, x, shifts);
    l.store_value(value)
}

fn rolled(l: &mut Lower, x: Value, shifts: Dims) -> Value {
    let shape = l.g.shape(x).clone();
    l.g.op(Op::Ordering(OrderingOp::Roll { shifts }), &[x], shape)
}

/// `(self, dim, start, length)`
fn narrow_copy(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let dim = l.dim(1, ty.rank())?;
    let (start, length) = (l.int(2)?, l.int(3)?);
    let start = if start < 0 { start + ty.sizes[dim] } else { start };
    let x = l.tensor(0)?;
    let value = l.slice(x, dim, start, length);
    l.store_value(value)
}

fn transposed(l: &mut Lower, x: Value, permutation: Dims) -> Value {
    let from = l.g.shape(x).clone();
    let sizes = permutation.iter().map(|p| from.sizes[*p as usize]).collect();
    l.g.op(Op::Transpose { permutation }, &[x], Shape { dtype: from.dtype, sizes })
}

/// `(self, groups)`: channels counted group by group are counted across the groups.
fn channel_shuffle(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let groups = l.int(1)?;
    if ty.rank() < 3 || groups < 1 || ty.sizes[1] % groups != 0 {
        return Err(LowerError::unsupported("channels that do not divide into groups"));
    }
    let (n, c, rest) = (ty.sizes[0], ty.sizes[1], ty.sizes[2..].iter().product());
    let x = l.tensor(0)?;
    let x = l.g.reshape(x, &[n, groups, c / groups, rest]);
    let x = transposed(l, x, Dims::from_slice(&[0, 2, 1, 3]));
    let value = l.g.reshape(x, &ty.sizes);
    l.store_value(value)
}

/// `(grad_in, input_sizes, dim, size, step)`: windows are added where they were taken.
fn unfold_backward(l: &mut Lower) -> Lowered {
    let (grad, out) = (l.ty(0)?, l.out(0)?.clone());
    let (size, step) = (l.int(3)?, l.int(4)?);
    let dim = l.dim(2, out.rank())?;
    let x = l.tensor(0)?;
    if out.rank() == 0 || grad.numel() == 0 {
        let zero = l.constant(out.dtype, 0.0);
        let value = if out.rank() == 0 && grad.numel() == 1 { l.g.reshape(x, &[]) } else { zero };
        return l.store_value(value);
    }
    if grad.rank() != out.rank() + 1 || grad.sizes[out.rank()] != size {
        return Err(LowerError::unsupported("a gradient that is not of windows"));
    }
    let windows = grad.sizes[dim];
    let last = grad.rank() as i64 - 1;
    let mut permutation: Dims = (0..last).collect();
    permutation.insert(dim + 1, last);
    let x = transposed(l, x, permutation);
    let mut sizes = out.sizes.clone();
    sizes[dim] = windows * size;
    let updates = l.g.reshape(x, &sizes);
    let shape = Shape::new(DType::I64, &[windows, size]);
    let window = l.g.op(Op::Iota { dim: 0 }, &[], shape.clone());
    let step = l.g.constant(DType::I64, Scalar::I64(step));
    let window = l.bin(BinaryOp::Mul, window, step);
    let within = l.g.op(Op::Iota { dim: 1 }, &[], shape);
    let index = l.bin(BinaryOp::Add, window, within);
    let index = l.g.reshape(index, &[windows * size]);
    let zero = l.constant(out.dtype, 0.0);
    let base = l.g.broadcast(zero, &out.sizes);
    let value = l.g.op(Op::IndexAdd { dim, alpha: false }, &[base, index, updates], out.shape());
    l.store_value(value)
}

/// `(self)`: the sum of the diagonal.
fn trace(l: &mut Lower) -> Lowered {
    let (ty, out) = (l.ty(0)?, l.out(0)?.dtype);
    if ty.rank() != 2 {
        return Err(LowerError::unsupported("the trace of something else than a matrix"));
    }
    let n = ty.sizes[0].min(ty.sizes[1]);
    let (x, i) = (l.tensor(0)?, l.iota(n));
    let op = Op::Index { dims: Dims::from_slice(&[0, 1]), result_dim: 0 };
    let diagonal = l.g.op(op, &[x, i, i], Shape::new(ty.dtype, &[n]));
    let diagonal = l.g.convert(diagonal, out.compute());
    let op = Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[0]) };
    let value = l.g.op(op, &[diagonal], Shape::new(out.compute(), &[1]));
    l.store(Typed { value, dtype: out })
}

/// `(n, m, out)`
fn eye(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    if out.rank() != 2 {
        return Err(LowerError::unsupported("a result that is no matrix"));
    }
    let index = Shape { dtype: DType::I64, sizes: out.sizes.clone() };
    let row = l.g.op(Op::Iota { dim: 0 }, &[], index.clone());
    let column = l.g.op(Op::Iota { dim: 1 }, &[], index);
    let value = l.bin(BinaryOp::Eq, row, column);
    let value = l.g.convert(value, out.dtype);
    l.store_value(value)
}

/// `(self, other, dim)`: `a1 b2 - a2 b1` and so on around the dimension.
fn cross(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let dim = l.dim(2, out.rank())?;
    let dtype = l.common(&[0, 1])?;
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let (a, b) = (l.g.broadcast(a, &out.sizes), l.g.broadcast(b, &out.sizes));
    let mut product = |i: i64, j: i64| {
        let mut shifts = [Dims::from_elem(0, out.rank()), Dims::from_elem(0, out.rank())];
        (shifts[0][dim], shifts[1][dim]) = (3 - i, 3 - j);
        let [first, second] = shifts;
        let (x, y) = (rolled(l, a, first), rolled(l, b, second));
        let value = l.bin(BinaryOp::Mul, x, y);
        l.round(value, dtype)
    };
    let (plus, minus) = (product(1, 2), product(2, 1));
    let value = l.bin(BinaryOp::Sub, plus, minus);
    l.store(Typed { value, dtype })
}

/// How many elements of a flat mask are set before and at each.
fn running_count(l: &mut Lower, mask: Value) -> Value {
    let counted = l.g.convert(mask, DType::I64);
    let shape = l.g.shape(counted).clone();
    l.g.op(Op::Cumulative { op: ReduceOp::Sum, dim: 0 }, &[counted], shape)
}

/// `(self, mask, source)`: the elements of the source go where the mask is set, in order.
fn masked_scatter(l: &mut Lower) -> Lowered {
    let (ty, source) = (l.ty(0)?.clone(), l.ty(2)?.clone());
    let n = ty.numel();
    if l.ty(1)?.dtype != DType::Bool || source.dtype != ty.dtype || (source.numel() == 0 && n > 0) {
        return Err(LowerError::unsupported("a mask or a source of another dtype, or a source of nothing"));
    }
    let x = l.tensor(0)?;
    if n == 0 {
        return l.store_value(x);
    }
    let (mask, values) = (l.tensor(1)?, l.tensor(2)?);
    let mask = l.g.broadcast(mask, &ty.sizes);
    let mask = l.g.reshape(mask, &[n]);
    let count = running_count(l, mask);
    let position = l.with_constant(BinaryOp::Sub, count, 1.0);
    let first = l.g.constant(DType::I64, Scalar::I64(0));
    let position = l.g.select(mask, position, first);
    let values = l.g.reshape(values, &[source.numel()]);
    let picked = l.g.op(Op::IndexSelect { dim: 0 }, &[values, position], Shape::new(ty.dtype, &[n]));
    let x = l.g.reshape(x, &[n]);
    let value = l.g.select(mask, picked, x);
    l.store_value(value)
}

/// `(self, size, fill_value)`: the first positions that are not 0, and the fill value after the last.
fn nonzero_static(l: &mut Lower) -> Lowered {
    let (ty, out) = (l.ty(0)?.clone(), l.out(0)?.clone());
    let (size, fill) = (l.int(1)?, l.int(2)?);
    let fill = l.g.constant(DType::I64, Scalar::I64(fill));
    let n = ty.numel();
    if n == 0 || out.numel() == 0 {
        return l.store_value(fill);
    }
    let x = l.tensor(0)?;
    let mask = l.g.convert(x, DType::Bool);
    let mask = l.g.reshape(mask, &[n]);
    let count = running_count(l, mask);
    // The last place takes everything that is not wanted.
    let spare = l.g.constant(DType::I64, Scalar::I64(size));
    let rank = l.with_constant(BinaryOp::Sub, count, 1.0);
    let wanted = l.bin(BinaryOp::Lt, rank, spare);
    let wanted = l.bin(BinaryOp::And, wanted, mask);
    let rank = l.g.select(wanted, rank, spare);
    let positions = l.iota(n);
    let absent = l.g.constant(DType::I64, Scalar::I64(-1));
    let places = l.g.broadcast(absent, &[size + 1]);
    let op = Op::Scatter { dim: 0, op: ScatterOp::Set };
    let places = l.g.op(op, &[places, rank, positions], Shape::new(DType::I64, &[size + 1]));
    let places = l.slice(places, 0, 0, size);
    let present = l.with_constant(BinaryOp::Ge, places, 0.0);
    let mut columns = Vec::new();
    let mut inner = n;
    for extent in &ty.sizes {
        inner /= extent;
        let column = l.with_constant(BinaryOp::FloorDiv, places, inner as f64);
        let column = l.with_constant(BinaryOp::Remainder, column, *extent as f64);
        let column = l.g.select(present, column, fill);
        columns.push(l.g.reshape(column, &[size, 1]));
    }
    let value = l.g.op(Op::Concat { dim: 1 }, &columns, out.shape());
    l.store_value(value)
}
