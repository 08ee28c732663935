//! Float element types and the type their sums are kept in.

use half::{bf16, f16};

/// A float element type.
pub(crate) trait Float: Copy + Send + Sync {
    /// `f32`, or `f64` for `f64`.
    type Wide: Wide;

    fn widen(self) -> Self::Wide;
    /// Rounds to nearest even.
    fn narrow(value: Self::Wide) -> Self;
}

/// A type that sums are kept in.
pub(crate) trait Wide:
    Copy
    + Send
    + Sync
    + PartialEq
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;

    /// Rounds to nearest.
    fn from_count(count: usize) -> Self;
}

macro_rules! float {
    ($t:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Float for $t {
            type Wide = $wide;

            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(value: $wide) -> Self {
                $narrow(value)
            }
        }
    };
}
float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, widen_bf16, narrow_bf16);
float!(f32, f32, |v| v, |v| v);
float!(f64, f64, |v| v, |v| v);

#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Without a branch, so that a loop of it becomes vectors.
#[inline(always)]
fn narrow_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    bf16::from_bits(if value.is_nan() { (bits >> 16) | 0x40 } else { rounded } as u16)
}

macro_rules! wide {
    ($t:ty) => {
        impl Wide for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_count(count: usize) -> Self {
                count as $t
            }
        }
    };
}
wide!(f32);
wide!(f64);

/// Expands to `$body` with `$t` the Rust type of the float `$dtype`, or to `$otherwise`.
macro_rules! by_float {
    ($dtype:expr, $t:ident => $body:expr, _ => $otherwise:expr) => {
        match $dtype {
            neuron_ir::DType::F16 => {
                type $t = half::f16;
                $body
            }
            neuron_ir::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            neuron_ir::DType::F32 => {
                type $t = f32;
                $body
            }
            neuron_ir::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => $otherwise,
        }
    };
}
pub(crate) use by_float;

/// Expands to `$body` with `$t` the Rust type of the number `$dtype`, or to `$otherwise`.
macro_rules! by_number {
    ($dtype:expr, $t:ident => $body:expr, _ => $otherwise:expr) => {
        match $dtype {
            neuron_ir::DType::U8 => {
                type $t = u8;
                $body
            }
            neuron_ir::DType::I8 => {
                type $t = i8;
                $body
            }
            neuron_ir::DType::I16 => {
                type $t = i16;
                $body
            }
            neuron_ir::DType::I32 => {
                type $t = i32;
                $body
            }
            neuron_ir::DType::I64 => {
                type $t = i64;
                $body
            }
            dtype => $crate::scatter::float::by_float!(dtype, $t => $body, _ => $otherwise),
        }
    };
}
pub(crate) use by_number;
