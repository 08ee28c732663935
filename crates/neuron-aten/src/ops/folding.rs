//! Sliding blocks, shuffled channels, bags of embeddings.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BagMode, BinaryOp, Blocks, DType, Dims, Op, ReduceOp, Scalar, ScatterOp, Shape, SpatialOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::im2col", "aten::im2col.out"], im2col),
    (&["aten::col2im", "aten::col2im.out"], col2im),
    (&["aten::_embedding_bag", "aten::_embedding_bag_forward_only"], embedding_bag),
    (&["aten::_embedding_bag_backward"], |l| embedding_bag_backward(l, [3, 4, 5, 6, 7, 8, 10, 11], 9)),
    (&["aten::_embedding_bag_dense_backward"], |l| embedding_bag_backward(l, [2, 3, 4, 5, 6, 7, 8, 9], usize::MAX)),
    (&["aten::_embedding_bag_per_sample_weights_backward"], weights_backward),
];

fn pair(l: &Lower, i: usize) -> Result<[i64; 2], LowerError> {
    match l.ints(i).unwrap_or_default().as_slice() {
        [both] => Ok([*both; 2]),
        [h, w] => Ok([*h, *w]),
        other => Err(LowerError::unsupported(format!("{} numbers for 2 dimensions", other.len()))),
    }
}

/// The blocks of `(kernel_size, dilation, padding, stride)`, the first being argument `first`.
fn blocks(l: &Lower, first: usize) -> Result<Blocks, LowerError> {
    Ok(Blocks {
        kernel: pair(l, first)?,
        dilation: pair(l, first + 1)?,
        padding: pair(l, first + 2)?,
        stride: pair(l, first + 3)?,
    })
}

/// The sizes with a batch in front, if they have none.
fn batched(sizes: &[i64], rank: usize) -> Dims {
    let mut batched = Dims::from_slice(sizes);
    if batched.len() + 1 == rank {
        batched.insert(0, 1);
    }
    batched
}

/// `(self, kernel_size, dilation, padding, stride)`
fn im2col(l: &mut Lower) -> Lowered {
    let (ty, out) = (l.ty(0)?, l.out(0)?);
    if ty.dtype.is_int() {
        return Err(LowerError::unsupported(format!("blocks of {}", ty.dtype)));
    }
    let blocks = blocks(l, 1)?;
    let x = l.tensor(0)?;
    let x = l.g.reshape(x, &batched(&ty.sizes, 4));
    let result = Shape { dtype: ty.dtype, sizes: batched(&out.sizes, 3) };
    let value = l.g.op(Op::Spatial(SpatialOp::Unfold(blocks)), &[x], result);
    l.store_value(value)
}

/// `(self, output_size, kernel_size, dilation, padding, stride)`
fn col2im(l: &mut Lower) -> Lowered {
    let (ty, out) = (l.ty(0)?, l.out(0)?);
    let blocks = blocks(l, 2)?;
    let x = l.tensor(0)?;
    let x = l.g.reshape(x, &batched(&ty.sizes, 3));
    let result = Shape { dtype: ty.dtype, sizes: batched(&out.sizes, 4) };
    let value = l.g.op(Op::Spatial(SpatialOp::Fold(blocks)), &[x], result);
    l.store_value(value)
}

fn bag_mode(mode: i64) -> Result<BagMode, LowerError> {
    match mode {
        0 => Ok(BagMode::Sum),
        1 => Ok(BagMode::Mean),
        2 => Ok(BagMode::Max),
        other => Err(LowerError::unsupported(format!("bags of mode {other}"))),
    }
}

/// Index argument `i`, 1-dimensional, as `i64`.
fn index(l: &mut Lower, i: usize) -> Result<Value, LowerError> {
    let ty = l.ty(i)?;
    if ty.rank() != 1 || !matches!(ty.dtype, DType::I32 | DType::I64) {
        return Err(LowerError::unsupported(format!("indices {ty}")));
    }
    let value = l.tensor(i)?;
    Ok(l.g.convert(value, DType::I64))
}

/// `(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)`
fn embedding_bag(l: &mut Lower) -> Lowered {
    let mode = bag_mode(l.int(4)?)?;
    let dtype = l.ty(0)?.dtype;
    let mut operands = vec![l.tensor(0)?, index(l, 1)?, index(l, 2)?];
    let weights = l.has_tensor(6);
    if weights {
        operands.push(l.tensor(6)?);
    }
    let op = SpatialOp::EmbeddingBag { mode, include_last_offset: l.flag(7), padding: l.int(8)?, weights };
    let rest = |k: usize| Ok::<_, LowerError>(Shape { dtype: DType::I64, sizes: l.out(k)?.sizes.clone() });
    let results = [Shape { dtype, sizes: l.out(0)?.sizes.clone() }, rest(1)?, rest(2)?, rest(3)?];
    if results[1].numel() != l.ty(1)?.numel() || results[2].numel() != l.ty(2)?.numel() {
        return Err(LowerError::unsupported("outputs of other sizes"));
    }
    let first = l.g.push(Op::Spatial(op), &operands, &results);
    (0..4).try_for_each(|k| l.store_value(Value(first.0 + k)))
}

/// Rows of `table` that `index` names.
fn rows(l: &mut Lower, table: Value, index: Value) -> Value {
    let mut shape = l.g.shape(table).clone();
    shape.sizes[0] = l.g.shape(index).sizes[0];
    l.g.op(Op::IndexSelect { dim: 0 }, &[table, index], shape)
}

/// `value`, one number per row, against the columns of `rows`.
fn column(l: &mut Lower, value: Value) -> Value {
    let n = l.g.shape(value).sizes[0];
    l.g.reshape(value, &[n, 1])
}

/// `(grad, indices, .., )` and, at `at`: `offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
/// mode, per_sample_weights, padding_idx`
fn embedding_bag_backward(l: &mut Lower, at: [usize; 8], sparse: usize) -> Lowered {
    let [offset2bag, bag_size, maxima, num_weights, by_frequency, mode, weights, padding] = at;
    if sparse != usize::MAX && l.flag(sparse) {
        return Err(LowerError::unsupported("a sparse gradient"));
    }
    let dtype = l.ty(0)?.dtype;
    let width = l.ty(0)?.sizes[1];
    let table = Shape::new(dtype, &[l.int(num_weights)?, width]);
    let grad = l.tensor(0)?;
    let mode = bag_mode(l.int(mode)?)?;
    let bags = l.g.shape(grad).sizes[0];
    if mode == BagMode::Max {
        if l.ty(maxima)?.sizes[..] != [bags, width] || l.ty(bag_size)?.sizes[0] < bags {
            return Err(LowerError::unsupported("maxima of other sizes"));
        }
        if l.ty(bag_size)?.sizes[0] != bags {
            return Err(LowerError::unsupported("maxima with the last offset included"));
        }
        let sizes = index(l, bag_size)?;
        let empty = l.with_constant(BinaryOp::Eq, sizes, 0.0);
        let empty = column(l, empty);
        let nothing = l.constant(dtype, 0.0);
        let grad = l.g.select(empty, nothing, grad);
        let rows = l.tensor(maxima)?;
        let rows = l.g.convert(rows, DType::I64);
        let zeros = l.g.constant(dtype, Scalar::I64(0));
        let zeros = l.g.broadcast(zeros, &table.sizes);
        let value = l.g.op(Op::Scatter { dim: 0, op: ScatterOp::Add }, &[zeros, rows, grad], table);
        return l.store_value(value);
    }
    let index_of = index(l, 1)?;
    if l.ty(offset2bag)?.sizes != l.g.shape(index_of).sizes {
        return Err(LowerError::unsupported("a gradient without the bags of indices"));
    }
    let bag_of = index(l, offset2bag)?;
    let mut rows_of = rows(l, grad, bag_of);
    let compute = dtype.compute();
    let mut factor = None;
    if l.has_tensor(weights) {
        let weight = l.tensor(weights)?;
        let weight = l.g.convert(weight, compute);
        factor = Some(column(l, weight));
    }
    if mode == BagMode::Mean {
        let sizes = index(l, bag_size)?;
        let sizes = rows(l, sizes, bag_of);
        let sizes = l.g.convert(sizes, compute);
        let one = l.constant(compute, 1.0);
        let inverse = l.bin(BinaryOp::Div, one, sizes);
        let inverse = column(l, inverse);
        factor = Some(factor.map_or(inverse, |f| l.g.binary(BinaryOp::Mul, f, inverse)));
    }
    if let Some(factor) = factor {
        let wide = l.g.convert(rows_of, compute);
        let scaled = l.bin(BinaryOp::Mul, wide, factor);
        rows_of = l.g.convert(scaled, dtype);
    }
    let padding = match l.arg(padding) {
        Arg::None => -1,
        _ => l.int(padding)?,
    };
    let op = Op::EmbeddingBackward { rows: table.sizes[0], padding, scale_by_frequency: l.flag(by_frequency) };
    let value = l.g.op(op, &[rows_of, index_of], table);
    l.store_value(value)
}

/// `(grad, weight, indices, offsets, offset2bag, mode, padding_idx)`
fn weights_backward(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let compute = dtype.compute();
    let index_of = index(l, 2)?;
    if l.ty(4)?.sizes != l.g.shape(index_of).sizes {
        return Err(LowerError::unsupported("a gradient without the bags of indices"));
    }
    let bag_of = index(l, 4)?;
    let (grad, table) = (l.tensor(0)?, l.tensor(1)?);
    let (grad, table) = (rows(l, grad, bag_of), rows(l, table, index_of));
    let (grad, table) = (l.g.convert(grad, compute), l.g.convert(table, compute));
    let products = l.bin(BinaryOp::Mul, grad, table);
    let n = l.g.shape(index_of).sizes[0];
    let op = Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[1]) };
    let sums = l.g.op(op, &[products], Shape::new(compute, &[n, 1]));
    let sums = l.g.reshape(sums, &[n]);
    let padded = l.with_constant(BinaryOp::Eq, index_of, l.int(6)? as f64);
    let zero = l.constant(compute, 0.0);
    let value = l.g.select(padded, zero, sums);
    l.store(Typed { value, dtype })
}
