//! Register tiles in AVX-512: 14 rows by two vectors, 28 of the 32 registers hold sums.

use super::block::Direct;
use super::micro::Tile;
use std::arch::x86_64::*;

macro_rules! tile {
    ($name:ident, $rows:ident, $t:ty, $lanes:literal, $mask:ty, $zero:ident, $set1:ident, $load:ident, $fma:ident,
     $add:ident, $maskload:ident, $maskstore:ident) => {
        /// # Safety
        /// The tile's operands are valid.
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn $name(t: &Tile<$t>) {
            // SAFETY: as the caller promises.
            unsafe {
                match t.rows {
                    1 => $rows::<1>(t),
                    2 => $rows::<2>(t),
                    3 => $rows::<3>(t),
                    4 => $rows::<4>(t),
                    5 => $rows::<5>(t),
                    6 => $rows::<6>(t),
                    7 => $rows::<7>(t),
                    8 => $rows::<8>(t),
                    9 => $rows::<9>(t),
                    10 => $rows::<10>(t),
                    11 => $rows::<11>(t),
                    12 => $rows::<12>(t),
                    13 => $rows::<13>(t),
                    _ => $rows::<14>(t),
                }
            }
        }

        /// # Safety
        /// As the tile's, with `R` rows.
        #[target_feature(enable = "avx512f")]
        unsafe fn $rows<const R: usize>(t: &Tile<$t>) {
            let mut sums = [[$zero(); 2]; R];
            let (mut a, mut b) = (t.a, t.b);
            for i in 0..R {
                let c = t.c.wrapping_offset(i as isize * t.row_stride);
                _mm_prefetch::<_MM_HINT_T0>(c.cast());
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add($lanes).cast());
            }
            for p in 0..t.depth {
                // SAFETY: the packed operands hold `depth` steps of `R` values and of two vectors; a prefetch may
                // point anywhere.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(t.ahead.line(p).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(16 * R).cast());
                    let b0 = $load(b);
                    let b1 = $load(b.add($lanes));
                    for i in 0..R {
                        let x = $set1(*a.add(i));
                        sums[i][0] = $fma(x, b0, sums[i][0]);
                        sums[i][1] = $fma(x, b1, sums[i][1]);
                    }
                    a = a.add(R);
                    b = b.add(2 * $lanes);
                }
            }
            let columns = ((1u64 << t.cols) - 1) as u32;
            let (m0, m1) = ((columns & ((1 << $lanes) - 1)) as $mask, (columns >> $lanes) as $mask);
            for (i, sums) in sums.iter().enumerate() {
                // SAFETY: the masks leave only columns of the output tile.
                unsafe {
                    let c = t.c.offset(i as isize * t.row_stride);
                    let (mut s0, mut s1) = (sums[0], sums[1]);
                    if t.accumulate {
                        s0 = $add($maskload(m0, c), s0);
                        s1 = $add($maskload(m1, c.wrapping_add($lanes)), s1);
                    }
                    $maskstore(c, m0, s0);
                    $maskstore(c.wrapping_add($lanes), m1, s1);
                }
            }
        }
    };
}

tile!(
    tile_f32,
    rows_f32,
    f32,
    16,
    __mmask16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_maskz_loadu_ps,
    _mm512_mask_storeu_ps
);
tile!(
    tile_f64,
    rows_f64,
    f64,
    8,
    __mmask8,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_maskz_loadu_pd,
    _mm512_mask_storeu_pd
);

/// A tile of operands that are not packed.
///
/// # Safety
/// The tile's operands are valid.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn direct(t: &Direct) {
    // SAFETY: as the caller promises.
    unsafe {
        match t.rows {
            1 => direct_rows::<1>(t),
            2 => direct_rows::<2>(t),
            3 => direct_rows::<3>(t),
            4 => direct_rows::<4>(t),
            5 => direct_rows::<5>(t),
            6 => direct_rows::<6>(t),
            7 => direct_rows::<7>(t),
            _ => direct_rows::<8>(t),
        }
    }
}

/// # Safety
/// As [`direct`], with `R` rows.
#[target_feature(enable = "avx512f")]
unsafe fn direct_rows<const R: usize>(t: &Direct) {
    // SAFETY: as the caller promises.
    unsafe {
        match (t.cols > 16, t.a_strides[1] == 1) {
            (true, true) => direct_cols::<R, 2>(t, 1),
            (true, false) => direct_cols::<R, 2>(t, t.a_strides[1]),
            (false, true) => direct_cols::<R, 1>(t, 1),
            (false, false) => direct_cols::<R, 1>(t, t.a_strides[1]),
        }
    }
}

/// # Safety
/// As [`direct`], with `R` rows, `V` vectors of columns, and the stride of `a` along the sums.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn direct_cols<const R: usize, const V: usize>(t: &Direct, along: isize) {
    let columns = ((1u64 << t.cols) - 1) as u32;
    let masks: [__mmask16; 2] = [columns as u16, (columns >> 16) as u16];
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let mut b = t.b;
    let rows: [*const f32; R] = std::array::from_fn(|i| t.a.wrapping_offset(i as isize * t.a_strides[0]));
    for p in 0..t.depth as isize {
        // SAFETY: row `i` and step `p` exist; the masks leave only columns that do.
        unsafe {
            let b_row: [__m512; V] = std::array::from_fn(|v| _mm512_maskz_loadu_ps(masks[v], b.wrapping_add(16 * v)));
            for i in 0..R {
                let x = _mm512_set1_ps(*rows[i].offset(p * along));
                for v in 0..V {
                    sums[i][v] = _mm512_fmadd_ps(x, b_row[v], sums[i][v]);
                }
            }
        }
        b = b.wrapping_offset(t.b_stride);
    }
    let alpha = _mm512_set1_ps(t.alpha);
    for (i, sums) in sums.iter().enumerate() {
        let c = t.c.wrapping_offset(i as isize * t.row_stride);
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: the masks leave only columns of the output tile.
            unsafe {
                let c = c.wrapping_add(16 * v);
                let sum = if t.accumulate {
                    _mm512_fmadd_ps(alpha, sum, _mm512_maskz_loadu_ps(masks[v], c))
                } else {
                    _mm512_mul_ps(alpha, sum)
                };
                _mm512_mask_storeu_ps(c, masks[v], sum);
            }
        }
    }
}
