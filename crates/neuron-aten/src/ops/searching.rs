//! Searching and counting: `searchsorted`, `bucketize`, `segment_reduce`, distances.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{
    BinaryOp, CheckOp, DType, Dims, Op, OrderingOp, ReduceOp, Scalar, SegmentOp, Shape, UnaryOp, Value, broadcast_sizes,
};

pub(super) const ROWS: &[Row] = &[
    (
        &[
            "aten::searchsorted.Tensor",
            "aten::searchsorted.Tensor_out",
            "aten::searchsorted.Scalar",
            "aten::searchsorted.Scalar_out",
        ],
        searchsorted,
    ),
    (&["aten::bucketize.Tensor", "aten::bucketize.Tensor_out", "aten::bucketize.Scalar"], bucketize),
    (&["aten::segment_reduce"], segment_reduce),
    (&["aten::_segment_reduce_backward"], segment_reduce_backward),
    (&["aten::_cdist_forward"], cdist),
    (&["aten::_cdist_backward"], cdist_backward),
    (&["aten::_pdist_forward"], pdist),
    (&["aten::_pdist_backward"], pdist_backward),
];

/// `(sorted_sequence, self, out_int32, right, side, sorter)`
fn searchsorted(l: &mut Lower) -> Lowered {
    let right = match l.str(4) {
        "" => l.flag(3),
        side => side == "right",
    };
    search(l, 0, 1, right, l.has_tensor(5).then_some(5))
}

/// `(self, boundaries, out_int32, right)`
fn bucketize(l: &mut Lower) -> Lowered {
    search(l, 1, 0, l.flag(3), None)
}

fn search(l: &mut Lower, sequence: usize, values: usize, right: bool, sorter: Option<usize>) -> Lowered {
    let (ty, common) = (l.ty(sequence)?.clone(), l.common(&[sequence, values])?);
    if ty.dtype == DType::Bool || common == DType::Bool || ty.rank() == 0 {
        return Err(LowerError::unsupported("a sequence of truth values, or none"));
    }
    let out = l.out(0)?.dtype;
    let operand = |l: &mut Lower, i: usize| match l.standing(i)?.0 == common && l.has_tensor(i) {
        true => l.tensor(i).map(|v| l.g.convert(v, common)),
        false => l.operand(i, common).map(|v| l.g.convert(v, common)),
    };
    let mut sorted = operand(l, sequence)?;
    let wanted = operand(l, values)?;
    let last = ty.rank() - 1;
    if let Some(i) = sorter {
        let order = l.ty(i)?.clone();
        if order.dtype != DType::I64 || order.sizes != ty.sizes {
            return Err(LowerError::unsupported("a sorter of another kind"));
        }
        let order = l.tensor(i)?;
        sorted = l.g.op(Op::Gather { dim: last }, &[sorted, order], Shape { dtype: common, sizes: ty.sizes.clone() });
    }
    let wanted = l.at_least_1d(wanted);
    let sizes = l.g.shape(wanted).sizes.clone();
    if last > 0 && (sizes.len() != last + 1 || sizes[..last] != ty.sizes[..last]) {
        return Err(LowerError::unsupported("values of another shape than the sequences"));
    }
    let op = Op::Ordering(OrderingOp::Search { right });
    let value = l.g.op(op, &[sorted, wanted], Shape { dtype: DType::I64, sizes });
    l.store(Typed { value, dtype: out })
}

fn segment_op(name: &str) -> Result<SegmentOp, LowerError> {
    Ok(match name {
        "sum" => SegmentOp::Sum,
        "mean" => SegmentOp::Mean,
        "max" => SegmentOp::Max,
        "min" => SegmentOp::Min,
        "prod" => SegmentOp::Prod,
        other => return Err(LowerError::unsupported(format!("reduction {other}"))),
    })
}

/// Where segments begin and end: offsets as they are, or the running sum of lengths.
fn offsets(l: &mut Lower, lengths: usize, offsets: usize, size: Option<i64>) -> Result<Value, LowerError> {
    if l.has_tensor(offsets) {
        let value = l.tensor(offsets)?;
        return Ok(l.g.convert(value, DType::I64));
    }
    if !l.has_tensor(lengths) {
        return Err(LowerError::unsupported("segments by index"));
    }
    if l.ty(lengths)?.numel() == 0 {
        return Err(LowerError::unsupported("no lengths"));
    }
    let value = l.tensor(lengths)?;
    let lengths = l.g.convert(value, DType::I64);
    let mut shape = l.g.shape(lengths).clone();
    let Some(last) = shape.rank().checked_sub(1) else { return Err(LowerError::unsupported("one length")) };
    let ends = l.g.op(Op::Cumulative { op: ReduceOp::Sum, dim: last }, &[lengths], shape.clone());
    if let Some(size) = size {
        let total = l.slice(ends, last, shape.sizes[last] - 1, 1);
        let total = l.g.convert(total, DType::F64);
        let excess = l.with_constant(BinaryOp::Sub, total, size as f64);
        l.require(CheckOp::Excess, excess);
    }
    let zero = l.g.constant(DType::I64, Scalar::I64(0));
    let mut first = shape.sizes.clone();
    first[last] = 1;
    let zero = l.g.broadcast(zero, &first);
    shape.sizes[last] += 1;
    Ok(l.g.op(Op::Concat { dim: last }, &[zero, ends], shape))
}

fn initial(l: &Lower, i: usize) -> Result<Option<f64>, LowerError> {
    match l.arg(i) {
        Arg::None => Ok(None),
        _ => l.known(i, 0.0).map(Some),
    }
}

/// `(data, reduce, lengths, indices, offsets, axis, unsafe, initial)`
fn segment_reduce(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let op = OrderingOp::SegmentReduce { op: segment_op(l.str(1))?, initial: initial(l, 7)? };
    if l.has_tensor(3) || !out.dtype.is_float() {
        return Err(LowerError::unsupported("segments by index, or of integers"));
    }
    let axis = l.ty(if l.has_tensor(2) { 2 } else { 4 })?.rank().wrapping_sub(1);
    // `unsafe` lengths are not summed up; that they lie within the data is always seen to.
    let size = if l.flag(6) { None } else { l.ty(0)?.sizes.get(axis).copied() };
    let offsets = offsets(l, 2, 4, size)?;
    let data = l.tensor(0)?;
    let value = l.g.op(Op::Ordering(op), &[data, offsets], out.shape());
    l.store_value(value)
}

/// `(grad, output, data, reduce, lengths, offsets, axis, initial)`
fn segment_reduce_backward(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let op = OrderingOp::SegmentReduceBackward { op: segment_op(l.str(3))?, initial: initial(l, 7)? };
    let offsets = offsets(l, 4, 5, None)?;
    let operands = [l.tensor(0)?, l.tensor(1)?, l.tensor(2)?, offsets];
    let value = l.g.op(Op::Ordering(op), &operands, out.shape());
    l.store_value(value)
}

/// Rows of which more than this many are compared by a matrix product, where PyTorch does so.
const FEW_ROWS: i64 = 25;

/// Tensor argument `i`, `[batch.., rows, columns]`, as `[product of batch, rows, columns]`.
fn batched(l: &mut Lower, i: usize, batch: &[i64]) -> Result<Value, LowerError> {
    let ty = l.ty(i)?.clone();
    if !matches!(ty.dtype, DType::F32 | DType::F64) || ty.rank() < 2 {
        return Err(LowerError::unsupported(format!("rows of {ty}")));
    }
    let matrix = &ty.sizes[ty.rank() - 2..];
    let x = l.tensor(i)?;
    let x = l.g.broadcast(x, &[batch, matrix].concat());
    Ok(l.g.reshape(x, &[batch.iter().product(), matrix[0], matrix[1]]))
}

fn batch_of(l: &Lower, args: [usize; 2]) -> Result<Dims, LowerError> {
    let [a, b] = args.map(|i| l.ty(i).map(|t| &t.sizes[..t.rank().saturating_sub(2)]));
    broadcast_sizes(a?, b?).ok_or_else(|| LowerError::unsupported("batches that do not broadcast"))
}

/// `(x1, x2, p, compute_mode)`
fn cdist(l: &mut Lower) -> Lowered {
    let batch = batch_of(l, [0, 1])?;
    let (x1, x2) = (batched(l, 0, &batch)?, batched(l, 1, &batch)?);
    let order = l.float_or(2, 2.0);
    let (a, b) = (l.g.shape(x1).clone(), l.g.shape(x2).clone());
    let shape = Shape::new(a.dtype, &[a.sizes[0], a.sizes[1], b.sizes[1]]);
    if shape.numel() == 0 || a.sizes[2] == 0 {
        let zero = l.constant(a.dtype, 0.0);
        return l.store_value(zero);
    }
    let product = match l.arg(3) {
        Arg::Int(1) => true,
        Arg::Int(2) => false,
        _ => a.sizes[1] > FEW_ROWS || b.sizes[1] > FEW_ROWS,
    };
    let value = if order == 2.0 && product {
        euclidean(l, x1, x2, shape)
    } else {
        l.g.op(Op::Ordering(OrderingOp::Distance { order }), &[x1, x2], shape)
    };
    l.store_value(value)
}

/// `sqrt(|a|^2 + |b|^2 - 2 a.b)`
fn euclidean(l: &mut Lower, x1: Value, x2: Value, shape: Shape) -> Value {
    let transpose = |l: &mut Lower, x: Value| {
        let s = l.g.shape(x).clone();
        let result = Shape::new(s.dtype, &[s.sizes[0], s.sizes[2], s.sizes[1]]);
        l.g.op(Op::Transpose { permutation: Dims::from_slice(&[0, 2, 1]) }, &[x], result)
    };
    let squares = |l: &mut Lower, x: Value| {
        let s = l.g.shape(x).clone();
        let square = l.bin(BinaryOp::Mul, x, x);
        let op = Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[2]) };
        l.g.op(op, &[square], Shape::new(s.dtype, &[s.sizes[0], s.sizes[1], 1]))
    };
    let (n1, n2) = (squares(l, x1), squares(l, x2));
    let n2 = transpose(l, n2);
    let columns = transpose(l, x2);
    let product = l.g.op(Op::Dot, &[x1, columns], shape);
    let product = l.with_constant(BinaryOp::Mul, product, -2.0);
    let total = l.bin(BinaryOp::Add, product, n1);
    let total = l.bin(BinaryOp::Add, total, n2);
    let total = l.with_constant(BinaryOp::Maximum, total, 0.0);
    l.un(UnaryOp::Sqrt, total)
}

/// `(grad, x1, x2, p, cdist)`
fn cdist_backward(l: &mut Lower) -> Lowered {
    let out = l.out(0)?.clone();
    let batch = batch_of(l, [1, 2])?;
    let (x1, x2) = (batched(l, 1, &batch)?, batched(l, 2, &batch)?);
    let (grad, distances) = (batched(l, 0, &batch)?, batched(l, 4, &batch)?);
    let shape = l.g.shape(x1).clone();
    if shape.numel() == 0 || l.g.shape(grad).numel() == 0 {
        let zero = l.constant(out.dtype, 0.0);
        return l.store_value(zero);
    }
    if out.numel() != shape.numel() {
        return Err(LowerError::unsupported("batches that broadcast"));
    }
    let op = Op::Ordering(OrderingOp::DistanceBackward { order: l.float_or(3, 2.0) });
    let value = l.g.op(op, &[grad, x1, x2, distances], shape);
    l.store_value(value)
}

/// Row and column of each of the `n (n - 1) / 2` pairs, row by row above the diagonal.
fn pairs(l: &mut Lower, n: i64) -> (Value, Value) {
    let count = n * (n - 1) / 2;
    let k = l.iota(count);
    // The row is where the quadratic formula for its first pair rounds down to.
    let middle = n as f64 - 0.5;
    let wide = l.g.convert(k, DType::F64);
    let double = l.with_constant(BinaryOp::Mul, wide, -2.0);
    let under = l.with_constant(BinaryOp::Add, double, middle * middle - 1.0);
    let root = l.un(UnaryOp::Sqrt, under);
    let middle = l.constant(DType::F64, middle);
    let row = l.bin(BinaryOp::Sub, middle, root);
    let row = l.g.convert(row, DType::I64);
    // k - n i + i (i + 1) / 2 + i + 1
    let next = l.with_constant(BinaryOp::Add, row, 1.0);
    let triangle = l.bin(BinaryOp::Mul, row, next);
    let triangle = l.with_constant(BinaryOp::FloorDiv, triangle, 2.0);
    let before = l.with_constant(BinaryOp::Mul, row, n as f64);
    let column = l.bin(BinaryOp::Sub, k, before);
    let column = l.bin(BinaryOp::Add, column, triangle);
    let column = l.bin(BinaryOp::Add, column, next);
    (row, column)
}

/// `(self, p)`
fn pdist(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    if ty.rank() != 2 || l.out(0)?.numel() == 0 || ty.sizes[1] == 0 {
        let zero = l.constant(ty.dtype, 0.0);
        return l.store_value(zero);
    }
    let (n, order) = (ty.sizes[0], l.float_or(1, 2.0));
    let x = batched(l, 0, &[])?;
    let op = Op::Ordering(OrderingOp::Distance { order });
    let all = l.g.op(op, &[x, x], Shape::new(ty.dtype, &[1, n, n]));
    let all = l.g.reshape(all, &[n, n]);
    let (row, column) = pairs(l, n);
    let op = Op::Index { dims: Dims::from_slice(&[0, 1]), result_dim: 0 };
    let value = l.g.op(op, &[all, row, column], l.out(0)?.shape());
    l.store_value(value)
}

/// `(grad, self, p, pdist)`
fn pdist_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(1)?.clone();
    let (n, order) = (ty.sizes[0], l.float_or(2, 2.0));
    let x = batched(l, 1, &[])?;
    let zero = l.constant(ty.dtype, 0.0);
    if l.ty(0)?.numel() == 0 || ty.numel() == 0 {
        return l.store_value(zero);
    }
    let (row, column) = pairs(l, n);
    let mut square = |i: usize| {
        let values = l.tensor(i)?;
        let shape = Shape::new(ty.dtype, &[n, n]);
        let op = Op::IndexPut { dims: Dims::from_slice(&[0, 1]), result_dim: 0, accumulate: false };
        let base = l.g.broadcast(zero, &shape.sizes);
        let upper = l.g.op(op.clone(), &[base, values, row, column], shape.clone());
        let both = l.g.op(op, &[upper, values, column, row], shape);
        Ok::<_, LowerError>(l.g.reshape(both, &[1, n, n]))
    };
    let (grad, distances) = (square(0)?, square(3)?);
    let op = Op::Ordering(OrderingOp::DistanceBackward { order });
    let value = l.g.op(op, &[grad, x, x, distances], Shape::new(ty.dtype, &[1, n, ty.sizes[1]]));
    l.store_value(value)
}
