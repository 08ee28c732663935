//! Special functions without an operation of their own, as series and iterations in `f64`.
//!
//! Those of `f32` are rounded once, as the kernels'; the tests hold them to the kernels' values within 1e-6, in `f64`
//! within 1e-9.

use super::pointwise::reciprocal;
use super::reasons;
use super::text::{El, Text, V};
use crate::UnaryOp;
use crate::series::{DIGAMMA, EULER, I0_LARGE, I0_SMALL, I1_LARGE, I1_SMALL, K0_LARGE, K1_LARGE, TRIGAMMA, ZETA};
use std::f64::consts::{FRAC_1_SQRT_2, PI, TAU};

pub(super) fn unary(t: &mut Text, op: UnaryOp, a: &V) -> Result<V, &'static str> {
    use UnaryOp::*;
    let x = t.convert(a, El::F64);
    let value = match op {
        Digamma => digamma(t, &x),
        Trigamma => trigamma(t, a),
        I0e => i0e(t, &x),
        I1e => i1e(t, &x),
        I0 | I1 => {
            // The exponential overflows in the operand's type.
            let size = t.un("abs", a);
            let e = t.un("exponential", &size);
            let e = t.convert(&e, El::F64);
            let rest = if op == I0 { i0e(t, &x) } else { i1e(t, &x) };
            t.mul(&e, &rest)
        }
        K0 | K0e | K1 | K1e => second_kind(t, op, &x),
        SphericalBesselJ0 => spherical(t, &x),
        Erfcx => erfcx(t, &x),
        LogNdtr => log_ndtr(t, &x),
        Ndtri => ndtri(t, &x),
        FrexpMantissa => frexp(t, &x).0,
        FrexpExponent => frexp(t, &x).1,
        _ => return Err(reasons::SERIES),
    };
    Ok(t.convert(&value, a.el))
}

/// `c[0] + z (c[1] + z (..))`
fn horner(t: &mut Text, c: &[f64], z: &V) -> V {
    let mut p = t.like(z, c[c.len() - 1]);
    for c in c[..c.len() - 1].iter().rev() {
        let product = t.mul(&p, z);
        p = t.bin_num("add", &product, *c);
    }
    p
}

/// The sum of `c[k] T(k, x)`, by Clenshaw.
fn chebyshev(t: &mut Text, c: &[f64], x: &V) -> V {
    let twice = t.add(x, x);
    let (mut b0, mut b1) = (t.like(x, 0.0), t.like(x, 0.0));
    for c in c[1..].iter().rev() {
        let product = t.mul(&twice, &b0);
        let d = t.sub(&product, &b1);
        (b0, b1) = (t.bin_num("add", &d, *c), b0);
    }
    let product = t.mul(x, &b0);
    let d = t.sub(&product, &b1);
    t.bin_num("add", &d, c[0])
}

/// A series on each side of `edge`, in `x / scale - 1` below and in `2 edge / x - 1` above, there over the root.
fn two_series(t: &mut Text, x: &V, edge: f64, below: impl FnOnce(&mut Text, &V) -> V, large: &[f64]) -> V {
    let small = t.compare_num("LE", x, edge);
    let low = t.like(x, edge);
    let inside = t.select(&small, x, &low);
    let below = below(t, &inside);
    let outside = t.select(&small, &low, x);
    let double = t.like(x, 2.0 * edge);
    let ratio = t.div(&double, &outside);
    let ratio = t.bin_num("subtract", &ratio, 1.0);
    let series = chebyshev(t, large, &ratio);
    let root = t.un("sqrt", &outside);
    let above = t.div(&series, &root);
    t.select(&small, &below, &above)
}

fn quarter(t: &mut Text, x: &V) -> V {
    let part = t.bin_num("divide", x, 4.0);
    t.bin_num("subtract", &part, 1.0)
}

fn i0e(t: &mut Text, x: &V) -> V {
    let x = t.un("abs", x);
    let below = |t: &mut Text, x: &V| {
        let at = quarter(t, x);
        chebyshev(t, &I0_SMALL, &at)
    };
    two_series(t, &x, 8.0, below, &I0_LARGE)
}

fn i1e(t: &mut Text, x: &V) -> V {
    let size = t.un("abs", x);
    let below = |t: &mut Text, x: &V| {
        let at = quarter(t, x);
        let series = chebyshev(t, &I1_SMALL, &at);
        t.mul(&series, x)
    };
    let value = two_series(t, &size, 8.0, below, &I1_LARGE);
    let negative = t.compare_num("LT", x, 0.0);
    let minus = t.un("negate", &value);
    t.select(&negative, &minus, &value)
}

/// Terms of the power series of the functions of the second kind.
const TERMS: usize = 20;

/// K0 or K1 on (0, 2], by power series in `x^2 / 4`.
fn k_series(t: &mut Text, x: &V, first: bool) -> V {
    let square = t.mul(x, x);
    let z = t.bin_num("divide", &square, 4.0);
    let half = t.bin_num("multiply", x, 0.5);
    let log = t.un("log", &half);
    // Coefficients of the modified function of the first kind, and of these times harmonic numbers.
    let (mut plain, mut weighted) = (vec![1.0], vec![if first { 1.0 - 2.0 * EULER } else { 0.0 }]);
    let (mut term, mut sum) = (1.0, weighted[0]);
    for k in 1..TERMS {
        let k = k as f64;
        (term, sum) = match first {
            true => (term / (k * (k + 1.0)), sum + 1.0 / k + 1.0 / (k + 1.0)),
            false => (term / (k * k), sum + 1.0 / k),
        };
        plain.push(term);
        weighted.push(term * sum);
    }
    let (i, w) = (horner(t, &plain, &z), horner(t, &weighted, &z));
    if !first {
        let factor = t.bin_num("add", &log, EULER);
        let part = t.mul(&factor, &i);
        return t.sub(&w, &part);
    }
    let part = t.mul(&log, &i);
    let w = t.bin_num("multiply", &w, 0.5);
    let d = t.sub(&part, &w);
    let d = t.mul(&half, &d);
    let inverse = reciprocal(t, x);
    t.add(&inverse, &d)
}

fn second_kind(t: &mut Text, op: UnaryOp, x: &V) -> V {
    let first = matches!(op, UnaryOp::K1 | UnaryOp::K1e);
    let scaled = matches!(op, UnaryOp::K0e | UnaryOp::K1e);
    let positive = t.compare_num("GT", x, 0.0);
    let safe = t.select_num(&positive, x, 1.0);
    // Both sides are scaled by e^x here.
    let below = |t: &mut Text, x: &V| {
        let e = t.un("exponential", x);
        let series = k_series(t, x, first);
        t.mul(&series, &e)
    };
    let value = two_series(t, &safe, 2.0, below, if first { &K1_LARGE } else { &K0_LARGE });
    let value = if scaled {
        value
    } else {
        let minus = t.un("negate", &safe);
        let e = t.un("exponential", &minus);
        t.mul(&value, &e)
    };
    let zero = t.compare_num("EQ", x, 0.0);
    let (infinity, nan) = (t.like(x, f64::INFINITY), t.like(x, f64::NAN));
    let edge = t.select(&zero, &infinity, &nan);
    t.select(&positive, &value, &edge)
}

fn spherical(t: &mut Text, x: &V) -> V {
    let size = t.un("abs", x);
    let small = t.compare_num("LT", &size, 1e-4);
    let square = t.mul(x, x);
    let sixth = t.bin_num("divide", &square, -6.0);
    let near = t.bin_num("add", &sixth, 1.0);
    let safe = t.like(x, 1.0);
    let safe = t.select(&small, &safe, x);
    let sine = t.un("sine", &safe);
    let ratio = t.div(&sine, &safe);
    let value = t.select(&small, &near, &ratio);
    let infinite = t.compare_num("EQ", &size, f64::INFINITY);
    let zero = t.like(x, 0.0);
    t.select(&infinite, &zero, &value)
}

fn erfcx(t: &mut Text, x: &V) -> V {
    let small = t.compare_num("LT", x, 12.0);
    let inner = t.select_num(&small, x, 0.0);
    let square = t.mul(&inner, &inner);
    let e = t.un("exponential", &square);
    let c = t.chlo("erfc", &[&inner]);
    let below = t.mul(&e, &c);
    let outer = t.like(x, 12.0);
    let outer = t.select(&small, &outer, x);
    // The asymptotic series in 1 / (2 x^2).
    let inverse = reciprocal(t, &outer);
    let z = t.mul(&inverse, &inverse);
    let z = t.bin_num("multiply", &z, 0.5);
    let series = horner(t, &[1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0], &z);
    let above = t.mul(&series, &inverse);
    let above = t.bin_num("divide", &above, PI.sqrt());
    let value = t.select(&small, &below, &above);
    let far = t.compare_num("LT", x, -26.7);
    let infinity = t.like(x, f64::INFINITY);
    t.select(&far, &infinity, &value)
}

fn log_ndtr(t: &mut Text, x: &V) -> V {
    let s = t.bin_num("multiply", x, FRAC_1_SQRT_2);
    let low = t.compare_num("LT", x, -1.0);
    let minus = t.un("negate", &s);
    let tail = erfcx(t, &minus);
    let tail = t.bin_num("divide", &tail, 2.0);
    let tail = t.un("log", &tail);
    let square = t.mul(&s, &s);
    let below = t.sub(&tail, &square);
    let c = t.chlo("erfc", &[&s]);
    let c = t.bin_num("divide", &c, -2.0);
    let above = t.un("log_plus_one", &c);
    t.select(&low, &below, &above)
}

/// A rational approximation in the tail variable, then two steps of Halley's method on the logarithm.
fn ndtri(t: &mut Text, p: &V) -> V {
    let (from, to) = (t.compare_num("GT", p, 0.0), t.compare_num("LT", p, 1.0));
    let inside = t.and(&from, &to);
    let p_safe = t.select_num(&inside, p, 0.5);
    let upper = t.compare_num("GT", &p_safe, 0.5);
    let one = t.like(p, 1.0);
    let other = t.sub(&one, &p_safe);
    let q = t.select(&upper, &other, &p_safe);
    let log = t.un("log", &q);
    let s = t.bin_num("multiply", &log, -2.0);
    let s = t.un("sqrt", &s);
    let numerator = horner(t, &[2.515517, 0.802853, 0.010328], &s);
    let denominator = horner(t, &[1.0, 1.432788, 0.189269, 0.001308], &s);
    let ratio = t.div(&numerator, &denominator);
    let mut x = t.sub(&ratio, &s);
    for _ in 0..2 {
        let value = log_ndtr(t, &x);
        let square = t.mul(&x, &x);
        let square = t.bin_num("multiply", &square, -0.5);
        let exponent = t.sub(&square, &value);
        let slope = t.un("exponential", &exponent);
        let slope = t.bin_num("divide", &slope, TAU.sqrt());
        let residual = t.sub(&value, &log);
        let sum = t.add(&x, &slope);
        let half = t.bin_num("multiply", &residual, 0.5);
        let part = t.mul(&half, &sum);
        let below = t.add(&slope, &part);
        let change = t.div(&residual, &below);
        x = t.sub(&x, &change);
    }
    let minus = t.un("negate", &x);
    let x = t.select(&upper, &minus, &x);
    let (zero, full) = (t.compare_num("EQ", p, 0.0), t.compare_num("EQ", p, 1.0));
    let edge = t.like(p, f64::NAN);
    let infinity = t.like(p, f64::INFINITY);
    let edge = t.select(&full, &infinity, &edge);
    let lowest = t.like(p, f64::NEG_INFINITY);
    let edge = t.select(&zero, &lowest, &edge);
    t.select(&inside, &x, &edge)
}

/// `x = m 2^e` with `m` in [1/2, 1), from the bits; subnormal numbers are scaled into the normal range.
fn frexp(t: &mut Text, x: &V) -> (V, V) {
    let size = t.un("abs", x);
    let finite = t.un_predicate("is_finite", x);
    let zero = t.compare_num("EQ", x, 0.0);
    let some = t.not(&zero);
    let proper = t.and(&finite, &some);
    let small = t.compare_num("LT", &size, f64::MIN_POSITIVE);
    let scaled = t.bin_num("multiply", x, 64f64.exp2());
    let scaled = t.select(&small, &scaled, x);
    let bits = t.bitcast(&scaled, El::I64);
    let upper = t.bin_int("shift_right_logical", &bits, 52);
    let upper = t.bin_int("and", &upper, 0x7ff);
    let exponent = t.bin_int("subtract", &upper, 1022);
    let less = t.bin_int("subtract", &exponent, 64);
    let exponent = t.select(&small, &less, &exponent);
    let exponent = t.convert(&exponent, El::F64);
    let exponent = t.select_num(&proper, &exponent, 0.0);
    let kept = t.bin_int("and", &bits, !(0x7ff << 52));
    let mantissa = t.bin_int("or", &kept, 1022 << 52);
    let mantissa = t.bitcast(&mantissa, El::F64);
    (t.select(&proper, &mantissa, x), exponent)
}

/// Recurrence up to 10, then the asymptotic series; reflected below 0.
fn digamma(t: &mut Text, x: &V) -> V {
    let negative = t.compare_num("LT", x, 0.0);
    let one = t.like(x, 1.0);
    let other = t.sub(&one, x);
    let mut y = t.select(&negative, &other, x);
    let mut sum = t.like(x, 0.0);
    for _ in 0..10 {
        let low = t.compare_num("LT", &y, 10.0);
        let inverse = reciprocal(t, &y);
        let less = t.sub(&sum, &inverse);
        sum = t.select(&low, &less, &sum);
        let more = t.bin_num("add", &y, 1.0);
        y = t.select(&low, &more, &y);
    }
    let inverse = reciprocal(t, &y);
    let z = t.mul(&inverse, &inverse);
    let tail = horner(t, &DIGAMMA, &z);
    let tail = t.mul(&tail, &z);
    let log = t.un("log", &y);
    let half = t.bin_num("multiply", &inverse, 0.5);
    let value = t.add(&sum, &log);
    let value = t.sub(&value, &half);
    let value = t.sub(&value, &tail);
    // The fraction keeps the sign, so that the tangent is that of the whole.
    let up = t.un("ceil", x);
    let fraction = t.sub(x, &up);
    let angle = t.bin_num("multiply", &fraction, PI);
    let tangent = t.un("tan", &angle);
    let pi = t.like(x, PI);
    let part = t.div(&pi, &tangent);
    let reflected = t.sub(&value, &part);
    let whole = t.compare("EQ", x, &up);
    let nan = t.like(x, f64::NAN);
    let reflected = t.select(&whole, &nan, &reflected);
    let value = t.select(&negative, &reflected, &value);
    let zero = t.compare_num("EQ", x, 0.0);
    let infinity = t.like(x, f64::INFINITY);
    let minus = t.un("negate", x);
    let edge = super::pointwise::copysign(t, &infinity, &minus);
    t.select(&zero, &edge, &value)
}

/// As the digamma function; reflected below 1/2 with a sine of the operand's precision, as PyTorch's.
fn trigamma(t: &mut Text, a: &V) -> V {
    let low = t.compare_num("LT", a, 0.5);
    let pi = t.like(a, PI);
    let angle = t.mul(&pi, a);
    let sine = t.un("sine", &angle);
    let below = t.mul(&sine, &sine);
    let above = t.mul(&pi, &pi);
    let reflection = t.div(&above, &below);
    let x = t.convert(a, El::F64);
    let one = t.like(&x, 1.0);
    let other = t.sub(&one, &x);
    let mut y = t.select(&low, &other, &x);
    let mut sum = t.like(&x, 0.0);
    for _ in 0..10 {
        let small = t.compare_num("LT", &y, 10.0);
        let square = t.mul(&y, &y);
        let inverse = reciprocal(t, &square);
        let more = t.add(&sum, &inverse);
        sum = t.select(&small, &more, &sum);
        let next = t.bin_num("add", &y, 1.0);
        y = t.select(&small, &next, &y);
    }
    let inverse = reciprocal(t, &y);
    let z = t.mul(&inverse, &inverse);
    let tail = horner(t, &TRIGAMMA, &z);
    let tail = t.mul(&tail, &z);
    let half = t.bin_num("multiply", &inverse, 0.5);
    let series = t.add(&half, &tail);
    let series = t.bin_num("add", &series, 1.0);
    let series = t.mul(&series, &inverse);
    let value = t.add(&sum, &series);
    let value = t.convert(&value, a.el);
    let reflected = t.sub(&reflection, &value);
    t.select(&low, &reflected, &value)
}

/// Hurwitz zeta function, by Euler and Maclaurin from beyond 9 on.
pub(super) fn zeta(t: &mut Text, s: &V, q: &V) -> V {
    let (el, s, q) = (s.el, t.convert(s, El::F64), t.convert(q, El::F64));
    let whole = t.un("floor", &q);
    let whole = t.compare("EQ", &q, &whole);
    let low = t.compare_num("LE", &q, 0.0);
    let pole = t.and(&low, &whole);
    // Where there is a value; the others must not hold up the loop.
    let many = t.compare_num("GT", &s, 1.0);
    let off_pole = t.not(&pole);
    let some = t.and(&many, &off_pole);
    let q_safe = t.select_num(&some, &q, 10.0);
    let minus_s = t.un("negate", &s);
    let sum = t.bin("power", &q_safe, &minus_s);
    let (zero, count) = (t.like(&q, 0.0), t.splat(El::I64, &[], crate::Scalar::I64(0)));
    let done = t.is_nan(&q_safe);
    let going = |t: &mut Text, s: &[V]| {
        let early = t.compare_int("LT", &s[5], 9);
        let early = t.broadcast(&early, &s[0].dims);
        let low = t.compare_num("LE", &s[1], 9.0);
        let more = t.or(&early, &low);
        let not = t.not(&s[3]);
        t.and(&more, &not)
    };
    let out = t.while_loop(
        &[&sum, &q_safe, &zero, &done, &minus_s, &count],
        |t, state| {
            let left = going(t, state);
            super::pointwise::any(t, &left)
        },
        |t, state| {
            let left = going(t, state);
            let a = t.bin_num("add", &state[1], 1.0);
            let term = t.bin("power", &a, &state[4]);
            let sum = t.add(&state[0], &term);
            let ratio = t.div(&term, &sum);
            let ratio = t.un("abs", &ratio);
            let small = t.compare_num("LT", &ratio, f64::EPSILON / 2.0);
            let small = t.and(&small, &left);
            vec![
                t.select(&left, &sum, &state[0]),
                t.select(&left, &a, &state[1]),
                t.select(&left, &term, &state[2]),
                t.or(&state[3], &small),
                state[4].clone(),
                t.bin_int("add", &state[5], 1),
            ]
        },
    );
    let [before, a, mut term, done] = [0, 1, 2, 3].map(|i| out[i].clone());
    let less = t.bin_num("subtract", &s, 1.0);
    let part = t.mul(&term, &a);
    let part = t.div(&part, &less);
    let half = t.bin_num("multiply", &term, 0.5);
    let part = t.sub(&part, &half);
    let mut sum = t.add(&before, &part);
    let mut rising = t.like(&s, 1.0);
    for (k, c) in ZETA.iter().enumerate() {
        let k = 2.0 * k as f64;
        let factor = t.bin_num("add", &s, k);
        rising = t.mul(&rising, &factor);
        term = t.div(&term, &a);
        let part = t.mul(&rising, &term);
        let part = t.bin_num("divide", &part, *c);
        // Terms beyond those that count may overflow.
        let finite = t.un_predicate("is_finite", &part);
        let part = t.select_num(&finite, &part, 0.0);
        sum = t.add(&sum, &part);
        let factor = t.bin_num("add", &s, k + 1.0);
        rising = t.mul(&rising, &factor);
        term = t.div(&term, &a);
    }
    let value = t.select(&done, &before, &sum);
    let infinity = t.like(&q, f64::INFINITY);
    let nan = t.like(&q, f64::NAN);
    let s_whole = t.un("floor", &s);
    let s_whole = t.compare("EQ", &s, &s_whole);
    let broken = t.not(&s_whole);
    let broken = t.and(&low, &broken);
    let value = t.select(&broken, &nan, &value);
    let value = t.select(&pole, &infinity, &value);
    let value = t.select(&many, &value, &nan);
    let one = t.compare_num("EQ", &s, 1.0);
    let value = t.select(&one, &infinity, &value);
    t.convert(&value, el)
}
