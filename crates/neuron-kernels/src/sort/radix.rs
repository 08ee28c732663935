//! Stable sorting and selection of entries.

use super::key::Entry;
use crate::index::nest::piece;
use crate::pool::parallel_for;

/// Up to this many entries comparisons are quicker than passes.
const COMPARISONS: usize = 256;

/// Entries of one task of a parallel pass.
pub(super) const CHUNK: usize = 64 << 10;

const DIGITS: usize = 256;

/// Sorts `entries`, which are in the order of their positions, by `bytes` bytes of their keys. `spare` is as long.
pub(super) fn sort<E: Entry>(entries: &mut [E], spare: &mut [E], bytes: usize) {
    if entries.len() <= COMPARISONS {
        entries.sort_unstable();
        return;
    }
    let mut counts = [[0u32; DIGITS]; 8];
    for entry in &*entries {
        for (pass, counts) in counts[..bytes].iter_mut().enumerate() {
            counts[entry.digit(pass)] += 1;
        }
    }
    let length = entries.len();
    let (mut from, mut to) = (&mut *entries, &mut *spare);
    let mut swapped = false;
    for (pass, counts) in counts[..bytes].iter_mut().enumerate() {
        // All alike in this byte.
        if counts[from[0].digit(pass)] as usize == length {
            continue;
        }
        let mut sum = 0;
        for count in counts.iter_mut() {
            (sum, *count) = (sum + *count, sum);
        }
        for &entry in &*from {
            let place = &mut counts[entry.digit(pass)];
            to[*place as usize] = entry;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
        swapped = !swapped;
    }
    if swapped {
        entries.copy_from_slice(spare);
    }
}

/// An array that tasks write disjoint elements of.
#[derive(Clone, Copy)]
pub(super) struct Shared<E>(*mut E);

// SAFETY: users write disjoint elements.
unsafe impl<E: Send> Send for Shared<E> {}
// SAFETY: as above.
unsafe impl<E: Send> Sync for Shared<E> {}

impl<E> Shared<E> {
    pub fn new(of: &mut [E]) -> Self {
        Shared(of.as_mut_ptr())
    }

    /// # Safety
    /// The range lies within the array and no other task has a part of it.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that ranges are disjoint")]
    pub unsafe fn slice(&self, range: std::ops::Range<usize>) -> &mut [E] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }

    /// # Safety
    /// `at` lies within the array and no other task writes there.
    #[inline(always)]
    pub unsafe fn write(&self, at: usize, value: E) {
        // SAFETY: the caller's contract.
        unsafe { *self.0.add(at) = value };
    }
}

/// [`sort`] for many entries, shared among threads.
pub(super) fn sort_shared<E: Entry>(entries: &mut [E], spare: &mut [E], bytes: usize) {
    let length = entries.len();
    let chunks = length.div_ceil(CHUNK);
    let mut counts = vec![[0u32; DIGITS]; chunks];
    let (mut from, mut to) = (&mut *entries, &mut *spare);
    let mut swapped = false;
    for pass in 0..bytes {
        let shared = Shared::new(&mut counts);
        parallel_for(chunks, |c| {
            let mut local = [0u32; DIGITS];
            for entry in &from[piece(length, CHUNK, c)] {
                local[entry.digit(pass)] += 1;
            }
            // SAFETY: the element of this task.
            unsafe { shared.write(c, local) };
        });
        // Places by digit, then by chunk: stable.
        let mut sum = 0;
        let mut alike = false;
        for digit in 0..DIGITS {
            let before = sum;
            for counts in &mut counts {
                (sum, counts[digit]) = (sum + counts[digit], sum);
            }
            alike |= (sum - before) as usize == length;
        }
        if alike {
            continue;
        }
        let shared = Shared::new(to);
        parallel_for(chunks, |c| {
            let mut places = counts[c];
            for &entry in &from[piece(length, CHUNK, c)] {
                let place = &mut places[entry.digit(pass)];
                // SAFETY: places of different chunks and digits are disjoint and below the length.
                unsafe { shared.write(*place as usize, entry) };
                *place += 1;
            }
        });
        std::mem::swap(&mut from, &mut to);
        swapped = !swapped;
    }
    if swapped {
        entries.copy_from_slice(spare);
    }
}

/// The smallest `k` of a stream of entries, in order; for `k` well below the length of the stream.
pub(super) struct Smallest<E> {
    k: usize,
    kept: Vec<E>,
    length: usize,
    /// Entries from this one on are not among the smallest.
    limit: Option<E>,
}

/// Entries that are looked at together.
const GROUP: usize = 16;

/// Entries offered at a time.
pub(super) const OFFER: usize = 256;

impl<E: Entry> Smallest<E> {
    pub fn new(k: usize) -> Self {
        Smallest { k, kept: vec![E::default(); 2 * k + 2 * OFFER], length: 0, limit: None }
    }

    pub fn clear(&mut self) {
        (self.length, self.limit) = (0, None);
    }

    /// Takes notice of at most [`OFFER`] entries.
    #[inline(always)]
    pub fn offer(&mut self, entries: &[E]) {
        if self.length + entries.len() > self.kept.len() {
            self.shrink();
        }
        let room = &mut self.kept[self.length..];
        let Some(limit) = self.limit else {
            room[..entries.len()].copy_from_slice(entries);
            self.length += entries.len();
            return;
        };
        // Few are taken once the limit is good: look at a group before its entries.
        let mut taken = 0;
        for group in entries.chunks(GROUP) {
            if group.iter().fold(false, |any, entry| any | (*entry < limit)) {
                for &entry in group {
                    room[taken] = entry;
                    taken += usize::from(entry < limit);
                }
            }
        }
        self.length += taken;
    }

    /// Drops what is not among the smallest of what was offered.
    fn shrink(&mut self) {
        if self.length > self.k {
            let (_, limit, _) = self.kept[..self.length].select_nth_unstable(self.k - 1);
            self.limit = Some(*limit);
            self.length = self.k;
        }
    }

    /// The smallest entries, ascending.
    pub fn finish(&mut self) -> &[E] {
        self.shrink();
        let kept = &mut self.kept[..self.length];
        kept.sort_unstable();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::philox;

    fn entries(n: usize, mask: u64) -> Vec<u64> {
        (0..n).map(|i| u64::new(u64::from(philox(5, 0, i as u64)[0]) & mask, i as u32)).collect()
    }

    #[test]
    fn passes_agree_with_comparisons() {
        for (n, mask) in [(0, 0), (1, 1), (256, !0), (257, !0), (5000, !0), (5000, 0xFF00), (300, 0), (9000, 7)] {
            let mut sorted = entries(n, mask & 0xFFFF_FFFF);
            let mut expected = sorted.clone();
            expected.sort_unstable();
            sort(&mut sorted, &mut vec![0; n], 4);
            assert_eq!(sorted, expected, "{n} {mask:x}");
        }
    }

    #[test]
    fn shared_passes_agree_with_comparisons() {
        for mask in [!0, 0xFF00_00FF, 3] {
            let mut sorted = entries(3 * CHUNK + 17, mask & 0xFFFF_FFFF);
            let mut expected = sorted.clone();
            expected.sort_unstable();
            let mut spare = vec![0; sorted.len()];
            sort_shared(&mut sorted, &mut spare, 4);
            assert_eq!(sorted, expected);
        }
    }

    #[test]
    fn the_smallest_come_in_order() {
        for (n, k, mask) in [(1000, 3, !0), (5000, 400, !0), (5000, 50, 3), (10, 10, !0), (4, 9, !0), (3000, 1, 0)] {
            let all = entries(n, mask & 0xFFFF_FFFF);
            let mut expected = all.clone();
            expected.sort_unstable();
            expected.truncate(k);
            let mut smallest = Smallest::new(k);
            all.chunks(OFFER).for_each(|chunk| smallest.offer(chunk));
            assert_eq!(smallest.finish(), expected);
        }
    }
}
