//! Sorting, searching, running extremes, distances and segments.

use super::index::{index_copy, index_select};
use super::reduce::{combine, scan};
use super::text::{El, Text, V};
use super::{Call, Written, reasons};
use crate::{Op, OrderingOp, ReduceOp, Scalar, SegmentOp, Selection};

/// GCC's `std::sort` is an insertion sort, hence stable, up to here.
const STABLE_EXTENT: i64 = 16;

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    let to = &c.result().sizes;
    let op = match &c.node.op {
        Op::TrueCounts => return Ok(vec![true_counts(t, &c.args[0])]),
        Op::TruePositions => return Ok(vec![true_positions(t, &c.args[0], to)]),
        Op::Sort { dim, descending, k } => return Ok(sort(t, &c.args[0], *dim, *descending, *k)),
        Op::Ordering(op) => op,
        other => unreachable!("{} does not order", other.name()),
    };
    let a = &c.args[0];
    Ok(match op {
        OrderingOp::Flip { dims } => vec![t.reverse(a, dims)],
        OrderingOp::Roll { shifts } => {
            let mut a = a.clone();
            for (d, shift) in shifts.iter().enumerate().filter(|(_, s)| **s != 0) {
                let kept = a.dims[d] - shift;
                let (head, tail) = (t.slice(&a, d, 0, kept, 1), t.slice(&a, d, kept, *shift, 1));
                a = t.concat(&[&tail, &head], d);
            }
            vec![a]
        }
        OrderingOp::IndexCopy { dim } => vec![index_copy(t, a, &c.args[1], &c.args[2], *dim)],
        OrderingOp::RunningExtreme { dim, max } => running_extreme(t, a, *dim, *max),
        OrderingOp::LogCumSumExp { dim } => {
            let wide = t.convert(a, El::F64);
            scan(t, &[&wide], &[Scalar::F64(f64::NEG_INFINITY)], *dim, |t, x, y| vec![log_add(t, &x[0], &y[0])])
        }
        OrderingOp::Select { dim, selection } => return select_along(t, c, *dim, *selection),
        OrderingOp::Search { right } => vec![search(t, a, &c.args[1], *right)],
        OrderingOp::Distance { order } => vec![distance(t, a, &c.args[1], *order)],
        OrderingOp::DistanceBackward { order } => vec![distance_backward(t, c, *order)],
        OrderingOp::SegmentReduce { op, initial } => vec![segment_reduce(t, c, *op, *initial)],
        OrderingOp::SegmentReduceBackward { op, initial } => vec![segment_reduce_backward(t, c, *op, *initial)],
    })
}

/// How many elements are true before each block, and in all.
fn true_counts(t: &mut Text, mask: &V) -> V {
    let (n, block) = (mask.numel(), Op::TRUE_BLOCK);
    let blocks = (n + block - 1) / block;
    let flat = t.reshape(mask, &[n]);
    let ones = t.convert(&flat, El::I64);
    let whole = t.pad(&ones, 0.0, &[0], &[blocks * block - n], &[0]);
    let rows = t.reshape(&whole, &[blocks, block]);
    let counts = t.reduce("add", &rows, Scalar::I64(0), &[1]);
    let running = scan(t, &[&counts], &[Scalar::I64(0)], 0, |t, x, y| vec![t.add(&x[0], &y[0])]).remove(0);
    t.pad(&running, 0.0, &[1], &[0], &[0])
}

/// True elements sorted to the front, their positions taken apart into coordinates.
fn true_positions(t: &mut Text, mask: &V, to: &[i64]) -> V {
    let (rank, count, n) = (to[0], to[1], mask.numel());
    if rank == 0 || count == 0 {
        return t.splat(El::I64, to, Scalar::I64(0));
    }
    let flat = t.reshape(mask, &[n]);
    let none = t.not(&flat);
    let key = t.convert(&none, El::I64);
    let position = t.iota(El::I64, &[n], 0);
    let sorted = t.sort(&[&key, &position], 0, |t, e| t.compare("LT", &e[0], &e[1]));
    let position = t.slice(&sorted[1], 0, 0, count, 1);
    let mut inner = n;
    let coordinates: Vec<V> = mask
        .dims
        .iter()
        .map(|extent| {
            inner /= extent;
            let q = t.bin_int("divide", &position, inner);
            let r = t.bin_int("remainder", &q, *extent);
            t.reshape(&r, &[1, count])
        })
        .collect();
    let parts: Vec<&V> = coordinates.iter().collect();
    t.concat(&parts, 0)
}

/// True where `x` comes before `y`, NaN being the largest.
fn before(t: &mut Text, x: &V, y: &V, descending: bool) -> V {
    let less = t.compare(if descending { "GT" } else { "LT" }, x, y);
    if !x.el.is_float() {
        return less;
    }
    let (large, small) = if descending { (x, y) } else { (y, x) };
    let (large, small) = (t.is_nan(large), t.is_nan(small));
    let number = t.not(&small);
    let nan_last = t.and(&large, &number);
    t.or(&less, &nan_last)
}

/// Values and positions in stable order, the first `k`.
fn sort(t: &mut Text, a: &V, dim: usize, descending: bool, k: i64) -> Vec<V> {
    let row = if a.rank() == 0 { t.reshape(a, &[1]) } else { a.clone() };
    if row.numel() == 0 {
        let mut dims = row.dims.clone();
        dims[dim] = k;
        return vec![t.splat(a.el, &dims, Scalar::I64(0)), t.splat(El::I64, &dims, Scalar::I64(0))];
    }
    let wide = t.convert(&row, a.el.compute());
    let position = t.iota(El::I64, &row.dims, dim);
    let out = t.sort(&[&wide, &position], dim, |t, e| before(t, &e[0], &e[1], descending));
    let values = t.convert(&out[0], a.el);
    vec![t.slice(&values, dim, 0, k, 1), t.slice(&out[1], dim, 0, k, 1)]
}

/// NaN once met stays; the last of equals.
fn running_extreme(t: &mut Text, a: &V, dim: usize, max: bool) -> Vec<V> {
    let wide = t.convert(a, a.el.compute());
    let position = t.iota(El::I64, &a.dims, dim);
    let (_, init) = combine(if max { ReduceOp::Max } else { ReduceOp::Min }, wide.el);
    let mut out = scan(t, &[&wide, &position], &[init, Scalar::I64(0)], dim, |t, x, y| {
        let mut take = t.compare(if max { "GE" } else { "LE" }, &y[0], &x[0]);
        if x[0].el.is_float() {
            let nan = t.is_nan(&y[0]);
            take = t.or(&take, &nan);
        }
        vec![t.select(&take, &y[0], &x[0]), t.select(&take, &y[1], &x[1])]
    });
    out[0] = t.convert(&out[0], a.el);
    out
}

/// `log(e^x + e^y)`
fn log_add(t: &mut Text, x: &V, y: &V) -> V {
    let most = t.bin("maximum", x, y);
    let d = t.sub(x, y);
    let d = t.un("abs", &d);
    let d = t.un("negate", &d);
    let e = t.un("exponential", &d);
    let log = t.un("log_plus_one", &e);
    let sum = t.add(&most, &log);
    let size = t.un("abs", &most);
    let infinite = t.compare_num("EQ", &size, f64::INFINITY);
    t.select(&infinite, &most, &sum)
}

fn select_along(t: &mut Text, c: &Call, dim: usize, selection: Selection) -> Written {
    let a = if c.args[0].rank() == 0 { t.reshape(&c.args[0], &[1]) } else { c.args[0].clone() };
    let extent = a.dims[dim];
    let positions = c.used[1] && extent > 1;
    match selection {
        Selection::Sort { descending } if !positions || extent <= STABLE_EXTENT => {
            Ok(sort(t, &a, dim, descending, extent))
        }
        Selection::TopK { k, largest, sorted } if !positions && (sorted || k <= 1) => Ok(sort(t, &a, dim, largest, k)),
        Selection::Kth { k } if !positions => {
            let sorted = sort(t, &a, dim, false, extent);
            Ok(sorted.iter().map(|v| t.slice(v, dim, k, 1, 1)).collect())
        }
        Selection::Median { ignore_nan } if extent > 0 => Ok(median(t, &a, dim, ignore_nan)),
        _ => Err(reasons::TIES),
    }
}

/// The lower median and the first position where it is; the first NaN where NaN counts.
fn median(t: &mut Text, a: &V, dim: usize, ignore_nan: bool) -> Vec<V> {
    let over = [dim as i64];
    let extent = a.dims[dim];
    let wide = t.convert(a, a.el.compute());
    let nan = t.is_nan(&wide);
    let sorted = sort(t, &wide, dim, false, extent).remove(0);
    let mut kept = a.dims.clone();
    kept[dim] = 1;
    let mut value = t.slice(&sorted, dim, (extent - 1) / 2, 1, 1);
    if a.el.is_float() && ignore_nan {
        // The middle of the numbers, which are in front.
        let number = t.not(&nan);
        let ones = t.convert(&number, El::I64);
        let count = t.sum(&ones, &over);
        let less = t.bin_int("subtract", &count, 1);
        let zero = t.like_int(&less, 0);
        let less = t.bin("maximum", &less, &zero);
        let middle = t.bin_int("divide", &less, 2);
        let middle = t.broadcast(&middle, &a.dims);
        let position = t.iota(El::I64, &a.dims, dim);
        let there = t.compare("EQ", &position, &middle);
        let only = t.select_num(&there, &sorted, 0.0);
        value = t.sum(&only, &over);
    } else if a.el.is_float() {
        let any = t.reduce_kept("or", &nan, Scalar::I64(0), &over);
        let no = t.like(&value, f64::NAN);
        value = t.select(&any, &no, &value);
    }
    let wanted = t.broadcast(&value, &a.dims);
    let equal = t.compare("EQ", &wide, &wanted);
    let wanted_nan = t.is_nan(&wanted);
    let both = t.and(&nan, &wanted_nan);
    let match_ = t.or(&equal, &both);
    let position = t.iota(El::I64, &a.dims, dim);
    let far = t.like_int(&position, i64::MAX);
    let position = t.select(&match_, &position, &far);
    let position = t.reduce_kept("minimum", &position, Scalar::I64(i64::MAX), &over);
    vec![t.convert(&value, a.el), position]
}

/// Bisection of all values at once, in as many steps as the length has binary digits. Its way through a sequence that does
/// not ascend is the kernel's.
fn search(t: &mut Text, sequence: &V, values: &V, right: bool) -> V {
    let el = sequence.el.compute();
    let n = sequence.dims[sequence.rank() - 1];
    let (flat, value) = (t.reshape(sequence, &[sequence.numel()]), t.convert(values, el));
    let zero = t.splat(El::I64, &values.dims, Scalar::I64(0));
    // Where the row of each value begins.
    let row = if sequence.rank() == 1 {
        zero.clone()
    } else {
        let number = t.iota(El::I64, &[values.numel()], 0);
        let row = t.bin_int("divide", &number, values.dims[values.rank() - 1].max(1));
        let start = t.bin_int("multiply", &row, n);
        t.reshape(&start, &values.dims)
    };
    let (mut low, mut high) = (zero.clone(), t.like_int(&zero, n));
    for _ in 0..(n as u64 + 1).next_power_of_two().trailing_zeros() {
        let open = t.compare("LT", &low, &high);
        let length = t.sub(&high, &low);
        let half = t.bin_int("divide", &length, 2);
        let middle = t.add(&low, &half);
        let at = t.add(&row, &middle);
        let at = t.select(&open, &at, &zero);
        let element = index_select(t, &flat, &at, 0, &values.dims);
        let element = t.convert(&element, el);
        // A value that is NaN belongs after all.
        let after = t.compare(if right { "GT" } else { "GE" }, &element, &value);
        let down = t.and(&open, &after);
        let before = t.not(&after);
        let up = t.and(&open, &before);
        let next = t.bin_int("add", &middle, 1);
        low = t.select(&up, &next, &low);
        high = t.select(&down, &middle, &high);
    }
    low
}

/// Differences `[b, p, r, m]` of all pairs of rows.
fn differences(t: &mut Text, x: &V, y: &V) -> V {
    let dims = [x.dims[0], x.dims[1], y.dims[1], x.dims[2]];
    let x = t.broadcast_in(x, &[0, 1, 3], &dims);
    let y = t.broadcast_in(y, &[0, 2, 3], &dims);
    t.sub(&x, &y)
}

fn distance(t: &mut Text, x: &V, y: &V, order: f64) -> V {
    let d = differences(t, x, y);
    let d = t.un("abs", &d);
    let sum = |t: &mut Text, v: &V| t.reduce("add", v, Scalar::I64(0), &[3]);
    if order == 0.0 {
        let some = t.compare_num("NE", &d, 0.0);
        let some = t.convert(&some, d.el);
        return sum(t, &some);
    }
    if order == 1.0 {
        return sum(t, &d);
    }
    if order == 2.0 {
        let square = t.mul(&d, &d);
        let s = sum(t, &square);
        return t.un("sqrt", &s);
    }
    if order == f64::INFINITY {
        return t.reduce("maximum", &d, Scalar::I64(0), &[3]);
    }
    let power = t.bin_num("power", &d, order);
    let s = sum(t, &power);
    t.bin_num("power", &s, 1.0 / order)
}

fn distance_backward(t: &mut Text, c: &Call, order: f64) -> V {
    let d = differences(t, &c.args[1], &c.args[2]);
    if order == 0.0 {
        return t.splat(d.el, &c.result().sizes, Scalar::I64(0));
    }
    let grad = t.broadcast_in(&c.args[0], &[0, 1, 2], &d.dims);
    let dist = t.broadcast_in(&c.args[3], &[0, 1, 2], &d.dims);
    let size = t.un("abs", &d);
    let none = t.compare_num("EQ", &d, 0.0);
    let positive = t.compare_num("GT", &d, 0.0);
    let minus = t.un("negate", &grad);
    let signed = t.select(&positive, &grad, &minus);
    let apart = t.compare_num("EQ", &dist, 0.0);
    let (skip, part) = if order == 1.0 {
        (none, signed)
    } else if order == f64::INFINITY {
        let other = t.compare("NE", &size, &dist);
        (t.or(&none, &other), signed)
    } else if order == 2.0 {
        let factor = t.div(&grad, &dist);
        (apart, t.mul(&d, &factor))
    } else {
        let power = t.bin_num("power", &size, order - 1.0);
        let scale = t.bin_num("power", &dist, order - 1.0);
        let part = t.mul(&signed, &power);
        (t.or(&none, &apart), t.div(&part, &scale))
    };
    let zero = t.like(&d, 0.0);
    let part = t.select(&skip, &zero, &part);
    t.reduce("add", &part, Scalar::I64(0), &[2])
}

/// Which elements `[outer.., k, n, inner..]` belong to which segments: all offsets are compared with all positions. Also
/// where the data's dimensions are in this.
fn members(t: &mut Text, x: &V, offsets: &V) -> (V, Vec<i64>) {
    let axis = offsets.rank() - 1;
    let segments = offsets.dims[axis] - 1;
    let mut dims = x.dims.clone();
    dims.insert(axis, segments);
    let ends = [0, 1].map(|i| {
        let part = t.slice(offsets, axis, i, segments, 1);
        let along: Vec<i64> = (0..=axis as i64).collect();
        t.broadcast_in(&part, &along, &dims)
    });
    let position = t.iota(El::I64, &dims, axis + 1);
    let from = t.compare("GE", &position, &ends[0]);
    let until = t.compare("LT", &position, &ends[1]);
    let along: Vec<i64> = (0..x.rank()).map(|d| if d < axis { d } else { d + 1 } as i64).collect();
    (t.and(&from, &until), along)
}

fn segment_reduce(t: &mut Text, c: &Call, op: SegmentOp, initial: Option<f64>) -> V {
    let (x, offsets) = (c.wide(t, 0), t.convert(&c.args[1], El::I64));
    let axis = offsets.rank() - 1;
    let (inside, along) = members(t, &x, &offsets);
    let dims = inside.dims.clone();
    let wide = t.broadcast_in(&x, &along, &dims);
    let (name, init) = match op {
        SegmentOp::Sum | SegmentOp::Mean => combine(ReduceOp::Sum, x.el),
        SegmentOp::Max => combine(ReduceOp::Max, x.el),
        SegmentOp::Min => combine(ReduceOp::Min, x.el),
        SegmentOp::Prod => combine(ReduceOp::Prod, x.el),
    };
    let neutral = t.splat(x.el, &dims, init);
    let kept = t.select(&inside, &wide, &neutral);
    let over = [axis as i64 + 1];
    let mut out = t.reduce(name, &kept, init, &over);
    if let Some(initial) = initial {
        // Rounded to the type of the data, as where a segment starts from is.
        let start = t.splat(c.args[0].el, &out.dims, Scalar::F64(initial));
        let start = t.convert(&start, out.el);
        out = t.bin(name, &out, &start);
    }
    if op == SegmentOp::Mean {
        let one = t.convert(&inside, x.el);
        let count = t.reduce("add", &one, Scalar::I64(0), &over);
        let empty = t.compare_num("EQ", &count, 0.0);
        let mean = t.div(&out, &count);
        let none = if initial.is_some() { out.clone() } else { t.like(&out, f64::NAN) };
        out = t.select(&empty, &none, &mean);
    }
    out
}

fn segment_reduce_backward(t: &mut Text, c: &Call, op: SegmentOp, initial: Option<f64>) -> V {
    let [grad, result, x] = [0, 1, 2].map(|i| c.wide(t, i));
    let offsets = t.convert(&c.args[3], El::I64);
    let axis = offsets.rank() - 1;
    let (inside, along) = members(t, &x, &offsets);
    let dims = inside.dims.clone();
    let wide = t.broadcast_in(&x, &along, &dims);
    // Of the segments: all but the elements' own dimension.
    let of: Vec<i64> = (0..x.rank()).map(|d| if d <= axis { d } else { d + 1 } as i64).collect();
    let over = [axis as i64 + 1];
    let share = match op {
        SegmentOp::Sum => t.broadcast_in(&grad, &of, &dims),
        SegmentOp::Mean => {
            let one = t.convert(&inside, x.el);
            let count = t.reduce("add", &one, Scalar::I64(0), &over);
            let share = t.div(&grad, &count);
            t.broadcast_in(&share, &of, &dims)
        }
        SegmentOp::Max | SegmentOp::Min => {
            let result = t.broadcast_in(&result, &of, &dims);
            let equal = t.compare("EQ", &wide, &result);
            let nan = t.is_nan(&wide);
            let equal = t.or(&equal, &nan);
            let shares = t.and(&equal, &inside);
            let one = t.convert(&shares, x.el);
            let count = t.reduce("add", &one, Scalar::I64(0), &over);
            // Only positive gradients are divided among several, as on the CPU.
            let several = t.compare_num("GT", &count, 1.0);
            let positive = t.compare_num("GT", &grad, 0.0);
            let several = t.and(&several, &positive);
            let part = t.div(&grad, &count);
            let part = t.select(&several, &part, &grad);
            let part = t.broadcast_in(&part, &of, &dims);
            t.select_num(&shares, &part, 0.0)
        }
        SegmentOp::Prod => {
            let total = t.mul(&grad, &result);
            let total = t.broadcast_in(&total, &of, &dims);
            let plain = t.div(&total, &wide);
            let others = others(t, &x, &inside, axis, initial);
            let others = t.broadcast_in(&others, &along, &dims);
            let grad = t.broadcast_in(&grad, &of, &dims);
            let by_others = t.mul(&grad, &others);
            let zero = t.compare_num("EQ", &wide, 0.0);
            let nan = t.is_nan(&wide);
            let apart = t.or(&zero, &nan);
            t.select(&apart, &by_others, &plain)
        }
    };
    let kept = t.select_num(&inside, &share, 0.0);
    t.reduce("add", &kept, Scalar::I64(0), &[axis as i64])
}

/// For each element the product of the others of its segment.
fn others(t: &mut Text, x: &V, inside: &V, axis: usize, initial: Option<f64>) -> V {
    // [outer.., k, j, n, inner..]: both in one segment.
    let mut dims = inside.dims.clone();
    dims.insert(axis + 1, x.dims[axis]);
    let rank = inside.rank();
    let one: Vec<i64> = (0..rank).map(|d| if d <= axis + 1 { d } else { d + 1 } as i64).collect();
    let other: Vec<i64> = (0..rank).map(|d| if d <= axis { d } else { d + 1 } as i64).collect();
    let (a, b) = (t.broadcast_in(inside, &one, &dims), t.broadcast_in(inside, &other, &dims));
    let both = t.and(&a, &b);
    let same = t.reduce("or", &both, Scalar::I64(0), &[axis as i64]);
    let (j, n) = (t.iota(El::I64, &same.dims, axis), t.iota(El::I64, &same.dims, axis + 1));
    let apart = t.compare("NE", &j, &n);
    let counted = t.and(&same, &apart);
    let along: Vec<i64> = (0..x.rank()).map(|d| if d < axis { d } else { d + 1 } as i64).collect();
    let wide = t.broadcast_in(x, &along, &same.dims);
    let factors = t.select_num(&counted, &wide, 1.0);
    let product = t.reduce("multiply", &factors, Scalar::I64(1), &[axis as i64 + 1]);
    t.bin_num("multiply", &product, initial.unwrap_or(1.0))
}
