//! Element types in memory and the types sums are kept in.

use super::micro::Micro;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use neuron_ir::{DType, Scalar};

/// A type products are summed in.
pub(crate) trait Accumulator: Copy + Default + Send + Sync + 'static {
    /// The dtype of this type.
    const DTYPE: DType;
    /// `self + x * y`; integers wrap.
    fn multiply_add(self, x: Self, y: Self) -> Self;
    /// Product; integers wrap.
    fn times(self, x: Self) -> Self;
    /// Sum; integers wrap.
    fn plus(self, x: Self) -> Self;
    /// A launch scalar in this type.
    fn from_scalar(s: Scalar) -> Self;
    /// True for zero of either sign.
    fn is_zero(self) -> bool;
    /// The register tile kernel this processor runs fastest.
    fn micro() -> &'static Micro<Self>;
}

/// A type in memory that is multiplied and summed as `A`.
pub(crate) trait Element<A: Accumulator>: Copy + Send + Sync + 'static {
    /// The dtype of this type.
    const DTYPE: DType;
    /// The value in the accumulator's type, exactly (integers modulo its width).
    fn widen(self) -> A;
    /// The sum rounded once to this type; integers keep their low bits.
    fn narrow(a: A) -> Self;
    /// Narrows a run of sums to `to`.
    ///
    /// # Safety
    /// As many elements are writable.
    #[inline(always)]
    unsafe fn narrow_run(sums: &[A], to: *mut Self) {
        for (j, &v) in sums.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { *to.add(j) = Self::narrow(v) };
        }
    }
}

macro_rules! float_accumulator {
    ($t:ty, $dtype:ident) => {
        impl Accumulator for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn multiply_add(self, x: Self, y: Self) -> Self {
                self + x * y
            }
            #[inline(always)]
            fn times(self, x: Self) -> Self {
                self * x
            }
            #[inline(always)]
            fn plus(self, x: Self) -> Self {
                self + x
            }
            fn from_scalar(s: Scalar) -> Self {
                s.to_f64() as $t
            }
            fn is_zero(self) -> bool {
                self == 0.0
            }
            fn micro() -> &'static Micro<Self> {
                static CHOICE: std::sync::LazyLock<Micro<$t>> = std::sync::LazyLock::new(Micro::<$t>::detect);
                &CHOICE
            }
        }
        impl Element<$t> for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(a: $t) -> Self {
                a
            }
        }
    };
}

macro_rules! int_accumulator {
    ($t:ty, $dtype:ident) => {
        impl Accumulator for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn multiply_add(self, x: Self, y: Self) -> Self {
                self.wrapping_add(x.wrapping_mul(y))
            }
            #[inline(always)]
            fn times(self, x: Self) -> Self {
                self.wrapping_mul(x)
            }
            #[inline(always)]
            fn plus(self, x: Self) -> Self {
                self.wrapping_add(x)
            }
            fn from_scalar(s: Scalar) -> Self {
                s.to_i64() as $t
            }
            fn is_zero(self) -> bool {
                self == 0
            }
            fn micro() -> &'static Micro<Self> {
                static CHOICE: std::sync::LazyLock<Micro<$t>> = std::sync::LazyLock::new(Micro::<$t>::detect);
                &CHOICE
            }
        }
    };
}

macro_rules! int_element {
    ($($t:ty: $dtype:ident as $acc:ty),*) => {$(
        impl Element<$acc> for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn widen(self) -> $acc {
                <$acc>::from(self)
            }
            #[inline(always)]
            fn narrow(a: $acc) -> Self {
                a as $t
            }
        }
    )*};
}

float_accumulator!(f32, F32);
float_accumulator!(f64, F64);
int_accumulator!(i32, I32);
int_accumulator!(i64, I64);
// Sums of the narrow integers are wanted modulo 2^8 to 2^32, and arithmetic modulo 2^32 preserves those.
int_element!(u8: U8 as i32, i8: I8 as i32, i16: I16 as i32, i32: I32 as i32, i64: I64 as i64);

impl Element<f32> for bf16 {
    const DTYPE: DType = DType::BF16;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(a: f32) -> Self {
        let bits = a.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        // A NaN must stay one whatever its payload: rounding could carry it into infinity.
        bf16::from_bits(if a.is_nan() { 0x7fc0 | (bits >> 16) as u16 } else { rounded })
    }
}

impl Element<f32> for f16 {
    const DTYPE: DType = DType::F16;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(a: f32) -> Self {
        f16::from_f32(a)
    }
    #[inline(always)]
    unsafe fn narrow_run(sums: &[f32], to: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(to, sums.len()) }.convert_from_f32_slice(sums);
    }
}
