//! `torch.gather`.

use super::lookup::{Axis, BadIndex, IndexValue, check_index};
use super::nest::{FirstError, Nest, at_least_1d, by_size, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{DType, Scalar, TensorType};
use std::ops::Range;

/// Elements of one task.
const PIECE: usize = 16 << 10;

/// `torch.gather`: `out[.., j, ..] = input[.., index[.., j, ..], ..]`. Buffers: input, index, out.
#[derive(Debug)]
pub struct Gather {
    /// Input, index, out; the input does not move along the indexed dimension.
    nest: Nest<3>,
    axis: Axis,
    index: DType,
    size: usize,
}

impl Gather {
    /// `out` has the sizes of `index` (`i64` or `i32`), which outside `dim` are at most those of `input`. Any strides.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `0..size`.
    pub fn new(input: &TensorType, dim: usize, index: &TensorType, out: &TensorType) -> Result<Self, KernelError> {
        let [input, index, out] = [input, index, out].map(at_least_1d);
        check_index("gather", &index)?;
        let rank = input.rank();
        let fits = index.rank() == rank
            && out.sizes == index.sizes
            && dim < rank
            && (index.numel() == 0 || (0..rank).all(|d| d == dim || index.sizes[d] <= input.sizes[d]));
        if !fits || input.dtype != out.dtype {
            let what = format!("{index} in {input} to {out}");
            return Err(KernelError::Unsupported { kernel: "gather", what });
        }
        let axis = Axis::of(&input, dim);
        let mut still = input;
        still.strides[dim] = 0;
        let nest = Nest::of(&index.sizes, [&still, &index, &out], 0..rank);
        Ok(Gather { nest, axis, index: index.dtype, size: out.dtype.size() })
    }

    /// # Safety
    /// As [`Kernel::run`]; `I` and `T` are the types of the index and of as many bytes as an element.
    unsafe fn task<I: IndexValue, T: Copy>(&self, at: Addresses, range: Range<usize>) -> Result<(), BadIndex> {
        let [input_step, index_step, out_step] = self.nest.inner_strides();
        self.nest.try_runs(range, |[input, index, out], count| {
            for i in 0..count as isize {
                // SAFETY: iterations of the nest are elements of index and out; the index is checked before the read.
                unsafe {
                    let named = (*at.index.offset(index + i * index_step).cast::<I>()).get();
                    let from = at.input.offset(input + i * input_step + self.axis.offset(named)?);
                    *at.out.offset(out + i * out_step).cast::<T>() = *from.cast::<T>();
                }
            }
            Ok(())
        })
    }
}

#[derive(Clone, Copy)]
struct Addresses {
    input: *const u8,
    index: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the inputs and write disjoint elements.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Kernel for Gather {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses { input: buffers[0], index: buffers[1], out: buffers[2] };
        let numel = self.nest.numel();
        let errors = FirstError::default();
        parallel_for(numel.div_ceil(PIECE), |t| {
            let at: Addresses = at;
            let range = piece(numel, PIECE, t);
            // SAFETY: a part of the nest, under the caller's contract.
            let result = by_size!(self.size, T => unsafe {
                match self.index {
                    DType::I32 => self.task::<i32, T>(at, range),
                    _ => self.task::<i64, T>(at, range),
                }
            });
            errors.note(t, result.map_err(|bad| self.axis.error(bad)));
        });
        errors.finish()
    }

    fn cost(&self) -> u64 {
        50 + self.nest.numel() as u64
    }
}
