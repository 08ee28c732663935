//! Storage types and the types they are accumulated in.

use crate::KernelError;
use crate::simd::vectorized;
use neuron_ir::DType;

/// A type a tensor stores. Conversions are branch-free, so that loops over them become vector code.
pub(crate) trait Element: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The value as `f32`; exact for the half floats.
    fn to_f32(self) -> f32;
    /// The value as `f64`; exact for every float.
    fn to_f64(self) -> f64;
    /// The value as `i64`; exact for every integer.
    fn to_i64(self) -> i64;
    /// The truth of the value: NaN is true, -0.0 is not.
    fn truth(self) -> bool;
    /// Rounds to nearest even.
    fn from_f32(v: f32) -> Self;
    /// Rounds to nearest even; to a half float by way of `f32`, as PyTorch does.
    fn from_f64(v: f64) -> Self;
    /// Wraps around.
    fn from_i64(v: i64) -> Self;
}

macro_rules! primitive {
    ($($t:ty),*) => {$(
        impl Element for $t {
            #[inline(always)]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn to_i64(self) -> i64 { self as i64 }
            #[inline(always)]
            fn truth(self) -> bool { self != 0 as $t }
            #[inline(always)]
            fn from_f32(v: f32) -> Self { v as $t }
            #[inline(always)]
            fn from_f64(v: f64) -> Self { v as $t }
            #[inline(always)]
            fn from_i64(v: i64) -> Self { v as $t }
        }
    )*};
}
primitive!(f32, f64, i64, i32, i16, i8, u8);

/// `torch.bool`. Any non-zero byte counts as true, so a foreign buffer cannot make an invalid `bool`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Truth(u8);

impl Element for Truth {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.truth() as u8 as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.truth() as u8 as f64
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        self.truth() as i64
    }
    #[inline(always)]
    fn truth(self) -> bool {
        self.0 != 0
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Self {
        Truth((v != 0.0) as u8)
    }
    #[inline(always)]
    fn from_f64(v: f64) -> Self {
        Truth((v != 0.0) as u8)
    }
    #[inline(always)]
    fn from_i64(v: i64) -> Self {
        Truth((v != 0) as u8)
    }
}

/// `torch.bfloat16`
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct BFloat16(u16);

/// `torch.float16`
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Half(u16);

macro_rules! half_float {
    ($t:ty, $widen:ident, $narrow:ident) => {
        impl Element for $t {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $widen(self.0)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $widen(self.0) as f64
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                $widen(self.0) as i64
            }
            #[inline(always)]
            fn truth(self) -> bool {
                self.0 & 0x7fff != 0
            }
            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                Self($narrow(v))
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                Self($narrow(v as f32))
            }
            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                Self($narrow(v as f32))
            }
        }
    };
}
half_float!(BFloat16, widen_bf16, narrow_bf16);
half_float!(Half, widen_f16, narrow_f16);

#[inline(always)]
fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

#[inline(always)]
fn narrow_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if v.is_nan() { 0x7fc0 } else { rounded }) as u16
}

#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let magnitude = (bits as u32 & 0x7fff) << 13;
    // Moving the exponent's bias by a multiplication gets the subnormals right, too.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let value = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { scaled };
    f32::from_bits(value | sign)
}

#[inline(always)]
fn narrow_f16(v: f32) -> u16 {
    let bits = v.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let rebias = (127u32 - 15) << 23;
    let normal = magnitude.wrapping_sub(rebias).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5 leaves the subnormal half in the low bits, rounded by the addition.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    let value = if magnitude >= (127 + 16) << 23 { special } else { finite };
    (value | sign) as u16
}

/// A type arithmetic is carried out in.
pub(crate) trait Accumulator: Element + PartialOrd {
    /// From a stored element.
    fn load<T: Element>(v: T) -> Self;
    /// To a stored element.
    fn store<T: Element>(self) -> T;
    /// True for NaN.
    fn is_nan(self) -> bool;
}

macro_rules! accumulator {
    ($($t:ty: $to:ident $from:ident),*) => {$(
        impl Accumulator for $t {
            #[inline(always)]
            fn load<T: Element>(v: T) -> Self { v.$to() as $t }
            #[inline(always)]
            fn store<T: Element>(self) -> T { T::$from(self as _) }
            #[inline(always)]
            #[allow(clippy::eq_op, reason = "only NaN differs from itself")]
            fn is_nan(self) -> bool { self != self }
        }
    )*};
}
accumulator!(f32: to_f32 from_f32, f64: to_f64 from_f64, i64: to_i64 from_i64, i32: to_i64 from_i64, u8: to_i64 from_i64);

/// An accumulator that is a floating-point number.
pub(crate) trait Float:
    Accumulator
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::AddAssign
{
    /// 0
    const ZERO: Self;
    /// Less than everything else
    const NEG_INFINITY: Self;
    /// Nearest value.
    fn of(v: f64) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Exponential function, see [`crate::softmax::exp`].
    fn exp(self) -> Self;
    /// Natural logarithm; one call per row, so the library's will do.
    fn ln(self) -> Self;
}

macro_rules! float {
    ($t:ident, $exp:path) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            #[inline(always)]
            fn of(v: f64) -> Self {
                v as $t
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                self.ln()
            }
        }
    };
}
float!(f32, crate::softmax::exp::exp_f32);
float!(f64, crate::softmax::exp::exp_f64);

/// Runs `$body` with `$T` standing for the [`Element`] type of a dtype; gives `None` for other dtypes than those listed.
macro_rules! with_element {
    (floats: $dtype:expr, $T:ident => $body:expr) => {
        with_element!($dtype, $T => $body, F16: Half, BF16: BFloat16, F32: f32, F64: f64)
    };
    (integers: $dtype:expr, $T:ident => $body:expr) => {
        with_element!($dtype, $T => $body, U8: u8, I8: i8, I16: i16, I32: i32, I64: i64, Bool: Truth)
    };
    (any: $dtype:expr, $T:ident => $body:expr) => {
        with_element!($dtype, $T => $body, F16: Half, BF16: BFloat16, F32: f32, F64: f64, U8: u8, I8: i8, I16: i16,
            I32: i32, I64: i64, Bool: Truth)
    };
    ($dtype:expr, $T:ident => $body:expr, $($name:ident: $t:ident),*) => {{
        #[allow(unused_imports, reason = "not every list has them all")]
        use $crate::reduce::element::{BFloat16, Half, Truth};
        #[allow(unreachable_patterns, reason = "a list may have every dtype")]
        match $dtype {
            $(neuron_ir::DType::$name => {
                type $T = $t;
                Some($body)
            })*
            _ => None,
        }
    }};
}
pub(crate) use with_element;

/// Reads `n` elements `stride` elements apart into a dense buffer.
pub(crate) type Load<C> = unsafe fn(src: *const u8, stride: isize, n: usize, dst: *mut C);

/// Writes `n` elements of a dense buffer `stride` elements apart.
pub(crate) type Store<C> = unsafe fn(src: *const C, n: usize, dst: *mut u8, stride: isize);

#[inline(always)]
unsafe fn load_body<T: Copy, D>(src: *const T, stride: isize, n: usize, dst: *mut D, convert: impl Fn(T) -> D) {
    // SAFETY: the caller vouches for `n` elements on either side.
    unsafe {
        if stride == 1 {
            for i in 0..n {
                *dst.add(i) = convert(*src.add(i));
            }
        } else {
            for i in 0..n {
                *dst.add(i) = convert(*src.offset(i as isize * stride));
            }
        }
    }
}

unsafe fn load<C: Accumulator, T: Element>(src: *const u8, stride: isize, n: usize, dst: *mut C) {
    vectorized(
        #[inline(always)]
        // SAFETY: passed on to the caller.
        || unsafe {
            load_body(
                src.cast::<T>(),
                stride,
                n,
                dst,
                #[inline(always)]
                |v| C::load(v),
            )
        },
    );
}

unsafe fn load_truth<T: Element>(src: *const u8, stride: isize, n: usize, dst: *mut u8) {
    vectorized(
        #[inline(always)]
        // SAFETY: passed on to the caller.
        || unsafe {
            load_body(
                src.cast::<T>(),
                stride,
                n,
                dst,
                #[inline(always)]
                |v| v.truth() as u8,
            )
        },
    );
}

#[inline(always)]
unsafe fn store_body<C: Accumulator, T: Element>(src: *const C, n: usize, dst: *mut T, stride: isize) {
    // SAFETY: the caller vouches for `n` elements on either side.
    unsafe {
        if stride == 1 {
            for i in 0..n {
                *dst.add(i) = (*src.add(i)).store();
            }
        } else {
            for i in 0..n {
                *dst.offset(i as isize * stride) = (*src.add(i)).store();
            }
        }
    }
}

unsafe fn store<C: Accumulator, T: Element>(src: *const C, n: usize, dst: *mut u8, stride: isize) {
    if n == 1 {
        // SAFETY: passed on to the caller.
        unsafe { *dst.cast::<T>() = (*src).store() };
        return;
    }
    vectorized(
        #[inline(always)]
        // SAFETY: passed on to the caller.
        || unsafe { store_body(src, n, dst.cast::<T>(), stride) },
    );
}

fn refuse(dtype: DType) -> KernelError {
    KernelError::dtype("conversion", dtype)
}

/// The reader of a floating-point `dtype`.
pub(crate) fn load_float<C: Float>(dtype: DType) -> Result<Load<C>, KernelError> {
    with_element!(floats: dtype, T => load::<C, T> as Load<C>).ok_or_else(|| refuse(dtype))
}

/// The reader of an integer `dtype` or `bool`.
pub(crate) fn load_integer<C: Accumulator>(dtype: DType) -> Result<Load<C>, KernelError> {
    with_element!(integers: dtype, T => load::<C, T> as Load<C>).ok_or_else(|| refuse(dtype))
}

/// The reader of the truth of any `dtype`, as 0 or 1.
pub(crate) fn loader_of_truth(dtype: DType) -> Result<Load<u8>, KernelError> {
    with_element!(any: dtype, T => load_truth::<T> as Load<u8>).ok_or_else(|| refuse(dtype))
}

/// The writer of a floating-point `dtype`.
pub(crate) fn store_float<C: Float>(dtype: DType) -> Result<Store<C>, KernelError> {
    with_element!(floats: dtype, T => store::<C, T> as Store<C>).ok_or_else(|| refuse(dtype))
}

/// The writer of an integer `dtype` or `bool`.
pub(crate) fn store_integer<C: Accumulator>(dtype: DType) -> Result<Store<C>, KernelError> {
    with_element!(integers: dtype, T => store::<C, T> as Store<C>).ok_or_else(|| refuse(dtype))
}

/// The writer of any `dtype`.
pub(crate) fn store_any<C: Accumulator>(dtype: DType) -> Result<Store<C>, KernelError> {
    with_element!(any: dtype, T => store::<C, T> as Store<C>).ok_or_else(|| refuse(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_convert_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            let ours = widen_bf16(bits);
            assert!(ours.is_nan() || ours == half::bf16::from_bits(bits).to_f32());
        }
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Half of the samples in the range of f16, with its ties.
            let v = if bits & 1 == 0 {
                f32::from_bits(bits)
            } else {
                f32::from_bits((bits & 0x8fff_f000) | ((bits >> 3) & 0x3000_0000) | 0x2800_0000)
            };
            if v.is_nan() {
                assert!(half::f16::from_bits(narrow_f16(v)).is_nan() && half::bf16::from_bits(narrow_bf16(v)).is_nan());
            } else {
                assert_eq!(narrow_f16(v), half::f16::from_f32(v).to_bits(), "{v}");
                assert_eq!(narrow_bf16(v), half::bf16::from_f32(v).to_bits(), "{v}");
            }
        }
    }
}
