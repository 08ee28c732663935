//! `torch.sort` and `torch.topk`.
//!
//! Elements become entries of an unsigned key and a position, so that one stable radix sort serves every type and both
//! directions; values are fetched by position afterwards, with their own zeros and NaNs.

mod key;
mod radix;
mod select;
mod standard;

pub use select::Select;

use crate::index::nest::{Nest, at_least_1d, by_size, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::scatter::float::by_number;
use crate::simd::vectorized;
use key::{Entry, Keys, SortKey, Wide};
use neuron_ir::{DType, Scalar, TensorType};
use radix::{CHUNK, OFFER, Shared, Smallest, sort, sort_shared};
use std::ops::Range;

/// Elements of one task.
const PIECE: usize = 16 << 10;

/// Lines that are copied out of a transposed layout together: one cache line of the widest elements, several of others.
const STAGED: usize = 16;

/// `torch.sort`, `torch.topk`: stable, NaN the largest. Buffers: input, values, indices.
#[derive(Debug)]
pub struct Sort {
    dtype: DType,
    descending: bool,
    size: usize,
    k: usize,
    /// Dimensions but the sorted one: input, values, indices.
    lines: Nest<3>,
    /// Bytes between neighbours of a line: input, values, indices.
    steps: [isize; 3],
}

/// Addresses of one line, or of the first.
#[derive(Clone, Copy)]
struct Line {
    input: *const u8,
    values: *mut u8,
    indices: *mut u8,
}

// SAFETY: tasks read the input and write disjoint lines, or disjoint parts of one.
unsafe impl Send for Line {}
// SAFETY: as above.
unsafe impl Sync for Line {}

impl Line {
    /// # Safety
    /// The offsets stay within the tensors.
    unsafe fn at(self, [input, values, indices]: [isize; 3]) -> Line {
        // SAFETY: the caller's contract.
        unsafe {
            Line {
                input: self.input.offset(input),
                values: self.values.offset(values),
                indices: self.indices.offset(indices),
            }
        }
    }
}

/// Memory that a task uses for line after line.
#[derive(Default)]
struct Scratch {
    narrow: Entries<u64>,
    wide: Entries<Wide>,
}

#[derive(Default)]
struct Entries<E> {
    sorted: Vec<E>,
    spare: Vec<E>,
    smallest: Option<Smallest<E>>,
}

impl Sort {
    /// The first `k` of the sorted elements along `dim`, with their positions as `i64`; `k` is the extent of `dim` for a
    /// full sort. Any type and strides.
    ///
    /// # Errors
    /// Shapes that do not belong together, lines of 2^32 elements or more.
    pub fn new(
        input: &TensorType,
        dim: usize,
        descending: bool,
        k: i64,
        values: &TensorType,
        indices: &TensorType,
    ) -> Result<Self, KernelError> {
        let [input, values, indices] = [input, values, indices].map(at_least_1d);
        let rank = input.rank();
        let fits = dim < rank
            && values.sizes == indices.sizes
            && values.rank() == rank
            && (0..rank).all(|d| values.sizes[d] == if d == dim { k } else { input.sizes[d] })
            && (0..=input.sizes[dim]).contains(&k)
            && u32::try_from(input.sizes[dim]).is_ok();
        if !fits || values.dtype != input.dtype || indices.dtype != DType::I64 {
            let what = format!("{k} of {input} along dimension {dim} to {values} and {indices}");
            return Err(KernelError::Unsupported { kernel: "sort", what });
        }
        let tensors = [&input, &values, &indices];
        Ok(Sort {
            dtype: input.dtype,
            descending,
            size: input.sizes[dim] as usize,
            k: k as usize,
            lines: Nest::of(&input.sizes, tensors, (0..rank).filter(|d| *d != dim)),
            steps: tensors.map(|t| (t.strides[dim] * t.dtype.size() as i64) as isize),
        })
    }

    /// Few enough are wanted that selecting them beats sorting all.
    fn selects(&self) -> bool {
        self.k < self.size / 4
    }

    /// The keys of a line; those of 64 bits are reduced, as their range seldom needs so many.
    ///
    /// # Safety
    /// As [`Sort::line`].
    unsafe fn keys<T: SortKey>(&self, line: *const u8, step: isize) -> Keys {
        let keys = Keys::new(size_of::<T>(), self.descending);
        // SAFETY: the caller's contract.
        if size_of::<T>() <= 4 { keys } else { vectorized(|| unsafe { keys.reduced::<T>(line, step, self.size) }) }
    }

    /// # Safety
    /// The addresses are those of a line of elements of type `T`, at the given steps.
    unsafe fn line<T: SortKey>(&self, at: Line, steps: [isize; 3], scratch: &mut Scratch) {
        // SAFETY: the caller's contract.
        unsafe {
            let keys = self.keys::<T>(at.input, steps[0]);
            if size_of::<T>() <= 4 || keys.bytes <= 4 {
                self.line_as::<T, u64>(at, steps, keys, &mut scratch.narrow);
            } else {
                self.line_as::<T, Wide>(at, steps, keys, &mut scratch.wide);
            }
        }
    }

    /// # Safety
    /// As [`Sort::line`].
    unsafe fn line_as<T: SortKey, E: Entry>(&self, at: Line, steps: [isize; 3], keys: Keys, scratch: &mut Entries<E>) {
        let sorted = if self.selects() {
            let smallest = scratch.smallest.get_or_insert_with(|| Smallest::new(self.k));
            smallest.clear();
            // SAFETY: the caller's contract.
            unsafe { self.select::<T, E>(at.input, steps[0], keys, 0..self.size, smallest) };
            smallest.finish()
        } else {
            scratch.sorted.resize(self.size, E::default());
            scratch.spare.resize(self.size, E::default());
            // SAFETY: the caller's contract.
            vectorized(|| unsafe { keys.entries::<T, E>(at.input, steps[0], 0, &mut scratch.sorted) });
            sort(&mut scratch.sorted, &mut scratch.spare, keys.bytes);
            &scratch.sorted[..self.k]
        };
        // SAFETY: the caller's contract; positions are below the size.
        unsafe { self.write(at, steps, 0, sorted) };
    }

    /// Offers the elements `range` of a line.
    ///
    /// # Safety
    /// As [`Sort::line`].
    unsafe fn select<T: SortKey, E: Entry>(
        &self,
        line: *const u8,
        step: isize,
        keys: Keys,
        range: Range<usize>,
        smallest: &mut Smallest<E>,
    ) {
        vectorized(|| {
            let mut offer = [E::default(); OFFER];
            for first in range.clone().step_by(OFFER) {
                let offer = &mut offer[..OFFER.min(range.end - first)];
                // SAFETY: the caller's contract.
                unsafe { keys.entries::<T, E>(line, step, first, offer) };
                smallest.offer(offer);
            }
        });
    }

    /// Writes values and positions of `sorted` from place `first` of the results on.
    ///
    /// # Safety
    /// As [`Sort::line`]; `first + sorted.len()` is at most `k`.
    unsafe fn write<E: Entry>(&self, at: Line, steps: [isize; 3], first: usize, sorted: &[E]) {
        by_size!(self.dtype.size(), V => for (i, entry) in sorted.iter().enumerate() {
            let (place, position) = ((first + i) as isize, entry.position());
            // SAFETY: the caller's contract.
            unsafe {
                let value = *at.input.offset(position as isize * steps[0]).cast::<V>();
                *at.values.offset(place * steps[1]).cast::<V>() = value;
                *at.indices.offset(place * steps[2]).cast::<i64>() = i64::from(position);
            }
        });
    }

    /// Sorts the lines `range`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn task<T: SortKey>(&self, at: Line, range: Range<usize>) {
        let mut scratch = Scratch::default();
        let line_steps = self.lines.inner_strides();
        let width = self.dtype.size() as isize;
        let transposed = self.steps[0] > line_steps[0] && line_steps[0] == width && self.size > 1;
        let mut staged = Staged::default();
        self.lines.runs(range, |offsets, count| {
            for i in (0..count).step_by(STAGED) {
                let n = STAGED.min(count - i);
                let first: [isize; 3] = std::array::from_fn(|t| offsets[t] + i as isize * line_steps[t]);
                // SAFETY: lines within the tensors.
                unsafe {
                    if transposed && n > 1 {
                        self.staged::<T>(at.at(first), line_steps, n, &mut staged, &mut scratch);
                        continue;
                    }
                    for line in 0..n as isize {
                        let offsets = std::array::from_fn(|t| first[t] + line * line_steps[t]);
                        self.line::<T>(at.at(offsets), self.steps, &mut scratch);
                    }
                }
            }
        });
    }

    /// Sorts `lines` neighbouring lines of a transposed layout through contiguous copies: every cache line of the
    /// tensors is touched once, not once per line.
    ///
    /// # Safety
    /// As [`Sort::line`], for as many lines at `line_steps` from each other.
    unsafe fn staged<T: SortKey>(
        &self,
        at: Line,
        line_steps: [isize; 3],
        lines: usize,
        staged: &mut Staged,
        scratch: &mut Scratch,
    ) {
        let width = self.dtype.size();
        staged.input.resize((lines * self.size * width).div_ceil(8), 0);
        staged.values.resize((lines * self.k * width).div_ceil(8), 0);
        staged.indices.resize(lines * self.k, 0);
        let copies = Line {
            input: staged.input.as_ptr().cast(),
            values: staged.values.as_mut_ptr().cast(),
            indices: staged.indices.as_mut_ptr().cast(),
        };
        let (input_line, result_line) = ((self.size * width) as isize, (self.k * width) as isize);
        let copy_steps = [width as isize, width as isize, 8];
        // SAFETY: elements of lines of the tensors, and of their copies.
        unsafe {
            by_size!(width, V => {
                let input = staged.input.as_mut_ptr().cast::<V>();
                for j in 0..self.size {
                    for l in 0..lines {
                        let from = at.input.offset(j as isize * self.steps[0] + l as isize * line_steps[0]);
                        *input.add(l * self.size + j) = *from.cast::<V>();
                    }
                }
                for l in 0..lines as isize {
                    let line = copies.at([l * input_line, l * result_line, l * 8 * self.k as isize]);
                    self.line::<T>(line, copy_steps, scratch);
                }
                for j in 0..self.k {
                    for l in 0..lines {
                        let (place, line) = (j as isize, l as isize);
                        let copy = l * self.k + j;
                        *at.values.offset(place * self.steps[1] + line * line_steps[1]).cast::<V>() =
                            *copies.values.cast::<V>().add(copy);
                        *at.indices.offset(place * self.steps[2] + line * line_steps[2]).cast::<i64>() =
                            *copies.indices.cast::<i64>().add(copy);
                    }
                }
            });
        }
    }

    /// Sorts one long line with all threads.
    ///
    /// # Safety
    /// As [`Sort::line`].
    unsafe fn long_line<T: SortKey, E: Entry>(&self, at: Line, keys: Keys) {
        let chunks = self.size.div_ceil(CHUNK);
        if self.selects() && self.k <= CHUNK / 8 {
            let mut candidates = vec![E::default(); chunks * self.k];
            let mut lengths = vec![0usize; chunks];
            let (shared, shared_lengths) = (Shared::new(&mut candidates), Shared::new(&mut lengths));
            parallel_for(chunks, |c| {
                let at: Line = at;
                let mut smallest = Smallest::new(self.k);
                // SAFETY: a part of the line, and of the candidates.
                unsafe {
                    self.select::<T, E>(at.input, self.steps[0], keys, piece(self.size, CHUNK, c), &mut smallest);
                    let kept = smallest.finish();
                    shared.slice(c * self.k..c * self.k + kept.len()).copy_from_slice(kept);
                    shared_lengths.write(c, kept.len());
                }
            });
            let mut smallest = Smallest::new(self.k);
            for (c, &length) in lengths.iter().enumerate() {
                candidates[c * self.k..c * self.k + length].chunks(OFFER).for_each(|chunk| smallest.offer(chunk));
            }
            // SAFETY: the caller's contract.
            unsafe { self.write(at, self.steps, 0, smallest.finish()) };
            return;
        }
        let mut sorted = vec![E::default(); self.size];
        let mut spare = vec![E::default(); self.size];
        let shared = Shared::new(&mut sorted);
        parallel_for(chunks, |c| {
            let at: Line = at;
            let range = piece(self.size, CHUNK, c);
            // SAFETY: a part of the line and of the keys.
            unsafe {
                let out = shared.slice(range.clone());
                vectorized(|| keys.entries::<T, E>(at.input, self.steps[0], range.start, out));
            }
        });
        sort_shared(&mut sorted, &mut spare, keys.bytes);
        parallel_for(self.k.div_ceil(CHUNK), |c| {
            let at: Line = at;
            let range = piece(self.k, CHUNK, c);
            // SAFETY: a part of the results.
            unsafe { self.write(at, self.steps, range.start, &sorted[range]) };
        });
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: SortKey>(&self, at: Line) {
        let lines = self.lines.numel();
        if self.size >= 2 * CHUNK && lines < 4 {
            for line in 0..lines {
                // SAFETY: the caller's contract.
                unsafe {
                    let at = at.at(self.lines.offsets(line));
                    let keys = self.keys::<T>(at.input, self.steps[0]);
                    if size_of::<T>() <= 4 || keys.bytes <= 4 {
                        self.long_line::<T, u64>(at, keys);
                    } else {
                        self.long_line::<T, Wide>(at, keys);
                    }
                }
            }
            return;
        }
        let lines_piece = (PIECE / self.size).max(1);
        // Whole groups of staged lines.
        let lines_piece =
            if lines_piece > STAGED { lines_piece } else { lines_piece.max(STAGED.min(lines / 16).max(1)) };
        parallel_for(lines.div_ceil(lines_piece), |t| {
            let at: Line = at;
            // SAFETY: lines of this task.
            unsafe { self.task::<T>(at, piece(lines, lines_piece, t)) };
        });
    }
}

/// Copies of neighbouring lines.
#[derive(Default)]
struct Staged {
    input: Vec<u64>,
    values: Vec<u64>,
    indices: Vec<i64>,
}

impl Kernel for Sort {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        if self.lines.numel() * self.k == 0 {
            return Ok(());
        }
        let at = Line { input: buffers[0], values: buffers[1], indices: buffers[2] };
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::Bool => self.all::<u8>(at),
                dtype => by_number!(dtype, T => self.all::<T>(at), _ => unreachable!("{dtype} has no arithmetic")),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        let per_element = if self.selects() { 2 } else { 3 + 2 * self.dtype.size() };
        80 + (self.lines.numel() * self.size * per_element) as u64
    }
}

#[cfg(test)]
mod tests;
