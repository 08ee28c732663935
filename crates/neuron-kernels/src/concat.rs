//! `torch.cat`.

use crate::index::nest::{Nest, TASK_BYTES, by_size, copy_strided, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{Scalar, TensorType};
use std::ops::Range;

/// `torch.cat`: the inputs one after the other along a dimension. Buffers: inputs, out.
#[derive(Debug)]
pub struct Concat {
    /// Per input: input, out; the offset of its part of the out tensor in bytes; elements of the inputs before it.
    parts: Vec<(Nest<2>, isize, usize)>,
    numel: usize,
    size: usize,
}

impl Concat {
    /// `inputs` of one element type, whose sizes differ along `dim` only. Any strides.
    ///
    /// # Errors
    /// Shapes that do not belong together.
    pub fn new(inputs: &[TensorType], dim: usize, out: &TensorType) -> Result<Self, KernelError> {
        let unsupported = |input: &TensorType| KernelError::Unsupported {
            kernel: "concat",
            what: format!("{input} as a part of {out} along dimension {dim}"),
        };
        let size = out.dtype.size();
        let mut parts = Vec::with_capacity(inputs.len());
        let (mut at, mut numel) = (0, 0);
        for input in inputs {
            let fits = dim < out.rank()
                && input.dtype == out.dtype
                && input.rank() == out.rank()
                && (0..out.rank()).all(|d| d == dim || input.sizes[d] == out.sizes[d])
                && at + input.sizes[dim] <= out.sizes[dim];
            if !fits {
                return Err(unsupported(input));
            }
            let offset = (at * out.strides[dim] * size as i64) as isize;
            parts.push((Nest::of(&input.sizes, [input, out], 0..out.rank()), offset, numel));
            at += input.sizes[dim];
            numel += input.numel() as usize;
        }
        Ok(Concat { parts, numel, size })
    }

    /// Copies the elements `range`, counted through all inputs.
    ///
    /// # Safety
    /// As [`Kernel::run`]; the range lies within the number of elements.
    unsafe fn task(&self, inputs: &[*mut u8], out: *mut u8, range: Range<usize>) {
        let first = self.parts.partition_point(|(nest, _, before)| before + nest.numel() <= range.start);
        for ((nest, offset, before), input) in self.parts[first..].iter().zip(&inputs[first..]) {
            if *before >= range.end {
                return;
            }
            let part = range.start.saturating_sub(*before)..(range.end - before).min(nest.numel());
            let [from_step, to_step] = nest.inner_strides();
            by_size!(self.size, T => nest.runs(part, |[from, to], count| {
                // SAFETY: runs of the input, and of its part of the out tensor.
                unsafe {
                    copy_strided::<T>(input.offset(from), from_step, out.offset(offset + to), to_step, count);
                }
            }));
        }
    }
}

#[derive(Clone, Copy)]
struct Shared<'a> {
    inputs: &'a [*mut u8],
    out: *mut u8,
}

// SAFETY: tasks read the inputs and write disjoint elements.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl Kernel for Concat {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let (inputs, out) = buffers.split_at(self.parts.len());
        if self.numel == 0 {
            return Ok(());
        }
        let at = Shared { inputs, out: out[0] };
        let elements = TASK_BYTES / self.size;
        parallel_for(self.numel.div_ceil(elements), |t| {
            let at: Shared = at;
            // SAFETY: a part of the elements, under the caller's contract.
            unsafe { self.task(at.inputs, at.out, piece(self.numel, elements, t)) };
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        30 + (self.numel * self.size) as u64 / 8
    }
}
