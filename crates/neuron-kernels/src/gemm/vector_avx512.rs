//! Matrix times few vectors in AVX-512, bound by the reading of `b`.

use super::element::{Accumulator, Element};
use super::load16::{Bf16, F16, F32, Load16, mask};
use super::vector::Columns;
use neuron_ir::DType;
use std::arch::x86_64::*;

/// Computes the sums; false, with nothing written, for what it has no vectors for.
///
/// # Safety
/// The operands are valid, and the processor has AVX-512 F, BW and VL.
pub(super) unsafe fn sum<A: Accumulator, S: Element<A>>(t: &Columns<A, S>) -> bool {
    if A::DTYPE != DType::F32 {
        return false;
    }
    let t = Columns {
        rows: t.rows,
        depth: t.depth,
        cols: t.cols,
        a: t.a.cast::<f32>(),
        a_stride: t.a_stride,
        b: t.b.cast::<u8>(),
        strides: t.strides,
        sums: t.sums.cast::<f32>(),
        stride: t.stride,
    };
    // SAFETY: `A` is `f32`, and `S` is the type its dtype names.
    unsafe {
        match S::DTYPE {
            DType::F32 => sum_as::<F32>(&t),
            DType::BF16 => sum_as::<Bf16>(&t),
            DType::F16 => sum_as::<F16>(&t),
            _ => return false,
        }
    }
    true
}

/// # Safety
/// As [`sum`], `b` being of `L`'s type.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn sum_as<L: Load16>(t: &Columns<f32, u8>) {
    // SAFETY: as the caller promises.
    unsafe {
        match (t.rows, t.strides[1] == 1) {
            (1, true) => axpy::<L, 1>(t),
            (2, true) => axpy::<L, 2>(t),
            (3, true) => axpy::<L, 3>(t),
            (_, true) => axpy::<L, 4>(t),
            (1, false) => dot::<L, 1, 8>(t),
            (2, false) => dot::<L, 2, 8>(t),
            (3, false) => dot::<L, 3, 4>(t),
            (_, false) => dot::<L, 4, 4>(t),
        }
    }
}

/// How far ahead to prefetch a group of `runs` runs of `bytes` each: the next group, if it is not evicted before its
/// turn, else a little further along each run.
fn ahead(bytes: usize, runs: usize, stride: isize) -> isize {
    if bytes * runs <= 32 << 10 { runs as isize * stride } else { 512 }
}

/// Rows of `b` in one pass over the sums.
const STEPS: usize = 8;

/// Columns are neighbours: eight rows of `b` at a time are scaled and added to the sums, which stay in the first-level
/// cache.
///
/// # Safety
/// As [`sum_as`], with `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn axpy<L: Load16, const M: usize>(t: &Columns<f32, u8>) {
    let row = t.strides[0] * L::SIZE as isize;
    let ahead = ahead(t.cols * L::SIZE, STEPS, row);
    for p in (0..t.depth).step_by(STEPS) {
        let steps = (t.depth - p).min(STEPS);
        let base = t.b.wrapping_offset(p as isize * row);
        for j in (0..t.cols).step_by(16) {
            let lanes = mask((t.cols - j).min(16));
            let from = base.wrapping_add(j * L::SIZE);
            // SAFETY: steps and lanes are cut to the operands; a prefetch may point anywhere.
            unsafe {
                let mut sums: [__m512; M] = std::array::from_fn(|i| {
                    if p == 0 {
                        _mm512_setzero_ps()
                    } else {
                        _mm512_maskz_loadu_ps(lanes as u16, t.sums.add(i * t.stride + j))
                    }
                });
                let mut add = |s: usize| {
                    let b = L::load(from.wrapping_offset(s as isize * row), lanes);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_fmadd_ps(_mm512_set1_ps(*t.a.add(i * t.a_stride + p + s)), b, *sum);
                    }
                };
                if steps == STEPS {
                    for s in 0..STEPS {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_offset(s as isize * row + ahead).cast());
                        add(s);
                    }
                } else {
                    (0..steps).for_each(add);
                }
                for (i, &sum) in sums.iter().enumerate() {
                    _mm512_mask_storeu_ps(t.sums.add(i * t.stride + j), lanes as u16, sum);
                }
            }
        }
    }
}

/// Steps of the sums are neighbours: dot products of `C` columns at a time.
///
/// # Safety
/// As [`sum_as`], with `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn dot<L: Load16, const M: usize, const C: usize>(t: &Columns<f32, u8>) {
    let col = t.strides[1] * L::SIZE as isize;
    let ahead = ahead(t.depth * L::SIZE, C, col);
    for j in (0..t.cols).step_by(C) {
        let cols = (t.cols - j).min(C);
        // Beyond the last column it is computed again, and not stored.
        let b: [*const u8; C] = std::array::from_fn(|c| t.b.wrapping_offset((j + c.min(cols - 1)) as isize * col));
        let mut sums = [[_mm512_setzero_ps(); C]; M];
        for p in (0..t.depth).step_by(16) {
            let lanes = mask((t.depth - p).min(16));
            // SAFETY: lanes are cut to the operands; a prefetch may point anywhere.
            unsafe {
                let a: [__m512; M] =
                    std::array::from_fn(|i| _mm512_maskz_loadu_ps(lanes as u16, t.a.add(i * t.a_stride + p)));
                for c in 0..C {
                    let from = b[c].wrapping_add(p * L::SIZE);
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_offset(ahead).cast());
                    let b = L::load(from, lanes);
                    for i in 0..M {
                        sums[i][c] = _mm512_fmadd_ps(a[i], b, sums[i][c]);
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate().take(cols) {
                // SAFETY: row `i` and column `j + c` exist in the sums.
                unsafe { *t.sums.add(i * t.stride + j + c) = _mm512_reduce_add_ps(sum) };
            }
        }
    }
}
