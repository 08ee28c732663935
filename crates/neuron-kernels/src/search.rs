//! `torch.searchsorted`.

use crate::index::nest::piece;
use crate::pool::parallel_for;
use crate::scatter::float::by_number;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType};

/// Values of one task.
const PIECE: usize = 4 << 10;

/// Where values belong in ascending sequences. Buffers: sequence, values, positions.
#[derive(Debug)]
pub struct Search {
    dtype: DType,
    right: bool,
    /// Elements of a sequence, values per sequence, values in all.
    length: usize,
    row: usize,
    count: usize,
}

impl Search {
    /// All row-major; sequence and values of one type, positions of `i64` in the shape of the values. A 1-dimensional
    /// sequence serves all values, any other has one row for each row of the values.
    ///
    /// # Errors
    /// Shapes or types that do not belong together.
    pub fn new(
        right: bool,
        sequence: &TensorType,
        values: &TensorType,
        positions: &TensorType,
    ) -> Result<Self, KernelError> {
        let contiguous = [sequence, values, positions].iter().all(|t| t.is_contiguous());
        let rank = sequence.rank();
        let rows = rank == 1 || values.rank() == rank && values.sizes[..rank - 1] == sequence.sizes[..rank - 1];
        let fits = rank > 0 && rows && sequence.dtype == values.dtype && positions.sizes == values.sizes;
        if !contiguous || !fits || positions.dtype != DType::I64 {
            let what = format!("{values} in {sequence} to {positions}");
            return Err(KernelError::Unsupported { kernel: "search", what });
        }
        let count = values.numel() as usize;
        Ok(Search {
            dtype: sequence.dtype,
            right,
            length: sequence.sizes[rank - 1] as usize,
            row: if rank == 1 { count.max(1) } else { values.sizes[rank - 1].max(1) as usize },
            count,
        })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: Copy + PartialOrd>(&self, at: Addresses) {
        parallel_for(self.count.div_ceil(PIECE), |t| {
            let Addresses { sequence, values, positions } = { at };
            for i in piece(self.count, PIECE, t) {
                // SAFETY: a row of the sequence, a value, and its position.
                unsafe {
                    let sequence = sequence.cast::<T>().add(i / self.row * self.length);
                    let value = *values.cast::<T>().add(i);
                    // The answer lies from `low` on, within `left` elements.
                    let (mut low, mut left) = (0, self.length);
                    while left > 0 {
                        let half = left / 2;
                        let middle = *sequence.add(low + half);
                        #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "a NaN on either side sends the search on")]
                        let after = if self.right { !(middle > value) } else { !(middle >= value) };
                        low = if after { low + half + 1 } else { low };
                        left = if after { left - half - 1 } else { half };
                    }
                    *positions.add(i) = low as i64;
                }
            }
        });
    }
}

#[derive(Clone, Copy)]
struct Addresses {
    sequence: *const u8,
    values: *const u8,
    positions: *mut i64,
}

// SAFETY: tasks write disjoint positions.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Kernel for Search {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses { sequence: buffers[0], values: buffers[1], positions: buffers[2].cast() };
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
        40 + self.count as u64 * (4 + 2 * u64::from(self.length.max(1).ilog2()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_or_after_equals() {
        let mut sequence = [1.0f32, 2.0, 2.0, 4.0, 0.0, 0.0, 5.0, f32::NAN];
        let mut values = [2.0f32, 0.0, 9.0, -0.0, f32::NAN, 5.0];
        let t = |dtype, n| TensorType::contiguous(dtype, &[2, n]);
        for (right, expected) in [(false, [1, 0, 4, 0, 4, 2]), (true, [3, 0, 4, 2, 4, 4])] {
            let mut out = [0i64; 6];
            let kernel = Search::new(right, &t(DType::F32, 4), &t(DType::F32, 3), &t(DType::I64, 3)).unwrap();
            let buffers = [sequence.as_mut_ptr().cast(), values.as_mut_ptr().cast(), out.as_mut_ptr().cast()];
            // SAFETY: the buffers have the layouts the kernel was made for.
            unsafe { kernel.run(&buffers, &[]).unwrap() };
            assert_eq!(out, expected);
        }
    }
}
