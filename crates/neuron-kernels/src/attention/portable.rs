//! The block operations in plain Rust, compiled for the widest vectors that the processor has.

use super::real::{DenseRows, Init, LANES, Real, Running, Scale, Strided};
use crate::simd::vectorized;

/// Rows of the product that stay in registers.
const ROWS: usize = 4;

/// Below this, `e^x` counts as 0: what is left of it would be subnormal, and those cost most processors a detour of a
/// hundred cycles. Masked scores, `-inf`, would all take it.
pub(super) const LOWEST: f32 = -87.33;

/// `e^x` by the polynomial of Cephes' `expf` on `[-ln 2 / 2, ln 2 / 2]`; at most 2 ulp off, and
/// 0 below [`LOWEST`].
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // Comparisons rather than `clamp`, so that NaN stays.
    let below = x < LOWEST;
    let x = if below { LOWEST } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // Two factors, because 2^n itself leaves the range of normal numbers before the result does.
    let n = n as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    if below { 0.0 } else { y * power(half) * power(n - half) }
}

/// See [`Real::gemm`].
#[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
pub(super) unsafe fn gemm<T: Real>(
    m: usize,
    n: usize,
    k: usize,
    a: Strided<T>,
    b: *const T,
    ldb: usize,
    c: *mut T,
    ldc: usize,
    init: Init<T>,
) {
    vectorized(
        #[inline(always)]
        || {
            for column in (0..n).step_by(LANES) {
                let width = LANES.min(n - column);
                let init = match init {
                    // SAFETY: `column < n`, and the factors are one per column.
                    Init::Scaled(by) => Init::Scaled(unsafe { by.add(column) }),
                    other => other,
                };
                let mut row = 0;
                while row < m {
                    // SAFETY: blocks of rows and columns within the operands.
                    unsafe {
                        let a = Strided { ptr: a.ptr.offset(row as isize * a.row), ..a };
                        let c = c.add(row * ldc + column);
                        if m - row >= ROWS {
                            product::<T, ROWS>(width, k, a, b.add(column), ldb, c, ldc, init);
                            row += ROWS;
                        } else {
                            product::<T, 1>(width, k, a, b.add(column), ldb, c, ldc, init);
                            row += 1;
                        }
                    }
                }
            }
        },
    );
}

#[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
#[inline(always)]
unsafe fn product<T: Real, const M: usize>(
    width: usize,
    k: usize,
    a: Strided<T>,
    b: *const T,
    ldb: usize,
    c: *mut T,
    ldc: usize,
    init: Init<T>,
) {
    // SAFETY: the caller's extents; partial groups of columns are read and written one by one.
    unsafe {
        let mut acc = [[T::ZERO; LANES]; M];
        for (i, acc) in acc.iter_mut().enumerate() {
            match init {
                Init::Zero => {}
                Init::Keep => *acc = load(c.add(i * ldc), width),
                Init::Scaled(by) => {
                    let factor = load(by, width);
                    let old = load(c.add(i * ldc), width);
                    for x in 0..LANES {
                        acc[x] = old[x] * factor[x];
                    }
                }
            }
        }
        for step in 0..k {
            let right = load(b.add(step * ldb), width);
            let left = a.ptr.offset(step as isize * a.col);
            for (i, acc) in acc.iter_mut().enumerate() {
                let left = *left.offset(i as isize * a.row);
                for x in 0..LANES {
                    acc[x] += left * right[x];
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            std::ptr::copy_nonoverlapping(acc.as_ptr(), c.add(i * ldc), width);
        }
    }
}

/// The first `width <= LANES` elements, zeros behind them.
#[inline(always)]
unsafe fn load<T: Real>(from: *const T, width: usize) -> [T; LANES] {
    // SAFETY: the caller's extent.
    unsafe {
        if width == LANES {
            return from.cast::<[T; LANES]>().read();
        }
        let mut lanes = [T::ZERO; LANES];
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), width);
        lanes
    }
}

/// See [`Real::softmax`].
pub(super) unsafe fn softmax<T: Real>(tile: *mut T, keys: usize, width: usize, running: Running<T>) {
    vectorized(
        #[inline(always)]
        || {
            for column in (0..width).step_by(LANES) {
                // SAFETY: `width` is a multiple of `LANES`.
                unsafe {
                    let max = running.max.add(column).cast::<[T; LANES]>();
                    let sum = running.sum.add(column).cast::<[T; LANES]>();
                    let rescale = running.rescale.add(column).cast::<[T; LANES]>();
                    let old = *max;
                    let mut new = old;
                    for key in 0..keys {
                        let scores = *tile.add(key * width + column).cast::<[T; LANES]>();
                        for x in 0..LANES {
                            new[x] = if scores[x] > new[x] { scores[x] } else { new[x] };
                        }
                    }
                    // Where everything is masked so far, the difference to the largest score is not a number.
                    let base = new.map(|m| if m == T::NEG_INFINITY { T::ZERO } else { m });
                    let mut total = [T::ZERO; LANES];
                    for key in 0..keys {
                        let scores = &mut *tile.add(key * width + column).cast::<[T; LANES]>();
                        for x in 0..LANES {
                            scores[x] = (scores[x] - base[x]).exp();
                            total[x] += scores[x];
                        }
                    }
                    for x in 0..LANES {
                        (*rescale)[x] = (old[x] - base[x]).exp();
                        (*sum)[x] = (*sum)[x] * (*rescale)[x] + total[x];
                    }
                    *max = new;
                }
            }
        },
    );
}

/// See [`Real::softmax_backward`].
pub(super) unsafe fn softmax_backward<T: Real>(
    scores: *mut T,
    grads: *mut T,
    keys: usize,
    width: usize,
    lse: *const T,
    delta: *const T,
    keep: Option<*const T>,
) {
    vectorized(
        #[inline(always)]
        || {
            for column in (0..width).step_by(LANES) {
                // SAFETY: `width` is a multiple of `LANES`.
                unsafe {
                    let lse = *lse.add(column).cast::<[T; LANES]>();
                    let delta = *delta.add(column).cast::<[T; LANES]>();
                    for key in 0..keys {
                        let at = key * width + column;
                        let scores = &mut *scores.add(at).cast::<[T; LANES]>();
                        let grads = &mut *grads.add(at).cast::<[T; LANES]>();
                        let keep = keep.map_or([T::ONE; LANES], |keep| *keep.add(at).cast::<[T; LANES]>());
                        for x in 0..LANES {
                            let p = (scores[x] - lse[x]).exp();
                            scores[x] = p * keep[x];
                            grads[x] = p * (grads[x] * keep[x] - delta[x]);
                        }
                    }
                }
            }
        },
    );
}

/// See [`Real::transpose`].
pub(super) unsafe fn transpose<T: Real>(
    src: impl Fn(usize) -> *const T,
    rows: usize,
    padded: usize,
    cols: usize,
    dst: impl Fn(usize) -> *mut T,
    scale: Scale<T>,
) {
    for col in 0..cols {
        let to = dst(col);
        let scale = match scale {
            Scale::Uniform(by) => by,
            // SAFETY: one factor per column.
            Scale::Columns(by) => unsafe { *by.add(col) },
        };
        for row in 0..rows {
            // SAFETY: the caller's extents.
            unsafe { *to.add(row) = *src(row).add(col) * scale };
        }
        for row in rows..padded {
            // SAFETY: the caller's extents.
            unsafe { *to.add(row) = T::ZERO };
        }
    }
}

/// See [`Real::dots`].
pub(super) unsafe fn dots<T: Real>(a: *const T, len: usize, b: DenseRows, rows: usize, dst: *mut T) {
    let (b, ldb) = (b.ptr.cast::<T>(), b.ld);
    vectorized(
        #[inline(always)]
        || {
            for row in 0..rows {
                let mut acc = [T::ZERO; LANES];
                for i in (0..len).step_by(LANES) {
                    let width = LANES.min(len - i);
                    // SAFETY: the caller's extents.
                    let (left, right) = unsafe { (load(a.add(i), width), load(b.add(row * ldb + i), width)) };
                    for x in 0..LANES {
                        acc[x] += left[x] * right[x];
                    }
                }
                let mut sum = T::ZERO;
                acc.into_iter().for_each(|x| sum += x);
                // SAFETY: the caller's extents.
                unsafe { *dst.add(row) = sum };
            }
        },
    );
}

/// See [`Real::weigh`].
pub(super) unsafe fn weigh<T: Real>(
    weights: *const T,
    ldw: usize,
    count: usize,
    b: DenseRows,
    rows: usize,
    len: usize,
    dst: *mut T,
) {
    let weights = Strided { ptr: weights, row: ldw as isize, col: 1 };
    // SAFETY: the caller's contract.
    unsafe { gemm(count, len, rows, weights, b.ptr.cast(), b.ld, dst, len, Init::Keep) }
}

/// See [`Real::exp_sum`].
pub(super) unsafe fn exp_sum<T: Real>(scores: *mut T, len: usize, max: T) -> T {
    vectorized(
        #[inline(always)]
        || {
            // SAFETY: the caller's extent.
            let scores = unsafe { std::slice::from_raw_parts_mut(scores, len) };
            let mut acc = [T::ZERO; LANES];
            for chunk in scores.chunks_mut(LANES) {
                for (x, score) in chunk.iter_mut().enumerate() {
                    *score = (*score - max).exp();
                    acc[x] += *score;
                }
            }
            let mut sum = T::ZERO;
            acc.into_iter().for_each(|x| sum += x);
            sum
        },
    )
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponential_is_within_two_ulp() {
        for i in -873_000..=0 {
            let x = i as f32 * 1e-4;
            let (got, want) = (exp(x), f64::from(x).exp());
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            assert!((f64::from(got) - want).abs() <= 2.0 * ulp, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
