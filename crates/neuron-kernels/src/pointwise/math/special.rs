//! Functions that run one element at a time, in `f64`.

unsafe extern "C" {
    #[link_name = "erf"]
    safe fn c_erf(x: f64) -> f64;
    #[link_name = "erfc"]
    safe fn c_erfc(x: f64) -> f64;
    #[link_name = "lgamma_r"]
    fn c_lgamma_r(x: f64, sign: *mut i32) -> f64;
}

/// Error function.
pub fn erf(x: f64) -> f64 {
    c_erf(x)
}

/// Complementary error function.
pub fn erfc(x: f64) -> f64 {
    c_erfc(x)
}

/// Logarithm of the absolute value of the gamma function.
pub fn lgamma(x: f64) -> f64 {
    let mut sign = 0;
    // SAFETY: `sign` outlives the call.
    unsafe { c_lgamma_r(x, &mut sign) }
}

/// Logistic function.
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Inverse error function.
pub fn erfinv(y: f64) -> f64 {
    let a = y.abs();
    if a.is_nan() || a > 1.0 {
        return f64::NAN;
    }
    if a == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    if a < 1e-9 {
        return y * (std::f64::consts::PI.sqrt() / 2.0);
    }
    // Winitzki's approximation is good to 0.2 %; three steps of Halley's method triple the digits each. In the tail the
    // residual is that of erfc, where 1 - a is exact.
    let l = (-a).ln_1p() + a.ln_1p();
    let b = 2.0 / (std::f64::consts::PI * 0.147) + 0.5 * l;
    let mut x = ((b * b - l / 0.147).sqrt() - b).sqrt();
    for _ in 0..3 {
        let residual = if a < 0.5 { c_erf(x) - a } else { (1.0 - a) - c_erfc(x) };
        let step = residual * (x * x).exp() * (std::f64::consts::PI.sqrt() / 2.0);
        x -= step / (1.0 + x * step);
    }
    x.copysign(y)
}

/// Integer power by squaring, wrapping; negative exponents truncate towards 0 as PyTorch's do.
pub fn ipow(mut base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let mut e = exponent as u64;
    let mut result = 1i64;
    while e != 0 {
        if e & 1 != 0 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        e >>= 1;
    }
    result
}

/// Inverse hyperbolic sine.
pub fn asinh(x: f64) -> f64 {
    let a = x.abs();
    // Above 2^28 the square root is a to double precision; its square would overflow.
    let y = if a > 268_435_456.0 {
        a.ln() + std::f64::consts::LN_2
    } else {
        (a + a * a / (1.0 + (1.0 + a * a).sqrt())).ln_1p()
    };
    y.copysign(x)
}

/// Inverse hyperbolic cosine.
pub fn acosh(x: f64) -> f64 {
    if x > 268_435_456.0 {
        return x.ln() + std::f64::consts::LN_2;
    }
    if x < 1.0 {
        return f64::NAN;
    }
    let m = x - 1.0;
    (m + (m * (m + 2.0)).sqrt()).ln_1p()
}

/// Inverse hyperbolic tangent.
pub fn atanh(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}
