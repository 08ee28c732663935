//! Packing: a strip of an operand laid out in the order the register tile reads it, widened on the way.

use super::element::{Accumulator, Element};

/// A strip of an operand: `width` rows of `a`, or columns of `b`, along `depth` steps of the summed dimension.
#[derive(Clone, Copy)]
pub(crate) struct Strip<S> {
    /// First element.
    pub start: *const S,
    /// Distance between the rows of `a` or the columns of `b`.
    pub across: isize,
    /// Distance between steps of the summed dimension.
    pub along: isize,
    /// Rows or columns in the strip.
    pub width: usize,
    /// Steps of the summed dimension.
    pub depth: usize,
}

/// Writes the strip as `[depth, padded]`, zero beyond its width.
///
/// # Safety
/// The strip is readable, and `packed` has room for `depth * padded` values.
pub(crate) unsafe fn pack<A: Accumulator, S: Element<A>>(strip: &Strip<S>, padded: usize, packed: *mut A) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the level is the processor's.
    unsafe {
        if A::micro().level == super::micro::Level::Avx512 && super::pack_avx512::pack(strip, padded, packed) {
            return;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { pack_portable(strip, padded, packed) }
}

/// # Safety
/// As [`pack`].
unsafe fn pack_portable<A: Accumulator, S: Element<A>>(strip: &Strip<S>, padded: usize, packed: *mut A) {
    let &Strip { start, across, along, width, depth } = strip;
    for p in 0..depth {
        // SAFETY: step `p` lies in the strip and in the packed room.
        unsafe {
            let from = start.offset(p as isize * along);
            let to = packed.add(p * padded);
            if across == 1 {
                for i in 0..width {
                    *to.add(i) = (*from.add(i)).widen();
                }
            } else {
                for i in 0..width {
                    *to.add(i) = (*from.offset(i as isize * across)).widen();
                }
            }
            for i in width..padded {
                *to.add(i) = A::default();
            }
        }
    }
}
