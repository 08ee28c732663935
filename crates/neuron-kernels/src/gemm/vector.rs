//! Few rows: matrix times vector, and up to four vectors at once. `b` is read once, where it lies.

use super::blocked::Product;
use super::element::{Accumulator, Element};
use super::output::Output;
use super::pack::{Strip, pack};
use super::scratch::{self, Slot};
use crate::pool::parallel_for;

/// Most rows of `a`.
pub(super) const ROWS: usize = 4;
/// Bytes of `b` per task: some tens of microseconds of memory bandwidth.
const TASK_BYTES: usize = 512 << 10;
/// Most parts the sums are cut into.
const MOST_PARTS: usize = 16;

/// True if this product has few enough rows, and a `b` without gaps in one direction.
pub(super) fn covers(p: &Product) -> bool {
    p.m <= ROWS && p.k > 0 && (p.b[0] == 1 || p.b[1] == 1)
}

/// Some columns of a product, over some steps of the sums.
#[derive(Clone, Copy)]
pub(super) struct Columns<A, S> {
    /// Rows of `a`, 1 to [`ROWS`].
    pub rows: usize,
    /// Length of the sums.
    pub depth: usize,
    /// Columns.
    pub cols: usize,
    /// The rows of `a`, each contiguous.
    pub a: *const A,
    /// Distance between rows of `a`.
    pub a_stride: usize,
    /// First element of the columns of `b`.
    pub b: *const S,
    /// Strides of `b` along the sums and along the columns; one of them is 1.
    pub strides: [isize; 2],
    /// `[rows, cols]`.
    pub sums: *mut A,
    /// Distance between rows of sums.
    pub stride: usize,
}

/// Addresses that the tasks share.
struct Shared<A, S> {
    rows: *const A,
    b: *const S,
    partial: *mut A,
}
// SAFETY: tasks read the operands, and write disjoint partial sums.
unsafe impl<A, S> Sync for Shared<A, S> {}

/// Computes a product that [`covers`] accepts.
///
/// # Safety
/// The operands are valid for the sizes and strides.
pub(super) unsafe fn multiply<A: Accumulator, S: Element<A>, D: Element<A>>(
    p: &Product,
    a: *const S,
    b: *const S,
    out: &Output<A, D>,
) {
    let (chunk, part) = cut(p, size_of::<S>());
    let (chunks, parts) = (p.n.div_ceil(chunk), p.k.div_ceil(part));
    let partial = if parts > 1 { parts * p.m * p.n } else { 0 };
    scratch::with(Slot::Rows, p.m * p.k + partial, |rows: *mut A| {
        for i in 0..p.m {
            let row = a.wrapping_offset(i as isize * p.a[0]);
            let strip = Strip { start: row, across: p.a[1], along: 0, width: p.k, depth: 1 };
            // SAFETY: row `i` lies in `a`, and there is room for it.
            unsafe { pack(&strip, p.k, rows.add(i * p.k)) };
        }
        let operands = Shared { rows, b, partial: rows.wrapping_add(p.m * p.k) };
        let operands = &operands;
        let task = |first: usize, from: usize, sums: *mut A, stride: usize| {
            let columns = Columns {
                rows: p.m,
                depth: (p.k - from).min(part),
                cols: (p.n - first).min(chunk),
                a: operands.rows.wrapping_add(from),
                a_stride: p.k,
                b: operands.b.wrapping_offset(from as isize * p.b[0] + first as isize * p.b[1]),
                strides: p.b,
                sums,
                stride,
            };
            // SAFETY: the columns lie in `b`, and the caller's sums have room for them.
            unsafe { sum(&columns) };
            columns.cols
        };
        if parts == 1 {
            parallel_for(chunks, |c| {
                let first = c * chunk;
                scratch::with(Slot::Sums, p.m * chunk, |sums| {
                    let cols = task(first, 0, sums, chunk);
                    // SAFETY: the sums of these columns were just written.
                    unsafe { out.at(0, first).finish(sums, chunk as isize, p.m, cols) };
                });
            });
            return;
        }
        parallel_for(chunks * parts, |t| {
            let (first, q) = (t % chunks * chunk, t / chunks);
            task(first, q * part, operands.partial.wrapping_add(q * p.m * p.n + first), p.n);
        });
        // The parts are added in their order, whoever made them.
        let finish = 1024;
        parallel_for(p.n.div_ceil(finish), |c| {
            let first = c * finish;
            let cols = (p.n - first).min(finish);
            // SAFETY: every part of the sums was written, and this task has these columns for itself.
            unsafe {
                let total = operands.partial.add(first);
                for i in (p.m..parts * p.m).map(|i| (i % p.m, i)) {
                    let total = std::slice::from_raw_parts_mut(total.add(i.0 * p.n), cols);
                    let part = std::slice::from_raw_parts(operands.partial.add(i.1 * p.n + first), cols);
                    total.iter_mut().zip(part).for_each(|(t, &x)| *t = t.plus(x));
                }
                out.at(0, first).finish(total, p.n as isize, p.m, cols);
            }
        });
    });
}

/// Columns and steps of the sums per task.
fn cut(p: &Product, size: usize) -> (usize, usize) {
    if p.b[1] != 1 {
        return ((TASK_BYTES / (p.k * size)).next_multiple_of(64).clamp(64, 1024), p.k);
    }
    // Rows of `b` are read whole, as memory likes it, as far as their sums stay in the first-level cache.
    let chunk = p.n.min(4096 / p.m).max(1);
    let most = p.k.div_ceil(MOST_PARTS);
    (chunk, (TASK_BYTES / (chunk * size)).max(most).next_multiple_of(8).min(p.k))
}

/// # Safety
/// The operands are valid.
unsafe fn sum<A: Accumulator, S: Element<A>>(t: &Columns<A, S>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the level is the processor's.
    unsafe {
        if A::micro().level == super::micro::Level::Avx512 && super::vector_avx512::sum(t) {
            return;
        }
    }
    crate::simd::vectorized(
        #[inline(always)]
        || {
            // SAFETY: as the caller promises.
            unsafe { if t.strides[1] == 1 { axpy(t) } else { dot(t) } }
        },
    );
}

/// Columns are neighbours: rows of `b` are scaled and added.
///
/// # Safety
/// The operands are valid.
#[inline(always)]
unsafe fn axpy<A: Accumulator, S: Element<A>>(t: &Columns<A, S>) {
    for i in 0..t.rows {
        // SAFETY: row `i`, step `p` and the columns exist.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(t.sums.add(i * t.stride), t.cols);
            sums.fill(A::default());
            for p in 0..t.depth {
                let x = *t.a.add(i * t.a_stride + p);
                let b = t.b.offset(p as isize * t.strides[0]);
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.multiply_add(x, (*b.add(j)).widen());
                }
            }
        }
    }
}

/// Steps of the sums are neighbours: dot products, in 16 interleaved partial sums.
///
/// # Safety
/// The operands are valid.
#[inline(always)]
unsafe fn dot<A: Accumulator, S: Element<A>>(t: &Columns<A, S>) {
    for j in 0..t.cols {
        let b = t.b.wrapping_offset(j as isize * t.strides[1]);
        for i in 0..t.rows {
            // SAFETY: row `i`, column `j` and the steps exist.
            unsafe {
                let a = t.a.add(i * t.a_stride);
                let mut partial = [A::default(); 16];
                let whole = t.depth / 16 * 16;
                for p in (0..whole).step_by(16) {
                    for (l, s) in partial.iter_mut().enumerate() {
                        *s = s.multiply_add(*a.add(p + l), (*b.add(p + l)).widen());
                    }
                }
                for p in whole..t.depth {
                    partial[p - whole] = partial[p - whole].multiply_add(*a.add(p), (*b.add(p)).widen());
                }
                *t.sums.add(i * t.stride + j) = partial.into_iter().fold(A::default(), A::plus);
            }
        }
    }
}
