//! Small products on the calling thread, without packing where the layout allows it.

use super::element::Accumulator;
use super::micro::Level;
use super::pack::{Strip, pack};
use super::scratch::{self, Slot};

/// Columns of a direct tile.
const COLS: usize = 32;
/// Rows of a direct tile: as many row addresses as there are registers for.
const ROWS: usize = 8;
/// Steps of the sums between writes, which bounds the packed panel.
const DEPTH: usize = 256;

/// `c[i, j] = alpha * sum over p of a[i, p] * b[p, j]`, added to what `c` holds if `accumulate`.
///
/// Sizes are `m`, `n`, `k`; strides are in elements: `rsa` steps `a` by a row, `csa` by a column, and so on. It runs on
/// the calling thread and allocates nothing once the thread has called it. It is fastest where `csc` is 1 and `csb` is 1;
/// a `b` of other strides is packed by panels.
///
/// # Safety
/// The operands are valid for the sizes and strides; `c` overlaps neither `a` nor `b`.
#[allow(clippy::too_many_arguments, reason = "the argument list of BLAS sgemm, which callers know")]
pub unsafe fn f32_block(
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    rsa: isize,
    csa: isize,
    b: *const f32,
    rsb: isize,
    csb: isize,
    c: *mut f32,
    rsc: isize,
    csc: isize,
    alpha: f32,
    accumulate: bool,
) {
    if csc != 1 && rsc == 1 && n > 1 {
        // SAFETY: the transposed product of the same operands.
        return unsafe { f32_block(n, m, k, b, csb, rsb, a, csa, rsa, c, csc, rsc, alpha, accumulate) };
    }
    for p in (0..k.max(1)).step_by(DEPTH) {
        let depth = (k - p).min(DEPTH);
        let accumulate = accumulate || p > 0;
        let a = a.wrapping_offset(p as isize * csa);
        for j in (0..n).step_by(COLS) {
            let cols = (n - j).min(COLS);
            let b = b.wrapping_offset(p as isize * rsb + j as isize * csb);
            let rows = |b: *const f32, b_stride: isize| {
                for i in (0..m).step_by(ROWS) {
                    let tile = Direct {
                        rows: (m - i).min(ROWS),
                        cols,
                        depth,
                        a: a.wrapping_offset(i as isize * rsa),
                        a_strides: [rsa, csa],
                        b,
                        b_stride,
                        c: c.wrapping_offset(i as isize * rsc + j as isize * csc),
                        row_stride: rsc,
                        alpha,
                        accumulate,
                    };
                    // SAFETY: the tile is part of the operands.
                    unsafe { direct(&tile, csc) };
                }
            };
            if csb == 1 || cols == 1 || depth == 0 {
                rows(b, rsb);
            } else {
                scratch::with(Slot::Panel, DEPTH * COLS, |panel| {
                    let strip = Strip { start: b, across: csb, along: rsb, width: cols, depth };
                    // SAFETY: the strip is part of `b`, and the panel holds it.
                    unsafe { pack::<f32, f32>(&strip, COLS, panel) };
                    rows(panel, COLS as isize);
                });
            }
        }
    }
}

/// A tile of operands that are not packed: `c = alpha * (a @ b)`, or added to `c`. Columns of `b` and `c` are neighbours.
pub(super) struct Direct {
    /// Rows, 1 to 8.
    pub rows: usize,
    /// Columns, 1 to 32.
    pub cols: usize,
    /// Length of the sums.
    pub depth: usize,
    /// First element of the rows.
    pub a: *const f32,
    /// Distances between rows and between steps of the sums.
    pub a_strides: [isize; 2],
    /// First element of the columns.
    pub b: *const f32,
    /// Distance between steps of the sums.
    pub b_stride: isize,
    /// First element of the output.
    pub c: *mut f32,
    /// Distance between output rows.
    pub row_stride: isize,
    /// Factor.
    pub alpha: f32,
    /// Add to what `c` holds.
    pub accumulate: bool,
}

/// The tile, with output columns at any stride.
///
/// # Safety
/// The tile's operands are valid.
unsafe fn direct(t: &Direct, col_stride: isize) {
    // SAFETY: as the caller promises; the level is the processor's.
    unsafe {
        if col_stride == 1 || t.cols == 1 {
            return match f32::micro().level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => super::avx512::direct(t),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => direct_avx2(t),
                Level::Portable => direct_portable(t),
            };
        }
        let mut sums = [0f32; ROWS * COLS];
        let whole = Direct { c: sums.as_mut_ptr(), row_stride: COLS as isize, accumulate: false, ..*t };
        direct(&whole, 1);
        for i in 0..t.rows {
            for j in 0..t.cols {
                let c = t.c.offset(i as isize * t.row_stride + j as isize * col_stride);
                let sum = sums[i * COLS + j];
                *c = if t.accumulate { *c + sum } else { sum };
            }
        }
    }
}

/// # Safety
/// The tile's operands are valid.
#[inline(always)]
unsafe fn direct_portable(t: &Direct) {
    for i in 0..t.rows as isize {
        let mut sums = [0f32; COLS];
        for p in 0..t.depth as isize {
            // SAFETY: row `i`, step `p` and the columns exist.
            unsafe {
                let x = *t.a.offset(i * t.a_strides[0] + p * t.a_strides[1]);
                let b = t.b.offset(p * t.b_stride);
                if t.cols == COLS {
                    let b = *b.cast::<[f32; COLS]>();
                    sums.iter_mut().zip(b).for_each(|(s, y)| *s += x * y);
                } else {
                    sums.iter_mut().take(t.cols).enumerate().for_each(|(j, s)| *s += x * *b.add(j));
                }
            }
        }
        for (j, sum) in sums.iter().enumerate().take(t.cols) {
            // SAFETY: row `i` and column `j` exist in the output.
            unsafe {
                let c = t.c.offset(i * t.row_stride).add(j);
                *c = if t.accumulate { *c + sum * t.alpha } else { sum * t.alpha };
            }
        }
    }
}

/// # Safety
/// The tile's operands are valid.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn direct_avx2(t: &Direct) {
    // SAFETY: as the caller promises.
    unsafe { direct_portable(t) }
}
