//! Softmax and normalisation.

use super::reduce::mean;
use super::text::{Text, V};
use super::{Call, Written};
use crate::{Op, ReduceOp};

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    match &c.node.op {
        Op::Softmax { dim, log } => {
            let x = c.wide(t, 0);
            Ok(vec![softmax(t, &x, *dim, *log)])
        }
        Op::SoftmaxBackward { dim, log } => {
            let (grad, y) = (c.wide(t, 0), c.wide(t, 1));
            if y.rank() == 0 {
                // Of one element the softmax is 1.
                let sum = grad.clone();
                let e = if *log { t.un("exponential", &y) } else { y.clone() };
                let product = t.mul(&e, &sum);
                return Ok(vec![if *log { t.sub(&grad, &product) } else { t.sub(&product, &product) }]);
            }
            let dims = [*dim as i64];
            Ok(vec![if *log {
                let sum = t.sum_over(&grad, &dims);
                let e = t.un("exponential", &y);
                let part = t.mul(&e, &sum);
                t.sub(&grad, &part)
            } else {
                let product = t.mul(&grad, &y);
                let sum = t.sum_over(&product, &dims);
                let d = t.sub(&grad, &sum);
                t.mul(&d, &y)
            }])
        }
        Op::LayerNorm { dims, eps, weight, bias } => {
            let x = c.wide(t, 0);
            let over = last(&x, *dims);
            let count = extent(&x, &over);
            let m = mean(t, &x, &over, count);
            let wide = t.broadcast(&m, &x.dims);
            let d = t.sub(&x, &wide);
            let squares = t.mul(&d, &d);
            let variance = mean(t, &squares, &over, count);
            let rstd = inverse_root(t, &variance, *eps);
            let scale = t.broadcast(&rstd, &x.dims);
            let mut out = t.mul(&d, &scale);
            if *weight {
                let w = c.wide(t, 1);
                let w = t.broadcast(&w, &x.dims);
                out = t.mul(&out, &w);
            }
            if *bias {
                let b = c.wide(t, 1 + usize::from(*weight));
                let b = t.broadcast(&b, &x.dims);
                out = t.add(&out, &b);
            }
            Ok(vec![out, m, rstd])
        }
        Op::LayerNormBackward { dims, weight } => {
            let (grad, x) = (c.wide(t, 0), c.wide(t, 1));
            let m = statistic(t, c, 2, &x, *dims);
            let rstd = statistic(t, c, 3, &x, *dims);
            let over = last(&x, *dims);
            let count = extent(&x, &over);
            let centred = t.sub(&x, &m);
            let normal = t.mul(&centred, &rstd);
            let g = weighted(t, c, &grad, weight.then_some(4));
            let g_mean = mean(t, &g, &over, count);
            let g_mean = t.broadcast(&g_mean, &x.dims);
            let along = t.mul(&g, &normal);
            let along = mean(t, &along, &over, count);
            let along = t.broadcast(&along, &x.dims);
            let part = t.mul(&normal, &along);
            let d = t.sub(&g, &g_mean);
            let d = t.sub(&d, &part);
            let grad_x = t.mul(&d, &rstd);
            let rows: Vec<i64> = (0..(x.rank() - dims) as i64).collect();
            let product = t.mul(&grad, &normal);
            let grad_weight = t.sum(&product, &rows);
            Ok(vec![grad_x, grad_weight, t.sum(&grad, &rows)])
        }
        Op::RmsNorm { dims, eps, weight } => {
            let x = c.wide(t, 0);
            let over = last(&x, *dims);
            let squares = t.mul(&x, &x);
            let count = extent(&x, &over);
            let square = mean(t, &squares, &over, count);
            let rstd = inverse_root(t, &square, *eps);
            let scale = t.broadcast(&rstd, &x.dims);
            let out = t.mul(&x, &scale);
            Ok(vec![weighted(t, c, &out, weight.then_some(1)), rstd])
        }
        Op::RmsNormBackward { dims, weight } => {
            let (grad, x) = (c.wide(t, 0), c.wide(t, 1));
            let rstd = statistic(t, c, 2, &x, *dims);
            let over = last(&x, *dims);
            let normal = t.mul(&x, &rstd);
            let g = weighted(t, c, &grad, weight.then_some(3));
            let along = t.mul(&g, &normal);
            let count = extent(&x, &over);
            let along = mean(t, &along, &over, count);
            let along = t.broadcast(&along, &x.dims);
            let part = t.mul(&normal, &along);
            let d = t.sub(&g, &part);
            let grad_x = t.mul(&d, &rstd);
            let rows: Vec<i64> = (0..(x.rank() - dims) as i64).collect();
            let product = t.mul(&grad, &normal);
            Ok(vec![grad_x, t.sum(&product, &rows)])
        }
        other => unreachable!("{} does not normalise", other.name()),
    }
}

/// Softmax or its logarithm of compute-type elements.
pub(super) fn softmax(t: &mut Text, x: &V, dim: usize, log: bool) -> V {
    if x.rank() == 0 {
        let row = t.reshape(x, &[1]);
        let out = softmax(t, &row, 0, log);
        return t.reshape(&out, &[]);
    }
    let dims = [dim as i64];
    let (name, init) = super::reduce::combine(ReduceOp::Max, x.el);
    let most = t.reduce_kept(name, x, init, &dims);
    let most = t.broadcast(&most, &x.dims);
    let d = t.sub(x, &most);
    let e = t.un("exponential", &d);
    let sum = t.sum(&e, &dims);
    if log {
        let sum = t.un("log", &sum);
        let sum = t.broadcast(&sum, &x.dims);
        return t.sub(&d, &sum);
    }
    let sum = t.broadcast(&sum, &x.dims);
    t.div(&e, &sum)
}

fn last(x: &V, dims: usize) -> Vec<i64> {
    ((x.rank() - dims) as i64..x.rank() as i64).collect()
}

fn extent(x: &V, over: &[i64]) -> f64 {
    over.iter().map(|d| x.dims[*d as usize]).product::<i64>() as f64
}

fn inverse_root(t: &mut Text, a: &V, eps: f64) -> V {
    let sum = t.bin_num("add", a, eps);
    let root = t.un("sqrt", &sum);
    super::pointwise::reciprocal(t, &root)
}

/// Operand `i`, one number for each row of `x`, expanded to its shape.
fn statistic(t: &mut Text, c: &Call, i: usize, x: &V, dims: usize) -> V {
    let a = t.convert(&c.args[i], x.el);
    let rows = x.rank() - dims;
    let kept: Vec<i64> = (0..x.rank()).map(|d| if d < rows { x.dims[d] } else { 1 }).collect();
    let a = t.reshape(&a, &kept);
    t.broadcast(&a, &x.dims)
}

fn weighted(t: &mut Text, c: &Call, a: &V, weight: Option<usize>) -> V {
    match weight {
        Some(i) => {
            let w = t.convert(&c.args[i], a.el);
            let w = t.broadcast(&w, &a.dims);
            t.mul(a, &w)
        }
        None => a.clone(),
    }
}
