//! The frequent functions, in `f32` throughout.

use super::poly32;
use crate::simd::Isa;
use std::f32::consts::{LN_2, LOG2_E};

/// Adding and subtracting it rounds to the nearest integer, which then sits in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
const LN_2_HI: f32 = 0.693_145_75;
const LN_2_LO: f32 = 1.428_606_8e-6;

/// `y * 2^n` for `n` in -252..=254, rounding once where the result is subnormal.
#[inline(always)]
fn scale(y: f32, n: i32) -> f32 {
    let half = n >> 1;
    let rest = n - half;
    y * f32::from_bits(((half + 127) << 23) as u32) * f32::from_bits(((rest + 127) << 23) as u32)
}

/// Where `v` is outside `lo..=hi` the bound; NaN stays.
#[inline(always)]
fn clamp(v: f32, lo: f32, hi: f32) -> f32 {
    let v = if v < lo { lo } else { v };
    if v > hi { hi } else { v }
}

/// e^x
#[inline(always)]
pub fn exp<I: Isa>(x: f32) -> f32 {
    let x = clamp(x, -105.0, 90.0);
    let biased = I::fma32(x, LOG2_E, ROUND);
    let n = biased - ROUND;
    // The upper part of the remainder is exact; the lower one joins the small terms.
    let upper = I::fma32(n, -LN_2_HI, x);
    let lower = n * -LN_2_LO;
    let r = upper + lower;
    let q = poly32::<I, 5>(r, [0.5, 0.16666518, 0.041666206, 0.008368954, 0.00139506]);
    let y = 1.0 + (upper + I::fma32(q, r * r, lower));
    scale(y, (biased.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// 2^x
#[inline(always)]
pub fn exp2<I: Isa>(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let biased = x + ROUND;
    let r = x - (biased - ROUND);
    let p = poly32::<I, 6>(r, [LN_2, 0.2402265, 0.055503275, 0.009618005, 0.0013400383, 0.00015476022]);
    let y = I::fma32(p, r, 1.0);
    scale(y, (biased.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// Natural logarithm.
#[inline(always)]
pub fn log<I: Isa>(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    // The exponent that leaves a mantissa between sqrt(1/2) and sqrt(2).
    let bits = scaled.to_bits() as i32;
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = (e - if subnormal { 23 } else { 0 }) as f32;
    let p = poly32::<I, 9>(
        f,
        [0.3333331, -0.24999987, 0.2000222, -0.16669233, 0.14218757, -0.12384696, 0.11872675, -0.1178776, 0.06913538],
    );
    let ff = f * f;
    let low = I::fma32(p * ff, f, e * LN_2_LO);
    let y = I::fma32(e, LN_2_HI, f + I::fma32(ff, -0.5, low));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    // Also true of NaN.
    if x >= 0.0 { y } else { f32::NAN }
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = poly32::<I, 5>(z, [-0.3333328, 0.13331354, -0.05373094, 0.020606698, -0.005665325]);
    let small = I::fma32(p * z, a, a);
    let large = 1.0 - 2.0 / (exp::<I>(2.0 * a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// Logistic function.
#[inline(always)]
pub fn sigmoid<I: Isa>(x: f32) -> f32 {
    // With the exponential of a negative number neither side overflows or loses small results.
    let e = exp::<I>(-x.abs());
    let n = if x < 0.0 { e } else { 1.0 };
    // What the sum and the quotient lose to rounding, put back to first order: exp leaves no room for both.
    let d = 1.0 + e;
    let lost = e - (d - 1.0);
    let inverse = 1.0 / d;
    let q = if I::FMA { n * inverse } else { n / d };
    let residual = if I::FMA { I::fma32(-q, d, n) } else { 0.0 };
    I::fma32(residual - q * lost, inverse, q)
}

/// Error function.
#[inline(always)]
pub fn erf<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = poly32::<I, 6>(z, [0.12837915, -0.37612498, 0.112818435, -0.026767079, 0.004993247, -0.0005988623]);
    let small = I::fma32(p, x, x);
    // log(erfc(a)), which is smooth; from 3.95 on 1 - erfc(a) rounds to 1.
    let t = if a > 3.95 { 3.95 } else { a };
    let r = poly32::<I, 8>(
        t,
        [0.00017055291, -1.1294951, -0.6333866, -0.108236626, 0.025091501, -0.0041605285, 0.00043230332, -2.0909578e-5],
    );
    let large = 1.0 - exp::<I>(r);
    if a < 0.92 { small } else { large.copysign(x) }
}
