//! Element types and the type that is computed in.

use crate::scatter::float::Float;
use half::{bf16, f16};

/// An element of a tensor.
pub(super) trait Element: Copy + Send + Sync + 'static {
    type Wide: Wide;

    fn widen(self) -> Self::Wide;
    /// Rounds to nearest even.
    fn narrow(value: Self::Wide) -> Self;
}

/// What elements are compared, added and divided in: `f32` for half floats, otherwise the type itself.
pub(super) trait Wide: Copy + Send + Sync + PartialOrd + 'static {
    /// What nothing is less than.
    const LOWEST: Self;
    const ZERO: Self;

    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn of(value: i64) -> Self;
}

macro_rules! float {
    ($($t:ty),*) => { $(
        impl Element for $t {
            type Wide = <$t as Float>::Wide;

            #[inline(always)]
            fn widen(self) -> Self::Wide {
                Float::widen(self)
            }
            #[inline(always)]
            fn narrow(value: Self::Wide) -> Self {
                Float::narrow(value)
            }
        }
    )* };
}
float!(f16, bf16, f32, f64);

macro_rules! wide_float {
    ($t:ty) => {
        impl Wide for $t {
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn of(value: i64) -> Self {
                value as $t
            }
        }
    };
}
wide_float!(f32);
wide_float!(f64);

macro_rules! integer {
    ($($t:ty),*) => { $(
        impl Element for $t {
            type Wide = $t;

            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(value: $t) -> $t {
                value
            }
        }

        impl Wide for $t {
            const LOWEST: Self = <$t>::MIN;
            const ZERO: Self = 0;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                // A window without elements has a share that nobody takes.
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn of(value: i64) -> Self {
                value as $t
            }
        }
    )* };
}
integer!(u8, i8, i16, i32, i64);

/// A float that weights are computed and applied in.
pub(super) trait Real:
    Wide
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    const ONE: Self;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn floor(self) -> Self;
    /// To the nearest integer, halves to even.
    fn round_even(self) -> Self;
    fn abs(self) -> Self;
    /// The integer part; what is no number is far out of any range.
    fn to_index(self) -> i64;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn floor(self) -> Self {
                self.floor()
            }
            #[inline(always)]
            fn round_even(self) -> Self {
                self.round_ties_even()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn to_index(self) -> i64 {
                if self.is_nan() { i64::MIN / 4 } else { (self as i64).clamp(i64::MIN / 4, i64::MAX / 4) }
            }
        }
    };
}
real!(f32);
real!(f64);

macro_rules! real_half {
    ($t:ty) => {
        impl Wide for $t {
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const ZERO: Self = <$t>::ZERO;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn of(value: i64) -> Self {
                Self::from_f32(value as f32)
            }
        }

        impl Real for $t {
            const ONE: Self = <$t>::ONE;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                Self::from_f64(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }
            #[inline(always)]
            fn floor(self) -> Self {
                Self::from_f32(self.to_f32().floor())
            }
            #[inline(always)]
            fn round_even(self) -> Self {
                Self::from_f32(self.to_f32().round_ties_even())
            }
            #[inline(always)]
            fn abs(self) -> Self {
                Self::from_f32(self.to_f32().abs())
            }
            #[inline(always)]
            fn to_index(self) -> i64 {
                self.to_f32().to_index()
            }
        }
    };
}
real_half!(f16);
real_half!(bf16);
