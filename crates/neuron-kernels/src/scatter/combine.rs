//! How an update combines with what is there, per element type.

use half::{bf16, f16};
use neuron_ir::Scalar;

/// An element type of scatters. Integers wrap, `bool` saturates, halves are computed in `f32` and rounded once.
pub(crate) trait Combine: Copy {
    /// Type of a factor.
    type Factor: Copy + Send + Sync;

    fn factor(scalar: Scalar) -> Self::Factor;
    fn add(self, update: Self) -> Self;
    fn add_scaled(self, update: Self, factor: Self::Factor) -> Self;
    fn mul(self, update: Self) -> Self;
    /// The larger; an update of NaN is kept, and so is NaN.
    fn max(self, update: Self) -> Self;
    /// The smaller; an update of NaN is kept, and so is NaN.
    fn min(self, update: Self) -> Self;
}

macro_rules! combine_int {
    ($($t:ty),*) => {$(
        impl Combine for $t {
            type Factor = $t;

            #[inline(always)]
            fn factor(scalar: Scalar) -> $t {
                scalar.to_i64() as $t
            }
            #[inline(always)]
            fn add(self, update: Self) -> Self {
                self.wrapping_add(update)
            }
            #[inline(always)]
            fn add_scaled(self, update: Self, factor: $t) -> Self {
                self.wrapping_add(update.wrapping_mul(factor))
            }
            #[inline(always)]
            fn mul(self, update: Self) -> Self {
                self.wrapping_mul(update)
            }
            #[inline(always)]
            fn max(self, update: Self) -> Self {
                Ord::max(self, update)
            }
            #[inline(always)]
            fn min(self, update: Self) -> Self {
                Ord::min(self, update)
            }
        }
    )*};
}
combine_int!(u8, i8, i16, i32, i64);

macro_rules! combine_float {
    ($($t:ty),*) => {$(
        impl Combine for $t {
            type Factor = $t;

            #[inline(always)]
            fn factor(scalar: Scalar) -> $t {
                scalar.to_f64() as $t
            }
            #[inline(always)]
            fn add(self, update: Self) -> Self {
                self + update
            }
            #[inline(always)]
            fn add_scaled(self, update: Self, factor: $t) -> Self {
                self + update * factor
            }
            #[inline(always)]
            fn mul(self, update: Self) -> Self {
                self * update
            }
            #[inline(always)]
            fn max(self, update: Self) -> Self {
                if update.is_nan() || self < update { update } else { self }
            }
            #[inline(always)]
            fn min(self, update: Self) -> Self {
                if update.is_nan() || update < self { update } else { self }
            }
        }
    )*};
}
combine_float!(f32, f64);

macro_rules! combine_half {
    ($($t:ty),*) => {$(
        impl Combine for $t {
            type Factor = f32;

            #[inline(always)]
            fn factor(scalar: Scalar) -> f32 {
                scalar.to_f64() as f32
            }
            #[inline(always)]
            fn add(self, update: Self) -> Self {
                <$t>::from_f32(self.to_f32() + update.to_f32())
            }
            #[inline(always)]
            fn add_scaled(self, update: Self, factor: f32) -> Self {
                <$t>::from_f32(self.to_f32() + update.to_f32() * factor)
            }
            #[inline(always)]
            fn mul(self, update: Self) -> Self {
                <$t>::from_f32(self.to_f32() * update.to_f32())
            }
            #[inline(always)]
            fn max(self, update: Self) -> Self {
                if update.is_nan() || self < update { update } else { self }
            }
            #[inline(always)]
            fn min(self, update: Self) -> Self {
                if update.is_nan() || update < self { update } else { self }
            }
        }
    )*};
}
combine_half!(f16, bf16);

/// A `bool` of any non-zero byte: sums are disjunctions, products conjunctions.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bool(u8);

impl Bool {
    #[inline(always)]
    fn of(value: bool) -> Self {
        Bool(u8::from(value))
    }

    #[inline(always)]
    fn is(self) -> bool {
        self.0 != 0
    }
}

impl Combine for Bool {
    type Factor = bool;

    #[inline(always)]
    fn factor(scalar: Scalar) -> bool {
        scalar.to_f64() != 0.0
    }
    #[inline(always)]
    fn add(self, update: Self) -> Self {
        Bool::of(self.is() | update.is())
    }
    #[inline(always)]
    fn add_scaled(self, update: Self, factor: bool) -> Self {
        Bool::of(self.is() | (update.is() & factor))
    }
    #[inline(always)]
    fn mul(self, update: Self) -> Self {
        Bool::of(self.is() & update.is())
    }
    #[inline(always)]
    fn max(self, update: Self) -> Self {
        self.add(update)
    }
    #[inline(always)]
    fn min(self, update: Self) -> Self {
        self.mul(update)
    }
}

/// Expands to `$body` with `$t` the Rust type of the element type `$dtype`.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            neuron_ir::DType::Bool => {
                type $t = $crate::scatter::combine::Bool;
                $body
            }
            dtype => $crate::scatter::float::by_number!(
                dtype, $t => $body, _ => unreachable!("{dtype} has no arithmetic")
            ),
        }
    };
}
pub(crate) use by_dtype;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extrema_keep_nan() {
        assert!(Combine::max(f32::NAN, 1.0).is_nan() && Combine::max(1.0, f32::NAN).is_nan());
        assert!(Combine::min(f32::NAN, 1.0).is_nan() && Combine::min(1.0, f32::NAN).is_nan());
        assert_eq!((Combine::max(1.0f64, 2.0), Combine::min(1.0f64, 2.0)), (2.0, 1.0));
    }

    #[test]
    fn integers_wrap_and_bools_saturate() {
        assert_eq!(Combine::add(250u8, 10), 4);
        assert_eq!(100i8.add_scaled(3, 100), (100i64 + 300) as i8);
        assert_eq!(Bool(1).add(Bool(1)).0, 1);
        assert_eq!(Bool(2).mul(Bool(1)).0, 1);
    }
}
