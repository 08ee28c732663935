//! Reductions and running reductions.

use super::text::{El, Text, V};
use super::{Call, Written};
use crate::{Op, ReduceOp, Scalar};

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    match &c.node.op {
        Op::Reduce { op: op @ (ReduceOp::ArgMax | ReduceOp::ArgMin), dims } => {
            let a = &c.args[0];
            let (a, dim) = match dims.len() {
                1 => (a.clone(), dims[0] as usize),
                _ => (t.reshape(a, &[a.numel()]), 0),
            };
            Ok(vec![extreme(t, &a, dim, *op == ReduceOp::ArgMax).remove(1)])
        }
        Op::Reduce { op, dims } => {
            let to = El::from(c.result().dtype).compute();
            let a = match op {
                ReduceOp::Any | ReduceOp::All if c.args[0].el != El::I1 => t.compare_num("NE", &c.args[0], 0.0),
                ReduceOp::Any | ReduceOp::All => c.args[0].clone(),
                _ => t.convert(&c.args[0], to),
            };
            let (name, init) = combine(*op, a.el);
            Ok(vec![t.reduce_kept(name, &a, init, dims)])
        }
        Op::MinMax { max, dim } => Ok(extreme(t, &c.args[0], *dim, *max)),
        Op::Variance { dims, correction } => {
            let x = c.wide(t, 0);
            let count: i64 = dims.iter().map(|d| x.dims[*d as usize]).product();
            let mean = mean(t, &x, dims, count as f64);
            let wide = t.broadcast(&mean, &x.dims);
            let d = t.sub(&x, &wide);
            let squares = t.mul(&d, &d);
            let sum = t.sum(&squares, dims);
            let variance = t.bin_num("divide", &sum, (count as f64 - correction).max(0.0));
            Ok(vec![variance, mean])
        }
        Op::ChannelSums { mean } => {
            let (grad, x) = (c.wide(t, 0), c.wide(t, 1));
            let mut d = x;
            if *mean {
                let m = c.wide(t, 2);
                let m = t.broadcast_in(&m, &[1], &d.dims.clone());
                d = t.sub(&d, &m);
            }
            let sum = t.reduce("add", &grad, Scalar::I64(0), &[0, 2]);
            let product = t.mul(&grad, &d);
            Ok(vec![sum, t.reduce("add", &product, Scalar::I64(0), &[0, 2])])
        }
        Op::Cumulative { op, dim } => {
            let a = &c.args[0];
            // Floats run in f64, as the kernel's do.
            let el = if a.el.is_float() { El::F64 } else { El::I64 };
            let a = t.convert(a, el);
            let (name, init) = combine(*op, el);
            let out = scan(t, &[&a], &[init], *dim, |t, x, y| vec![t.bin(name, &x[0], &y[0])]);
            Ok(out)
        }
        other => unreachable!("{} does not reduce", other.name()),
    }
}

/// The operation of StableHLO, and its neutral element.
pub(super) fn combine(op: ReduceOp, el: El) -> (&'static str, Scalar) {
    let float = el.is_float();
    match op {
        ReduceOp::Sum if el == El::I1 => ("or", Scalar::I64(0)),
        ReduceOp::Sum => ("add", Scalar::I64(0)),
        ReduceOp::Prod if el == El::I1 => ("and", Scalar::I64(1)),
        ReduceOp::Prod => ("multiply", Scalar::I64(1)),
        ReduceOp::Any => ("or", Scalar::I64(0)),
        ReduceOp::All => ("and", Scalar::I64(1)),
        ReduceOp::Max | ReduceOp::ArgMax => match el {
            El::I1 => ("or", Scalar::I64(0)),
            _ => ("maximum", if float { Scalar::F64(f64::NEG_INFINITY) } else { Scalar::I64(i64::MIN) }),
        },
        ReduceOp::Min | ReduceOp::ArgMin => match el {
            El::I1 => ("and", Scalar::I64(1)),
            _ => ("minimum", if float { Scalar::F64(f64::INFINITY) } else { Scalar::I64(i64::MAX) }),
        },
    }
}

pub(super) fn mean(t: &mut Text, x: &V, dims: &[i64], count: f64) -> V {
    let sum = t.sum(x, dims);
    t.bin_num("divide", &sum, count)
}

/// The first largest or smallest element along `dim`, NaN counting as such, and its position; `dim` is gone.
fn extreme(t: &mut Text, a: &V, dim: usize, max: bool) -> Vec<V> {
    // Half floats and narrow integers order as their wide values do.
    let wide = t.convert(a, a.el.compute());
    let position = t.iota(El::I64, &a.dims, dim);
    let (_, init) = combine(if max { ReduceOp::Max } else { ReduceOp::Min }, wide.el);
    let mut out = t.reduce_together(&[&wide, &position], &[init, Scalar::I64(i64::MAX)], dim, |t, x, y| {
        let take = prefer(t, [&x[0], &y[0]], [&x[1], &y[1]], max, "LT");
        vec![t.select(&take, &y[0], &x[0]), t.select(&take, &y[1], &x[1])]
    });
    out[0] = t.convert(&out[0], a.el);
    out
}

/// True where the second is to be taken: it is better, or as good and at a position that is `tie` the first's.
pub(super) fn prefer(t: &mut Text, values: [&V; 2], positions: [&V; 2], max: bool, tie: &str) -> V {
    let [x, y] = values;
    let better = t.compare(if max { "GT" } else { "LT" }, y, x);
    let equal = t.compare("EQ", x, y);
    let (better, equal) = if x.el.is_float() {
        let (x_nan, y_nan) = (t.is_nan(x), t.is_nan(y));
        let both = t.and(&x_nan, &y_nan);
        let x_number = t.not(&x_nan);
        let new_nan = t.and(&y_nan, &x_number);
        (t.or(&better, &new_nan), t.or(&equal, &both))
    } else {
        (better, equal)
    };
    let nearer = t.compare(tie, positions[1], positions[0]);
    let tied = t.and(&equal, &nearer);
    t.or(&better, &tied)
}

/// Running combination along `dim`, in as many steps as the extent has binary digits: after each, an element stands for
/// twice as many before it.
pub(super) fn scan(
    t: &mut Text,
    values: &[&V],
    inits: &[Scalar],
    dim: usize,
    combine: impl Fn(&mut Text, &[V], &[V]) -> Vec<V>,
) -> Vec<V> {
    let mut values: Vec<V> = values.iter().map(|v| (*v).clone()).collect();
    if values[0].rank() == 0 {
        return values;
    }
    let extent = values[0].dims[dim];
    let mut reach = 1;
    while reach < extent {
        let earlier: Vec<V> = values
            .iter()
            .zip(inits)
            .map(|(v, init)| {
                let kept = t.slice(v, dim, 0, extent - reach, 1);
                let mut filled = v.dims.clone();
                filled[dim] = reach;
                let filled = t.splat(v.el, &filled, *init);
                t.concat(&[&filled, &kept], dim)
            })
            .collect();
        values = combine(t, &earlier, &values);
        reach *= 2;
    }
    values
}
