//! `std::sort`, `std::partial_sort` and `std::nth_element` as GCC's library orders equal elements.
//!
//! Introsort with the median of three as its pivot, runs of up to 16 finished by insertion, a heap where the recursion
//! gets too deep. What is compared and exchanged when decides where equal elements end up, so every step counts.

use crate::pool::parallel_for;
use parking_lot::Mutex;

/// Runs up to this long are left to insertion sort.
const SHORT: usize = 16;

/// Twice the logarithm of the number of elements: partitions deeper than this are sorted by a heap.
fn depth_limit(count: usize) -> u32 {
    2 * count.ilog2()
}

/// `std::sort`
pub(super) fn sort<E: Copy>(elements: &mut [E], less: &impl Fn(E, E) -> bool) {
    if elements.is_empty() {
        return;
    }
    introsort(elements, depth_limit(elements.len()), less);
    finish(elements, less);
}

/// [`sort`] for many elements: what lies on either side of a partition is sorted independently, on any thread.
pub(super) fn sort_shared<E: Copy + Send>(elements: &mut [E], chunk: usize, less: &(impl Fn(E, E) -> bool + Sync)) {
    let depth = depth_limit(elements.len().max(1));
    let (mut parts, mut large) = (Vec::new(), vec![(&mut *elements, depth)]);
    while let Some((part, depth)) = large.pop() {
        if part.len() <= chunk || depth == 0 {
            parts.push(Mutex::new((part, depth)));
            continue;
        }
        let cut = partition(part, less);
        let (low, high) = part.split_at_mut(cut);
        large.extend([(low, depth - 1), (high, depth - 1)]);
    }
    parallel_for(parts.len(), |i| {
        let (part, depth) = &mut *parts[i].lock();
        introsort(part, *depth, less);
    });
    drop(parts);
    finish(elements, less);
}

/// The runs that [`introsort`] leaves, by insertion.
fn finish<E: Copy>(elements: &mut [E], less: &impl Fn(E, E) -> bool) {
    let (head, _) = elements.split_at_mut(elements.len().min(SHORT));
    insertion_sort(head, less);
    for i in SHORT..elements.len() {
        insert(elements, i, less);
    }
}

/// `std::partial_sort`: the `k` first in order.
pub(super) fn partial_sort<E: Copy>(elements: &mut [E], k: usize, less: &impl Fn(E, E) -> bool) {
    heap_select(elements, k, less);
    sort_heap(&mut elements[..k], less);
}

/// `std::nth_element`: the element of rank `nth` in its place, no greater one before it.
pub(super) fn nth_element<E: Copy>(elements: &mut [E], nth: usize, less: &impl Fn(E, E) -> bool) {
    if nth >= elements.len() {
        return;
    }
    let (mut first, mut last) = (0, elements.len());
    let mut depth = depth_limit(last);
    while last - first > 3 {
        if depth == 0 {
            heap_select(&mut elements[first..last], nth + 1 - first, less);
            elements.swap(first, nth);
            return;
        }
        depth -= 1;
        let cut = first + partition(&mut elements[first..last], less);
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    insertion_sort(&mut elements[first..last], less);
}

fn introsort<E: Copy>(mut elements: &mut [E], mut depth: u32, less: &impl Fn(E, E) -> bool) {
    while elements.len() > SHORT {
        if depth == 0 {
            let count = elements.len();
            return partial_sort(elements, count, less);
        }
        depth -= 1;
        let cut = partition(elements, less);
        let (low, high) = elements.split_at_mut(cut);
        introsort(high, depth, less);
        elements = low;
    }
}

/// Moves the median of the second, the middle and the last element to the front and partitions the rest around it.
fn partition<E: Copy>(elements: &mut [E], less: &impl Fn(E, E) -> bool) -> usize {
    let (a, b, c) = (1, elements.len() / 2, elements.len() - 1);
    let (x, y, z) = (elements[a], elements[b], elements[c]);
    let median = if less(x, y) {
        if less(y, z) {
            b
        } else if less(x, z) {
            c
        } else {
            a
        }
    } else if less(x, z) {
        a
    } else if less(y, z) {
        c
    } else {
        b
    };
    elements.swap(0, median);
    let pivot = elements[0];
    let (mut low, mut high) = (1, elements.len());
    loop {
        while less(elements[low], pivot) {
            low += 1;
        }
        high -= 1;
        while less(pivot, elements[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        elements.swap(low, high);
        low += 1;
    }
}

/// Moves element `i` down to its place in the sorted elements before it, the first of which is no greater.
#[inline(always)]
fn insert<E: Copy>(elements: &mut [E], mut i: usize, less: &impl Fn(E, E) -> bool) {
    let value = elements[i];
    while less(value, elements[i - 1]) {
        elements[i] = elements[i - 1];
        i -= 1;
    }
    elements[i] = value;
}

fn insertion_sort<E: Copy>(elements: &mut [E], less: &impl Fn(E, E) -> bool) {
    for i in 1..elements.len() {
        let value = elements[i];
        if less(value, elements[0]) {
            elements.copy_within(0..i, 1);
            elements[0] = value;
        } else {
            insert(elements, i, less);
        }
    }
}

/// The `k` first as a heap at the front, the greatest of them on top.
fn heap_select<E: Copy>(elements: &mut [E], k: usize, less: &impl Fn(E, E) -> bool) {
    let (heap, rest) = elements.split_at_mut(k);
    for parent in (0..k / 2).rev() {
        let value = heap[parent];
        sift(heap, parent, value, less);
    }
    if k == 0 {
        return;
    }
    for element in rest {
        if less(*element, heap[0]) {
            let value = *element;
            *element = heap[0];
            sift(heap, 0, value, less);
        }
    }
}

fn sort_heap<E: Copy>(heap: &mut [E], less: &impl Fn(E, E) -> bool) {
    for last in (1..heap.len()).rev() {
        let value = heap[last];
        heap[last] = heap[0];
        sift(&mut heap[..last], 0, value, less);
    }
}

/// Fills the hole at `top` with `value`: the hole sinks to a leaf along the greater children, then the value rises.
#[inline(always)]
fn sift<E: Copy>(heap: &mut [E], top: usize, value: E, less: &impl Fn(E, E) -> bool) {
    let count = heap.len();
    let mut hole = top;
    while hole < (count - 1) / 2 {
        let right = 2 * hole + 2;
        let child = if less(heap[right], heap[right - 1]) { right - 1 } else { right };
        heap[hole] = heap[child];
        hole = child;
    }
    if count.is_multiple_of(2) && hole == (count - 2) / 2 {
        heap[hole] = heap[2 * hole + 1];
        hole = 2 * hole + 1;
    }
    while hole > top && less(heap[(hole - 1) / 2], value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(count: usize, values: u32, seed: &mut u32) -> Vec<(u32, usize)> {
        let mut next = || {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*seed >> 8) % values
        };
        (0..count).map(|i| (next(), i)).collect()
    }

    fn less(a: (u32, usize), b: (u32, usize)) -> bool {
        a.0 < b.0
    }

    #[test]
    fn every_algorithm_orders() {
        let mut seed = 1;
        for count in [0, 1, 2, 3, 4, 15, 16, 17, 33, 100, 1000, 5000] {
            for values in [1, 2, 7, 1 << 20] {
                let drawn = draw(count, values, &mut seed);
                let mut expected: Vec<u32> = drawn.iter().map(|e| e.0).collect();
                expected.sort_unstable();
                let keys = |e: &[(u32, usize)]| e.iter().map(|e| e.0).collect::<Vec<_>>();
                let mut sorted = drawn.clone();
                sort(&mut sorted, &less);
                assert_eq!(keys(&sorted), expected);
                let mut shared = drawn.clone();
                sort_shared(&mut shared, 64, &less);
                assert_eq!(shared, sorted, "the same order of equal elements");
                for k in [0, 1, 2, count / 3, count] {
                    if k > count {
                        continue;
                    }
                    let mut part = drawn.clone();
                    partial_sort(&mut part, k, &less);
                    assert_eq!(keys(&part[..k]), expected[..k]);
                    let mut nth = drawn.clone();
                    nth_element(&mut nth, k, &less);
                    if k < count {
                        assert_eq!(nth[k].0, expected[k]);
                        assert!(nth[..k].iter().all(|e| e.0 <= expected[k]));
                    }
                    let mut positions: Vec<usize> = nth.iter().map(|e| e.1).collect();
                    positions.sort_unstable();
                    assert!(positions.into_iter().eq(0..count));
                }
            }
        }
    }

    #[test]
    fn up_to_sixteen_are_stable() {
        let mut seed = 7;
        let mut drawn = draw(16, 3, &mut seed);
        let mut expected = drawn.clone();
        expected.sort();
        sort(&mut drawn, &less);
        assert_eq!(drawn, expected);
    }
}
