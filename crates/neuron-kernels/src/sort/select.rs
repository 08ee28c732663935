//! Elements picked along a dimension: unstable sort, `torch.topk`, `kthvalue`, `median`, `mode`.

use super::key::{Entry, Keys, SortKey, Wide};
use super::radix::{CHUNK, sort as radix_sort, sort_shared};
use super::standard;
use super::{Line, PIECE};
use crate::index::nest::{Nest, at_least_1d, by_size, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, Selection, TensorType};
use std::cmp::Ordering;
use std::ops::Range;

/// Lines of this many elements are sorted by passes first: only one with equal elements needs the slower order. Longer
/// ones of narrow elements have some as a rule.
const PASSES: std::ops::Range<usize> = 64..1 << 13;

/// [`Selection`] along a dimension. Buffers: input, values, indices.
#[derive(Debug)]
pub struct Select {
    dtype: DType,
    selection: Selection,
    size: usize,
    /// Elements picked.
    k: usize,
    /// Dimensions but the one picked from: input, values, indices.
    lines: Nest<3>,
    /// Bytes between neighbours of a line: input, values, indices.
    steps: [isize; 3],
}

/// Memory that a task uses for line after line.
#[derive(Default)]
struct Scratch<E> {
    entries: Vec<E>,
    sorted: Vec<E>,
    spare: Vec<E>,
}

impl Select {
    /// Picks along `dim`, whose extent in the results is the number of elements picked. Any type and strides.
    ///
    /// # Errors
    /// Shapes that do not belong together, a rank outside the extent, lines of 2^32 elements or more.
    pub fn new(
        input: &TensorType,
        dim: usize,
        selection: Selection,
        values: &TensorType,
        indices: &TensorType,
    ) -> Result<Self, KernelError> {
        let [input, values, indices] = [input, values, indices].map(at_least_1d);
        let rank = input.rank();
        let size = input.sizes.get(dim).copied().unwrap_or(-1);
        let k = match selection {
            Selection::Sort { .. } => size,
            Selection::TopK { k, .. } => k,
            Selection::Kth { .. } | Selection::Median { .. } | Selection::Mode => 1,
        };
        let fits = dim < rank
            && values.sizes == indices.sizes
            && values.rank() == rank
            && (0..rank).all(|d| values.sizes[d] == if d == dim { k } else { input.sizes[d] })
            && (0..=size).contains(&k)
            && !matches!(selection, Selection::Kth { k } if !(0..size).contains(&k))
            && u32::try_from(size).is_ok();
        if !fits || values.dtype != input.dtype || indices.dtype != DType::I64 {
            let what = format!("{selection:?} of {input} along dimension {dim} to {values} and {indices}");
            return Err(KernelError::Unsupported { kernel: "select", what });
        }
        let tensors = [&input, &values, &indices];
        Ok(Select {
            dtype: input.dtype,
            selection,
            size: size as usize,
            k: k as usize,
            lines: Nest::of(&input.sizes, tensors, (0..rank).filter(|d| *d != dim)),
            steps: tensors.map(|t| (t.strides[dim] * t.dtype.size() as i64) as isize),
        })
    }

    /// # Safety
    /// The addresses are those of a line of elements of type `T`.
    unsafe fn line<T: SortKey, E: Entry>(&self, at: Line, scratch: &mut Scratch<E>) {
        let descending = match self.selection {
            Selection::Sort { descending } => descending,
            Selection::TopK { largest, .. } => largest,
            _ => false,
        };
        let keys = Keys::new(size_of::<T>(), descending);
        scratch.entries.resize(self.size, E::default());
        // SAFETY: the caller's contract.
        vectorized(|| unsafe { keys.entries::<T, E>(at.input, self.steps[0], 0, &mut scratch.entries) });
        let Scratch { entries, sorted, spare } = scratch;
        let less = |a: E, b: E| a.key() < b.key();
        let nan = self.dtype.is_float().then(|| u64::MAX >> (64 - 8 * size_of::<T>()));
        let picked: &[E] = match self.selection {
            Selection::Sort { .. } => sort_as_standard(entries, sorted, spare, keys.bytes),
            // What `torch.topk` does: both halves of the choice leave equal elements in another order.
            Selection::TopK { k, sorted, .. } => {
                let k = k as usize;
                if 64 * k <= self.size {
                    standard::partial_sort(entries, k, &less);
                } else {
                    standard::nth_element(entries, k - 1, &less);
                    if sorted {
                        standard::sort(&mut entries[..k - 1], &less);
                    }
                }
                &entries[..k]
            }
            Selection::Kth { k } => {
                quickselect(entries, k as usize);
                &entries[k as usize..=k as usize]
            }
            Selection::Median { ignore_nan } => {
                let is_nan = |e: &E| Some(e.key()) == nan;
                let nans = entries.iter().filter(|e| is_nan(e)).count();
                let at = match nans {
                    0 => (self.size - 1) / 2,
                    n if ignore_nan => (self.size - n).saturating_sub(1) / 2,
                    _ => self.size - nans,
                };
                // By key, then by position.
                entries.select_nth_unstable(at);
                &entries[at..=at]
            }
            Selection::Mode => {
                let sorted = sort_as_standard(entries, sorted, spare, keys.bytes);
                let (mut best, mut most, mut first) = (0, 0, 0);
                for i in 0..sorted.len() {
                    let key = sorted[i].key();
                    // No NaN equals another.
                    if i + 1 == sorted.len() || sorted[i + 1].key() != key || Some(key) == nan {
                        if i + 1 - first > most {
                            (best, most) = (i, i + 1 - first);
                        }
                        first = i + 1;
                    }
                }
                &sorted[best..=best]
            }
        };
        by_size!(size_of::<T>(), V => for (place, entry) in picked.iter().enumerate() {
            let (place, position) = (place as isize, entry.position());
            // SAFETY: the caller's contract; positions are below the size.
            unsafe {
                let value = *at.input.offset(position as isize * self.steps[0]).cast::<V>();
                *at.values.offset(place * self.steps[1]).cast::<V>() = value;
                *at.indices.offset(place * self.steps[2]).cast::<i64>() = i64::from(position);
            }
        });
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn task<T: SortKey, E: Entry>(&self, at: Line, range: Range<usize>) {
        let mut scratch = Scratch::<E> { entries: Vec::new(), sorted: Vec::new(), spare: Vec::new() };
        for line in range {
            // SAFETY: a line within the tensors.
            unsafe { self.line::<T, E>(at.at(self.lines.offsets(line)), &mut scratch) };
        }
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: SortKey, E: Entry>(&self, at: Line) {
        let lines = self.lines.numel();
        if self.size >= 2 * CHUNK && lines < 4 {
            // The passes over a line are shared instead.
            // SAFETY: the caller's contract.
            return unsafe { self.task::<T, E>(at, 0..lines) };
        }
        let lines_piece = (PIECE / self.size.max(1)).max(1);
        parallel_for(lines.div_ceil(lines_piece), |t| {
            let at: Line = at;
            // SAFETY: lines of this task.
            unsafe { self.task::<T, E>(at, piece(lines, lines_piece, t)) };
        });
    }
}

/// Entries in the order of `std::sort`, which is that of any sort where no two are equal.
fn sort_as_standard<'a, E: Entry>(
    entries: &'a mut [E],
    sorted: &'a mut Vec<E>,
    spare: &mut Vec<E>,
    bytes: usize,
) -> &'a [E] {
    let (count, long) = (entries.len(), entries.len() >= 2 * CHUNK);
    if PASSES.contains(&count) || bytes > 4 && count >= PASSES.end {
        sorted.clear();
        sorted.extend_from_slice(entries);
        spare.resize(count, E::default());
        let spare = &mut spare[..count];
        if long {
            sort_shared(sorted, spare, bytes);
        } else {
            radix_sort(sorted, spare, bytes);
        }
        if sorted.windows(2).all(|w| w[0].key() != w[1].key()) {
            return sorted;
        }
    }
    let less = |a: E, b: E| a.key() < b.key();
    if long {
        standard::sort_shared(entries, CHUNK / 4, &less);
    } else {
        standard::sort(entries, &less);
    }
    entries
}

/// Brings the element of rank `k` into place: partitions around the median of the first, the middle and the last, which
/// is kept at the front meanwhile.
fn quickselect<E: Entry>(entries: &mut [E], k: usize) {
    let greater = |a: E, b: E| a.key() > b.key();
    let (mut first, mut last) = (0, entries.len() - 1);
    while first < last {
        if last == first + 1 {
            if greater(entries[first], entries[last]) {
                entries.swap(first, last);
            }
            return;
        }
        entries.swap((first + last) / 2, first + 1);
        if greater(entries[first + 1], entries[last]) {
            entries.swap(first + 1, last);
        }
        if greater(entries[first], entries[last]) {
            entries.swap(first, last);
        }
        if greater(entries[first + 1], entries[first]) {
            entries.swap(first + 1, first);
        }
        let pivot = entries[first];
        let (mut low, mut high) = (first + 1, last);
        loop {
            low += 1;
            while greater(pivot, entries[low]) {
                low += 1;
            }
            high -= 1;
            while greater(entries[high], pivot) {
                high -= 1;
            }
            if high < low {
                break;
            }
            entries.swap(low, high);
        }
        entries.swap(first, high);
        match high.cmp(&k) {
            Ordering::Less => first = low,
            Ordering::Equal => return,
            Ordering::Greater => last = high - 1,
        }
    }
}

impl Kernel for Select {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        if self.lines.numel() * self.k == 0 {
            return Ok(());
        }
        let at = Line { input: buffers[0], values: buffers[1], indices: buffers[2] };
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::U8 | DType::Bool => self.all::<u8, u64>(at),
                DType::I8 => self.all::<i8, u64>(at),
                DType::I16 => self.all::<i16, u64>(at),
                DType::I32 => self.all::<i32, u64>(at),
                DType::F16 => self.all::<f16, u64>(at),
                DType::BF16 => self.all::<bf16, u64>(at),
                DType::F32 => self.all::<f32, u64>(at),
                DType::I64 => self.all::<i64, Wide>(at),
                DType::F64 => self.all::<f64, Wide>(at),
                DType::F8E5M2 | DType::F8E4M3 => unreachable!("no operator but a conversion takes float8"),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        let per_element = match self.selection {
            Selection::Sort { .. } | Selection::Mode => 3 + 2 * self.dtype.size(),
            _ => 4,
        };
        80 + (self.lines.numel() * self.size * per_element) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(x: &[f32], selection: Selection, k: usize) -> (Vec<f32>, Vec<i64>) {
        let mut x = x.to_vec();
        let (mut values, mut indices) = (vec![0f32; k], vec![0i64; k]);
        let ty = |dtype, n: usize| TensorType::contiguous(dtype, &[n as i64]);
        let kernel =
            Select::new(&ty(DType::F32, x.len()), 0, selection, &ty(DType::F32, k), &ty(DType::I64, k)).unwrap();
        let buffers = [x.as_mut_ptr().cast(), values.as_mut_ptr().cast(), indices.as_mut_ptr().cast()];
        // SAFETY: the buffers have the layouts the kernel was made for.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        (values, indices)
    }

    #[test]
    fn medians() {
        let nan = f32::NAN;
        let median = |x: &[f32], ignore_nan| select(x, Selection::Median { ignore_nan }, 1).1[0];
        assert_eq!(median(&[3.0, 1.0, 2.0, 1.0], false), 3);
        assert_eq!(median(&[3.0, nan, 2.0, nan], false), 1);
        assert_eq!(median(&[3.0, nan, 2.0, nan], true), 2);
        assert_eq!(median(&[nan, nan], true), 0);
    }

    #[test]
    fn modes_are_the_smallest_of_the_most_frequent() {
        let (value, index) = select(&[2.0, 1.0, 2.0, 1.0, 0.0, f32::NAN, f32::NAN, f32::NAN], Selection::Mode, 1);
        assert_eq!((value[0], index[0]), (1.0, 3));
    }

    #[test]
    fn ranks() {
        let x: Vec<f32> = (0..500).map(|i| ((i * 7919) % 101) as f32).collect();
        let mut sorted = x.clone();
        sorted.sort_by(f32::total_cmp);
        for k in [0, 1, 250, 498, 499] {
            let (value, index) = select(&x, Selection::Kth { k: k as i64 }, 1);
            assert_eq!(value[0], sorted[k]);
            assert_eq!(x[index[0] as usize], value[0]);
        }
        let (values, indices) = select(&x, Selection::TopK { k: 40, largest: true, sorted: true }, 40);
        assert!(values.iter().eq(sorted.iter().rev().take(40)));
        assert!(values.iter().zip(indices).all(|(v, i)| x[i as usize] == *v));
    }
}
