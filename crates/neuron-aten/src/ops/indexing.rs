//! Reading and writing by index.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, as_tensor};
use neuron_ir::{BinaryOp, DType, Dims, Op, ReduceOp, ScatterOp, Shape, UnaryOp, Value, broadcast_sizes};

pub(super) const ROWS: &[Row] = &[
    (&["neuron::true_counts"], true_counts),
    (&["neuron::true_positions"], true_positions),
    (&["aten::index_select", "aten::index_select.out"], index_select),
    (&["aten::embedding"], embedding),
    (&["aten::embedding_dense_backward"], embedding_backward),
    (&["aten::gather", "aten::gather.out"], gather),
    (&["aten::scatter.src", "aten::scatter_.src", "aten::scatter.src_out"], |l| scatter(l, ScatterOp::Set)),
    (&["aten::scatter.value", "aten::scatter_.value", "aten::scatter.value_out"], |l| scatter(l, ScatterOp::Set)),
    (&["aten::scatter_add", "aten::scatter_add_", "aten::scatter_add.out"], |l| scatter(l, ScatterOp::Add)),
    (&["aten::index_add", "aten::index_add_", "aten::index_add.out"], index_add),
    (&["aten::index.Tensor", "aten::index.Tensor_out", "aten::_unsafe_index.Tensor"], index),
    (&["aten::_index_put_impl_"], index_put),
    (&["aten::isin.Tensor_Tensor", "aten::isin.Tensor_Tensor_out"], isin),
];

fn check_index(dtype: DType) -> Lowered {
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
    if ty.rank() == 0 {
        return Err(LowerError::unsupported("index_select of a 0-dimensional tensor"));
    }
    let (table, index) = (l.tensor(0)?, l.tensor(2)?);
    let n = l.g.shape(index).numel();
    let index = l.g.reshape(index, &[n]);
    let mut shape = ty.shape();
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
    check_index(index.dtype)?;
    let dim = l.dim(1, ty.rank())?;
    if ty.rank() == 0 || index.rank() != ty.rank() {
        return Err(LowerError::unsupported("gather of 0-dimensional tensors"));
    }
    let shape = Shape { dtype: ty.dtype, sizes: index.sizes.clone() };
    let operands = [l.tensor(0)?, l.tensor(2)?];
    let value = l.g.op(Op::Gather { dim }, &operands, shape);
    l.store_value(value)
}

/// `(self, dim, index, src or value)`
fn scatter(l: &mut Lower, op: ScatterOp) -> Lowered {
    let (ty, index) = (l.ty(0)?.clone(), l.ty(2)?.clone());
    check_index(index.dtype)?;
    let dim = l.dim(1, ty.rank())?;
    if ty.rank() == 0 || index.rank() != ty.rank() {
        return Err(LowerError::unsupported("scatter of 0-dimensional tensors"));
    }
    let updates = match l.arg(3) {
        Arg::Tensor(src) if src.ty.rank() == ty.rank() => {
            if src.ty.dtype != ty.dtype {
                return Err(LowerError::unsupported("scatter of another dtype"));
            }
            l.tensor(3)?
        }
        Arg::Tensor(_) => return Err(LowerError::unsupported("scatter of a 0-dimensional source")),
        _ => {
            let value = l.wide_operand(3, ty.dtype)?;
            let value = l.g.convert(value, ty.dtype);
            l.g.broadcast(value, &index.sizes)
        }
    };
    let operands = [l.tensor(0)?, l.tensor(2)?, updates];
    let value = l.g.op(Op::Scatter { dim, op }, &operands, ty.shape());
    l.store_value(value)
}

/// `(self, dim, index, source, alpha)`
fn index_add(l: &mut Lower) -> Lowered {
    let (ty, source) = (l.ty(0)?.clone(), l.ty(3)?);
    check_index(l.ty(2)?.dtype)?;
    if ty.rank() == 0 || l.ty(2)?.rank() > 1 || source.rank() != ty.rank() || source.dtype != ty.dtype {
        return Err(LowerError::unsupported("index_add of 0-dimensional tensors or mixed dtypes"));
    }
    let dim = l.dim(1, ty.rank())?;
    let mut operands = vec![l.tensor(0)?, l.tensor(2)?, l.tensor(3)?];
    let n = l.g.shape(operands[1]).numel();
    operands[1] = l.g.reshape(operands[1], &[n]);
    let alpha = l.scalar(4)?;
    if !alpha.one {
        let factor = l.number(alpha, ty.dtype.compute());
        operands.push(factor);
    }
    let value = l.g.op(Op::IndexAdd { dim, alpha: !alpha.one }, &operands, ty.shape());
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

/// Above this the CPU's sorting wins.
const MOST_COMPARISONS: i64 = 1 << 26;

/// `(elements, test_elements, assume_unique, invert)`: every element is compared with every test element.
fn isin(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (elements, tests) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let (sizes, n) = (l.g.shape(elements).sizes.clone(), l.g.shape(tests).numel());
    if l.g.shape(elements).numel().saturating_mul(n) > MOST_COMPARISONS {
        return Err(LowerError::unsupported("more comparisons than sorting would cost"));
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
