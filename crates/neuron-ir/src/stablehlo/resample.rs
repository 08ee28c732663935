//! Resampling of one dimension: which elements each output takes, and with which weights, is known beforehand.

use super::index::index_select;
use super::text::{El, IndexNumbers, Text, V};
use crate::{Filter, Scalar, Taps};

/// The elements of each output with their weights.
type Table = Vec<Vec<(i64, f64)>>;

/// The table of a dimension in the precision of its elements, as PyTorch's kernels compute it.
fn table(taps: Taps, el: El, input: i64, output: i64, gradient: bool) -> Table {
    match el {
        El::F64 => double::table(taps, input, output, gradient),
        _ => single::table(taps, input, output, gradient),
    }
}

/// Element `k` of each output as rows of indices and weights; `None` in place of weights that are all 1, and where
/// outputs have fewer elements, a row that says so.
struct Column {
    at: Vec<Scalar>,
    weights: Vec<Scalar>,
    present: Vec<Scalar>,
}

fn columns(table: &Table) -> Vec<Column> {
    let most = table.iter().map(Vec::len).max().unwrap_or(0);
    (0..most)
        .map(|k| {
            let tap = |row: &Vec<(i64, f64)>| row.get(k).copied();
            Column {
                at: table.iter().map(|row| Scalar::I64(tap(row).map_or(0, |t| t.0))).collect(),
                weights: table.iter().map(|row| Scalar::F64(tap(row).map_or(0.0, |t| t.1))).collect(),
                present: table.iter().map(|row| Scalar::I64(i64::from(tap(row).is_some()))).collect(),
            }
        })
        .collect()
}

/// Elements weighted, those that are not there 0.
fn weighted(t: &mut Text, x: &V, column: &Column, dim: usize) -> V {
    let along = [dim as i64];
    let mut x = x.clone();
    if column.weights.iter().any(|w| w.to_f64() != 1.0) {
        let w = t.row(x.el, &column.weights);
        let w = t.broadcast_in(&w, &along, &x.dims);
        x = t.mul(&x, &w);
    }
    if column.present.iter().any(|p| p.to_i64() == 0) {
        let p = t.row(El::I1, &column.present);
        let p = t.broadcast_in(&p, &along, &x.dims);
        x = t.select_num(&p, &x, 0.0);
    }
    x
}

pub(super) fn forward(t: &mut Text, x: &V, dim: usize, taps: Taps, output: i64) -> V {
    let input = x.dims[dim];
    if taps == Taps::Same {
        return x.clone();
    }
    let mut dims = x.dims.clone();
    dims[dim] = output;
    let mut sum: Option<V> = None;
    for column in columns(&table(taps, x.el, input, output, false)) {
        let at = t.row(El::I64, &column.at);
        let taken = index_select(t, x, &at, dim, &dims);
        let part = weighted(t, &taken, &column, dim);
        sum = Some(match sum {
            Some(sum) => t.add(&sum, &part),
            None => part,
        });
    }
    sum.unwrap_or_else(|| t.splat(x.el, &dims, Scalar::I64(0)))
}

pub(super) fn backward(t: &mut Text, grad: &V, dim: usize, taps: Taps, input: i64) -> V {
    let output = grad.dims[dim];
    if taps == Taps::Same {
        return grad.clone();
    }
    let mut dims = grad.dims.clone();
    dims[dim] = input;
    let numbers = IndexNumbers {
        offset_dims: (0..grad.rank()).filter(|d| *d != dim).map(|d| d as i64).collect(),
        collapsed: vec![dim as i64],
        index_map: vec![dim as i64],
        vector_dim: 1,
    };
    let mut sum = t.splat(grad.el, &dims, Scalar::I64(0));
    for column in columns(&table(taps, grad.el, input, output, true)) {
        let at = t.row(El::I64, &column.at);
        let part = weighted(t, grad, &column, dim);
        sum = t.scatter(&sum, &at, &part, &numbers, "add");
    }
    sum
}

macro_rules! tables {
    ($module:ident, $t:ident) => {
        mod $module {
            use super::{Filter, Table, Taps};

            pub fn table(taps: Taps, input: i64, output: i64, gradient: bool) -> Table {
                let Taps::Filter { filter, align_corners, factor, antialias } = taps else {
                    return sources(taps, input, output, gradient).into_iter().map(|at| vec![(at, 1.0)]).collect();
                };
                let scale = scale(input, output, align_corners, factor);
                (0..output)
                    .map(|o| match (antialias, filter) {
                        (true, _) => antialiased(filter, scale, o, input),
                        (false, Filter::Linear) if input == output => vec![(o, 1.0), (o, 0.0)],
                        (false, Filter::Linear) => {
                            let (first, lambda) = split(source(scale, o, align_corners, false), input);
                            vec![(first, f64::from(1.0 - lambda)), ((first + 1).min(input - 1), f64::from(lambda))]
                        }
                        (false, _) => {
                            let (first, d) = split(source(scale, o, align_corners, true), input);
                            let at = |k: usize| (first + k as i64 - 1).clamp(0, input - 1);
                            cubic(d).into_iter().enumerate().map(|(k, w)| (at(k), f64::from(w))).collect()
                        }
                    })
                    .collect()
            }

            fn scale(input: i64, output: i64, align_corners: bool, factor: Option<f64>) -> $t {
                match factor {
                    _ if align_corners && output > 1 => (input - 1) as $t / (output - 1) as $t,
                    _ if align_corners => 0.0,
                    Some(factor) if factor > 0.0 => (1.0 / factor) as $t,
                    _ => input as $t / output as $t,
                }
            }

            fn source(scale: $t, o: i64, align_corners: bool, cubic: bool) -> $t {
                if align_corners {
                    return scale * o as $t;
                }
                let at = scale * (o as $t + 0.5) - 0.5;
                if !cubic && at < 0.0 { 0.0 } else { at }
            }

            /// The element at or before a position, by a floor in `f32`, and the distance from it.
            fn split(at: $t, input: i64) -> (i64, $t) {
                let first = ((at as f32).floor() as i64).min(input - 1);
                (first, (at - first as $t).clamp(0.0, 1.0))
            }

            fn cubic(d: $t) -> [$t; 4] {
                let a = -0.75;
                [outer(d + 1.0, a), inner(d, a), inner(1.0 - d, a), outer(1.0 - d + 1.0, a)]
            }

            fn inner(x: $t, a: $t) -> $t {
                ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
            }

            fn outer(x: $t, a: $t) -> $t {
                ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
            }

            fn antialiased(filter: Filter, scale: $t, o: i64, input: i64) -> Vec<(i64, f64)> {
                let size: $t = match filter {
                    Filter::Linear => 2.0,
                    Filter::Cubic => 4.0,
                    Filter::Lanczos => 6.0,
                };
                let stretched = scale >= 1.0;
                let support = size * 0.5 * if stretched { scale } else { 1.0 };
                let inverse = if stretched { 1.0 / scale } else { 1.0 };
                let most = f64::from(support).ceil() as i64 * 2 + 1;
                let center = scale * (o as $t + 0.5);
                let first = ((center - support + 0.5) as i64).max(0);
                let count = (((center + support + 0.5) as i64).min(input) - first).clamp(0, most);
                let weights: Vec<$t> =
                    (0..count).map(|k| kernel(filter, ((k + first) as $t - center + 0.5) * inverse)).collect();
                let total: $t = weights.iter().fold(0.0, |sum, w| sum + w);
                let total = if total == 0.0 { 1.0 } else { total };
                weights.iter().enumerate().map(|(k, w)| (first + k as i64, f64::from(w / total))).collect()
            }

            fn kernel(filter: Filter, x: $t) -> $t {
                let x = x.abs();
                match filter {
                    Filter::Linear if x < 1.0 => 1.0 - x,
                    Filter::Cubic if x < 1.0 => inner(x, -0.5),
                    Filter::Cubic if x < 2.0 => outer(x, -0.5),
                    Filter::Lanczos if x < 3.0 => {
                        let x = f64::from(x) * std::f64::consts::PI;
                        let sinc = |x: f64| if x == 0.0 { 1.0 } else { x.sin() / x };
                        (sinc(x) * sinc(x / 3.0)) as $t
                    }
                    _ => 0.0,
                }
            }

            /// The one element each output takes.
            fn sources(taps: Taps, input: i64, output: i64, gradient: bool) -> Vec<i64> {
                let floor = |at: f32| (at.floor() as i64).min(input - 1);
                // Of f32 whatever the type, where PyTorch's kernels are.
                let single = |factor| super::single_scale(input, output, factor);
                let at = |o: i64| match taps {
                    Taps::Same | Taps::Filter { .. } => o,
                    Taps::Nearest { shortcuts: true, .. } if output == input => o,
                    Taps::Nearest { shortcuts: true, .. } if output == 2 * input => o / 2,
                    Taps::Nearest { factor, shortcuts: true } => floor(o as f32 * single(factor)),
                    Taps::Nearest { factor, .. } => floor((o as $t * scale(input, output, false, factor)) as f32),
                    Taps::NearestExact { factor } if gradient => {
                        floor(((o as f64 + 0.5) * f64::from(single(factor))) as f32)
                    }
                    Taps::NearestExact { factor } => {
                        floor((source(scale(input, output, false, factor), o, false, false) + 0.5) as f32)
                    }
                    Taps::Reflect { before } => {
                        let at = (o - before).abs();
                        if at >= input { 2 * (input - 1) - at } else { at }
                    }
                    Taps::Replicate { before } => (o - before).clamp(0, input - 1),
                };
                (0..output).map(|o| at(o).clamp(0, (input - 1).max(0))).collect()
            }
        }
    };
}
tables!(single, f32);
tables!(double, f64);

/// Elements per output in `f32`.
fn single_scale(input: i64, output: i64, factor: Option<f64>) -> f32 {
    match factor {
        Some(factor) if factor > 0.0 => (1.0 / factor) as f32,
        _ => input as f32 / output as f32,
    }
}
