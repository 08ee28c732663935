//! Packing buffers that each thread keeps from call to call.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;

/// A page: vectors and cache lines are aligned in it.
const PAGE: usize = 4096;
/// A huge page. Packed operands are read in an order that would miss the TLB with small ones.
const HUGE: usize = 2 << 20;

fn alignment(bytes: usize) -> usize {
    if bytes >= HUGE / 2 { HUGE } else { PAGE }
}

/// What a buffer is for: a thread may use one of each at the same time.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    /// The rows of `a`, shared by the tasks of one product.
    Rows,
    /// One panel of `b`.
    Panel,
    /// Sums that are not yet rounded to the output type.
    Sums,
}

struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

impl Buffer {
    const EMPTY: Buffer = Buffer { start: NonNull::dangling(), bytes: 0 };

    fn layout(&self) -> Layout {
        Layout::from_size_align(self.bytes, alignment(self.bytes)).expect("a size that was allocated before")
    }

    fn reserve(&mut self, bytes: usize) {
        if bytes <= self.bytes {
            return;
        }
        *self = Buffer::EMPTY;
        let align = alignment(bytes);
        let layout = Layout::from_size_align(bytes.next_multiple_of(align), align).expect("a size within memory");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        #[cfg(target_os = "linux")]
        if align == HUGE && !start.is_null() {
            // SAFETY: advice on a mapping of our own; refusal does no harm.
            unsafe { libc::madvise(start.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        *self =
            Buffer { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), bytes: layout.size() };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout()) };
        }
    }
}

thread_local! {
    static BUFFERS: [Cell<Buffer>; 3] = const { [const { Cell::new(Buffer::EMPTY) }; 3] };
}

/// Calls `body` with uninitialized room for `len` values of `T`; nothing is allocated once the thread had as much.
pub(crate) fn with<T: Copy, R>(slot: Slot, len: usize, body: impl FnOnce(*mut T) -> R) -> R {
    // While `body` runs the slot is empty: a nested use would get a buffer of its own, not this one.
    let mut buffer = BUFFERS.with(|b| b[slot as usize].replace(Buffer::EMPTY));
    buffer.reserve(len * size_of::<T>());
    let result = body(buffer.start.as_ptr().cast());
    BUFFERS.with(|b| b[slot as usize].set(buffer));
    result
}
