//! The inner loops of row kernels, and their working memory, which a thread keeps from one kernel to the next.

#![allow(clippy::needless_range_loop, reason = "one index walks several rows of lanes")]

use super::element::Float;
use super::fold::{Combine, Sum, horizontal};
use std::cell::Cell;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "memory of this size and alignment, never looked at as such")] [u64; 8]);

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Longest buffer a thread keeps, in bytes.
const KEEP: usize = 4 << 20;

/// Uninitialised memory, aligned to 64 bytes. Borrowed from the thread: while one is alive, another is allocated.
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    /// Room for `n` values of type `C`.
    pub(crate) fn new<C: Copy>(n: usize) -> Scratch {
        let lines = (n * size_of::<C>()).div_ceil(size_of::<Line>());
        let mut memory = if n == 0 { Vec::new() } else { KEPT.take() };
        if memory.capacity() < lines {
            memory = Vec::with_capacity(lines);
        }
        Scratch(memory)
    }

    /// The first value.
    pub(crate) fn get<C: Copy>(&mut self) -> *mut C {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = self.0.capacity() * size_of::<Line>();
        if bytes > 0 && bytes <= KEEP {
            KEPT.set(std::mem::take(&mut self.0));
        }
    }
}

/// Sums `f(0)` to `f(n - 1)`: element `i` in lane `i % L` within blocks of 64 rows of lanes, then the blocks.
#[inline(always)]
pub(crate) fn sum<C: Float, const L: usize>(n: usize, f: impl Fn(usize) -> C) -> C
where
    Sum: Combine<C>,
{
    sums::<C, L, 1>(
        n,
        #[inline(always)]
        |i| [f(i)],
    )[0]
}

/// As [`sum`], `N` sums in one pass.
#[inline(always)]
pub(crate) fn sums<C: Float, const L: usize, const N: usize>(n: usize, f: impl Fn(usize) -> [C; N]) -> [C; N]
where
    Sum: Combine<C>,
{
    let mut total = [C::ZERO; N];
    let mut i = 0;
    while i < n {
        let end = n.min(i + 64 * L);
        let mut acc = [[C::ZERO; L]; N];
        while i + L <= end {
            for l in 0..L {
                let values = f(i + l);
                for k in 0..N {
                    acc[k][l] += values[k];
                }
            }
            i += L;
        }
        if i < end {
            // A whole row of lanes again: indexing the lanes by a variable would take them out of the registers.
            let mut rest = [[C::ZERO; L]; N];
            for l in 0..end - i {
                let values = f(i + l);
                for k in 0..N {
                    rest[k][l] = values[k];
                }
            }
            for k in 0..N {
                for l in 0..L {
                    acc[k][l] += rest[k][l];
                }
            }
            i = end;
        }
        for k in 0..N {
            total[k] += horizontal::<C, Sum, L>(acc[k]);
        }
    }
    total
}

/// `to[i] = f(i, from[i])`; both may be the same memory, if not shifted.
///
/// # Safety
/// `n` elements are readable at `from` and writable at `to`.
#[inline(always)]
pub(crate) unsafe fn map<A: Copy, B: Copy>(from: *const A, to: *mut B, n: usize, f: impl Fn(usize, A) -> B) {
    // SAFETY: passed on to the caller.
    unsafe {
        // Two pointers to one place would fail the check for overlap that vector code starts with.
        if size_of::<A>() == size_of::<B>() && from.addr() == to.addr() {
            for i in 0..n {
                let p = to.add(i);
                *p = f(i, *p.cast::<A>());
            }
        } else {
            for i in 0..n {
                *to.add(i) = f(i, *from.add(i));
            }
        }
    }
}
