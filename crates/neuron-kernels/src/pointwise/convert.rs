//! Between storage types and compute types.

use super::map::{Map1, Pass1, copy, pass1};
use crate::simd::Isa;
use crate::simd::Level;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar};

/// `f32` to the nearest `bf16`, ties to even, as bits; NaN stays NaN.
#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    (if x.is_nan() { bits | 0x0040_0000 } else { rounded } >> 16) as u16
}

#[inline(always)]
fn bf16_value(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// `f32` to the nearest `f16`, ties to even, as bits, without branches.
#[inline(always)]
fn f16_bits(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let a = x.abs();
    // Normal results: drop 13 bits of the mantissa and rebias the exponent. Overflow of the mantissa carries into it.
    let bits = a.to_bits();
    let normal = (bits.wrapping_add(0xfff + ((bits >> 13) & 1)).wrapping_sub(112 << 23) >> 13) as u16;
    // Subnormal results: the addition aligns and rounds.
    let subnormal = (a + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16;
    let y = if a < 6.103_515_6e-5 { subnormal } else { normal };
    let y = if a >= 65520.0 { 0x7c00 } else { y };
    let y = if a.is_nan() { 0x7e00 } else { y };
    y | sign
}

/// `f16` bits to `f32`, without branches.
#[inline(always)]
fn f16_value(bits: u16) -> f32 {
    let magnitude = (bits as u32 & 0x7fff) << 13;
    // 2^112 rebiases the exponent, exactly for subnormals too; infinity and NaN need their exponent full.
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let value = if magnitude >= 0x0f80_0000 { f32::from_bits(magnitude | 0x7f80_0000) } else { value };
    f32::from_bits(value.to_bits() | ((bits as u32 & 0x8000) << 16))
}

/// `f32` to the nearest number of 8 bits with `MANTISSA` bits of mantissa and an exponent bias of `BIAS`, ties to even,
/// without sign. What rounds up to beyond the largest exponent runs on into the codes of infinity and NaN.
#[inline(always)]
fn f8_magnitude<const MANTISSA: u32, const BIAS: u32>(a: f32) -> u8 {
    let bits = a.to_bits();
    let drop = 23 - MANTISSA;
    let half = (1 << (drop - 1)) - 1;
    let normal = bits.wrapping_add(half + (bits >> drop & 1)).wrapping_sub((127 - BIAS) << 23) >> drop;
    // Subnormal results: the addition aligns and rounds.
    let align = f32::from_bits((127 + 1 + drop - BIAS) << 23);
    let subnormal = (a + align).to_bits().wrapping_sub(align.to_bits());
    let smallest = f32::from_bits((128 - BIAS) << 23);
    (if a < smallest { subnormal } else { normal }) as u8
}

#[inline(always)]
fn e4m3_bits(x: f32) -> u8 {
    let a = x.abs();
    // There is no infinity: what is too large is the largest number.
    let y = if a < 448.0 { f8_magnitude::<3, 7>(a) } else { 0x7e };
    let y = if a.is_nan() { 0x7f } else { y };
    y | ((x.to_bits() >> 24) as u8 & 0x80)
}

#[inline(always)]
fn e4m3_value(bits: u8) -> f32 {
    let magnitude = bits as u32 & 0x7f;
    let value = f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23);
    let value = if magnitude == 0x7f { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | ((bits as u32 & 0x80) << 24))
}

#[inline(always)]
fn e5m2_bits(x: f32) -> u8 {
    let a = x.abs();
    let y = if a < 65536.0 { f8_magnitude::<2, 15>(a) } else { 0x7c };
    let y = if a.is_nan() { 0x7f } else { y };
    y | ((x.to_bits() >> 24) as u8 & 0x80)
}

/// The upper half of an `f16`.
#[inline(always)]
fn e5m2_value(bits: u8) -> f32 {
    f16_value((bits as u16) << 8)
}

macro_rules! float_to_int {
    ($name:ident, $from:ty, $to:ty, $bound:expr) => {
        /// As `cvttss2si` and its kin: the smallest integer where the value does not fit or is NaN.
        #[inline(always)]
        fn $name(x: $from) -> $to {
            if (-$bound..$bound).contains(&x) {
                // SAFETY: in range, hence not NaN.
                unsafe { x.to_int_unchecked() }
            } else {
                <$to>::MIN
            }
        }
    };
}
float_to_int!(f32_to_i32, f32, i32, 2_147_483_648.0);
float_to_int!(f64_to_i32, f64, i32, 2_147_483_648.0);
float_to_int!(f32_to_i64, f32, i64, 9_223_372_036_854_775_808.0);
float_to_int!(f64_to_i64, f64, i64, 9_223_372_036_854_775_808.0);

macro_rules! convert {
    ($level:expr, $in:ty => $out:ty, |$a:ident| $body:expr) => {{
        struct Op;
        impl Map1 for Op {
            type In = $in;
            type Out = $out;
            #[inline(always)]
            fn eval<I: Isa>($a: $in) -> $out {
                $body
            }
        }
        pass1::<Op>($level)
    }};
}

/// Storage to compute type. `None` where they are the same.
pub fn load(dtype: DType, level: Level) -> Option<Pass1> {
    Some(match dtype {
        DType::F32 | DType::F64 | DType::I64 | DType::Bool => return None,
        DType::BF16 => convert!(level, u16 => f32, |a| bf16_value(a)),
        DType::F16 => convert!(level, u16 => f32, |a| f16_value(a)),
        DType::F8E5M2 => convert!(level, u8 => f32, |a| e5m2_value(a)),
        DType::F8E4M3 => convert!(level, u8 => f32, |a| e4m3_value(a)),
        DType::U8 => convert!(level, u8 => i64, |a| a as i64),
        DType::I8 => convert!(level, i8 => i64, |a| a as i64),
        DType::I16 => convert!(level, i16 => i64, |a| a as i64),
        DType::I32 => convert!(level, i32 => i64, |a| a as i64),
    })
}

/// Compute type to the storage type `dtype` of that class. `None` where they are the same.
pub fn store(dtype: DType, level: Level) -> Option<Pass1> {
    Some(match dtype {
        DType::F32 | DType::F64 | DType::I64 | DType::Bool => return None,
        DType::BF16 => convert!(level, f32 => u16, |a| bf16_bits(a)),
        DType::F16 => convert!(level, f32 => u16, |a| f16_bits(a)),
        DType::F8E5M2 => convert!(level, f32 => u8, |a| e5m2_bits(a)),
        DType::F8E4M3 => convert!(level, f32 => u8, |a| e4m3_bits(a)),
        DType::U8 | DType::I8 => convert!(level, i64 => i8, |a| a as i8),
        DType::I16 => convert!(level, i64 => i16, |a| a as i16),
        DType::I32 => convert!(level, i64 => i32, |a| a as i32),
    })
}

/// Compute type `from` to `to.compute()`, rounded or wrapped to `to`. `None` where nothing changes.
pub fn convert(from: DType, to: DType, level: Level) -> Option<Pass1> {
    use DType::*;
    Some(match (from, to) {
        (F32, F32) | (F64, F64) | (I64, I64) | (Bool, Bool) => return None,

        (F32, F16) => convert!(level, f32 => f32, |a| f16_value(f16_bits(a))),
        (F32, F8E5M2) => convert!(level, f32 => f32, |a| e5m2_value(e5m2_bits(a))),
        (F32, F8E4M3) => convert!(level, f32 => f32, |a| e4m3_value(e4m3_bits(a))),
        (F32, BF16) => convert!(level, f32 => f32, |a| bf16_value(bf16_bits(a))),
        (F32, F64) => convert!(level, f32 => f64, |a| a as f64),
        (F32, Bool) => convert!(level, f32 => u8, |a| (a != 0.0) as u8),
        (F32, I64) => convert!(level, f32 => i64, |a| f32_to_i64(a)),
        (F32, I32) => convert!(level, f32 => i64, |a| f32_to_i32(a) as i64),
        (F32, I16) => convert!(level, f32 => i64, |a| f32_to_i32(a) as i16 as i64),
        (F32, I8) => convert!(level, f32 => i64, |a| f32_to_i32(a) as i8 as i64),
        (F32, U8) => convert!(level, f32 => i64, |a| f32_to_i32(a) as u8 as i64),

        (F64, F16) => convert!(level, f64 => f32, |a| f16_value(f16_bits(a as f32))),
        (F64, F8E5M2) => convert!(level, f64 => f32, |a| e5m2_value(e5m2_bits(a as f32))),
        (F64, F8E4M3) => convert!(level, f64 => f32, |a| e4m3_value(e4m3_bits(a as f32))),
        (F64, BF16) => convert!(level, f64 => f32, |a| bf16_value(bf16_bits(a as f32))),
        (F64, F32) => convert!(level, f64 => f32, |a| a as f32),
        (F64, Bool) => convert!(level, f64 => u8, |a| (a != 0.0) as u8),
        (F64, I64) => convert!(level, f64 => i64, |a| f64_to_i64(a)),
        (F64, I32) => convert!(level, f64 => i64, |a| f64_to_i32(a) as i64),
        (F64, I16) => convert!(level, f64 => i64, |a| f64_to_i32(a) as i16 as i64),
        (F64, I8) => convert!(level, f64 => i64, |a| f64_to_i32(a) as i8 as i64),
        (F64, U8) => convert!(level, f64 => i64, |a| f64_to_i32(a) as u8 as i64),

        (I64, F16) => convert!(level, i64 => f32, |a| f16_value(f16_bits(a as f32))),
        (I64, F8E5M2) => convert!(level, i64 => f32, |a| e5m2_value(e5m2_bits(a as f32))),
        (I64, F8E4M3) => convert!(level, i64 => f32, |a| e4m3_value(e4m3_bits(a as f32))),
        (I64, BF16) => convert!(level, i64 => f32, |a| bf16_value(bf16_bits(a as f32))),
        (I64, F32) => convert!(level, i64 => f32, |a| a as f32),
        (I64, F64) => convert!(level, i64 => f64, |a| a as f64),
        (I64, Bool) => convert!(level, i64 => u8, |a| (a != 0) as u8),
        (I64, I32) => convert!(level, i64 => i64, |a| a as i32 as i64),
        (I64, I16) => convert!(level, i64 => i64, |a| a as i16 as i64),
        (I64, I8) => convert!(level, i64 => i64, |a| a as i8 as i64),
        (I64, U8) => convert!(level, i64 => i64, |a| a as u8 as i64),

        (F8E5M2 | F8E4M3, _) => return None,
        (_, F16 | BF16 | F32 | F8E5M2 | F8E4M3) => convert!(level, u8 => f32, |a| a as f32),
        (_, F64) => convert!(level, u8 => f64, |a| a as f64),
        (_, U8 | I8 | I16 | I32 | I64) => convert!(level, u8 => i64, |a| a as i64),
        (_, Bool) => return None,
    })
}

/// The pass for a conversion that [`load`], [`store`] or [`convert`] leaves out.
pub fn or_copy(pass: Option<Pass1>, dtype: DType) -> Pass1 {
    pass.unwrap_or(copy(dtype.size()))
}

/// A scalar rounded to `dtype`, as the bits of a splat of its compute type.
pub fn splat(value: Scalar, dtype: DType) -> u64 {
    let f = |v: f32| v.to_bits() as u64;
    let int = |v: Scalar| match v {
        Scalar::F64(v) if matches!(dtype, DType::I64) => f64_to_i64(v),
        Scalar::F64(v) => f64_to_i32(v) as i64,
        Scalar::I64(v) => v,
    };
    let single = match value {
        Scalar::F64(v) => v as f32,
        Scalar::I64(v) => v as f32,
    };
    match dtype {
        DType::F32 => f(single),
        DType::BF16 => f(bf16::from_f32(single).to_f32()),
        DType::F16 => f(f16::from_f32(single).to_f32()),
        DType::F8E5M2 => f(e5m2_value(e5m2_bits(single))),
        DType::F8E4M3 => f(e4m3_value(e4m3_bits(single))),
        DType::F64 => value.to_f64().to_bits(),
        DType::I64 => int(value) as u64,
        DType::I32 => int(value) as i32 as i64 as u64,
        DType::I16 => int(value) as i16 as i64 as u64,
        DType::I8 => int(value) as i8 as i64 as u64,
        DType::U8 => int(value) as u8 as u64,
        DType::Bool => match value {
            Scalar::F64(v) => (v != 0.0) as u64,
            Scalar::I64(v) => (v != 0) as u64,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest of all numbers, the one with an even code of two as near.
    fn nearest(x: f32, value: fn(u8) -> f32, largest: u8) -> u8 {
        let distance = |b: &u8| (value(*b) - x.abs()).abs();
        (0..=largest).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
    }

    #[test]
    fn numbers_of_8_bits_are_the_nearest() {
        for bits in 0..=u8::MAX {
            let (a, b) = (e4m3_value(bits), e5m2_value(bits));
            assert!(if a.is_nan() { bits & 0x7f == 0x7f } else { e4m3_bits(a) == bits });
            assert!(if b.is_nan() { bits & 0x7f > 0x7c } else { e5m2_bits(b) == bits });
        }
        assert_eq!((e4m3_value(0x7e), e5m2_value(0x7b), e4m3_value(1)), (448.0, 57344.0, 1.0 / 512.0));
        let mut x = 1e-9f32;
        while x < 57344.0 {
            if x < 448.0 {
                assert_eq!(e4m3_bits(x), nearest(x, e4m3_value, 0x7e), "{x}");
            }
            assert_eq!(e5m2_bits(-x), nearest(x, e5m2_value, 0x7b) | 0x80, "{x}");
            x *= 1.003;
        }
        for x in [0.5, 1.5, 2.5].map(|k| k / 512.0) {
            assert_eq!(e4m3_bits(x), nearest(x, e4m3_value, 0x7e), "{x}");
        }
        assert_eq!((e4m3_bits(1e9), e4m3_bits(f32::NAN), e4m3_bits(447.0)), (0x7e, 0x7f, 0x7e));
        assert_eq!((e5m2_bits(1e9), e5m2_bits(62000.0), e5m2_bits(f32::NAN)), (0x7c, 0x7c, 0x7f));
    }

    #[test]
    fn half_floats_match_the_reference() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16_value(bits), f16::from_bits(bits).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "f16 {bits:#x}");
            let (a, b) = (bf16_value(bits), bf16::from_bits(bits).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "bf16 {bits:#x}");
        }
        let mut bits = 0u32;
        loop {
            let x = f32::from_bits(bits);
            let (a, b) = (f16::from_bits(f16_bits(x)), f16::from_f32(x));
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{x} to f16: {a} {b}");
            let (a, b) = (bf16::from_bits(bf16_bits(x)), bf16::from_f32(x));
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{x} to bf16: {a} {b}");
            match bits.checked_add(769) {
                Some(next) => bits = next,
                None => break,
            }
        }
    }
}
