//! Reading and writing by index.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, as_tensor};
use neuron_ir::{BinaryOp, DType, Dims, Op, OrderingOp, ReduceOp, Shape, UnaryOp, Value, broadcast_sizes};

pub(super) const ROWS: &[Row] = &[
    (&["neuron::true_counts"], true_counts),
    (&["neuron::true_positions"], true_positions),
    (&["aten::index_select", "aten::index_select.out"], index_select),
    (&["aten::embedding"], embedding),
    (&["aten::embedding_dense_backward"], embedding_backward),
    (&["aten::gather", "aten::gather.out"], gather),
    (&["aten::index.Tensor", "aten::index.Tensor_out", "aten::_unsafe_index.Tensor"], index),
    (&["aten::_index_put_impl_"], index_put),
    (&["aten::take", "aten::take.out"], take),
    (&["aten::embedding_renorm_"], embedding_renorm),
    (&["aten::isin.Tensor_Tensor", "aten::isin.Tensor_Tensor_out"], isin),
];

pub(super) fn check_index(dtype: DType) -> Lowered {
    match dtype {
        DType::I64 | DType::I32 => Ok(()),
        other => Err(LowerError::unsupported(format!("an index of {other}"))),
    }
}

/// `(self, dim, index)`
fn index_select(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    check_index(l.ty(2)?.dtype)?;
    let dim = l.dim(1, ty.rank())?;
    let (table, index) = (l.tensor(0)?, l.tensor(2)?);
    let n = l.g.shape(index).numel();
    if ty.rank() == 0 && n != 1 {
        return Err(LowerError::unsupported("several of a 0-dimensional tensor"));
    }
    let (table, index) = (l.at_least_1d(table), l.g.reshape(index, &[n]));
    let mut shape = l.g.shape(table).clone();
    shape.sizes[dim] = n;
    let value = l.g.op(Op::IndexSelect { dim }, &[table, index], shape);
    l.store_value(value)
}

/// `(weight, indices, padding_idx, scale_grad_by_freq, sparse)`
fn embedding(l: &mut Lower) -> Lowered {
    let (weight, indices) = (l.ty(0)?, l.ty(1)?);
    check_index(indices.dtype)?;
    if weight.rank() != 2 {
        return Err(LowerError::unsupported("an embedding table that is not a matrix"));
    }
    let mut sizes = indices.sizes.clone();
    sizes.push(weight.sizes[1]);
    let shape = Shape { dtype: weight.dtype, sizes };
    let operands = [l.tensor(0)?, l.tensor(1)?];
    let value = l.g.op(Op::IndexSelect { dim: 0 }, &operands, shape);
    l.store_value(value)
}

/// `(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)`
fn embedding_backward(l: &mut Lower) -> Lowered {
    check_index(l.ty(1)?.dtype)?;
    let (rows, padding) = (l.int(2)?, l.int(3)?);
    let grad = l.ty(0)?;
    let width = *grad.sizes.last().ok_or_else(|| LowerError::unsupported("a 0-dimensional gradient"))?;
    let op = Op::EmbeddingBackward { rows, padding, scale_by_frequency: l.flag(4) };
    let shape = Shape::new(grad.dtype, &[rows, width]);
    let operands = [l.tensor(0)?, l.tensor(1)?];
    let value = l.g.op(op, &operands, shape);
    l.store_value(value)
}

/// `(self, dim, index, sparse_grad)`
fn gather(l: &mut Lower) -> Lowered {
    let (ty, index) = (l.ty(0)?, l.ty(2)?);
    if index.numel() == 0 {
        let nothing = l.constant(ty.dtype, 0.0);
        return l.store_value(nothing);
    }
    check_index(index.dtype)?;
    let dim = l.dim(1, ty.rank())?;
    let (x, index) = (l.tensor(0)?, l.tensor(2)?);
    let (x, index) = (l.at_least_1d(x), l.at_least_1d(index));
    let sizes = l.g.shape(index).sizes.clone();
    if sizes.len() != l.g.shape(x).rank() {
        return Err(LowerError::unsupported("gather of tensors of different ranks"));
    }
    let value = l.g.op(Op::Gather { dim }, &[x, index], Shape { dtype: ty.dtype, sizes });
    l.store_value(value)
}

/// Where advanced indices stand, and what shape they broadcast to.
struct Indices {
    dims: Dims,
    values: Vec<Value>,
    sizes: Dims,
    /// Where the broadcast dimensions go: at the first index if the indices are adjacent, else in front.
    result_dim: usize,
}

fn indices(l: &mut Lower, list: &[Arg]) -> Result<Indices, LowerError> {
    let mut found = Indices { dims: Dims::new(), values: Vec::new(), sizes: Dims::new(), result_dim: 0 };
    for (dim, arg) in list.iter().enumerate() {
        if *arg == Arg::None {
            continue;
        }
        let t = as_tensor(arg, dim)?;
        check_index(t.ty.dtype)?;
        found.dims.push(dim as i64);
        found.sizes = broadcast_sizes(&found.sizes, &t.ty.sizes)
            .ok_or_else(|| LowerError::unsupported("indices that do not broadcast"))?;
        let value = l.value_of(t);
        found.values.push(value);
    }
    if found.dims.is_empty() {
        return Err(LowerError::unsupported("no index"));
    }
    for v in &mut found.values {
        *v = l.g.broadcast(*v, &found.sizes);
    }
    let adjacent = found.dims.windows(2).all(|w| w[1] == w[0] + 1);
    found.result_dim = if adjacent { found.dims[0] as usize } else { 0 };
    Ok(found)
}

/// The shape of `self[indices]`.
fn indexed_sizes(sizes: &[i64], at: &Indices) -> Dims {
    let mut rest: Dims = (0..sizes.len()).filter(|d| !at.dims.contains(&(*d as i64))).map(|d| sizes[d]).collect();
    rest.insert_many(at.result_dim, at.sizes.iter().copied());
    rest
}

/// `(self, indices)`
fn index(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?;
    let at = indices(l, l.list(1)?)?;
    let shape = Shape { dtype: ty.dtype, sizes: indexed_sizes(&ty.sizes, &at) };
    let mut operands = vec![l.tensor(0)?];
    operands.extend(&at.values);
    let value = l.g.op(Op::Index { dims: at.dims, result_dim: at.result_dim }, &operands, shape);
    l.store_value(value)
}

/// `(self, indices, values, accumulate, unsafe)`
fn index_put(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let list = l.list(1)?;
    let accumulate = l.flag(3);
    let mask = single_mask(list, &ty.sizes).filter(|_| !accumulate);
    if let (Some(mask), 1) = (mask, l.ty(2)?.numel()) {
        return masked_fill(l, mask, &ty.sizes);
    }
    let at = indices(l, list)?;
    if l.ty(2)?.dtype != ty.dtype {
        return Err(LowerError::unsupported("values of another dtype"));
    }
    let values = l.operand(2, ty.dtype)?;
    let values = l.g.convert(values, ty.dtype);
    let values = l.g.broadcast(values, &indexed_sizes(&ty.sizes, &at));
    let mut operands = vec![l.tensor(0)?, values];
    operands.extend(&at.values);
    let op = Op::IndexPut { dims: at.dims, result_dim: at.result_dim, accumulate };
    let value = l.g.op(op, &operands, ty.shape());
    l.store_value(value)
}

/// The one index, if it is a mask over leading dimensions.
fn single_mask<'a>(list: &'a [Arg], sizes: &[i64]) -> Option<&'a Arg> {
    let present: Vec<&Arg> = list.iter().filter(|a| **a != Arg::None).collect();
    match (present.as_slice(), list.first()?) {
        ([only], first) if std::ptr::eq(*only, first) => match only {
            Arg::Tensor(t) if t.ty.dtype == DType::Bool && sizes.starts_with(&t.ty.sizes) => Some(only),
            _ => None,
        },
        _ => None,
    }
}

fn masked_fill(l: &mut Lower, mask: &Arg, sizes: &[i64]) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let mask = l.value_of(as_tensor(mask, 1)?);
    let mut aligned = l.g.shape(mask).sizes.clone();
    aligned.resize(sizes.len(), 1);
    let mask = l.g.reshape(mask, &aligned);
    let fill = l.tensor(2)?;
    let fill = l.g.convert(fill, dtype);
    let fill = l.g.reshape(fill, &[]);
    let x = l.tensor(0)?;
    let value = l.g.select(mask, fill, x);
    l.store_value(value)
}

/// `(self, index)`: positions count row-major.
fn take(l: &mut Lower) -> Lowered {
    let (ty, index) = (l.ty(0)?.clone(), l.ty(1)?.clone());
    if index.dtype != DType::I64 {
        return Err(LowerError::unsupported("an index of another kind"));
    }
    let (x, positions) = (l.tensor(0)?, l.tensor(1)?);
    let (n, count) = (ty.numel(), index.numel());
    let (x, positions) = (l.g.reshape(x, &[n]), l.g.reshape(positions, &[count]));
    let op = Op::Index { dims: Dims::from_slice(&[0]), result_dim: 0 };
    let value = l.g.op(op, &[x, positions], Shape::new(ty.dtype, &[count]));
    l.store_value(value)
}

/// `(self, indices, max_norm, norm_type)`: the rows that are looked up, made no longer than the norm.
fn embedding_renorm(l: &mut Lower) -> Lowered {
    let (ty, indices) = (l.ty(0)?.clone(), l.ty(1)?.clone());
    check_index(indices.dtype)?;
    let (most, order) = (l.float_or(2, 0.0), l.float_or(3, 2.0));
    if ty.rank() != 2 || !ty.dtype.is_float() {
        return Err(LowerError::unsupported("an embedding table that is not a matrix"));
    }
    let (table, index) = (l.tensor(0)?, l.tensor(1)?);
    let n = indices.numel();
    if n == 0 {
        return l.store_value(table);
    }
    let index = l.g.reshape(index, &[n]);
    let rows = l.g.op(Op::IndexSelect { dim: 0 }, &[table, index], Shape::new(ty.dtype, &[n, ty.sizes[1]]));
    let wide = l.g.convert(rows, ty.dtype.compute());
    let norm = super::vector_norm::p_norm(l, wide, order, Dims::from_slice(&[1]));
    let norm = l.round(norm, ty.dtype);
    let norm = l.g.convert(norm, DType::F64);
    let long = l.with_constant(BinaryOp::Gt, norm, most);
    let norm = l.with_constant(BinaryOp::Add, norm, 1e-7);
    let most = l.constant(DType::F64, most);
    let scale = l.bin(BinaryOp::Div, most, norm);
    let scale = l.g.convert(scale, ty.dtype.compute());
    let scaled = l.bin(BinaryOp::Mul, wide, scale);
    let long = l.g.broadcast(long, &[n, ty.sizes[1]]);
    let updates = l.g.select(long, scaled, wide);
    let updates = l.g.convert(updates, ty.dtype);
    let op = Op::IndexPut { dims: Dims::from_slice(&[0]), result_dim: 0, accumulate: false };
    let value = l.g.op(op, &[table, updates, index], ty.shape());
    l.store_value(value)
}

/// Above this the CPU's sorting wins.
const MOST_COMPARISONS: i64 = 1 << 26;

/// `(elements, test_elements, assume_unique, invert)`: every element is compared with every test element.
fn isin(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (elements, tests) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let (sizes, n) = (l.g.shape(elements).sizes.clone(), l.g.shape(tests).numel());
    if l.g.shape(elements).numel().saturating_mul(n) > MOST_COMPARISONS {
        return isin_by_sorting(l, elements, tests);
    }
    let mut column = sizes.clone();
    column.push(1);
    let (elements, tests) = (l.g.reshape(elements, &column), l.g.reshape(tests, &[n]));
    let same = l.g.binary(BinaryOp::Eq, elements, tests);
    let dims = Dims::from_slice(&[sizes.len() as i64]);
    let found = l.g.op(Op::Reduce { op: ReduceOp::Any, dims }, &[same], Shape::new(DType::Bool, &column));
    let value = if l.flag(3) { l.un(UnaryOp::Not, found) } else { found };
    l.store_value(value)
}

/// The mask that argument 0 is, whatever its type.
fn mask(l: &mut Lower) -> Result<Value, LowerError> {
    let x = l.tensor(0)?;
    Ok(l.g.convert(x, DType::Bool))
}

/// `(self, out)`
fn true_counts(l: &mut Lower) -> Lowered {
    let mask = mask(l)?;
    let shape = l.out(0)?.shape();
    let value = l.g.op(Op::TrueCounts, &[mask], shape);
    l.store_value(value)
}

/// `(self, counts, out)`
fn true_positions(l: &mut Lower) -> Lowered {
    let (mask, counts) = (mask(l)?, l.tensor(1)?);
    let shape = l.out(0)?.shape();
    let value = l.g.op(Op::TruePositions, &[mask, counts], shape);
    l.store_value(value)
}

/// Where sorting the test elements and looking each element up costs less.
fn isin_by_sorting(l: &mut Lower, elements: Value, tests: Value) -> Lowered {
    let (dtype, n) = (l.g.dtype(tests), l.g.shape(tests).numel());
    if dtype.is_float() {
        return Err(LowerError::unsupported("NaN among many test elements"));
    }
    let tests = l.g.reshape(tests, &[n]);
    let positions = Shape::new(DType::I64, &[n]);
    let sorted =
        l.g.push(Op::Sort { dim: 0, descending: false, k: n }, &[tests], &[Shape::new(dtype, &[n]), positions]);
    let elements = l.at_least_1d(elements);
    let shape = l.g.shape(elements).clone();
    let position = Shape { dtype: DType::I64, sizes: shape.sizes.clone() };
    let at = l.g.op(Op::Ordering(OrderingOp::Search { right: false }), &[sorted, elements], position);
    let at = l.with_constant(BinaryOp::Minimum, at, (n - 1) as f64);
    let nearest = l.g.op(Op::IndexSelect { dim: 0 }, &[sorted, at], shape);
    let found = l.bin(BinaryOp::Eq, nearest, elements);
    let value = if l.flag(3) { l.un(UnaryOp::Not, found) } else { found };
    l.store_value(value)
}
