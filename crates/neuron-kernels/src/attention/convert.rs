//! Rows between the tensors' element types and the accumulators' type.

use super::problem::Operand;
use super::real::{DenseRows, Real, Scale, Strided};
use crate::simd::vectorized;
use half::f16;
use neuron_ir::DType;

/// `f16` to `f32` without a branch or a call, so that loops over it become vector code.
#[inline(always)]
fn widen_f16(x: u16) -> f32 {
    // The exponent is rebiased by a multiplication, which normalises what was denormal.
    let magnitude = f32::from_bits(u32::from(x & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    let special = if x & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (u32::from(x & 0x8000) << 16))
}

/// `f32` to `bf16`, to nearest even.
#[inline(always)]
fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if x.is_nan() { 0x7fc0 } else { rounded }) as u16
}

/// `dst[r, c] = row(r)[c * stride]`; a mask's true becomes 0 and its false `-inf`.
///
/// # Safety
/// Every `row(r)` with `r < rows` is valid for `cols` elements of `dtype`, `dst` for `rows` rows at distance `ld`.
pub(super) unsafe fn load_rows<T: Real>(
    dtype: DType,
    row: impl Fn(usize) -> *const u8,
    stride: isize,
    rows: usize,
    cols: usize,
    dst: *mut T,
    ld: usize,
) {
    macro_rules! load {
        ($source:ty, $convert:expr) => {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let from = row(r).cast::<$source>();
                        // SAFETY: the caller's extents; a loop of its own where the elements are neighbours.
                        unsafe {
                            let to = dst.add(r * ld);
                            if stride == 1 {
                                for c in 0..cols {
                                    *to.add(c) = $convert(*from.add(c));
                                }
                            } else {
                                for c in 0..cols {
                                    *to.add(c) = $convert(*from.offset(c as isize * stride));
                                }
                            }
                        }
                    }
                },
            )
        };
    }
    match dtype {
        DType::F32 => load!(f32, |x: f32| T::from_f64(f64::from(x))),
        DType::F64 => load!(f64, |x: f64| T::from_f64(x)),
        DType::BF16 => load!(u16, |x: u16| T::from_f64(f64::from(f32::from_bits(u32::from(x) << 16)))),
        DType::F16 => load!(u16, |x: u16| T::from_f64(f64::from(widen_f16(x)))),
        _ => load!(u8, |x: u8| if x != 0 { T::ZERO } else { T::NEG_INFINITY }),
    }
}

/// `row(r)[c * stride] = scale * src[r, c]`, rounded to `dtype`.
///
/// # Safety
/// As [`load_rows`], in the other direction.
#[expect(clippy::too_many_arguments, reason = "two matrices and a factor")]
pub(super) unsafe fn store_rows<T: Real>(
    dtype: DType,
    src: *const T,
    ld: usize,
    scale: T,
    row: impl Fn(usize) -> *mut u8,
    stride: isize,
    rows: usize,
    cols: usize,
) {
    macro_rules! store {
        ($target:ty, $convert:expr) => {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let to = row(r).cast::<$target>();
                        // SAFETY: the caller's extents; a loop of its own where the elements are neighbours.
                        unsafe {
                            let from = src.add(r * ld);
                            if stride == 1 {
                                for c in 0..cols {
                                    *to.add(c) = $convert((*from.add(c) * scale).to_f64());
                                }
                            } else {
                                for c in 0..cols {
                                    *to.offset(c as isize * stride) = $convert((*from.add(c) * scale).to_f64());
                                }
                            }
                        }
                    }
                },
            )
        };
    }
    match dtype {
        DType::F64 => store!(f64, |x: f64| x),
        DType::BF16 => store!(u16, |x: f64| narrow_bf16(x as f32)),
        DType::F16 => store!(f16, |x: f64| f16::from_f32(x as f32)),
        _ => store!(f32, |x: f64| x as f32),
    }
}

/// `rows x cols` of an operand from `base` on: in place where the element type is the accumulators', else converted
/// into `staging`.
///
/// # Safety
/// `base` is valid for the extent, `staging` for `rows * cols` elements.
pub(super) unsafe fn matrix<T: Real>(
    operand: &Operand,
    base: *const u8,
    rows: usize,
    cols: usize,
    staging: *mut T,
) -> Strided<T> {
    if operand.dtype == T::DTYPE {
        return Strided { ptr: base.cast(), row: operand.strides[2], col: operand.strides[3] };
    }
    let step = operand.step(2);
    // SAFETY: the caller's contract.
    unsafe {
        load_rows(
            operand.dtype,
            |r| base.wrapping_offset(r as isize * step),
            operand.strides[3],
            rows,
            cols,
            staging,
            cols,
        )
    };
    Strided { ptr: staging, row: cols as isize, col: 1 }
}

/// As [`matrix`], with neighbouring elements along a row, of a type that `T` reads.
///
/// # Safety
/// As [`matrix`].
pub(super) unsafe fn dense_rows<T: Real>(
    operand: &Operand,
    base: *const u8,
    rows: usize,
    cols: usize,
    staging: *mut T,
) -> DenseRows {
    let [_, _, row, col] = operand.strides;
    if T::reads(operand.dtype) && (col == 1 || cols == 1) && row >= 0 {
        return DenseRows { dtype: operand.dtype, ptr: base, ld: row as usize };
    }
    let step = operand.step(2);
    let from = |r: usize| base.wrapping_offset(r as isize * step);
    // SAFETY: the caller's contract.
    unsafe { load_rows(operand.dtype, from, col, rows, cols, staging, cols) };
    DenseRows { dtype: T::DTYPE, ptr: staging.cast_const().cast(), ld: cols }
}

/// `dst[c, r] = scale * row(r)[c]` with `width` columns, those behind `rows` zero.
///
/// # Safety
/// `row(r)` is valid for `cols` elements of the operand, `dst` for `cols * width`, `staging` for `rows * cols`.
#[expect(clippy::too_many_arguments, reason = "two matrices and a factor")]
pub(super) unsafe fn load_transposed<T: Real>(
    operand: &Operand,
    row: impl Fn(usize) -> *const u8,
    rows: usize,
    width: usize,
    cols: usize,
    scale: T,
    dst: *mut T,
    staging: *mut T,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let to = |c: usize| dst.add(c * width);
        if operand.dtype == T::DTYPE && operand.strides[3] == 1 {
            T::transpose(|r| row(r).cast(), rows, width, cols, to, Scale::Uniform(scale));
        } else {
            load_rows(operand.dtype, row, operand.strides[3], rows, cols, staging, cols);
            T::transpose(|r| staging.add(r * cols).cast_const(), rows, width, cols, to, Scale::Uniform(scale));
        }
    }
}

/// `row(c)[r] = src[r, c]` times the scale: the transposed tile back into a tensor, `rows` being its head size.
///
/// # Safety
/// `src` is valid for `rows` rows at distance `width`, `row(c)` for `rows` elements, `staging` for `rows * cols`.
#[expect(clippy::too_many_arguments, reason = "two matrices and a factor")]
pub(super) unsafe fn store_transposed<T: Real>(
    operand: &Operand,
    src: *const T,
    width: usize,
    rows: usize,
    cols: usize,
    scale: Scale<T>,
    row: impl Fn(usize) -> *mut u8,
    staging: *mut T,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let from = |r: usize| src.add(r * width);
        if operand.dtype == T::DTYPE && operand.strides[3] == 1 {
            T::transpose(from, rows, rows, cols, |c| row(c).cast(), scale);
        } else {
            T::transpose(from, rows, rows, cols, |c| staging.add(c * rows), scale);
            store_rows(operand.dtype, staging.cast_const(), rows, T::ONE, row, operand.strides[3], cols, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_float_widens_as_the_reference() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widen_f16(bits), f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for i in 0..200_000u32 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            assert!(x.is_nan() || narrow_bf16(x) == half::bf16::from_f32(x).to_bits(), "{x}");
        }
        assert_eq!(narrow_bf16(f32::NAN), 0x7fc0);
    }
}
