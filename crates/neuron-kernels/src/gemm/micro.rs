//! Register tiles: the innermost product of a few packed rows by one packed panel.

use super::element::Accumulator;

/// Arguments of a register tile: `c[i, j] (+)= sum over p of a[p, i] * b[p, j]`.
///
/// `a` is packed `[depth, rows]`, `b` is packed `[depth, panel width]`, and `c` has unit column stride.
pub(crate) struct Tile<A> {
    /// Rows, 1 to [`Micro::rows`].
    pub rows: usize,
    /// Columns that exist, 1 to [`Micro::cols`].
    pub cols: usize,
    /// Length of the sums.
    pub depth: usize,
    /// Packed rows.
    pub a: *const A,
    /// Packed panel.
    pub b: *const A,
    /// First element of the output tile.
    pub c: *mut A,
    /// Distance between output rows.
    pub row_stride: isize,
    /// Add to what `c` holds.
    pub accumulate: bool,
    /// What to bring near while multiplying.
    pub ahead: Ahead,
}

/// Cache lines to prefetch, one per step: rows in turn, then the next line of each.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// First line; any address will do.
    pub start: *const u8,
    /// Distance between rows, in bytes.
    pub row_stride: isize,
    /// Rows, as a power of two.
    pub log2_rows: u32,
}

impl Ahead {
    /// Nothing of use.
    pub fn nothing(at: *const u8) -> Self {
        Ahead { start: at, row_stride: 0, log2_rows: 31 }
    }

    /// The line for a step.
    #[inline(always)]
    pub fn line(&self, step: usize) -> *const u8 {
        let (row, line) = (step & ((1 << self.log2_rows) - 1), step >> self.log2_rows);
        self.start.wrapping_offset(row as isize * self.row_stride).wrapping_add(line * 64)
    }
}

/// Instruction set the kernels are chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The widest set this processor has.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") && has!("fma") {
                return Level::Avx512;
            }
            if has!("avx2") && has!("fma") && has!("f16c") {
                return Level::Avx2;
            }
        }
        Level::Portable
    }
}

/// A register tile kernel with the blocking that suits it.
pub(crate) struct Micro<A> {
    /// Most rows of a tile.
    pub rows: usize,
    /// Width of a panel.
    pub cols: usize,
    /// Length of the partial sums. A deep panel streams from the second-level cache as fast as it is used, and saves
    /// passes over the output.
    pub depth: usize,
    /// Instruction set.
    pub level: Level,
    /// The kernel.
    ///
    /// # Safety
    /// The processor has `level`, and the tile's operands are valid.
    pub tile: unsafe fn(&Tile<A>),
}

impl<A: Accumulator> Micro<A> {
    fn portable() -> Self {
        Micro { rows: 4, cols: 16, depth: 256, level: Level::Portable, tile: portable_tile::<A> }
    }
}

impl Micro<f32> {
    pub fn detect() -> Self {
        match Level::detect() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Micro { rows: 14, cols: 32, depth: 512, level: Level::Avx512, tile: super::avx512::tile_f32 }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Micro { rows: 6, cols: 16, depth: 256, level: Level::Avx2, tile: super::avx2::tile_f32 },
            Level::Portable => Micro::portable(),
        }
    }
}

impl Micro<f64> {
    pub fn detect() -> Self {
        match Level::detect() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Micro { rows: 14, cols: 16, depth: 256, level: Level::Avx512, tile: super::avx512::tile_f64 }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Micro { rows: 6, cols: 8, depth: 256, level: Level::Avx2, tile: super::avx2::tile_f64 },
            Level::Portable => Micro::portable(),
        }
    }
}

macro_rules! int_detect {
    ($($t:ty),*) => {$(
        impl Micro<$t> {
            pub fn detect() -> Self {
                match Level::detect() {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => Micro { tile: int_tile_avx512::<$t>, level: Level::Avx512, ..Micro::portable() },
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => Micro { tile: int_tile_avx2::<$t>, level: Level::Avx2, ..Micro::portable() },
                    Level::Portable => Micro::portable(),
                }
            }
        }
    )*};
}
int_detect!(i32, i64);

/// A tile of the portable shape, in whatever vectors the caller is compiled for.
///
/// # Safety
/// The tile's operands are valid.
#[inline(always)]
unsafe fn generic_tile<A: Accumulator>(t: &Tile<A>) {
    // SAFETY: as the caller promises.
    unsafe {
        match t.rows {
            1 => generic_rows::<A, 1>(t),
            2 => generic_rows::<A, 2>(t),
            3 => generic_rows::<A, 3>(t),
            _ => generic_rows::<A, 4>(t),
        }
    }
}

/// # Safety
/// As [`generic_tile`], with `R` rows.
#[inline(always)]
unsafe fn generic_rows<A: Accumulator, const R: usize>(t: &Tile<A>) {
    let mut sums = [[A::default(); 16]; R];
    for p in 0..t.depth {
        // SAFETY: the packed operands hold `depth` steps of `R` and 16 values.
        let (a, b) = unsafe { (*t.a.add(p * R).cast::<[A; R]>(), *t.b.add(p * 16).cast::<[A; 16]>()) };
        for i in 0..R {
            for j in 0..16 {
                sums[i][j] = sums[i][j].multiply_add(a[i], b[j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (j, &sum) in sums.iter().enumerate().take(t.cols) {
            // SAFETY: row `i` and column `j` exist in the output tile.
            unsafe {
                let c = t.c.offset(i as isize * t.row_stride).add(j);
                *c = if t.accumulate { (*c).plus(sum) } else { sum };
            }
        }
    }
}

/// # Safety
/// The tile's operands are valid.
unsafe fn portable_tile<A: Accumulator>(t: &Tile<A>) {
    // SAFETY: as the caller promises.
    unsafe { generic_tile(t) }
}

/// # Safety
/// The tile's operands are valid.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn int_tile_avx512<A: Accumulator>(t: &Tile<A>) {
    // SAFETY: as the caller promises.
    unsafe { generic_tile(t) }
}

/// # Safety
/// The tile's operands are valid.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn int_tile_avx2<A: Accumulator>(t: &Tile<A>) {
    // SAFETY: as the caller promises.
    unsafe { generic_tile(t) }
}
