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
float!(bf16, f32, bf16::to_f32, bf16::from_f32);
float!(f32, f32, |v| v, |v| v);
float!(f64, f64, |v| v, |v| v);

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
