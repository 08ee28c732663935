//! Sorting, and elements picked along a dimension.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed, wrap_dim};
use neuron_ir::{DType, Op, OrderingOp, Selection, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::sort.stable", "aten::sort.values_stable"], sort),
    (&["aten::topk", "aten::topk.values"], topk),
    (&["aten::kthvalue.values"], kthvalue),
    (&["aten::median"], |l| median(l, false)),
    (&["aten::nanmedian"], |l| median(l, true)),
    (&["aten::median.dim_values"], |l| median_dim(l, false)),
    (&["aten::nanmedian.dim_values"], |l| median_dim(l, true)),
    (&["aten::mode"], mode),
    (&["aten::_cummax_helper"], |l| running_extreme(l, true)),
    (&["aten::_cummin_helper"], |l| running_extreme(l, false)),
    (&["aten::_logcumsumexp", "aten::_logcumsumexp.out"], logcumsumexp),
];

/// From this many elements on PyTorch sorts ascending integers with a stable radix sort.
const RADIX: i64 = 1 << 15;

/// The elements of a line that `std::sort` inserts one by one, which is stable.
const INSERTED: i64 = 16;

/// `(self, stable, dim, descending)`
fn sort(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let dim = wrap_dim(l.int(2)?, ty.rank())?;
    let descending = l.flag(3);
    let n = ty.sizes.get(dim).copied().unwrap_or(1);
    let radix = ty.rank() == 1 && ty.dtype.is_int() && !descending && n >= RADIX;
    let alike = ty.strides.get(dim) == Some(&0);
    if !(l.flag(1) || radix || alike || n <= INSERTED) {
        return pick(l, dim, Selection::Sort { descending }, n);
    }
    let x = l.tensor(0)?;
    let x = l.at_least_1d(x);
    let values = l.g.shape(x).clone();
    let indices = Shape { dtype: DType::I64, sizes: values.sizes.clone() };
    let first = l.g.push(Op::Sort { dim, descending, k: n }, &[x], &[values, indices]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// Stores the values that are picked along `dim`, and their positions.
fn pick(l: &mut Lower, dim: usize, selection: Selection, k: i64) -> Lowered {
    let x = l.tensor(0)?;
    let x = l.at_least_1d(x);
    let mut values = l.g.shape(x).clone();
    if values.sizes[dim] == 0 && k > 0 {
        return Err(LowerError::unsupported("an element of nothing"));
    }
    values.sizes[dim] = k;
    let indices = Shape { dtype: DType::I64, sizes: values.sizes.clone() };
    let first = l.g.push(Op::Ordering(OrderingOp::Select { dim, selection }), &[x], &[values, indices]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// Types that PyTorch picks elements of.
fn not_bool(l: &Lower) -> Lowered {
    if l.ty(0)?.dtype == DType::Bool { Err(LowerError::unsupported("picking truth values")) } else { Ok(()) }
}

/// `(self, k, dim, largest, sorted)`
fn topk(l: &mut Lower) -> Lowered {
    not_bool(l)?;
    let rank = l.ty(0)?.rank();
    let (k, dim) = (l.int(1)?, l.dim(2, rank)?);
    let (largest, sorted) = (l.flag(3), l.flag(4));
    pick(l, dim, Selection::TopK { k, largest, sorted }, k)
}

/// `(self, k, dim, keepdim)`
fn kthvalue(l: &mut Lower) -> Lowered {
    not_bool(l)?;
    let rank = l.ty(0)?.rank();
    let (k, dim) = (l.int(1)?, l.dim(2, rank)?);
    pick(l, dim, Selection::Kth { k: k - 1 }, 1)
}

/// `(self, dim, keepdim)`
fn median_dim(l: &mut Lower, ignore_nan: bool) -> Lowered {
    not_bool(l)?;
    let dim = l.dim(1, l.ty(0)?.rank())?;
    pick(l, dim, Selection::Median { ignore_nan }, 1)
}

/// `(self)`
fn median(l: &mut Lower, ignore_nan: bool) -> Lowered {
    not_bool(l)?;
    let ty = l.ty(0)?.clone();
    if ty.numel() == 0 {
        return Err(LowerError::unsupported("the median of nothing"));
    }
    let x = l.tensor(0)?;
    let x = l.g.reshape(x, &[ty.numel()]);
    let results = [Shape::new(ty.dtype, &[1]), Shape::new(DType::I64, &[1])];
    let selection = Selection::Median { ignore_nan };
    let value = l.g.push(Op::Ordering(OrderingOp::Select { dim: 0, selection }), &[x], &results);
    l.store_value(value)
}

/// `(self, dim, keepdim)`
fn mode(l: &mut Lower) -> Lowered {
    let dim = l.dim(1, l.ty(0)?.rank())?;
    pick(l, dim, Selection::Mode, 1)
}

/// `(self, values, indices, dim)`
fn running_extreme(l: &mut Lower, max: bool) -> Lowered {
    let ty = l.ty(0)?.clone();
    let dim = l.dim(3, ty.rank())?;
    let x = l.tensor(0)?;
    let x = l.at_least_1d(x);
    let values = l.g.shape(x).clone();
    let indices = Shape { dtype: DType::I64, sizes: values.sizes.clone() };
    let first = l.g.push(Op::Ordering(OrderingOp::RunningExtreme { dim, max }), &[x], &[values, indices]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// `(self, dim)`
fn logcumsumexp(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    if !dtype.is_float() {
        return Err(LowerError::unsupported("exponentials of integers"));
    }
    let dim = l.dim(1, l.ty(0)?.rank())?;
    let x = l.tensor(0)?;
    let x = l.at_least_1d(x);
    let shape = l.g.shape(x).clone();
    let value = l.g.op(Op::Ordering(OrderingOp::LogCumSumExp { dim }), &[x], shape);
    l.store(Typed { value, dtype })
}
