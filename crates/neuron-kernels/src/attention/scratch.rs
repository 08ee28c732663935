//! Working memory of one task: kept by its thread, so that a kernel allocates nothing once it is warm.

use std::cell::Cell;
use std::mem::MaybeUninit;

/// What a thread keeps between tasks, in bytes.
const KEPT: usize = 8 << 20;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "gives the line its size")] MaybeUninit<[u8; 64]>);

thread_local! {
    static MEMORY: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Hands out pieces of the working memory, each on a cache line of its own.
pub(super) struct Scratch {
    next: *mut u8,
    left: usize,
}

impl Scratch {
    /// Bytes that `len` elements of `T` take.
    pub fn size<T>(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(size_of::<Line>())
    }

    /// Uninitialised memory for `len` elements, apart from every other piece.
    ///
    /// # Panics
    /// If the pieces exceed what was asked of [`with`].
    pub fn take<T>(&mut self, len: usize) -> *mut T {
        let bytes = Self::size::<T>(len);
        assert!(bytes <= self.left, "a task takes no more working memory than it announced");
        let piece = self.next;
        self.next = piece.wrapping_add(bytes);
        self.left -= bytes;
        piece.cast()
    }
}

/// Calls `body` with at least `bytes` of working memory.
pub(super) fn with<R>(bytes: usize, body: impl FnOnce(Scratch) -> R) -> R {
    let mut memory = MEMORY.take();
    let lines = bytes.div_ceil(size_of::<Line>());
    if memory.len() < lines {
        memory.clear();
        memory.resize(lines, Line(MaybeUninit::uninit()));
    }
    let result = body(Scratch { next: memory.as_mut_ptr().cast(), left: size_of_val(memory.as_slice()) });
    if size_of_val(memory.as_slice()) <= KEPT {
        MEMORY.set(memory);
    }
    result
}
