//! The gamma function's relatives, one element at a time.

use super::special::lgamma;
use neuron_ir::series::{DIGAMMA, TRIGAMMA, ZETA};
use std::f64::consts::{PI, TAU};

/// Logarithmic derivative of the gamma function.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        let fraction = x.fract();
        // Also at minus infinity, whose fraction is no number.
        if x == x.trunc() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI / (PI * fraction).tan();
    }
    // Up to where the asymptotic series is exact to double precision.
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    // B(2k) / 2k
    let z = 1.0 / (x * x);
    let tail = DIGAMMA.iter().rev().fold(0.0, |p, c| p * z + c);
    sum + x.ln() - 0.5 / x - tail * z
}

macro_rules! trigamma {
    ($name:ident, $t:ty, $pi:expr) => {
        /// Derivative of the digamma function. The sine of the reflection has the operand's precision: at negative
        /// integers it is what that leaves of 0.
        pub fn $name(x: $t) -> $t {
            if x < 0.5 {
                let sine = ($pi * x).sin();
                return $pi * $pi / (sine * sine) - trigamma_positive(1.0 - x as f64) as $t;
            }
            trigamma_positive(x as f64) as $t
        }
    };
}
trigamma!(trigamma_f32, f32, std::f32::consts::PI);
trigamma!(trigamma_f64, f64, PI);

fn trigamma_positive(x: f64) -> f64 {
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    // B(2k)
    let z = 1.0 / (x * x);
    let tail = TRIGAMMA.iter().rev().fold(0.0, |p, c| p * z + c);
    sum + (1.0 + 0.5 / x + tail * z) / x
}

/// Hurwitz zeta function, by Euler and Maclaurin.
pub fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s < 1.0 {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if s != s.floor() {
            return f64::NAN;
        }
    }
    let mut sum = q.powf(-s);
    let (mut a, mut term, mut i) = (q, 0.0, 0);
    while i < 9 || a <= 9.0 {
        i += 1;
        a += 1.0;
        term = a.powf(-s);
        sum += term;
        if (term / sum).abs() < f64::EPSILON / 2.0 {
            return sum;
        }
    }
    sum += term * a / (s - 1.0) - 0.5 * term;
    let (mut rising, mut k) = (1.0, 0.0);
    for c in ZETA {
        rising *= s + k;
        term /= a;
        let t = rising * term / c;
        sum += t;
        if (t / sum).abs() < f64::EPSILON / 2.0 {
            break;
        }
        k += 1.0;
        rising *= s + k;
        term /= a;
        k += 1.0;
    }
    sum
}

/// The values at the edges of the domain: `(lower, upper)`. An edge counts whatever the other argument, even NaN.
fn gamma_edge(a: f64, x: f64) -> Option<(f64, f64)> {
    if x < 0.0 || a < 0.0 {
        return Some((f64::NAN, f64::NAN));
    }
    if a == 0.0 {
        return Some(if x > 0.0 { (1.0, 0.0) } else { (f64::NAN, f64::NAN) });
    }
    if x == 0.0 {
        return Some((0.0, 1.0));
    }
    match (a.is_infinite(), x.is_infinite()) {
        (true, true) => Some((f64::NAN, f64::NAN)),
        (true, false) => Some((0.0, 1.0)),
        (false, true) => Some((1.0, 0.0)),
        _ => (a.is_nan() || x.is_nan()).then_some((f64::NAN, f64::NAN)),
    }
}

/// x^a e^-x / gamma(a + 1)
fn gamma_factor(a: f64, x: f64) -> f64 {
    if a < 20.0 {
        return (a * x.ln() - x - lgamma(a + 1.0)).exp();
    }
    // Stirling's series takes the large terms out before they cancel.
    let m = (x - a) / a;
    let log = if m.abs() < 0.5 { m.ln_1p() - m } else { (x / a).ln() - m };
    let z = 1.0 / (a * a);
    let stirling = (1.0 / 12.0 - z * (1.0 / 360.0 - z * (1.0 / 1260.0 - z / 1680.0))) / a;
    (a * log - stirling).exp() / (TAU * a).sqrt()
}

/// Terms until a series or continued fraction at `a` near `x` has surely settled.
fn gamma_terms(a: f64) -> u64 {
    200 + 20 * a.sqrt().min(1e7) as u64
}

fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, a);
    for _ in 0..gamma_terms(a) {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term < sum * (f64::EPSILON / 4.0) {
            break;
        }
    }
    gamma_factor(a, x) * sum
}

/// By the continued fraction, evaluated forwards (Lentz).
fn upper_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..gamma_terms(a) {
        let i = i as f64;
        let an = -i * (i - a);
        b += 2.0;
        d = an * d + b;
        d = 1.0 / if d.abs() < TINY { TINY } else { d };
        c = b + an / c;
        c = if c.abs() < TINY { TINY } else { c };
        h *= d * c;
        if (d * c - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    gamma_factor(a, x) * a * h
}

/// Regularised lower incomplete gamma function.
pub fn igamma(a: f64, x: f64) -> f64 {
    match gamma_edge(a, x) {
        Some((lower, _)) => lower,
        None if x < a + 1.0 => lower_series(a, x),
        None => 1.0 - upper_fraction(a, x),
    }
}

/// Regularised upper incomplete gamma function.
pub fn igammac(a: f64, x: f64) -> f64 {
    match gamma_edge(a, x) {
        Some((_, upper)) => upper,
        None if x < a + 1.0 => 1.0 - lower_series(a, x),
        None => upper_fraction(a, x),
    }
}

/// Greatest common divisor, not negative.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b as i64
}

/// Least common multiple, not negative unless it wraps.
pub fn lcm(a: i64, b: i64) -> i64 {
    match gcd(a, b) {
        0 => 0,
        g => (a / g).wrapping_mul(b).wrapping_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative to the larger of 1 and the value.
    fn close(got: f64, want: f64, tolerance: f64) {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{got} is not {want}");
    }

    #[test]
    fn known_values() {
        close(digamma(1.0), -0.577_215_664_901_532_9, 1e-15);
        close(digamma(-1.5), 0.703_156_640_645_243_2, 1e-14);
        close(digamma(10.0), 2.251_752_589_066_721, 1e-15);
        close(trigamma_f64(1.0), PI * PI / 6.0, 1e-15);
        close(trigamma_f64(-0.5), 8.934_802_200_544_68, 1e-14);
        close(zeta(2.0, 1.0), PI * PI / 6.0, 1e-15);
        close(zeta(4.0, 1.0), PI.powi(4) / 90.0, 1e-15);
    }

    #[test]
    fn digamma_and_zeta_obey_their_recurrences() {
        for i in 1..400 {
            let x = i as f64 * 0.173;
            close(digamma(x + 1.0), digamma(x) + 1.0 / x, 1e-13);
            close(trigamma_f64(x + 1.0), trigamma_f64(x) - 1.0 / (x * x), 1e-13);
            close(zeta(2.5, x), zeta(2.5, x + 1.0) + x.powf(-2.5), 1e-13);
        }
    }

    #[test]
    fn incomplete_gammas_add_up_and_obey_their_recurrence() {
        for a in [1e-3, 0.3, 1.0, 2.5, 19.0, 25.0, 140.0, 4e3, 1e6] {
            for r in [0.01, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 2.0, 30.0] {
                let x = a * r;
                let (p, q) = (igamma(a, x), igammac(a, x));
                close(p + q, 1.0, 1e-12);
                close(igamma(a + 1.0, x), p - gamma_factor(a, x), 1e-11);
            }
        }
        close(igamma(1.0, 0.7), 1.0 - (-0.7f64).exp(), 1e-15);
        close(igammac(0.5, 2.0), super::super::special::erfc(2f64.sqrt()), 1e-14);
    }

    #[test]
    fn divisors() {
        assert_eq!((gcd(-12, 18), gcd(0, -5), gcd(0, 0), gcd(i64::MIN, 0)), (6, 5, 0, i64::MIN));
        assert_eq!((lcm(-4, 6), lcm(0, 3), lcm(0, 0)), (12, 0, 0));
    }
}
