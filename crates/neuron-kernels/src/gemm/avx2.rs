//! Register tiles in AVX2 with FMA: 6 rows by two vectors, 12 of the 16 registers hold sums.

use super::micro::Tile;
use std::arch::x86_64::*;

macro_rules! tile {
    ($name:ident, $rows:ident, $t:ty, $lanes:literal, $zero:ident, $set1:ident, $load:ident, $fma:ident,
     $add:ident, $store:ident) => {
        /// # Safety
        /// The tile's operands are valid.
        #[target_feature(enable = "avx2,fma")]
        pub(super) unsafe fn $name(t: &Tile<$t>) {
            // SAFETY: as the caller promises.
            unsafe {
                match t.rows {
                    1 => $rows::<1>(t),
                    2 => $rows::<2>(t),
                    3 => $rows::<3>(t),
                    4 => $rows::<4>(t),
                    5 => $rows::<5>(t),
                    _ => $rows::<6>(t),
                }
            }
        }

        /// # Safety
        /// As the tile's, with `R` rows.
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $rows<const R: usize>(t: &Tile<$t>) {
            let mut sums = [[$zero(); 2]; R];
            let (mut a, mut b) = (t.a, t.b);
            for _ in 0..t.depth {
                // SAFETY: the packed operands hold `depth` steps of `R` values and of two vectors.
                unsafe {
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
            for (i, sums) in sums.iter().enumerate() {
                let mut row = [0 as $t; 2 * $lanes];
                // SAFETY: the row buffer holds two vectors; only columns of the output tile are touched in `c`.
                unsafe {
                    let c = t.c.offset(i as isize * t.row_stride);
                    if t.cols == 2 * $lanes {
                        let (mut s0, mut s1) = (sums[0], sums[1]);
                        if t.accumulate {
                            s0 = $add($load(c), s0);
                            s1 = $add($load(c.add($lanes)), s1);
                        }
                        $store(c, s0);
                        $store(c.add($lanes), s1);
                        continue;
                    }
                    $store(row.as_mut_ptr(), sums[0]);
                    $store(row.as_mut_ptr().add($lanes), sums[1]);
                    for (j, &sum) in row.iter().enumerate().take(t.cols) {
                        *c.add(j) = if t.accumulate { *c.add(j) + sum } else { sum };
                    }
                }
            }
        }
    };
}

tile!(
    tile_f32,
    rows_f32,
    f32,
    8,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    _mm256_storeu_ps
);
tile!(
    tile_f64,
    rows_f64,
    f64,
    4,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    _mm256_storeu_pd
);
