//! Elementary functions of one element, free of branches so that loops over them vectorise.
//!
//! Accuracy of the `f32` functions: 2 ulp over the full range, subnormal results and special values included (the test
//! at the end of this module measures it). The frequent ones work in `f32`; the others evaluate a polynomial in `f64`,
//! where reduction and cancellation cost no care, and round once. `f64` functions are those of the C library.
//! Coefficients are minimax fits made for these intervals.

pub mod bessel;
pub mod gamma;
pub mod normal;
pub mod polynomials;
pub mod single;
pub mod special;
pub mod widened;

use crate::simd::Isa;

/// Horner's scheme in `f32`, coefficients in ascending order.
#[inline(always)]
fn poly32<I: Isa, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        sum = I::fma32(sum, x, c[k]);
    }
    sum
}

/// Horner's scheme in `f64`, coefficients in ascending order.
#[inline(always)]
fn poly64<I: Isa, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        sum = I::fma64(sum, x, c[k]);
    }
    sum
}

#[cfg(test)]
mod tests;
