//! The block operations with AVX-512.

use super::portable::LOWEST;
use super::real::{DenseRows, Init, LANES, Running, Scale, Strided};
use neuron_ir::DType;
use std::arch::x86_64::*;

/// True where the processor has the instructions that this module needs.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// The lowest `n` lanes.
#[inline(always)]
fn lanes(n: usize) -> __mmask16 {
    if n >= LANES { !0 } else { (1 << n) - 1 }
}

/// `e^x`, at most 2 ulp off and 0 below [`LOWEST`]; the polynomial of the portable form, with one rounding fewer per step.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn exp(x: __m512) -> __m512 {
    let c = _mm512_set1_ps;
    // NaN is not below.
    let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, c(LOWEST));
    let n = _mm512_roundscale_ps::<0x08>(_mm512_mul_ps(x, c(std::f32::consts::LOG2_E)));
    let r = _mm512_fnmadd_ps(n, c(0.693_359_4), x);
    let r = _mm512_fnmadd_ps(n, c(-2.121_944_4e-4), r);
    let mut p = c(1.987_569_1e-4);
    p = _mm512_fmadd_ps(p, r, c(1.398_2e-3));
    p = _mm512_fmadd_ps(p, r, c(8.333_452e-3));
    p = _mm512_fmadd_ps(p, r, c(4.166_579_6e-2));
    p = _mm512_fmadd_ps(p, r, c(1.666_666_5e-1));
    p = _mm512_fmadd_ps(p, r, c(0.5));
    p = _mm512_fmadd_ps(p, r, c(1.0));
    p = _mm512_fmadd_ps(p, r, c(1.0));
    _mm512_maskz_scalef_ps(normal, p, n)
}

/// See [`Real::gemm`](super::real::Real::gemm).
#[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn gemm(
    m: usize,
    n: usize,
    k: usize,
    a: Strided<f32>,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    init: Init<f32>,
) {
    let mut column = 0;
    while column < n {
        let width = (4 * LANES).min(n - column);
        // SAFETY: `column < n`.
        unsafe {
            let panel = Panel {
                k,
                b: b.add(column),
                ldb,
                c: c.add(column),
                ldc,
                init: match init {
                    Init::Scaled(by) => Init::Scaled(by.add(column)),
                    other => other,
                },
                last: lanes((width - 1) % LANES + 1),
            };
            if a.col == 1 {
                panel.rows::<true>(m, width.div_ceil(LANES), a);
            } else {
                panel.rows::<false>(m, width.div_ceil(LANES), a);
            }
        }
        column += width;
    }
}

/// Up to four vectors' width of a product.
struct Panel {
    k: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    init: Init<f32>,
    /// Lanes of the last vector of columns.
    last: __mmask16,
}

impl Panel {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn rows<const DENSE: bool>(&self, m: usize, vectors: usize, a: Strided<f32>) {
        // SAFETY: the caller's contract.
        unsafe {
            match vectors {
                4 => self.columns::<DENSE, 4, 6>(m, a),
                3 => self.columns::<DENSE, 3, 8>(m, a),
                2 => self.columns::<DENSE, 2, 8>(m, a),
                _ => self.columns::<DENSE, 1, 8>(m, a),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn columns<const DENSE: bool, const N: usize, const M: usize>(&self, m: usize, a: Strided<f32>) {
        let mut row = 0;
        while row < m {
            // SAFETY: rows below `m`.
            unsafe {
                let left = Strided { ptr: a.ptr.offset(row as isize * a.row), ..a };
                let c = self.c.add(row * self.ldc);
                row += match m - row {
                    rest if rest >= M => self.block::<DENSE, N, M>(left, c),
                    rest if rest >= 4 => self.block::<DENSE, N, 4>(left, c),
                    rest if rest >= 2 => self.block::<DENSE, N, 2>(left, c),
                    _ => self.block::<DENSE, N, 1>(left, c),
                };
            }
        }
    }

    /// `M` rows by `N` vectors, all in registers; returns `M`.
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn block<const DENSE: bool, const N: usize, const M: usize>(&self, a: Strided<f32>, c: *mut f32) -> usize {
        let mask = |v: usize| if v + 1 == N { self.last } else { !0 };
        let mut acc = [[_mm512_setzero_ps(); N]; M];
        // SAFETY: the caller's extents; lanes outside are masked.
        unsafe {
            match self.init {
                Init::Zero => {}
                Init::Keep => {
                    for (i, acc) in acc.iter_mut().enumerate() {
                        for (v, acc) in acc.iter_mut().enumerate() {
                            *acc = _mm512_maskz_loadu_ps(mask(v), c.add(i * self.ldc + v * LANES));
                        }
                    }
                }
                Init::Scaled(by) => {
                    for v in 0..N {
                        let by = _mm512_maskz_loadu_ps(mask(v), by.add(v * LANES));
                        for (i, acc) in acc.iter_mut().enumerate() {
                            let old = _mm512_maskz_loadu_ps(mask(v), c.add(i * self.ldc + v * LANES));
                            acc[v] = _mm512_mul_ps(old, by);
                        }
                    }
                }
            }
            let mut b = self.b;
            let step = if DENSE { 1 } else { a.col };
            let mut left: [*const f32; M] = std::array::from_fn(|i| a.ptr.wrapping_offset(i as isize * a.row));
            for _ in 0..self.k {
                let mut right = [_mm512_setzero_ps(); N];
                for (v, right) in right.iter_mut().enumerate() {
                    *right = _mm512_maskz_loadu_ps(mask(v), b.add(v * LANES));
                }
                for i in 0..M {
                    let x = _mm512_set1_ps(*left[i]);
                    for v in 0..N {
                        acc[i][v] = _mm512_fmadd_ps(x, right[v], acc[i][v]);
                    }
                    left[i] = left[i].wrapping_offset(step);
                }
                b = b.wrapping_add(self.ldb);
            }
            for (i, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    _mm512_mask_storeu_ps(c.add(i * self.ldc + v * LANES), mask(v), *acc);
                }
            }
        }
        M
    }
}

/// See [`Real::softmax`](super::real::Real::softmax).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn softmax(tile: *mut f32, keys: usize, width: usize, running: Running<f32>) {
    for column in (0..width).step_by(LANES) {
        // SAFETY: `width` is a multiple of `LANES`.
        unsafe {
            let tile = tile.add(column);
            let old = _mm512_loadu_ps(running.max.add(column));
            let mut maxima = [old; 4];
            for key in (0..keys).step_by(4) {
                for (i, max) in maxima.iter_mut().enumerate() {
                    // A key behind the end repeats the last one.
                    let key = (key + i).min(keys - 1);
                    *max = _mm512_max_ps(_mm512_loadu_ps(tile.add(key * width)), *max);
                }
            }
            let [a, b, c, d] = maxima;
            let max = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
            // Where everything is masked so far, the difference to the largest score is not a number.
            let seen = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(max, _mm512_set1_ps(f32::NEG_INFINITY));
            let base = _mm512_maskz_mov_ps(seen, max);
            let mut totals = [_mm512_setzero_ps(); 4];
            let mut key = 0;
            while key + 4 <= keys {
                for (i, total) in totals.iter_mut().enumerate() {
                    let at = tile.add((key + i) * width);
                    let p = exp(_mm512_sub_ps(_mm512_loadu_ps(at), base));
                    _mm512_storeu_ps(at, p);
                    *total = _mm512_add_ps(*total, p);
                }
                key += 4;
            }
            while key < keys {
                let at = tile.add(key * width);
                let p = exp(_mm512_sub_ps(_mm512_loadu_ps(at), base));
                _mm512_storeu_ps(at, p);
                totals[0] = _mm512_add_ps(totals[0], p);
                key += 1;
            }
            let [a, b, c, d] = totals;
            let total = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
            let rescale = exp(_mm512_sub_ps(old, base));
            let sum = _mm512_loadu_ps(running.sum.add(column));
            _mm512_storeu_ps(running.sum.add(column), _mm512_fmadd_ps(sum, rescale, total));
            _mm512_storeu_ps(running.rescale.add(column), rescale);
            _mm512_storeu_ps(running.max.add(column), max);
        }
    }
}

/// See [`Real::softmax_backward`](super::real::Real::softmax_backward).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn softmax_backward(
    scores: *mut f32,
    grads: *mut f32,
    keys: usize,
    width: usize,
    lse: *const f32,
    delta: *const f32,
    keep: Option<*const f32>,
) {
    for column in (0..width).step_by(LANES) {
        // SAFETY: `width` is a multiple of `LANES`.
        unsafe {
            let lse = _mm512_loadu_ps(lse.add(column));
            let delta = _mm512_loadu_ps(delta.add(column));
            for at in (column..column + keys * width).step_by(width) {
                let p = exp(_mm512_sub_ps(_mm512_loadu_ps(scores.add(at)), lse));
                let mut kept = p;
                let mut grad = _mm512_loadu_ps(grads.add(at));
                if let Some(keep) = keep {
                    let keep = _mm512_loadu_ps(keep.add(at));
                    kept = _mm512_mul_ps(p, keep);
                    grad = _mm512_mul_ps(grad, keep);
                }
                _mm512_storeu_ps(scores.add(at), kept);
                _mm512_storeu_ps(grads.add(at), _mm512_mul_ps(p, _mm512_sub_ps(grad, delta)));
            }
        }
    }
}

/// See [`Real::transpose`](super::real::Real::transpose).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn transpose(
    src: impl Fn(usize) -> *const f32,
    rows: usize,
    padded: usize,
    cols: usize,
    dst: impl Fn(usize) -> *mut f32,
    scale: Scale<f32>,
) {
    for row in (0..padded).step_by(LANES) {
        let width = lanes(padded - row);
        for col in (0..cols).step_by(LANES) {
            let mask = lanes(cols - col);
            let scale = match scale {
                Scale::Uniform(by) => _mm512_set1_ps(by),
                // SAFETY: one factor per column.
                Scale::Columns(by) => unsafe { _mm512_maskz_loadu_ps(mask, by.add(col)) },
            };
            let mut block = [_mm512_setzero_ps(); LANES];
            for (i, line) in block.iter_mut().enumerate().take(rows.saturating_sub(row)) {
                // SAFETY: a row below `rows`, masked to its columns.
                let loaded = unsafe { _mm512_maskz_loadu_ps(mask, src(row + i).add(col)) };
                *line = _mm512_mul_ps(loaded, scale);
            }
            let block = transposed(block);
            for (i, line) in block.iter().enumerate().take(cols - col) {
                // SAFETY: a column below `cols`, masked to the padded rows.
                unsafe { _mm512_mask_storeu_ps(dst(col + i).add(row), width, *line) };
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn transposed(r: [__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    let mut pairs = [zero; 16];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    // `quads[4 * i + c]` holds, in its quarter `q`, rows `4 * i ..` of column `4 * q + c`.
    let mut quads = [zero; 16];
    for i in 0..4 {
        for c in 0..2 {
            let low = _mm512_castps_pd(pairs[4 * i + c]);
            let high = _mm512_castps_pd(pairs[4 * i + 2 + c]);
            quads[4 * i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            quads[4 * i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    let mut out = [zero; 16];
    for c in 0..4 {
        let even = |a: __m512, b: __m512| _mm512_shuffle_f32x4::<0x88>(a, b);
        let odd = |a: __m512, b: __m512| _mm512_shuffle_f32x4::<0xdd>(a, b);
        let (a, b) = (even(quads[c], quads[4 + c]), even(quads[8 + c], quads[12 + c]));
        out[c] = even(a, b);
        out[8 + c] = odd(a, b);
        let (a, b) = (odd(quads[c], quads[4 + c]), odd(quads[8 + c], quads[12 + c]));
        out[4 + c] = even(a, b);
        out[12 + c] = odd(a, b);
    }
    out
}

/// Lane `i` of the result is the sum of the lanes of vector `i`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn sums(v: [__m512; 16]) -> __m512 {
    let zero = _mm512_setzero_ps();
    let mut fours = [zero; 4];
    for (i, four) in fours.iter_mut().enumerate() {
        let pair = |a: __m512, b: __m512| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let low = _mm512_castps_pd(pair(v[4 * i], v[4 * i + 1]));
        let high = _mm512_castps_pd(pair(v[4 * i + 2], v[4 * i + 3]));
        *four = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)),
        );
    }
    let fold =
        |a: __m512, b: __m512| _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    fold(fold(fours[0], fours[1]), fold(fours[2], fours[3]))
}

/// A type whose vectors widen to `f32` on the way from memory.
trait Widen {
    /// The lanes of `mask` from `from[at]` on, zeros elsewhere.
    unsafe fn load(from: *const u8, at: usize, mask: __mmask16) -> __m512;
}

struct F32;
struct F16;

impl Widen for F32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn load(from: *const u8, at: usize, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_maskz_loadu_ps(mask, from.cast::<f32>().add(at)) }
    }
}

impl Widen for F16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn load(from: *const u8, at: usize, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's contract.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, from.cast::<i16>().add(at)) })
    }
}

/// See [`Real::dots`](super::real::Real::dots).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn dots(a: *const f32, len: usize, b: DenseRows, rows: usize, dst: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        match b.dtype {
            DType::BF16 => dots_bf16(a, len, b, rows, dst),
            DType::F16 => dots_of::<F16>(a, len, b, rows, dst),
            _ => dots_of::<F32>(a, len, b, rows, dst),
        }
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn dots_of<W: Widen>(a: *const f32, len: usize, b: DenseRows, rows: usize, dst: *mut f32) {
    let size = b.dtype.size();
    for row in (0..rows).step_by(LANES) {
        let mut acc = [_mm512_setzero_ps(); LANES];
        // A row behind the end repeats the last one.
        let line: [*const u8; LANES] =
            std::array::from_fn(|i| b.ptr.wrapping_add((row + i).min(rows - 1) * b.ld * size));
        for i in (0..len).step_by(LANES) {
            let mask = lanes(len - i);
            // SAFETY: rows below `rows`, masked to `len`.
            unsafe {
                let left = _mm512_maskz_loadu_ps(mask, a.add(i));
                for (acc, line) in acc.iter_mut().zip(line) {
                    *acc = _mm512_fmadd_ps(left, W::load(line, i, mask), *acc);
                }
            }
        }
        // SAFETY: masked to the rows that exist.
        unsafe { _mm512_mask_storeu_ps(dst.add(row), lanes(rows - row), sums(acc)) };
    }
}

/// The 32 `bf16` from `from[at]` on that lie before `len`, as `f32`: those at even places, and those at odd places.
///
/// A shift and a mask for 32 elements, where widening them in order costs twice as much.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn load_bf16(from: *const u8, at: usize, len: usize) -> [__m512; 2] {
    let left = len.saturating_sub(at);
    let mask: __mmask32 = if left >= 2 * LANES { !0 } else { (1 << left) - 1 };
    // SAFETY: masked to `len`.
    let pairs = unsafe { _mm512_maskz_loadu_epi16(mask, from.cast::<i16>().wrapping_add(at)) };
    let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd)]
}

/// Lane `i` is `2 * i + first`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn every_other(first: i32) -> __m512i {
    let places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    _mm512_add_epi32(places, _mm512_set1_epi32(first))
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn dots_bf16(a: *const f32, len: usize, b: DenseRows, rows: usize, dst: *mut f32) {
    let places = [every_other(0), every_other(1)];
    for row in (0..rows).step_by(LANES) {
        let mut acc = [_mm512_setzero_ps(); LANES];
        // A row behind the end repeats the last one.
        let line: [*const u8; LANES] = std::array::from_fn(|i| b.ptr.wrapping_add((row + i).min(rows - 1) * b.ld * 2));
        for i in (0..len).step_by(2 * LANES) {
            // SAFETY: rows below `rows`, masked to `len`.
            unsafe {
                let low = _mm512_maskz_loadu_ps(lanes(len - i), a.add(i));
                let high = _mm512_maskz_loadu_ps(lanes(len.saturating_sub(i + LANES)), a.wrapping_add(i + LANES));
                let left = places.map(|places| _mm512_permutex2var_ps(low, places, high));
                for (acc, line) in acc.iter_mut().zip(line) {
                    let right = load_bf16(line, i, len);
                    *acc = _mm512_fmadd_ps(left[0], right[0], *acc);
                    *acc = _mm512_fmadd_ps(left[1], right[1], *acc);
                }
            }
        }
        // SAFETY: masked to the rows that exist.
        unsafe { _mm512_mask_storeu_ps(dst.add(row), lanes(rows - row), sums(acc)) };
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn weigh_bf16<const M: usize>(
    weights: *const f32,
    ldw: usize,
    b: DenseRows,
    rows: usize,
    len: usize,
    dst: *mut f32,
) {
    const VECTORS: usize = 4;
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for column in (0..len).step_by(VECTORS * LANES) {
        let mut acc = [[[_mm512_setzero_ps(); VECTORS]; M]; 2];
        // SAFETY: rows below `rows`, masked to `len`.
        unsafe {
            for row in (0..rows).step_by(2) {
                for (row, acc) in (row..rows).zip(&mut acc) {
                    let line = b.ptr.add(row * b.ld * 2);
                    for half in 0..2 {
                        let right = load_bf16(line, column + half * 2 * LANES, len);
                        for (m, acc) in acc.iter_mut().enumerate() {
                            let weight = _mm512_set1_ps(*weights.add(m * ldw + row));
                            acc[2 * half] = _mm512_fmadd_ps(weight, right[0], acc[2 * half]);
                            acc[2 * half + 1] = _mm512_fmadd_ps(weight, right[1], acc[2 * half + 1]);
                        }
                    }
                }
            }
            let [first, second] = acc;
            for (m, (first, second)) in first.into_iter().zip(second).enumerate() {
                for half in 0..2 {
                    let [even, odd] = [0, 1].map(|i| _mm512_add_ps(first[2 * half + i], second[2 * half + i]));
                    let sums = [low, high].map(|places| _mm512_permutex2var_ps(even, places, odd));
                    for (v, sum) in sums.into_iter().enumerate() {
                        let at = column + (2 * half + v) * LANES;
                        let (to, mask) = (dst.wrapping_add(m * len + at), lanes(len.saturating_sub(at)));
                        let old = _mm512_maskz_loadu_ps(mask, to);
                        _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(old, sum));
                    }
                }
            }
        }
    }
}

/// See [`Real::weigh`](super::real::Real::weigh).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn weigh(
    weights: *const f32,
    ldw: usize,
    count: usize,
    b: DenseRows,
    rows: usize,
    len: usize,
    dst: *mut f32,
) {
    let mut done = 0;
    while done < count {
        // SAFETY: rows of weights below `count`.
        unsafe {
            let (weights, dst) = (weights.add(done * ldw), dst.add(done * len));
            let pair = count - done >= 2;
            match (b.dtype, pair) {
                (DType::BF16, true) => weigh_bf16::<2>(weights, ldw, b, rows, len, dst),
                (DType::BF16, false) => weigh_bf16::<1>(weights, ldw, b, rows, len, dst),
                (DType::F16, true) => weigh_of::<F16, 2>(weights, ldw, b, rows, len, dst),
                (DType::F16, false) => weigh_of::<F16, 1>(weights, ldw, b, rows, len, dst),
                (_, true) => weigh_of::<F32, 2>(weights, ldw, b, rows, len, dst),
                (_, false) => weigh_of::<F32, 1>(weights, ldw, b, rows, len, dst),
            }
            done += if pair { 2 } else { 1 };
        }
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn weigh_of<W: Widen, const M: usize>(
    weights: *const f32,
    ldw: usize,
    b: DenseRows,
    rows: usize,
    len: usize,
    dst: *mut f32,
) {
    const VECTORS: usize = 4;
    let size = b.dtype.size();
    for column in (0..len).step_by(VECTORS * LANES) {
        let mask: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(len.saturating_sub(column + v * LANES)));
        // Even and odd rows have sums of their own, for as many additions in flight as the processor can have.
        let mut acc = [[[_mm512_setzero_ps(); VECTORS]; M]; 2];
        // SAFETY: rows below `rows`, masked to `len`.
        unsafe {
            for row in (0..rows).step_by(2) {
                for (row, acc) in (row..rows).zip(&mut acc) {
                    let line = b.ptr.add(row * b.ld * size);
                    for v in 0..VECTORS {
                        let right = W::load(line, column + v * LANES, mask[v]);
                        for (m, acc) in acc.iter_mut().enumerate() {
                            acc[v] = _mm512_fmadd_ps(_mm512_set1_ps(*weights.add(m * ldw + row)), right, acc[v]);
                        }
                    }
                }
            }
            let [even, odd] = acc;
            for (m, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                for v in 0..VECTORS {
                    let to = dst.wrapping_add(m * len + column + v * LANES);
                    let sum = _mm512_add_ps(even[v], odd[v]);
                    let old = _mm512_maskz_loadu_ps(mask[v], to);
                    _mm512_mask_storeu_ps(to, mask[v], _mm512_add_ps(old, sum));
                }
            }
        }
    }
}

/// See [`Real::exp_sum`](super::real::Real::exp_sum).
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn exp_sum(scores: *mut f32, len: usize, max: f32) -> f32 {
    let max = _mm512_set1_ps(max);
    let mut total = _mm512_setzero_ps();
    for i in (0..len).step_by(LANES) {
        let mask = lanes(len - i);
        // SAFETY: masked to `len`.
        unsafe {
            let p = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, scores.add(i)), max));
            _mm512_mask_storeu_ps(scores.add(i), mask, p);
            total = _mm512_mask_add_ps(total, mask, total, p);
        }
    }
    _mm512_reduce_add_ps(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_within_two_ulp() {
        if !available() {
            return;
        }
        let xs: Vec<f32> = (0..873_000).map(|i| -1e-4 * i as f32).collect();
        let mut got = xs.clone();
        // SAFETY: the processor has the instructions.
        unsafe { exp_sum(got.as_mut_ptr(), got.len(), 0.0) };
        for (x, got) in xs.into_iter().zip(got) {
            let want = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            assert!((f64::from(got) - want).abs() <= 2.0 * ulp, "exp({x}) = {got}, not {want}");
        }
    }

    #[test]
    fn exponential_of_the_extremes() {
        if !available() {
            return;
        }
        let mut x = [f32::NEG_INFINITY, f32::NAN, 0.0, -88.0];
        // SAFETY: the processor has the instructions.
        unsafe { exp_sum(x.as_mut_ptr(), x.len(), 0.0) };
        assert!(x[1].is_nan());
        assert_eq!([x[0], x[2], x[3]], [0.0, 1.0, 0.0]);
    }
}
