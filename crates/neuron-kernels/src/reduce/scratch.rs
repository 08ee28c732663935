//! Working memory of a task, kept by its thread from one kernel to the next.

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
pub(crate) fn sum<C: super::element::Float, const L: usize>(n: usize, f: impl Fn(usize) -> C) -> C {
    let mut total = C::ZERO;
    let mut i = 0;
    while i < n {
        let end = n.min(i + 64 * L);
        let mut acc = [C::ZERO; L];
        while i + L <= end {
            for (l, acc) in acc.iter_mut().enumerate() {
                *acc += f(i + l);
            }
            i += L;
        }
        if i < end {
            let mut rest = [C::ZERO; L];
            for (l, rest) in rest.iter_mut().enumerate().take(end - i) {
                *rest = f(i + l);
            }
            for l in 0..L {
                acc[l] += rest[l];
            }
            i = end;
        }
        let mut half = L / 2;
        while half > 0 {
            for l in 0..half {
                acc[l] += acc[l + half];
            }
            half /= 2;
        }
        total += acc[0];
    }
    total
}
