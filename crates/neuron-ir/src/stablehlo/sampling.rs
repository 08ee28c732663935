//! Samples at positions that are data, and bags of embeddings.

use super::index::index_select;
use super::pointwise::convert;
use super::reasons;
use super::text::{El, IndexNumbers, Text, V};
use super::{Call, Written};
use crate::{BagMode, DType, Outside, Sampling, Scalar};

/// How positions of a grid become elements.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub sampling: Sampling,
    pub outside: Outside,
    pub align_corners: bool,
}

/// One of the elements that samples take.
struct Corner {
    /// By width, height and depth.
    index: Vec<V>,
    /// `None` for 1.
    weight: Option<V>,
    /// Derivatives of the weight by width, height and depth; none of the nearest element.
    slopes: Vec<V>,
}

/// `x[n, c, d, h, w]` at `grid[n, d, h, w, 2 or 3]`. Half floats are computed with as they are, as in PyTorch's kernels.
pub(super) fn grid_sample(t: &mut Text, x: &V, grid: &V, o: Options) -> V {
    let sizes = [x.dims[4], x.dims[3], x.dims[2]];
    let mut to = vec![x.dims[0], x.dims[1]];
    to.extend(&grid.dims[1..4]);
    let mut sum: Option<V> = None;
    for corner in corners(t, grid, sizes, o).0 {
        let (vectors, within) = named(t, &corner.index, sizes, &to);
        let value = t.gather(x, &vectors, &numbers(), &[1, x.dims[1], 1, 1, 1], &to);
        // What lies outside of a plane is 0, of a volume it is left out.
        let value = t.select_num(&within, &value, 0.0);
        let mut part = value;
        if let Some(weight) = &corner.weight {
            let weight = t.broadcast_in(weight, &[0, 2, 3, 4], &to);
            part = t.mul(&part, &weight);
            if grid.dims[4] == 3 {
                part = t.select_num(&within, &part, 0.0);
            }
        }
        sum = Some(match sum {
            Some(sum) => t.add(&sum, &part),
            None => part,
        });
    }
    sum.unwrap_or_else(|| t.splat(x.el, &to, Scalar::I64(0)))
}

/// Gradients of [`grid_sample`] for input and grid.
pub(super) fn grid_sample_backward(t: &mut Text, grad: &V, x: &V, grid: &V, o: Options) -> Vec<V> {
    let sizes = [x.dims[4], x.dims[3], x.dims[2]];
    let dims = grid.dims[4] as usize;
    let (corners, factors) = corners(t, grid, sizes, o);
    let mut grad_x = t.splat(x.el, &x.dims, Scalar::I64(0));
    let mut sums = vec![t.splat(x.el, &grid.dims[..4], Scalar::I64(0)); dims];
    for corner in corners {
        let (vectors, within) = named(t, &corner.index, sizes, &grad.dims);
        let mut part = grad.clone();
        if let Some(weight) = &corner.weight {
            let weight = t.broadcast_in(weight, &[0, 2, 3, 4], &grad.dims);
            part = t.mul(&weight, &part);
        }
        let part = t.select_num(&within, &part, 0.0);
        grad_x = t.scatter(&grad_x, &vectors, &part, &numbers(), "add");
        if corner.slopes.is_empty() {
            continue;
        }
        let value = t.gather(x, &vectors, &numbers(), &[1, x.dims[1], 1, 1, 1], &grad.dims);
        let value = t.mul(&value, grad);
        let value = t.select_num(&within, &value, 0.0);
        let value = t.reduce("add", &value, Scalar::I64(0), &[1]);
        for (sum, slope) in sums.iter_mut().zip(&corner.slopes) {
            let part = t.mul(&value, slope);
            *sum = t.add(sum, &part);
        }
    }
    let mut column = grid.dims.clone();
    column[4] = 1;
    let columns: Vec<V> = sums
        .iter()
        .zip(&factors)
        .map(|(sum, factor)| {
            let g = t.mul(sum, factor);
            t.reshape(&g, &column)
        })
        .collect();
    let columns: Vec<&V> = columns.iter().collect();
    vec![grad_x, t.concat(&columns, 4)]
}

/// The elements of all samples, and the derivatives of positions in elements by those of the grid.
fn corners(t: &mut Text, grid: &V, sizes: [i64; 3], o: Options) -> (Vec<Corner>, Vec<V>) {
    let dims = grid.dims[4] as usize;
    let shape = grid.dims[..4].to_vec();
    let by = |i: usize| (sizes[i] - i64::from(o.align_corners)) as f64 / 2.0;
    let raw: Vec<V> = (0..dims)
        .map(|i| {
            let part = t.slice(grid, 4, i as i64, 1, 1);
            let part = t.reshape(&part, &shape);
            unnormalized(t, &part, sizes[i], dims, o.align_corners)
        })
        .collect();
    if o.sampling == Sampling::Cubic {
        let factors = (0..dims).map(|i| t.like(&raw[i], by(i))).collect();
        return (cubic(t, &raw, sizes, o), factors);
    }
    let (mut at, mut factors) = (Vec::new(), Vec::new());
    for (i, position) in raw.iter().enumerate() {
        let (position, slope) = inside(t, position, sizes[i], dims, o);
        at.push(position);
        factors.push(t.bin_num("multiply", &slope, by(i)));
    }
    if o.sampling == Sampling::Nearest {
        let index = at.iter().map(|p| nearest_index(t, p)).collect();
        return (vec![Corner { index, weight: None, slopes: vec![] }], factors);
    }
    let base: Vec<V> = at.iter().map(|p| t.un("floor", p)).collect();
    let first: Vec<V> = base.iter().map(|b| convert(t, b, DType::I64)).collect();
    let far: Vec<V> = at.iter().zip(&base).map(|(p, b)| t.sub(p, b)).collect();
    let near: Vec<V> = far.iter().map(|f| complement(t, f)).collect();
    let corners = (0..1usize << dims)
        .map(|corner| {
            let next = |i: usize| corner >> i & 1;
            let index = (0..dims).map(|i| t.bin_int("add", &first[i], next(i) as i64)).collect();
            let by: Vec<V> = (0..dims).map(|i| if next(i) == 1 { far[i].clone() } else { near[i].clone() }).collect();
            let weight = product(t, &by, None);
            let slopes = (0..dims)
                .map(|i| {
                    let slope = product(t, &by, Some(i));
                    if next(i) == 1 { slope } else { t.un("negate", &slope) }
                })
                .collect();
            Corner { index, weight: Some(weight), slopes }
        })
        .collect();
    (corners, factors)
}

/// The product of all but one.
fn product(t: &mut Text, by: &[V], but: Option<usize>) -> V {
    let mut kept = by.iter().enumerate().filter(|(i, _)| Some(*i) != but).map(|(_, v)| v);
    let first = kept.next().cloned().unwrap_or_else(|| by[0].clone());
    kept.fold(first, |product, v| t.mul(&product, v))
}

fn complement(t: &mut Text, a: &V) -> V {
    let one = t.like(a, 1.0);
    t.sub(&one, a)
}

/// Dimension numbers where an index vector names all channels of an element.
fn numbers() -> IndexNumbers {
    let named = vec![0, 2, 3, 4];
    IndexNumbers { offset_dims: vec![1], collapsed: named.clone(), index_map: named, vector_dim: 4 }
}

/// Index vectors of elements by width, height and depth, and which of these exist, in the shape of the samples.
fn named(t: &mut Text, index: &[V], sizes: [i64; 3], to: &[i64]) -> (V, V) {
    let shape = index[0].dims.clone();
    let mut within = t.splat(El::I1, &shape, Scalar::I64(1));
    let mut vector_dims = shape.clone();
    vector_dims.push(1);
    let batch = t.iota(El::I64, &shape, 0);
    let mut parts = vec![t.reshape(&batch, &vector_dims)];
    for i in (0..3).rev() {
        let Some(at) = index.get(i) else {
            parts.push(t.splat(El::I64, &vector_dims, Scalar::I64(0)));
            continue;
        };
        let (from, below) = (t.compare_int("GE", at, 0), t.compare_int("LT", at, sizes[i]));
        let both = t.and(&from, &below);
        within = t.and(&within, &both);
        let safe = t.select_num(&both, at, 0.0);
        parts.push(t.reshape(&safe, &vector_dims));
    }
    let parts: Vec<&V> = parts.iter().collect();
    let vectors = t.concat(&parts, 4);
    (vectors, t.broadcast_in(&within, &[0, 2, 3, 4], to))
}

fn nearest_index(t: &mut Text, at: &V) -> V {
    let whole = t.un("round_nearest_even", at);
    convert(t, &whole, DType::I64)
}

/// A position of the grid in elements. Planes and volumes round differently, as PyTorch's kernels for them do.
fn unnormalized(t: &mut Text, at: &V, size: i64, dims: usize, align_corners: bool) -> V {
    let size = size as f64;
    let shifted = t.bin_num("add", at, 1.0);
    match (align_corners, dims) {
        (true, 2) => t.bin_num("multiply", &shifted, (size - 1.0) / 2.0),
        (true, _) => {
            let half = t.bin_num("divide", &shifted, 2.0);
            t.bin_num("multiply", &half, size - 1.0)
        }
        (false, 2) => {
            let scaled = t.bin_num("multiply", &shifted, size / 2.0);
            t.bin_num("subtract", &scaled, 0.5)
        }
        (false, _) => {
            let scaled = t.bin_num("multiply", &shifted, size);
            let less = t.bin_num("subtract", &scaled, 1.0);
            t.bin_num("divide", &less, 2.0)
        }
    }
}

/// A position brought inside, and the derivative of doing so.
fn inside(t: &mut Text, at: &V, size: i64, dims: usize, o: Options) -> (V, V) {
    let one = t.like(at, 1.0);
    let (at, slope) = match o.outside {
        Outside::Zeros => return (at.clone(), one),
        Outside::Border => (at.clone(), one),
        Outside::Reflection => reflected(t, at, size, o.align_corners),
    };
    let (zero, last) = (t.like(&at, 0.0), t.like(&at, (size - 1) as f64));
    let below = t.compare("LE", &at, &zero);
    let above = t.compare("GE", &at, &last);
    let nan = t.is_nan(&at);
    let no_number = if dims == 2 { &zero } else { &last };
    let kept = t.select(&nan, no_number, &at);
    let kept = t.select(&above, &last, &kept);
    let kept = t.select(&below, &zero, &kept);
    let edge = t.or(&below, &above);
    let edge = t.or(&edge, &nan);
    (kept, t.select(&edge, &zero, &slope))
}

fn reflected(t: &mut Text, at: &V, size: i64, align_corners: bool) -> (V, V) {
    let (low, span) = if align_corners { (0.0, (size - 1) as f64) } else { (-0.5, size as f64) };
    if span == 0.0 {
        return (t.like(at, 0.0), t.like(at, 0.0));
    }
    let from = t.bin_num("subtract", at, low);
    let negative = t.compare_num("LT", &from, 0.0);
    let (one, minus) = (t.like(at, 1.0), t.like(at, -1.0));
    let sign = t.select(&negative, &minus, &one);
    let from = t.un("abs", &from);
    let twice = t.like(&from, 2.0 * span);
    let ratio = t.div(&from, &twice);
    // Not negative: its floor is what is cut off.
    let turns = t.un("floor", &ratio);
    let turns = t.mul(&turns, &twice);
    let extra = t.sub(&from, &turns);
    let back = t.sub(&twice, &extra);
    let over = t.compare_num("GT", &extra, span);
    let at = t.select(&over, &back, &extra);
    let other = t.un("negate", &sign);
    (t.bin_num("add", &at, low), t.select(&over, &other, &sign))
}

fn cubic(t: &mut Text, raw: &[V], sizes: [i64; 3], o: Options) -> Vec<Corner> {
    let (mut weights, mut slopes) = (Vec::new(), Vec::new());
    let mut index: Vec<Vec<V>> = Vec::new();
    for (i, position) in raw.iter().enumerate() {
        let base = t.un("floor", position);
        let d = t.sub(position, &base);
        weights.push(cubic_weights(t, &d));
        slopes.push(cubic_slopes(t, &d));
        index.push(
            (0..4)
                .map(|k| {
                    let at = t.bin_num("add", &base, f64::from(k) - 1.0);
                    let at = inside(t, &at, sizes[i], 2, o).0;
                    convert(t, &at, DType::I64)
                })
                .collect(),
        );
    }
    let mut corners = Vec::new();
    for y in 0..4 {
        for x in 0..4 {
            let weight = t.mul(&weights[0][x], &weights[1][y]);
            let slopes = vec![t.mul(&slopes[0][x], &weights[1][y]), t.mul(&weights[0][x], &slopes[1][y])];
            corners.push(Corner {
                index: vec![index[0][x].clone(), index[1][y].clone()],
                weight: Some(weight),
                slopes,
            });
        }
    }
    corners
}

/// Derivatives of [`cubic_weights`].
fn cubic_slopes(t: &mut Text, d: &V) -> [V; 4] {
    let rest = complement(t, d);
    let inner = |t: &mut Text, x: &V| {
        let v = t.bin_num("multiply", x, 3.0 * (A + 2.0));
        let v = t.bin_num("subtract", &v, 2.0 * (A + 3.0));
        t.mul(&v, x)
    };
    let outer = |t: &mut Text, x: &V| {
        let x = t.bin_num("add", x, 1.0);
        let v = t.bin_num("multiply", &x, 3.0 * A);
        let v = t.bin_num("subtract", &v, 10.0 * A);
        let v = t.mul(&v, &x);
        t.bin_num("add", &v, 8.0 * A)
    };
    let (third, fourth) = (inner(t, &rest), outer(t, &rest));
    [outer(t, d), inner(t, d), t.un("negate", &third), t.un("negate", &fourth)]
}

/// Of the cubic filter.
const A: f64 = -0.75;

/// Weights of four neighbours, the second being `d` away.
fn cubic_weights(t: &mut Text, d: &V) -> [V; 4] {
    let rest = complement(t, d);
    let inner = |t: &mut Text, x: &V| {
        let v = t.bin_num("multiply", x, A + 2.0);
        let v = t.bin_num("subtract", &v, A + 3.0);
        let v = t.mul(&v, x);
        let v = t.mul(&v, x);
        t.bin_num("add", &v, 1.0)
    };
    let outer = |t: &mut Text, x: &V| {
        let x = t.bin_num("add", x, 1.0);
        let v = t.bin_num("multiply", &x, A);
        let v = t.bin_num("subtract", &v, 5.0 * A);
        let v = t.mul(&v, &x);
        let v = t.bin_num("add", &v, 8.0 * A);
        let v = t.mul(&v, &x);
        t.bin_num("subtract", &v, 4.0 * A)
    };
    [outer(t, d), inner(t, d), inner(t, &rest), outer(t, &rest)]
}

/// Sums and means of bags: all bags are compared with all indices.
pub(super) fn embedding_bag(t: &mut Text, c: &Call, mode: BagMode, last: bool, padding: i64, weights: bool) -> Written {
    if mode == BagMode::Max {
        return Err(reasons::BAG_MAX);
    }
    let (bags, columns) = (c.result().sizes[0], c.result().sizes[1]);
    let table = &c.args[0];
    let (index, offsets) = (t.convert(&c.args[1], El::I64), t.convert(&c.args[2], El::I64));
    let count = index.dims[0];
    let stops = last && mode == BagMode::Sum && padding < 0 && matches!(table.el, El::F32 | El::F16);
    let starts = t.slice(&offsets, 0, 0, bags, 1);
    let ends = if offsets.dims[0] > bags && stops {
        t.slice(&offsets, 0, 1, bags, 1)
    } else {
        let inner = t.slice(&offsets, 0, 1, bags - 1, 1);
        let end = t.splat(El::I64, &[1], Scalar::I64(count));
        t.concat(&[&inner, &end], 0)
    };
    let dims = [bags, count];
    let position = t.iota(El::I64, &dims, 1);
    let wide_starts = t.broadcast_in(&starts, &[0], &dims);
    let wide_ends = t.broadcast_in(&ends, &[0], &dims);
    let from = t.compare("GE", &position, &wide_starts);
    let until = t.compare("LT", &position, &wide_ends);
    let inside = t.and(&from, &until);
    let counted = t.compare_int("NE", &index, padding);
    let counted = t.broadcast_in(&counted, &[1], &dims);
    let members = t.and(&inside, &counted);

    let rows = index_select(t, table, &index, 0, &[count, columns]);
    let mut rows = t.convert(&rows, table.el.compute());
    if weights {
        let w = t.convert(&c.args[3], rows.el);
        let w = t.broadcast_in(&w, &[0], &rows.dims);
        rows = t.mul(&rows, &w);
    }
    let all = [bags, count, columns];
    let rows = t.broadcast_in(&rows, &[1, 2], &all);
    let hit = t.broadcast_in(&members, &[0, 1], &all);
    let kept = t.select_num(&hit, &rows, 0.0);
    let mut out = t.reduce("add", &kept, Scalar::I64(0), &[1]);
    let ones = t.convert(&members, El::I64);
    let sizes = t.reduce("add", &ones, Scalar::I64(0), &[1]);
    if mode == BagMode::Mean {
        let rounded = t.convert(&out, table.el);
        let wide = t.convert(&rounded, out.el);
        let one = t.like_int(&sizes, 1);
        let some = t.bin("maximum", &sizes, &one);
        let some = t.convert(&some, out.el);
        let some = t.broadcast_in(&some, &[0], &out.dims);
        out = t.div(&wide, &some);
    }
    // The bag of an index is the last that has begun.
    let begun = t.convert(&from, El::I64);
    let begun = t.reduce("add", &begun, Scalar::I64(0), &[0]);
    let bag_of = t.bin_int("subtract", &begun, 1);
    let sizes = t.pad(&sizes, 0.0, &[0], &[offsets.dims[0] - bags], &[0]);
    let shape = &c.node.results[3].sizes;
    let from = t.splat(El::I64, shape, Scalar::I64(0));
    Ok(vec![out, bag_of, sizes, from])
}
