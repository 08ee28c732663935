//! From random words to floats.

use std::f32::consts::{FRAC_PI_2, SQRT_2};

/// A float uniform in [0, 1): the upper 24 bits.
#[inline(always)]
pub(super) fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as i32 as f32 * (1.0 / (1 << 24) as f32)
}

/// A double uniform in [0, 1): 53 of 64 bits.
#[inline(always)]
pub(super) fn uniform_f64(word: u64) -> f64 {
    (word >> 11) as i64 as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Two standard normal values from two words, by Box and Muller: radius from the first, angle from the second.
///
/// Plain multiplications and additions in a fixed order, so that every instruction set gives the same bits.
#[inline(always)]
pub(super) fn normal_f32(radius: u32, angle: u32) -> [f32; 2] {
    // In (0, 1]: 31 bits and half a unit more.
    let u = (radius >> 1) as i32 as f32 * (1.0 / (1u32 << 31) as f32) + 1.0 / (1u64 << 32) as f32;
    let r = (-2.0 * ln(u)).max(0.0).sqrt();
    let (cosine, sine) = circle(angle);
    [r * cosine, r * sine]
}

/// Two standard normal doubles from two words.
#[inline(always)]
pub(super) fn normal_f64(radius: u64, angle: u64) -> [f64; 2] {
    let u = ((radius >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64);
    let r = (-2.0 * u.ln()).sqrt();
    let (s, c) = (std::f64::consts::TAU * uniform_f64(angle)).sin_cos();
    [r * c, r * s]
}

/// The natural logarithm of a normal positive float, to about one unit in the last place.
///
/// Argument in `[sqrt(1/2), sqrt(2))` times a power of 2, minimax polynomial of S. Moshier's Cephes `logf`.
#[inline(always)]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits.wrapping_sub((SQRT_2 / 2.0).to_bits()) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
    let e = exponent as f32;
    let z = f * f;
    let mut p = 7.037_683_6e-2;
    p = p * f - 1.151_461e-1;
    p = p * f + 1.167_699_9e-1;
    p = p * f - 1.242_014_1e-1;
    p = p * f + 1.424_932_3e-1;
    p = p * f - 1.666_805_8e-1;
    p = p * f + 2.000_071_5e-1;
    p = p * f - 2.499_999_4e-1;
    p = p * f + 3.333_333e-1;
    let small = p * f * z + e * -2.121_944_4e-4 - 0.5 * z;
    f + small + e * 0.693_359_4
}

/// Cosine and sine of `turn / 2^32` turns, to about one unit in the last place.
///
/// The quadrant and the rest come from the integer, exactly; polynomials of Cephes `cosf` and `sinf`.
#[inline(always)]
fn circle(turn: u32) -> (f32, f32) {
    let quadrant = turn.wrapping_add(1 << 29) >> 30;
    let rest = turn.wrapping_sub(quadrant << 30) as i32;
    let x = rest as f32 * (FRAC_PI_2 / (1 << 30) as f32);
    let z = x * x;
    let sine = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
    let cosine = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
    let odd = quadrant & 1 != 0;
    let (c, s) = if odd { (sine, cosine) } else { (cosine, sine) };
    let signed = |value: f32, negative: u32| f32::from_bits(value.to_bits() ^ (negative << 30 & 0x8000_0000));
    (signed(c, quadrant + 1), signed(s, quadrant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_is_good_to_two_units() {
        for i in 0..200_000u32 {
            let x = f32::from_bits(0x2f80_0000 + i * ((0x3f80_0000 - 0x2f80_0000) / 200_000));
            let exact = f64::from(x).ln();
            let error = (f64::from(ln(x)) - exact).abs();
            assert!(error <= 2.0 * f64::from(f32::EPSILON) * exact.abs().max(1e-9), "ln {x}: {error}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn circle_is_good_to_two_units() {
        for i in 0..200_000u32 {
            let turn = i.wrapping_mul(2_654_435_761);
            let angle = f64::from(turn) / 2f64.powi(32) * std::f64::consts::TAU;
            let (c, s) = circle(turn);
            assert!((f64::from(c) - angle.cos()).abs() < 2e-7 && (f64::from(s) - angle.sin()).abs() < 2e-7, "{turn}");
        }
        assert_eq!(circle(0), (1.0, 0.0));
        assert_eq!(circle(1 << 31).0, -1.0);
    }
}
