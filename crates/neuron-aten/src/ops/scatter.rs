//! Writing by index: `scatter`, `index_add`, `index_fill` and their kin.

use super::Row;
use super::indexing::check_index;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Dims, Op, OrderingOp, Scalar, ScatterOp, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::scatter.src", "aten::scatter_.src", "aten::scatter.src_out"], |l| scatter(l, ScatterOp::Set)),
    (&["aten::scatter.value", "aten::scatter_.value", "aten::scatter.value_out"], |l| scatter(l, ScatterOp::Set)),
    (&["aten::scatter_add", "aten::scatter_add_", "aten::scatter_add.out"], |l| scatter(l, ScatterOp::Add)),
    (&["aten::scatter.reduce", "aten::scatter_.reduce", "aten::scatter.reduce_out"], scatter_by_name),
    (&["aten::scatter.value_reduce", "aten::scatter_.value_reduce", "aten::scatter.value_reduce_out"], scatter_by_name),
    (&["aten::scatter_reduce.two", "aten::scatter_reduce_.two", "aten::scatter_reduce.two_out"], scatter_reduce),
    (&["aten::index_add", "aten::index_add_", "aten::index_add.out"], index_add),
    (&["aten::index_reduce", "aten::index_reduce_", "aten::index_reduce.out"], index_reduce),
    (&["aten::index_copy", "aten::index_copy_", "aten::index_copy.out"], index_copy),
    (&["aten::index_fill_.int_Scalar", "aten::index_fill_.int_Tensor"], index_fill),
    (&["aten::put_"], put),
];

/// The operands of a scatter: 0-dimensional tensors count as of one dimension.
struct Scattered {
    dim: usize,
    base: Value,
    index: Value,
    updates: Value,
}

/// `(self, dim, index, src or value)`; `None` where there is no index, and so nothing to do.
fn scattered(l: &mut Lower) -> Result<Option<Scattered>, LowerError> {
    let (ty, index) = (l.ty(0)?.clone(), l.ty(2)?.clone());
    let base = l.tensor(0)?;
    if index.numel() == 0 {
        l.store_value(base)?;
        return Ok(None);
    }
    check_index(index.dtype)?;
    let dim = l.dim(1, ty.rank())?;
    let base = l.at_least_1d(base);
    let index = l.tensor(2)?;
    let index = l.at_least_1d(index);
    let updates = match l.arg(3) {
        Arg::Tensor(src) => {
            if src.ty.dtype != ty.dtype {
                return Err(LowerError::unsupported("scatter of another dtype"));
            }
            let updates = l.tensor(3)?;
            l.at_least_1d(updates)
        }
        _ => {
            let value = l.wide_operand(3, ty.dtype)?;
            let value = l.g.convert(value, ty.dtype);
            let sizes = l.g.shape(index).sizes.clone();
            l.g.broadcast(value, &sizes)
        }
    };
    let rank = l.g.shape(base).rank();
    if [index, updates].iter().any(|v| l.g.shape(*v).rank() != rank) {
        return Err(LowerError::unsupported("scatter of tensors of different ranks"));
    }
    Ok(Some(Scattered { dim, base, index, updates }))
}

fn apply(l: &mut Lower, s: &Scattered, op: ScatterOp, base: Value, updates: Value) -> Value {
    let shape = l.g.shape(base).clone();
    l.g.op(Op::Scatter { dim: s.dim, op }, &[base, s.index, updates], shape)
}

fn scatter(l: &mut Lower, op: ScatterOp) -> Lowered {
    let Some(s) = scattered(l)? else { return Ok(()) };
    let value = apply(l, &s, op, s.base, s.updates);
    l.store_value(value)
}

/// `(self, dim, index, src or value, reduce)`
fn scatter_by_name(l: &mut Lower) -> Lowered {
    let op = match l.str(4) {
        "add" => ScatterOp::Add,
        "multiply" => ScatterOp::Prod,
        other => return Err(LowerError::unsupported(format!("reduction {other}"))),
    };
    scatter(l, op)
}

/// A reduction by name: how updates combine, what changes nothing, and whether the mean is taken at the end.
fn reduction(name: &str, dtype: DType) -> Result<(ScatterOp, Scalar, bool), LowerError> {
    let (low, high) = match dtype {
        DType::Bool => (Scalar::I64(0), Scalar::I64(1)),
        DType::U8 => (Scalar::I64(0), Scalar::I64(255)),
        d if d.is_float() => (Scalar::F64(f64::NEG_INFINITY), Scalar::F64(f64::INFINITY)),
        d => {
            let bits = 8 * d.size() as u32;
            (Scalar::I64(i64::MIN >> (64 - bits)), Scalar::I64(i64::MAX >> (64 - bits)))
        }
    };
    Ok(match name {
        "sum" => (ScatterOp::Add, Scalar::I64(0), false),
        "mean" if dtype != DType::Bool => (ScatterOp::Add, Scalar::I64(0), true),
        "prod" => (ScatterOp::Prod, Scalar::I64(1), false),
        "amax" => (ScatterOp::Max, low, false),
        "amin" => (ScatterOp::Min, high, false),
        other => return Err(LowerError::unsupported(format!("reduction {other} of {dtype}"))),
    })
}

/// `(self, dim, index, src, reduce, include_self)`
fn scatter_reduce(l: &mut Lower) -> Lowered {
    let Some(s) = scattered(l)? else { return Ok(()) };
    let value = reduced(l, &s, l.str(4), l.flag(5))?;
    l.store_value(value)
}

fn reduced(l: &mut Lower, s: &Scattered, name: &str, include_self: bool) -> Result<Value, LowerError> {
    let dtype = l.g.dtype(s.base);
    let (op, identity, mean) = reduction(name, dtype)?;
    let index_sizes = l.g.shape(s.index).sizes.clone();
    let mut base = s.base;
    if !include_self {
        let identity = l.g.constant(dtype, identity);
        let identity = l.g.broadcast(identity, &index_sizes);
        base = apply(l, s, ScatterOp::Set, base, identity);
    }
    let total = apply(l, s, op, base, s.updates);
    if !mean {
        return Ok(total);
    }
    let sizes = l.g.shape(base).sizes.clone();
    let [start, one] = [i64::from(include_self), 1].map(|v| l.g.constant(dtype, Scalar::I64(v)));
    let (start, ones) = (l.g.broadcast(start, &sizes), l.g.broadcast(one, &index_sizes));
    let count = apply(l, s, ScatterOp::Add, start, ones);
    let (count, total) = (l.g.convert(count, dtype.compute()), l.g.convert(total, dtype.compute()));
    let none = l.with_constant(BinaryOp::Eq, count, 0.0);
    let one = l.constant(dtype.compute(), 1.0);
    let count = l.g.select(none, one, count);
    let divide = if dtype.is_float() { BinaryOp::Div } else { BinaryOp::FloorDiv };
    let value = l.bin(divide, total, count);
    Ok(l.g.convert(value, dtype))
}

/// `(self, dim, index, source)` of operators whose index is one list of slices.
fn slices(l: &mut Lower) -> Result<Option<Scattered>, LowerError> {
    let (ty, source) = (l.ty(0)?.clone(), l.ty(3)?.clone());
    check_index(l.ty(2)?.dtype)?;
    if l.ty(2)?.rank() > 1 || source.dtype != ty.dtype {
        return Err(LowerError::unsupported("an index of several dimensions, or mixed dtypes"));
    }
    let dim = l.dim(1, ty.rank())?;
    let (base, index, updates) = (l.tensor(0)?, l.tensor(2)?, l.tensor(3)?);
    let n = l.g.shape(index).numel();
    if n > 0 && source.numel() == 0 && (ty.rank() == 0 || ty.sizes[dim] == 0) {
        return Err(LowerError::unsupported("slices of a dimension that has none"));
    }
    if n == 0 || source.numel() == 0 {
        l.store_value(base)?;
        return Ok(None);
    }
    let index = l.g.reshape(index, &[n]);
    let (base, updates) = (l.at_least_1d(base), l.at_least_1d(updates));
    let (into, from) = (l.g.shape(base), l.g.shape(updates));
    let fits = into.rank() == from.rank()
        && (0..into.rank()).all(|d| from.sizes[d] == if d == dim { n } else { into.sizes[d] });
    if !fits {
        return Err(LowerError::unsupported("slices of another shape"));
    }
    Ok(Some(Scattered { dim, base, index, updates }))
}

/// `(self, dim, index, source, alpha)`
fn index_add(l: &mut Lower) -> Lowered {
    let Some(s) = slices(l)? else { return Ok(()) };
    let mut operands = vec![s.base, s.index, s.updates];
    let alpha = l.scalar(4)?;
    let shape = l.g.shape(s.base).clone();
    if !alpha.one {
        operands.push(l.g.scalar(alpha.index, shape.dtype.compute()));
    }
    let value = l.g.op(Op::IndexAdd { dim: s.dim, alpha: !alpha.one }, &operands, shape);
    l.store_value(value)
}

/// `(self, dim, index, source, reduce, include_self)`: a scatter whose index is the same along other dimensions.
fn index_reduce(l: &mut Lower) -> Lowered {
    let Some(mut s) = slices(l)? else { return Ok(()) };
    let sizes = l.g.shape(s.updates).sizes.clone();
    let mut along = Dims::from_elem(1, sizes.len());
    along[s.dim] = sizes[s.dim];
    let index = l.g.reshape(s.index, &along);
    s.index = l.g.broadcast(index, &sizes);
    let (name, include_self) = (l.str(4), l.flag(5));
    if name == "sum" {
        return Err(LowerError::unsupported("reduction sum"));
    }
    let value = reduced(l, &s, name, include_self)?;
    l.store_value(value)
}

/// `(self, dim, index, source)`
fn index_copy(l: &mut Lower) -> Lowered {
    let Some(s) = slices(l)? else { return Ok(()) };
    let shape = l.g.shape(s.base).clone();
    let op = Op::Ordering(OrderingOp::IndexCopy { dim: s.dim });
    let value = l.g.op(op, &[s.base, s.index, s.updates], shape);
    l.store_value(value)
}

/// `(self, dim, index, value)`; negative indices count from the end.
fn index_fill(l: &mut Lower) -> Lowered {
    let (ty, index) = (l.ty(0)?.clone(), l.ty(2)?.clone());
    let dim = l.dim(1, ty.rank())?;
    if index.dtype != DType::I64 || index.rank() > 1 || matches!(l.arg(3), Arg::Tensor(t) if t.ty.rank() > 0) {
        return Err(LowerError::unsupported("an index or a value of another kind"));
    }
    let (base, index) = (l.tensor(0)?, l.tensor(2)?);
    let n = l.g.shape(index).numel();
    if n == 0 || ty.numel() == 0 {
        return l.store_value(base);
    }
    let value = l.wide_operand(3, ty.dtype)?;
    let value = l.g.convert(value, ty.dtype);
    let (base, index) = (l.at_least_1d(base), l.g.reshape(index, &[n]));
    let shape = l.g.shape(base).clone();
    let mut sizes = shape.sizes.clone();
    sizes[dim] = n;
    let updates = l.g.broadcast(value, &sizes);
    let op = Op::IndexPut { dims: Dims::from_slice(&[dim as i64]), result_dim: dim, accumulate: false };
    let value = l.g.op(op, &[base, updates, index], shape);
    l.store_value(value)
}

/// `(self, index, source, accumulate)`: positions count row-major.
fn put(l: &mut Lower) -> Lowered {
    let (ty, index, source) = (l.ty(0)?.clone(), l.ty(1)?.clone(), l.ty(2)?.clone());
    if index.dtype != DType::I64 || source.dtype != ty.dtype || source.numel() != index.numel() {
        return Err(LowerError::unsupported("an index or a source of another kind"));
    }
    let base = l.tensor(0)?;
    if index.numel() == 0 {
        return l.store_value(base);
    }
    let (n, count) = (ty.numel(), index.numel());
    let (index, updates) = (l.tensor(1)?, l.tensor(2)?);
    let (base, index, updates) =
        (l.g.reshape(base, &[n]), l.g.reshape(index, &[count]), l.g.reshape(updates, &[count]));
    let op = Op::IndexPut { dims: Dims::from_slice(&[0]), result_dim: 0, accumulate: l.flag(3) };
    let value = l.g.op(op, &[base, updates, index], Shape::new(ty.dtype, &[n]));
    l.store(Typed { value, dtype: ty.dtype })
}
