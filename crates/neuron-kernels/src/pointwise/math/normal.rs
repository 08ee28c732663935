//! The normal distribution's functions, one element at a time.

use super::special::erfc;
use std::f64::consts::{FRAC_1_SQRT_2, PI, TAU};

/// e^(x^2) erfc(x)
pub fn erfcx(x: f64) -> f64 {
    if x < -26.7 {
        return f64::INFINITY;
    }
    if x < 12.0 {
        return (x * x).exp() * erfc(x);
    }
    // The asymptotic series; its terms fall quickly from here on, and their squares do not overflow.
    let z = if x > 1e8 { 0.0 } else { 0.5 / (x * x) };
    let tail = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z * (1.0 - 11.0 * z)))));
    tail / (PI.sqrt() * x)
}

/// Logarithm of the distribution function.
pub fn log_ndtr(x: f64) -> f64 {
    let t = x * FRAC_1_SQRT_2;
    if x < -1.0 { (erfcx(-t) / 2.0).ln() - t * t } else { (-erfc(t) / 2.0).ln_1p() }
}

/// Inverse of the distribution function.
pub fn ndtri(p: f64) -> f64 {
    if p == 0.0 || p == 1.0 {
        return if p == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    if !(p > 0.0 && p < 1.0) {
        return f64::NAN;
    }
    if p > 0.5 {
        return -ndtri(1.0 - p);
    }
    // A rational approximation in the tail variable is good to 5e-4; Halley's method on the logarithm, which is smooth
    // in the tail, triples the digits each time.
    let log = p.ln();
    let t = (-2.0 * log).sqrt();
    let numerator = 2.515517 + t * (0.802853 + t * 0.010328);
    let mut x = numerator / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
    for _ in 0..2 {
        let value = log_ndtr(x);
        let slope = (-0.5 * x * x - value).exp() / TAU.sqrt();
        let residual = value - log;
        x -= residual / (slope + 0.5 * residual * (x + slope));
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverts() {
        for i in 0..400 {
            let x = -36.0 + i as f64 * 0.1;
            let p = log_ndtr(x).exp();
            if p > 0.0 && p < 0.9 {
                assert!((ndtri(p) - x).abs() < 1e-12 * x.abs().max(1.0), "{x}: {}", ndtri(p));
            }
        }
        assert!(ndtri(-0.1).is_nan() && ndtri(f64::NAN).is_nan());
        assert_eq!(ndtri(1.0), f64::INFINITY);
    }

    #[test]
    fn scaled_complement_is_smooth() {
        for x in [-5.0, 0.0, 1.0, 11.9, 12.1, 30.0, 1e9] {
            // Against the derivative: erfcx' = 2 x erfcx - 2 / sqrt(pi).
            let h = 1e-4 * f64::max(x, 1.0);
            let slope = (erfcx(x + h) - erfcx(x - h)) / (2.0 * h);
            let want = 2.0 * x * erfcx(x) - 2.0 / PI.sqrt();
            let scale = if x > 10.0 { 1e-6 } else { 1e-5 * want.abs() };
            assert!((slope - want).abs() < scale.max(1e-6), "{x}: {slope} {want}");
        }
        assert!((erfcx(1.0) - 0.427_583_576_155_807).abs() < 1e-15);
        assert!((erfcx(20.0) - 0.028_174_347_938_302_54).abs() < 1e-5);
    }
}
