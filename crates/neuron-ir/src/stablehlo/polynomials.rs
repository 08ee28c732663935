//! Orthogonal polynomials of any degree: the recurrences of PyTorch's definitions, run over all elements at once.

use super::text::{El, Text, V};
use crate::{BinaryOp, Scalar};

/// What a step of a recurrence is written from: `x`, the last two values, and the number of the step.
struct State<'a> {
    x: &'a V,
    p: &'a V,
    q: &'a V,
    k: &'a V,
}

pub(super) fn write(t: &mut Text, op: BinaryOp, x: &V, n: &V) -> V {
    use BinaryOp::*;
    let shifted = matches!(op, ShiftedChebyshevT | ShiftedChebyshevU | ShiftedChebyshevV | ShiftedChebyshevW);
    let x = if shifted {
        let twice = t.add(x, x);
        t.bin_num("subtract", &twice, 1.0)
    } else {
        x.clone()
    };
    let n = degree(t, n);
    match op {
        ChebyshevT | ShiftedChebyshevT => chebyshev(t, Kind::T, &x, &n),
        ChebyshevU | ShiftedChebyshevU => chebyshev(t, Kind::U, &x, &n),
        ChebyshevV | ShiftedChebyshevV => chebyshev(t, Kind::V, &x, &n),
        ChebyshevW | ShiftedChebyshevW => chebyshev(t, Kind::W, &x, &n),
        HermiteH | HermiteHe => {
            let c = if op == HermiteH { 2.0 } else { 1.0 };
            let y = t.bin_num("multiply", &x, c);
            hermite(t, &y, &n, c)
        }
        LaguerreL => {
            let one = t.like(&x, 1.0);
            let first = t.sub(&one, &x);
            let value = recurrence(t, &x, &first, &n, |t, s| {
                // ((2 k + 1 - x) q - k p) / (k + 1)
                let rest = t.like(s.x, 1.0);
                let rest = t.sub(&rest, s.x);
                legendre_like(t, &s, |t, twice| t.add(twice, &rest))
            });
            let zero = t.compare_num("EQ", &x, 0.0);
            let value = t.select(&zero, &one, &value);
            unless_negative(t, &n, &value)
        }
        LegendreP => {
            let value = recurrence(t, &x, &x, &n, |t, s| {
                legendre_like(t, &s, |t, twice| {
                    let odd = t.bin_num("add", twice, 1.0);
                    t.mul(&odd, s.x)
                })
            });
            let (end, above, parity) = ends(t, &x, &n);
            let one = t.like(&x, 1.0);
            let edge = t.select(&above, &one, &parity);
            let value = t.select(&end, &edge, &value);
            unless_negative(t, &n, &value)
        }
        other => unreachable!("{} is no polynomial", other.name()),
    }
}

/// The degree as an integer; -1 where it is none.
fn degree(t: &mut Text, n: &V) -> V {
    let size = t.un("abs", n);
    let fits = t.compare_num("LT", &size, 9.2e18);
    let safe = t.select_num(&fits, n, -1.0);
    t.convert(&safe, El::I64)
}

/// `(f(2 k) q - k p) / (k + 1)`
fn legendre_like(t: &mut Text, s: &State, f: impl FnOnce(&mut Text, &V) -> V) -> V {
    let k = t.broadcast(s.k, &s.x.dims);
    let twice = t.add(&k, &k);
    let factor = f(t, &twice);
    let (a, b) = (t.mul(&factor, s.q), t.mul(&k, s.p));
    let d = t.sub(&a, &b);
    let next = t.bin_num("add", &k, 1.0);
    t.div(&d, &next)
}

/// Values from 1 and `first` on, by `step`, the `n`th after `n - 1` steps. NaN ends an element, as do other ends.
fn recurrence(t: &mut Text, x: &V, first: &V, n: &V, step: impl FnOnce(&mut Text, State) -> V) -> V {
    let one = t.like(x, 1.0);
    let k = t.splat(El::I64, &[], Scalar::I64(1));
    let state = [x, n, &one, first, &k];
    let out = t.while_loop(
        &state,
        |t, s| {
            let left = going(t, &s[1], &s[3], &s[4]);
            super::pointwise::any(t, &left)
        },
        |t, s| {
            let left = going(t, &s[1], &s[3], &s[4]);
            let k = t.convert(&s[4], s[0].el);
            let next = step(t, State { x: &s[0], p: &s[2], q: &s[3], k: &k });
            let p = t.select(&left, &s[3], &s[2]);
            let q = t.select(&left, &next, &s[3]);
            let k = t.bin_int("add", &s[4], 1);
            vec![s[0].clone(), s[1].clone(), p, q, k]
        },
    );
    let zeroth = t.compare_int("EQ", n, 0);
    t.select(&zeroth, &one, &out[3])
}

fn going(t: &mut Text, last: &V, q: &V, k: &V) -> V {
    let k = t.broadcast(k, &last.dims);
    let left = t.compare("LT", &k, last);
    let nan = t.is_nan(q);
    let number = t.not(&nan);
    t.and(&left, &number)
}

fn unless_negative(t: &mut Text, n: &V, value: &V) -> V {
    let negative = t.compare_int("LT", n, 0);
    let zero = t.like(value, 0.0);
    t.select(&negative, &zero, value)
}

/// Where `x` is 1 or -1, where it is above 0, and 1 or -1 by the parity of the degree.
fn ends(t: &mut Text, x: &V, n: &V) -> (V, V, V) {
    let size = t.un("abs", x);
    let end = t.compare_num("EQ", &size, 1.0);
    let above = t.compare_num("GT", x, 0.0);
    let bit = t.bin_int("and", n, 1);
    let odd = t.compare_int("NE", &bit, 0);
    let minus = t.like(x, -1.0);
    let parity = t.select_num(&odd, &minus, 1.0);
    (end, above, parity)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    T,
    U,
    V,
    W,
}

fn chebyshev(t: &mut Text, kind: Kind, x: &V, n: &V) -> V {
    let twice = t.add(x, x);
    let first = match kind {
        Kind::T => x.clone(),
        Kind::U => twice,
        Kind::V => t.bin_num("subtract", &twice, 1.0),
        Kind::W => t.bin_num("add", &twice, 1.0),
    };
    // Inside of the interval high degrees are trigonometric.
    let size = t.un("abs", x);
    let inside = t.compare_num("LT", &size, 1.0);
    let high = t.compare_int("GT", n, if kind == Kind::T { 6 } else { 8 });
    let angular = t.and(&inside, &high);
    let (end, above, parity) = ends(t, x, n);
    let other = t.or(&angular, &end);
    let none = t.like_int(n, 0);
    let steps = t.select(&other, &none, n);
    let by_steps = recurrence(t, x, &first, &steps, |t, s| {
        let twice = t.add(s.x, s.x);
        let part = t.mul(&twice, s.q);
        t.sub(&part, s.p)
    });
    let by_angle = trigonometric(t, kind, x, n, &parity);
    let value = t.select(&angular, &by_angle, &by_steps);
    let whole = t.convert(n, x.el);
    let one = t.like(x, 1.0);
    let next = t.bin_num("add", &whole, 1.0);
    let odd = t.add(&whole, &next);
    let (at_one, at_minus) = match kind {
        Kind::T => (one, parity),
        Kind::U => {
            let m = t.mul(&parity, &next);
            (next, m)
        }
        Kind::V => (one, t.mul(&parity, &odd)),
        Kind::W => (odd, parity),
    };
    let edge = t.select(&above, &at_one, &at_minus);
    let value = t.select(&end, &edge, &value);
    unless_negative(t, n, &value)
}

fn trigonometric(t: &mut Text, kind: Kind, x: &V, n: &V, parity: &V) -> V {
    let whole = t.convert(n, x.el);
    let angle = t.chlo("acos", &[x]);
    match kind {
        Kind::T => {
            let a = t.mul(&whole, &angle);
            t.un("cosine", &a)
        }
        Kind::U => {
            let next = t.bin_num("add", &whole, 1.0);
            let a = t.mul(&next, &angle);
            let (sine, part) = (t.un("sine", &angle), t.un("sine", &a));
            let ratio = t.div(&part, &sine);
            let cosine = t.un("cosine", &a);
            let flat = t.mul(&next, &cosine);
            let flat = t.div(&flat, x);
            let some = t.compare_num("NE", &sine, 0.0);
            t.select(&some, &ratio, &flat)
        }
        Kind::V | Kind::W => {
            let half = t.bin_num("multiply", &angle, 0.5);
            let between = t.bin_num("add", &whole, 0.5);
            let a = t.mul(&between, &angle);
            let twice = t.add(&whole, &whole);
            let odd = t.bin_num("add", &twice, 1.0);
            let (name, other) = if kind == Kind::V { ("cosine", "sine") } else { ("sine", "cosine") };
            let (above, below) = (t.un(name, &a), t.un(name, &half));
            let ratio = t.div(&above, &below);
            let edge = if kind == Kind::V {
                t.mul(parity, &odd)
            } else {
                let positive = t.compare_num("GT", x, 0.0);
                t.select(&positive, &odd, parity)
            };
            let test = t.un(other, &half);
            let flat = t.compare_num("EQ", &test, 1.0);
            t.select(&flat, &edge, &ratio)
        }
    }
}

/// `r(k + 1) = y r(k) - c k r(k - 1)`; NaN for degrees beyond PyTorch's limit.
fn hermite(t: &mut Text, y: &V, n: &V, c: f64) -> V {
    let limit = if y.el == El::F64 { 512 } else { 128 };
    let beyond = t.compare_int("GT", n, limit);
    let none = t.like_int(n, 0);
    let steps = t.select(&beyond, &none, n);
    let value = recurrence(t, y, y, &steps, |t, s| {
        let k = t.broadcast(s.k, &s.x.dims);
        let part = t.mul(s.x, s.q);
        let ck = t.bin_num("multiply", &k, c);
        let back = t.mul(&ck, s.p);
        t.sub(&part, &back)
    });
    let nan = t.like(&value, f64::NAN);
    let value = t.select(&beyond, &nan, &value);
    unless_negative(t, n, &value)
}
