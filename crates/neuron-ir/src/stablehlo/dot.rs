//! Products of matrices, and attention.

use super::text::{El, Text, V};
use super::{Call, Written, reasons};
use crate::{Op, ReduceOp, Scalar};

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    match &c.node.op {
        Op::Dot => {
            let (a, b) = (c.wide(t, 0), c.wide(t, 1));
            Ok(vec![t.matmul(&a, &b)])
        }
        Op::Attention { dropout, .. } | Op::AttentionBackward { dropout, .. } if *dropout > 0.0 => {
            Err(reasons::DROPOUT)
        }
        Op::Attention { causal, scale, bias, .. } => Ok(attention(t, c, *causal, *scale, *bias)),
        Op::AttentionBackward { causal, scale, bias, grad_bias, .. } => {
            Ok(attention_backward(t, c, *causal, *scale, *bias, *grad_bias))
        }
        other => unreachable!("{} is no product", other.name()),
    }
}

fn transposed(t: &mut Text, a: &V) -> V {
    let r = a.rank() as i64;
    let mut order: Vec<i64> = (0..r).collect();
    order.swap(r as usize - 1, r as usize - 2);
    t.transpose(a, &order)
}

/// Heads of keys or values repeated for the heads of queries that share them.
fn repeated(t: &mut Text, a: &V, heads: i64) -> V {
    let [b, h, s, e] = a.dims[..] else { unreachable!("four dimensions") };
    if h == heads || h == 0 {
        return a.clone();
    }
    let shared = t.broadcast_in(a, &[0, 1, 3, 4], &[b, h, heads / h, s, e]);
    t.reshape(&shared, &[b, heads, s, e])
}

/// Gradients of the heads that share keys or values added up.
fn gathered(t: &mut Text, a: &V, heads: i64) -> V {
    let [b, h, s, e] = a.dims[..] else { unreachable!("four dimensions") };
    if h == heads || heads == 0 {
        return a.clone();
    }
    let split = t.reshape(a, &[b, heads, h / heads, s, e]);
    t.reduce("add", &split, Scalar::I64(0), &[2])
}

/// Scores with bias and mask.
fn scores(t: &mut Text, q: &V, k: &V, causal: bool, scale: f64, bias: Option<&V>) -> V {
    let k = transposed(t, k);
    let product = t.matmul(q, &k);
    let mut s = t.bin_num("multiply", &product, scale);
    if let Some(bias) = bias {
        if bias.el == El::I1 {
            let visible = t.broadcast(bias, &s.dims);
            s = t.select_num(&visible, &s, f64::NEG_INFINITY);
        } else {
            let bias = t.convert(bias, s.el);
            let bias = t.broadcast(&bias, &s.dims);
            s = t.add(&s, &bias);
        }
    }
    if causal {
        let (row, column) = (t.iota(El::I64, &s.dims, 2), t.iota(El::I64, &s.dims, 3));
        let visible = t.compare("LE", &column, &row);
        s = t.select_num(&visible, &s, f64::NEG_INFINITY);
    }
    s
}

fn attention(t: &mut Text, c: &Call, causal: bool, scale: f64, bias: bool) -> Vec<V> {
    let (q, k, v) = (c.wide(t, 0), c.wide(t, 1), c.wide(t, 2));
    let (k, v) = (repeated(t, &k, q.dims[1]), repeated(t, &v, q.dims[1]));
    let s = scores(t, &q, &k, causal, scale, bias.then(|| &c.args[3]));
    let (name, init) = super::reduce::combine(ReduceOp::Max, s.el);
    let most = t.reduce_kept(name, &s, init, &[3]);
    // A query that sees nothing yields zeros.
    let blind = t.compare_num("EQ", &most, f64::NEG_INFINITY);
    let safe = t.like(&most, 0.0);
    let safe = t.select(&blind, &safe, &most);
    let wide = t.broadcast(&safe, &s.dims);
    let d = t.sub(&s, &wide);
    let e = t.un("exponential", &d);
    let sum = t.sum(&e, &[3]);
    let one = t.like(&sum, 1.0);
    let divisor = t.select(&blind, &one, &sum);
    let divisor = t.broadcast(&divisor, &e.dims);
    let p = t.div(&e, &divisor);
    let out = t.matmul(&p, &v);
    let log = t.un("log", &sum);
    vec![out, t.add(&safe, &log)]
}

/// The probabilities anew from scores and log-sum-exp, then the products' gradients.
fn attention_backward(t: &mut Text, c: &Call, causal: bool, scale: f64, bias: bool, grad_bias: bool) -> Vec<V> {
    let [g, q, k0, v0] = [0, 1, 2, 3].map(|i| c.wide(t, i));
    let at = 4 + usize::from(bias);
    let (out, lse) = (c.wide(t, at), c.args[at + 1].clone());
    let heads = q.dims[1];
    let (k, v) = (repeated(t, &k0, heads), repeated(t, &v0, heads));
    let s = scores(t, &q, &k, causal, scale, bias.then(|| &c.args[4]));
    let lse = t.convert(&lse, s.el);
    let mut kept = lse.dims[..3].to_vec();
    kept.push(1);
    let lse = t.reshape(&lse, &kept);
    let blind = t.compare_num("EQ", &lse, f64::NEG_INFINITY);
    let infinity = t.like(&lse, f64::INFINITY);
    let lse = t.select(&blind, &infinity, &lse);
    let lse = t.broadcast(&lse, &s.dims);
    let d = t.sub(&s, &lse);
    let p = t.un("exponential", &d);
    let pt = transposed(t, &p);
    let grad_v = t.matmul(&pt, &g);
    let vt = transposed(t, &v);
    let grad_p = t.matmul(&g, &vt);
    let product = t.mul(&g, &out);
    let sum = t.sum(&product, &[3]);
    let sum = t.broadcast(&sum, &p.dims);
    let d = t.sub(&grad_p, &sum);
    let grad_s = t.mul(&p, &d);
    let scaled = t.bin_num("multiply", &grad_s, scale);
    let grad_q = t.matmul(&scaled, &k);
    let st = transposed(t, &scaled);
    let grad_k = t.matmul(&st, &q);
    let mut results = vec![grad_q, gathered(t, &grad_k, k0.dims[1]), gathered(t, &grad_v, v0.dims[1])];
    if grad_bias {
        let to = &c.node.results[3].sizes;
        let missing = grad_s.rank() - to.len();
        let over: Vec<i64> = (0..grad_s.rank())
            .filter(|d| *d < missing || (to[d - missing] == 1 && grad_s.dims[*d] != 1))
            .map(|d| d as i64)
            .collect();
        results.push(t.reduce("add", &grad_s, Scalar::I64(0), &over));
    }
    results
}
