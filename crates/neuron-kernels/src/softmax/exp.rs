//! The exponential function, branch-free: loops over it become vector code.

/// `e^x` to about 1 ulp; 0 below the smallest subnormal, infinity above the largest finite value, NaN for NaN.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    // Comparisons false for NaN, so that NaN passes.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let k = t.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let n = t - ROUND;
    // ln 2 in two parts, the first with trailing zeros.
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = (p * r).mul_add(r, r) + 1.0;
    // In two factors, since 2^k alone leaves the normal range at both ends.
    let half = k >> 1;
    let scale = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    p * scale(half) * scale(k.wrapping_sub(half))
}

/// `e^x` to about 1 ulp; limits as [`exp_f32`].
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    let x = if x < -746.0 { -746.0 } else { x };
    let x = if x > 710.0 { 710.0 } else { x };
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let t = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let k = t.to_bits().wrapping_sub(ROUND.to_bits()) as i64;
    let n = t - ROUND;
    let r = n.mul_add(-6.931_471_803_691_238e-1, x);
    let r = n.mul_add(-1.908_214_929_270_587_7e-10, r);
    // Taylor to the 13th power: the remainder is below 2^-57 on |r| <= ln(2) / 2.
    let p = 1.0 / 6_227_020_800.0;
    let p = r.mul_add(p, 1.0 / 479_001_600.0);
    let p = r.mul_add(p, 1.0 / 39_916_800.0);
    let p = r.mul_add(p, 1.0 / 3_628_800.0);
    let p = r.mul_add(p, 1.0 / 362_880.0);
    let p = r.mul_add(p, 1.0 / 40_320.0);
    let p = r.mul_add(p, 1.0 / 5_040.0);
    let p = r.mul_add(p, 1.0 / 720.0);
    let p = r.mul_add(p, 1.0 / 120.0);
    let p = r.mul_add(p, 1.0 / 24.0);
    let p = r.mul_add(p, 1.0 / 6.0);
    let p = r.mul_add(p, 0.5);
    let p = (p * r).mul_add(r, r) + 1.0;
    let half = k >> 1;
    let scale = |k: i64| f64::from_bits((k.wrapping_add(1023) as u64) << 52);
    p * scale(half) * scale(k.wrapping_sub(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_is_within_two_ulp() {
        let mut worst = 0.0f64;
        for i in 0..2_000_000 {
            let x = -103.0 + i as f32 * (191.5 / 2e6);
            let exact = (x as f64).exp();
            let ulp = (f32::from_bits((exact as f32).to_bits() + 1) as f64 - exact as f32 as f64).max(1e-45);
            worst = worst.max((exp_f32(x) as f64 - exact).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
    }

    #[test]
    fn f64_is_within_two_ulp() {
        for i in 0..200_000 {
            let x = -744.0 + i as f64 * (1453.0 / 2e5);
            let (ours, exact) = (exp_f64(x), x.exp());
            assert!(ours.to_bits().abs_diff(exact.to_bits()) <= 2, "{x}: {ours:e} {exact:e}");
        }
    }

    #[test]
    fn limits() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
        assert_eq!(exp_f64(0.0), 1.0);
        assert_eq!(exp_f64(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp_f64(f64::INFINITY), f64::INFINITY);
        assert!(exp_f64(f64::NAN).is_nan());
    }
}
