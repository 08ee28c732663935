//! Bessel and Airy functions, one element at a time.
//!
//! The Bessel functions of real order 0 and 1 are the C library's. The modified ones are Chebyshev series of what is
//! left when the exponential and the root of the argument are taken out; near 0 those of the second kind are their power
//! series. The coefficients were computed for these intervals with 40 digits.

use neuron_ir::series::{EULER, I0_LARGE, I0_SMALL, I1_LARGE, I1_SMALL, K0_LARGE, K1_LARGE};
use std::f64::consts::{FRAC_PI_4, PI};

unsafe extern "C" {
    #[link_name = "j0"]
    safe fn c_j0(x: f64) -> f64;
    #[link_name = "j1"]
    safe fn c_j1(x: f64) -> f64;
    #[link_name = "y0"]
    safe fn c_y0(x: f64) -> f64;
    #[link_name = "y1"]
    safe fn c_y1(x: f64) -> f64;
}

/// The sum of `c[k] T(k, t)`, by Clenshaw.
#[inline(always)]
fn chebyshev<const N: usize>(c: &[f64; N], t: f64) -> f64 {
    let (mut b0, mut b1) = (0.0, 0.0);
    for c in c[1..].iter().rev() {
        (b0, b1) = (2.0 * t * b0 - b1 + c, b0);
    }
    t * b0 - b1 + c[0]
}

/// e^-|x| I0(x)
pub fn i0e(x: f64) -> f64 {
    let x = x.abs();
    if x <= 8.0 { chebyshev(&I0_SMALL, x / 4.0 - 1.0) } else { chebyshev(&I0_LARGE, 16.0 / x - 1.0) / x.sqrt() }
}

/// e^-|x| I1(x)
pub fn i1e(x: f64) -> f64 {
    let a = x.abs();
    let y = if a <= 8.0 {
        chebyshev(&I1_SMALL, a / 4.0 - 1.0) * a
    } else {
        chebyshev(&I1_LARGE, 16.0 / a - 1.0) / a.sqrt()
    };
    if x < 0.0 { -y } else { y }
}

macro_rules! modified {
    ($i0:ident, $i1:ident, $t:ty) => {
        /// Modified Bessel function of the first kind, order 0; overflows where the exponential does.
        pub fn $i0(x: $t) -> $t {
            (x.abs().exp() as f64 * i0e(x as f64)) as $t
        }

        /// Modified Bessel function of the first kind, order 1; overflows where the exponential does.
        pub fn $i1(x: $t) -> $t {
            (x.abs().exp() as f64 * i1e(x as f64)) as $t
        }
    };
}
modified!(i0_f32, i1_f32, f32);
modified!(i0_f64, i1_f64, f64);

/// K0 for `0 < x <= 2`.
fn k0_series(x: f64) -> f64 {
    let z = x * x / 4.0;
    let (mut i0, mut sum, mut term, mut harmonic) = (1.0, 0.0, 1.0, 0.0);
    for k in 1..20 {
        let k = k as f64;
        term *= z / (k * k);
        harmonic += 1.0 / k;
        i0 += term;
        sum += term * harmonic;
    }
    sum - ((0.5 * x).ln() + EULER) * i0
}

/// K1 for `0 < x <= 2`.
fn k1_series(x: f64) -> f64 {
    let z = x * x / 4.0;
    // Of I1: x/2 times the sum of z^k / (k! (k + 1)!).
    let (mut i1, mut term, mut psi) = (1.0, 1.0, 1.0 - 2.0 * EULER);
    let mut sum = psi;
    for k in 1..20 {
        let k = k as f64;
        term *= z / (k * (k + 1.0));
        psi += 1.0 / k + 1.0 / (k + 1.0);
        i1 += term;
        sum += term * psi;
    }
    1.0 / x + 0.5 * x * ((0.5 * x).ln() * i1 - 0.5 * sum)
}

/// The value at arguments that are not positive numbers.
fn k_edge(x: f64) -> Option<f64> {
    match x {
        0.0 => Some(f64::INFINITY),
        x if x > 0.0 => None,
        _ => Some(f64::NAN),
    }
}

/// e^x K0(x)
pub fn k0e(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k0_series(x) * x.exp(),
        None => chebyshev(&K0_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// Modified Bessel function of the second kind, order 0.
pub fn k0(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k0_series(x),
        None => (-x).exp() * chebyshev(&K0_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// e^x K1(x)
pub fn k1e(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k1_series(x) * x.exp(),
        None => chebyshev(&K1_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// Modified Bessel function of the second kind, order 1.
pub fn k1(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k1_series(x),
        None => (-x).exp() * chebyshev(&K1_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// PyTorch reduces the angle of infinity to no number.
fn unless_infinite(x: f64, f: fn(f64) -> f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { f(x) }
}

/// Bessel function of the first kind, order 0.
pub fn j0(x: f64) -> f64 {
    unless_infinite(x, |x| c_j0(x))
}

/// Bessel function of the first kind, order 1.
pub fn j1(x: f64) -> f64 {
    unless_infinite(x, |x| c_j1(x))
}

fn second_kind(x: f64, f: fn(f64) -> f64) -> f64 {
    match x {
        0.0 => f64::NEG_INFINITY,
        x if x > 0.0 => unless_infinite(x, f),
        _ => f64::NAN,
    }
}

/// Bessel function of the second kind, order 0.
pub fn y0(x: f64) -> f64 {
    second_kind(x, |x| c_y0(x))
}

/// Bessel function of the second kind, order 1.
pub fn y1(x: f64) -> f64 {
    second_kind(x, |x| c_y1(x))
}

/// Spherical Bessel function of order 0: sin(x) / x
pub fn spherical_j0(x: f64) -> f64 {
    if x.is_infinite() {
        0.0
    } else if x.abs() < 1e-4 {
        1.0 - x * x / 6.0
    } else {
        x.sin() / x
    }
}

/// Where the asymptotic series of the Airy function takes over: good to 1e-9 there.
const AIRY_ASYMPTOTIC: f64 = 6.2;

/// Airy function Ai.
pub fn airy_ai(x: f64) -> f64 {
    if x.is_infinite() || x.is_nan() {
        return f64::NAN;
    }
    if x > 103.892 {
        return 0.0;
    }
    if x.abs() < AIRY_ASYMPTOTIC {
        return airy_series(x);
    }
    // Coefficients u(k) of the expansion in 1 / zeta.
    let zeta = 2.0 / 3.0 * x.abs() * x.abs().sqrt();
    let root = PI.sqrt() * x.abs().sqrt().sqrt();
    let (mut u, mut even, mut odd, mut alternating) = (1.0f64, 1.0f64, 0.0, 1.0);
    for k in 1..14 {
        let n = k as f64;
        let next = u * (6.0 * n - 5.0) * (6.0 * n - 3.0) * (6.0 * n - 1.0) / (216.0 * n * (2.0 * n - 1.0) * zeta);
        if next > u {
            break;
        }
        u = next;
        alternating += if k % 2 == 0 { u } else { -u };
        let sign = if k % 4 < 2 { 1.0 } else { -1.0 };
        if k % 2 == 0 {
            even += sign * u;
        } else {
            odd += sign * u;
        }
    }
    if x > 0.0 {
        (-zeta).exp() * alternating / (2.0 * root)
    } else {
        let (sine, cosine) = (zeta + FRAC_PI_4).sin_cos();
        (sine * even - cosine * odd) / root
    }
}

/// Ai from its two power series.
fn airy_series(x: f64) -> f64 {
    const AT_0: f64 = 0.355_028_053_887_817_2;
    const SLOPE_AT_0: f64 = -0.258_819_403_792_806_8;
    let z = x * x * x;
    let (mut f, mut g, mut sum) = (AT_0, SLOPE_AT_0 * x, AT_0 + SLOPE_AT_0 * x);
    let mut k = 0.0;
    while k < 200.0 {
        k += 3.0;
        f *= z / (k * (k - 1.0));
        g *= z / (k * (k + 1.0));
        sum += f + g;
        if f.abs() + g.abs() < 1e-20 {
            break;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-14 * want.abs(), "{got} is not {want}");
    }

    #[test]
    fn modified_functions_match_their_wronskian() {
        // I0 K1 + I1 K0 = 1 / x
        for i in 1..600 {
            let x = i as f64 * 0.05;
            close(x * (i0e(x) * k1e(x) + i1e(x) * k0e(x)), 1.0);
        }
    }

    #[test]
    fn known_values() {
        close(i0_f64(1.0), 1.266_065_877_752_008_4);
        close(i1_f64(-2.0), -1.590_636_854_637_329);
        close(k0(1.0), 0.421_024_438_240_708_34);
        close(k1(3.0), 0.040_156_431_128_194_19);
        assert!((airy_ai(1.0) - 0.135_292_416_312_881_4).abs() < 1e-15);
        assert!((airy_ai(-7.0) - 0.184_280_835_250_505_54).abs() < 1e-10);
    }

    #[test]
    fn airy_series_meet() {
        for x in [AIRY_ASYMPTOTIC, -AIRY_ASYMPTOTIC] {
            let (inside, outside) = (airy_ai(x * (1.0 - 1e-12)), airy_ai(x * (1.0 + 1e-12)));
            assert!((inside / outside - 1.0).abs() < 1e-6, "{inside} {outside}");
        }
    }
}
