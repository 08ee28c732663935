//! `f32` functions evaluated in `f64`. The `f64` parts are good to about 1e-10, not to full precision.

use super::poly64;
use crate::simd::Isa;
use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E, LOG10_E, PI};

/// As in `f32`: rounds to an integer and leaves it in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `(2^n, e^r - 1)` with `e^x = 2^n e^r`, for `|x| < 700`.
#[inline(always)]
fn exp_parts<I: Isa>(x: f64) -> (f64, f64) {
    let biased = I::fma64(x, LOG2_E, ROUND);
    let n = biased - ROUND;
    let r = I::fma64(n, -LN_2, x);
    let q = poly64::<I, 7>(
        r,
        [
            0.5000000000021048,
            0.16666666719083095,
            0.04166666640382086,
            0.008333298420328518,
            0.0013888923885955198,
            0.00019899339440349994,
            2.4820907622005913e-05,
        ],
    );
    let power = f64::from_bits((biased.to_bits() << 52).wrapping_add(1023 << 52));
    (power, I::fma64(q, r * r, r))
}

#[inline(always)]
fn clamp(x: f64, limit: f64) -> f64 {
    let x = if x > limit { limit } else { x };
    if x < -limit { -limit } else { x }
}

#[inline(always)]
fn exp_d<I: Isa>(x: f64) -> f64 {
    let (power, m) = exp_parts::<I>(x);
    I::fma64(power, m, power)
}

#[inline(always)]
fn expm1_d<I: Isa>(x: f64) -> f64 {
    let (power, m) = exp_parts::<I>(x);
    I::fma64(power, m, power - 1.0)
}

/// `(exponent, log of the mantissa)` of a positive finite normal `x`.
#[inline(always)]
fn log_parts<I: Isa>(x: f64) -> (f64, f64) {
    // The mantissa lies between sqrt(1/2) and sqrt(2). The exponent becomes a float by way of the mantissa of 2^52:
    // only AVX-512 converts 64-bit integers.
    let bits = x.to_bits().wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let e = f64::from_bits((bits >> 52) ^ 0x4330_0000_0000_0800) - 4_503_599_627_372_544.0;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(0x3fe6_a09e_667f_3bcd));
    (e, log1p_reduced::<I>(m - 1.0))
}

/// log(1 + f) for f between sqrt(1/2) - 1 and sqrt(2) - 1, relatively accurate
#[inline(always)]
fn log1p_reduced<I: Isa>(f: f64) -> f64 {
    let s = f / (2.0 + f);
    let p = poly64::<I, 6>(
        s * s,
        [
            0.9999999999999734,
            0.3333333333984002,
            0.19999997431561986,
            0.1428608450059104,
            0.1108706711967201,
            0.09804866334173806,
        ],
    );
    2.0 * s * p
}

/// Natural logarithm of a non-negative number or NaN; 0 and infinity give what they should.
#[inline(always)]
fn log_d<I: Isa>(x: f64) -> f64 {
    let (e, l) = log_parts::<I>(x);
    special_log(x, I::fma64(e, LN_2, l))
}

#[inline(always)]
fn special_log(x: f64, y: f64) -> f64 {
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// log(1 + x), relatively accurate near 0
#[inline(always)]
fn log1p_d<I: Isa>(x: f64) -> f64 {
    let reduced = log1p_reduced::<I>(x);
    let full = log_d::<I>(1.0 + x);
    if x > -0.25 && x < 0.4 { reduced } else { full }
}

/// e^x - 1
#[inline(always)]
pub fn expm1<I: Isa>(x: f32) -> f32 {
    let y = expm1_d::<I>(clamp(x as f64, 120.0)) as f32;
    // -0.0 has to stay what it is.
    if x == 0.0 { x } else { y }
}

/// Base-2 logarithm.
#[inline(always)]
pub fn log2<I: Isa>(x: f32) -> f32 {
    let x = x as f64;
    let (e, l) = log_parts::<I>(x);
    special_log(x, I::fma64(l, LOG2_E, e)) as f32
}

/// Base-10 logarithm.
#[inline(always)]
pub fn log10<I: Isa>(x: f32) -> f32 {
    (log_d::<I>(x as f64) * LOG10_E) as f32
}

/// log(1 + x)
#[inline(always)]
pub fn log1p<I: Isa>(x: f32) -> f32 {
    let y = log1p_d::<I>(x as f64) as f32;
    if x == 0.0 { x } else { y }
}

/// Hyperbolic sine.
#[inline(always)]
pub fn sinh<I: Isa>(x: f32) -> f32 {
    let m = expm1_d::<I>(clamp((x as f64).abs(), 120.0));
    ((m + m / (m + 1.0)) * 0.5).copysign(x as f64) as f32
}

/// Hyperbolic cosine.
#[inline(always)]
pub fn cosh<I: Isa>(x: f32) -> f32 {
    let e = exp_d::<I>(clamp((x as f64).abs(), 120.0));
    ((e + 1.0 / e) * 0.5) as f32
}

/// Inverse hyperbolic sine.
#[inline(always)]
pub fn asinh<I: Isa>(x: f32) -> f32 {
    let a = (x as f64).abs();
    let y = log1p_d::<I>(a + a * a / (1.0 + (1.0 + a * a).sqrt()));
    let y = if a == f64::INFINITY { a } else { y };
    y.copysign(x as f64) as f32
}

/// Inverse hyperbolic cosine.
#[inline(always)]
pub fn acosh<I: Isa>(x: f32) -> f32 {
    let m = x as f64 - 1.0;
    let y = log1p_d::<I>(m + (m * (m + 2.0)).sqrt());
    (if m >= 0.0 { y } else { f64::NAN }) as f32
}

/// Inverse hyperbolic tangent.
#[inline(always)]
pub fn atanh<I: Isa>(x: f32) -> f32 {
    let a = (x as f64).abs();
    let y = log1p_d::<I>(2.0 * a / (1.0 - a)) * 0.5;
    (if a <= 1.0 { y } else { f64::NAN }).copysign(x as f64) as f32
}

/// The largest argument that [`sin`], [`cos`] and [`tan`] reduce.
pub const TRIG_LIMIT: f32 = 1e6;

/// `(quadrant, sin(r), cos(r))` with `x = quadrant pi/2 + r` for `|x| <= TRIG_LIMIT`.
#[inline(always)]
fn sin_cos<I: Isa>(x: f32) -> (u64, f64, f64) {
    let x = x as f64;
    let biased = I::fma64(x, 1.0 / FRAC_PI_2, ROUND);
    let n = biased - ROUND;
    // pi/2 in 33 bits, so that the product is exact, and the rest.
    let r = I::fma64(n, -6.077_100_506_506_192e-11, I::fma64(n, -1.570_796_326_734_125_6, x));
    let z = r * r;
    let p = poly64::<I, 5>(
        z,
        [
            -0.1666666666666382,
            0.008333333331042013,
            -0.00019841266884179846,
            2.755598173259234e-06,
            -2.4804834997161235e-08,
        ],
    );
    let q = poly64::<I, 5>(
        z,
        [
            0.041666666666664645,
            -0.0013888888887255942,
            2.480158519173151e-05,
            -2.755636420414055e-07,
            2.0700115190393444e-09,
        ],
    );
    (biased.to_bits(), I::fma64(p * z, r, r), I::fma64(q, z * z, I::fma64(z, -0.5, 1.0)))
}

/// Sine; see [`TRIG_LIMIT`].
#[inline(always)]
pub fn sin<I: Isa>(x: f32) -> f32 {
    let (quadrant, s, c) = sin_cos::<I>(x);
    let y = if quadrant & 1 == 0 { s } else { c };
    let y = f64::from_bits(y.to_bits() ^ ((quadrant & 2) << 62)) as f32;
    if x == 0.0 { x } else { y }
}

/// Cosine; see [`TRIG_LIMIT`].
#[inline(always)]
pub fn cos<I: Isa>(x: f32) -> f32 {
    let (quadrant, s, c) = sin_cos::<I>(x);
    let y = if quadrant & 1 == 0 { c } else { s };
    f64::from_bits(y.to_bits() ^ ((quadrant.wrapping_add(1) & 2) << 62)) as f32
}

/// Tangent; see [`TRIG_LIMIT`].
#[inline(always)]
pub fn tan<I: Isa>(x: f32) -> f32 {
    let (quadrant, s, c) = sin_cos::<I>(x);
    let (n, d) = if quadrant & 1 == 0 { (s, c) } else { (-c, s) };
    let y = (n / d) as f32;
    if x == 0.0 { x } else { y }
}

/// atan(n / d) for `n >= 0`, `d >= 0`, not both infinite or both 0
#[inline(always)]
fn atan_ratio<I: Isa>(n: f64, d: f64) -> f64 {
    // Above tan(3 pi/8): pi/2 - atan(d / n). Above tan(pi/8): pi/4 + atan((n - d) / (n + d)).
    let steep = n > 2.414_213_562_373_095 * d;
    let middle = n > 0.414_213_562_373_095 * d;
    let num = if steep {
        -d
    } else if middle {
        n - d
    } else {
        n
    };
    let den = if steep {
        n
    } else if middle {
        n + d
    } else {
        d
    };
    let base = if steep {
        FRAC_PI_2
    } else if middle {
        PI / 4.0
    } else {
        0.0
    };
    let t = num / den;
    let z = t * t;
    let p = poly64::<I, 8>(
        z,
        [
            -0.3333333333326737,
            0.19999999950483088,
            -0.14285708165525762,
            0.11110821532327747,
            -0.09084130309459859,
            0.07605027819139693,
            -0.06028210247134821,
            0.03297080260398395,
        ],
    );
    base + I::fma64(p * z, t, t)
}

/// Inverse tangent.
#[inline(always)]
pub fn atan<I: Isa>(x: f32) -> f32 {
    (atan_ratio::<I>((x as f64).abs(), 1.0) as f32).copysign(x)
}

/// Quadrant-aware inverse tangent of y / x.
#[inline(always)]
pub fn atan2<I: Isa>(y: f32, x: f32) -> f32 {
    let n = (y as f64).abs();
    let d = (x as f64).abs();
    let both_zero = n + d == 0.0;
    let both_infinite = n == f64::INFINITY && d == f64::INFINITY;
    let n = if both_infinite { 1.0 } else { n };
    let d = if both_infinite || both_zero { 1.0 } else { d };
    let a = atan_ratio::<I>(n, d);
    let a = if x.is_sign_negative() { PI - a } else { a };
    let a = (a as f32).copysign(y);
    if x.is_nan() || y.is_nan() { f32::NAN } else { a }
}

/// asin(x) / x - 1 for z = x^2 up to 1/4
#[inline(always)]
fn asin_excess<I: Isa>(z: f64) -> f64 {
    z * poly64::<I, 9>(
        z,
        [
            0.1666666666674372,
            0.0749999995076631,
            0.044642908754063876,
            0.030379871062685172,
            0.022413600078692003,
            0.016892459337293133,
            0.016913020775671538,
            0.0009456782223324092,
            0.02846988884937456,
        ],
    )
}

/// Inverse sine.
#[inline(always)]
pub fn asin<I: Isa>(x: f32) -> f32 {
    let a = (x as f64).abs();
    let outer = a > 0.5;
    let z = if outer { (1.0 - a) * 0.5 } else { a * a };
    let t = if outer { z.sqrt() } else { a };
    let y = I::fma64(t, asin_excess::<I>(z), t);
    let y = if outer { FRAC_PI_2 - 2.0 * y } else { y };
    (y as f32).copysign(x)
}

/// Inverse cosine.
#[inline(always)]
pub fn acos<I: Isa>(x: f32) -> f32 {
    let v = x as f64;
    let a = v.abs();
    let outer = a > 0.5;
    let z = if outer { (1.0 - a) * 0.5 } else { a * a };
    let t = if outer { z.sqrt() } else { v };
    let y = I::fma64(t, asin_excess::<I>(z), t);
    let far = if v < 0.0 { PI - 2.0 * y } else { 2.0 * y };
    (if outer { far } else { FRAC_PI_2 - y }) as f32
}

/// Complementary error function.
#[inline(always)]
pub fn erfc<I: Isa>(x: f32) -> f32 {
    let v = x as f64;
    let a = v.abs();
    let a = if a > 10.2 { 10.2 } else { a };
    // e^(a^2) erfc(a) (1 + 2a) is smooth; it is fitted over (a - 4) / (a + 4).
    let t = (a - 4.0) / (a + 4.0);
    let p = poly64::<I, 15>(
        t,
        [
            1.2329951186252819,
            -0.13962111686951187,
            0.015379652165807152,
            0.06809705671181801,
            -0.10103906699684607,
            0.09373277482379899,
            -0.0663304006975432,
            0.03716812486888872,
            -0.016196925976918266,
            0.005029405562921797,
            -0.0007633105551635242,
            -0.00019700635677915085,
            0.00016384092747238167,
            -1.613196183683827e-05,
            -1.580071385943066e-05,
        ],
    );
    let y = exp_d::<I>(-a * a) * p / (1.0 + 2.0 * a);
    (if v < 0.0 { 2.0 - y } else { y }) as f32
}

/// Power, with the special cases of IEEE 754.
#[inline(always)]
pub fn pow<I: Isa>(x: f32, y: f32) -> f32 {
    let a = (x as f64).abs();
    let b = y as f64;
    let (e, l) = log_parts::<I>(a);
    let log = special_log(a, I::fma64(e, LN_2, l));
    let magnitude = exp_d::<I>(clamp(b * log, 200.0)) as f32;
    // A float is odd if it is whole and its half is not.
    let whole = y.trunc() == y;
    let odd = whole && (y * 0.5).trunc() != y * 0.5;
    let signed = if odd && x.is_sign_negative() { -magnitude } else { magnitude };
    let r = if x < 0.0 && !whole && a != f64::INFINITY { f32::NAN } else { signed };
    // 0 * infinity in the exponent is NaN: these two cases are 1.
    let r = if a == 1.0 && b.abs() == f64::INFINITY { 1.0 } else { r };
    if x == 1.0 || y == 0.0 { 1.0 } else { r }
}
