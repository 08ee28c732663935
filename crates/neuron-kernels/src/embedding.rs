//! Gradient of an embedding table.

use crate::index::lookup::{Lookup, TILE};
use crate::index::nest::{Nest, TASK_BYTES, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::scatter::float::{Float, Wide, by_float};
use crate::simd::vectorized;
use neuron_ir::{Scalar, TensorType};
use std::ops::Range;

/// Columns summed at a time, on the stack.
const COLUMNS: usize = 256;

/// `torch.embedding_dense_backward`: `out[index[i]] += grad[i]`, rows never looked up being zero. Buffers: grad,
/// index, out, which need not hold anything.
///
/// Look-ups are grouped by row first, keeping their order. A row is then summed in the wide type by one thread and
/// written once, so the result is the same at any number of threads and rounded once.
#[derive(Debug)]
pub struct EmbeddingBackward {
    lookup: Lookup,
    rows: usize,
    padding: i64,
    scale_by_frequency: bool,
    columns: usize,
    dtype: neuron_ir::DType,
    /// Dimensions of the index in the gradient.
    positions: Nest<1>,
    /// Bytes between columns of the gradient, and between rows and columns of the result.
    grad_step: isize,
    out_steps: [isize; 2],
}

/// Positions grouped by row: row `r` was looked up at `order[starts[r]..starts[r + 1]]`.
struct Groups {
    starts: Vec<u32>,
    order: Vec<u32>,
}

impl EmbeddingBackward {
    /// `grad[.., e]` of floats, `index[..]` of `i64` or `i32`, `out[rows, e]`. Look-ups of row `padding` are left out;
    /// with `scale_by_frequency` a row is divided by how often it was looked up. Any strides.
    ///
    /// # Errors
    /// Shapes that do not belong together, more than 2^32 look-ups. At run: an index outside `0..rows`.
    pub fn new(
        grad: &TensorType,
        index: &TensorType,
        rows: i64,
        padding: i64,
        scale_by_frequency: bool,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let kernel = "embedding_backward";
        let fits = grad.rank() == index.rank() + 1
            && grad.sizes[..index.rank()] == index.sizes[..]
            && out.rank() == 2
            && out.sizes[..] == [rows, grad.sizes[index.rank()]]
            && out.dtype == grad.dtype
            && grad.dtype.is_float()
            && u32::try_from(index.numel()).is_ok();
        if !fits {
            return Err(KernelError::Unsupported { kernel, what: format!("{grad} by {index} into {out}") });
        }
        // Offsets of this target are row numbers.
        let numbers = TensorType::contiguous(neuron_ir::DType::U8, &[rows]);
        let lookup = Lookup::new(kernel, &numbers, &[0], std::slice::from_ref(index), false)?;
        let size = grad.dtype.size() as i64;
        Ok(EmbeddingBackward {
            lookup,
            rows: rows as usize,
            padding,
            scale_by_frequency,
            columns: out.sizes[1] as usize,
            dtype: grad.dtype,
            positions: Nest::of(&grad.sizes, [grad], 0..index.rank()),
            grad_step: (grad.strides[index.rank()] * size) as isize,
            out_steps: [(out.strides[0] * size) as isize, (out.strides[1] * size) as isize],
        })
    }

    /// A counting sort of the positions by row.
    ///
    /// # Safety
    /// `index` is the index tensor.
    unsafe fn group(&self, index: &[*mut u8]) -> Result<Groups, KernelError> {
        let positions = self.lookup.positions();
        let mut named = vec![0isize; positions];
        for first in (0..positions).step_by(TILE) {
            let end = positions.min(first + TILE);
            // SAFETY: positions below their number.
            unsafe { self.lookup.resolve(index, first, &mut named[first..end])? };
        }
        let kept = |row: isize| row as i64 != self.padding;
        // Counts go one place up and the scan another, so that filling leaves every start in its place.
        let mut starts = vec![0u32; self.rows + 2];
        for &row in named.iter().filter(|row| kept(**row)) {
            starts[row as usize + 2] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut order = vec![0u32; sum as usize];
        for (position, &row) in named.iter().enumerate().filter(|(_, row)| kept(**row)) {
            let next = &mut starts[row as usize + 1];
            order[*next as usize] = position as u32;
            *next += 1;
        }
        Ok(Groups { starts, order })
    }

    /// Writes the rows `rows`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    #[inline(always)]
    unsafe fn task<T: Float>(&self, at: Shared, groups: &Groups, rows: Range<usize>) {
        let mut sums = [T::Wide::ZERO; COLUMNS];
        let [row_step, column_step] = self.out_steps;
        for row in rows {
            let looked_up = &groups.order[groups.starts[row] as usize..groups.starts[row + 1] as usize];
            let scale = if self.scale_by_frequency && !looked_up.is_empty() {
                T::Wide::ONE / T::Wide::from_count(looked_up.len())
            } else {
                T::Wide::ONE
            };
            for first in (0..self.columns).step_by(COLUMNS) {
                let sums = &mut sums[..COLUMNS.min(self.columns - first)];
                sums.fill(T::Wide::ZERO);
                for &position in looked_up {
                    let [offset] = self.positions.offsets(position as usize);
                    // SAFETY: the columns from `first` of a row of the gradient.
                    unsafe {
                        let grad = at.grad.offset(offset + first as isize * self.grad_step);
                        if self.grad_step == size_of::<T>() as isize {
                            let grad = std::slice::from_raw_parts(grad.cast::<T>(), sums.len());
                            sums.iter_mut().zip(grad).for_each(|(sum, g)| *sum = *sum + g.widen() * scale);
                        } else {
                            for (i, sum) in sums.iter_mut().enumerate() {
                                *sum = *sum + (*grad.offset(i as isize * self.grad_step).cast::<T>()).widen() * scale;
                            }
                        }
                    }
                }
                // SAFETY: the columns from `first` of a row of the result.
                unsafe {
                    let out = at.out.offset(row as isize * row_step + first as isize * column_step);
                    if column_step == size_of::<T>() as isize {
                        let out = std::slice::from_raw_parts_mut(out.cast::<T>(), sums.len());
                        out.iter_mut().zip(sums).for_each(|(o, sum)| *o = T::narrow(*sum));
                    } else {
                        for (i, sum) in sums.iter().enumerate() {
                            *out.offset(i as isize * column_step).cast::<T>() = T::narrow(*sum);
                        }
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Shared {
    grad: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the gradient and write disjoint rows.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Kernel for EmbeddingBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        if self.rows == 0 && self.lookup.positions() == 0 || self.columns == 0 {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        let groups = unsafe { self.group(&buffers[1..2])? };
        let at = Shared { grad: buffers[0], out: buffers[2] };
        let rows_piece = (TASK_BYTES / (self.columns * self.dtype.size())).max(1);
        parallel_for(self.rows.div_ceil(rows_piece), |t| {
            let at: Shared = at;
            let rows = piece(self.rows, rows_piece, t);
            by_float!(self.dtype, T => {
                // SAFETY: some rows, under the caller's contract.
                vectorized(|| unsafe { self.task::<T>(at, &groups, rows) })
            }, _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let touched = (self.rows + self.lookup.positions()) as u64;
        100 + 2 * touched + touched * (self.columns * self.dtype.size()) as u64 / 8
    }
}
