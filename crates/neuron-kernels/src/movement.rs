//! Elements in another order along dimensions: `torch.flip`, `torch.roll`.

use crate::index::nest::{Nest, TASK_BYTES, by_size, copy_strided, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{Scalar, TensorType};
use std::ops::Range;

/// A copy in blocks, each of which may run backwards in the input. Buffers: input, out.
#[derive(Debug)]
pub struct Movement {
    /// Per block: input, out; their first elements in bytes; elements of the blocks before it.
    blocks: Vec<(Nest<2>, [isize; 2], usize)>,
    numel: usize,
    size: usize,
}

fn check(kernel: &'static str, input: &TensorType, out: &TensorType) -> Result<(), KernelError> {
    if input.shape() == out.shape() {
        Ok(())
    } else {
        Err(KernelError::Unsupported { kernel, what: format!("{input} to {out}") })
    }
}

impl Movement {
    /// `torch.flip` along `dims`. Any strides.
    ///
    /// # Errors
    /// Shapes that differ.
    pub fn flip(input: &TensorType, dims: &[i64], out: &TensorType) -> Result<Self, KernelError> {
        check("flip", input, out)?;
        let size = input.dtype.size() as i64;
        let mut start = 0;
        let nest = Nest::new((0..input.rank()).map(|d| {
            let (extent, stride) = (input.sizes[d], input.strides[d] * size);
            let stride = if dims.contains(&(d as i64)) {
                start += (extent - 1).max(0) * stride;
                -stride
            } else {
                stride
            };
            (extent, [stride, out.strides[d] * size])
        }));
        let numel = nest.numel();
        Ok(Movement { blocks: vec![(nest, [start as isize, 0], 0)], numel, size: size as usize })
    }

    /// `torch.roll` by a shift per dimension, each from 0 to below the extent. Any strides.
    ///
    /// # Errors
    /// Shapes that differ, shifts out of range.
    pub fn roll(input: &TensorType, shifts: &[i64], out: &TensorType) -> Result<Self, KernelError> {
        check("roll", input, out)?;
        let fits = shifts.iter().zip(&input.sizes).all(|(shift, extent)| (0..(*extent).max(1)).contains(shift));
        if !fits || shifts.len() != input.rank() {
            return Err(KernelError::Unsupported { kernel: "roll", what: format!("{input} by {shifts:?}") });
        }
        let size = input.dtype.size() as i64;
        // Every dimension that moves splits each block in two: extents and first positions in input and out.
        let mut parts: Vec<Vec<(i64, i64, i64)>> = vec![Vec::new()];
        for (&extent, &shift) in input.sizes.iter().zip(shifts) {
            let pieces: &[_] =
                if shift == 0 { &[(extent, 0, 0)] } else { &[(shift, extent - shift, 0), (extent - shift, 0, shift)] };
            parts = parts
                .into_iter()
                .flat_map(|part| {
                    pieces.iter().map(move |p| {
                        let mut part = part.clone();
                        part.push(*p);
                        part
                    })
                })
                .collect();
        }
        let (mut blocks, mut numel) = (Vec::new(), 0);
        for part in parts {
            let mut start = [0isize; 2];
            let nest = Nest::new(part.iter().enumerate().map(|(d, &(extent, from, to))| {
                let strides = [input.strides[d] * size, out.strides[d] * size];
                start[0] += (from * strides[0]) as isize;
                start[1] += (to * strides[1]) as isize;
                (extent, strides)
            }));
            let count = nest.numel();
            blocks.push((nest, start, numel));
            numel += count;
        }
        Ok(Movement { blocks, numel, size: size as usize })
    }

    /// Copies the elements `range`, counted through all blocks.
    ///
    /// # Safety
    /// As [`Kernel::run`]; the range lies within the number of elements.
    unsafe fn task(&self, at: Shared, range: Range<usize>) {
        let first = self.blocks.partition_point(|(nest, _, before)| before + nest.numel() <= range.start);
        for (nest, [from_start, to_start], before) in &self.blocks[first..] {
            if *before >= range.end {
                return;
            }
            let part = range.start.saturating_sub(*before)..(range.end - before).min(nest.numel());
            let [from_step, to_step] = nest.inner_strides();
            by_size!(self.size, T => nest.runs(part, |[from, to], count| {
                // SAFETY: runs of the block in either tensor.
                unsafe {
                    let (from, to) = (at.input.offset(from_start + from), at.out.offset(to_start + to));
                    if from_step == -(size_of::<T>() as isize) && to_step == size_of::<T>() as isize {
                        reverse(from.cast::<T>(), to.cast::<T>(), count);
                    } else {
                        copy_strided::<T>(from, from_step, to, to_step, count);
                    }
                }
            }));
        }
    }
}

/// Copies `count` elements that lie backwards from `from` on.
///
/// # Safety
/// Both sides are valid for `count` elements and do not overlap.
#[inline(always)]
unsafe fn reverse<T: Copy>(from: *const T, to: *mut T, count: usize) {
    // SAFETY: the caller's contract.
    let (from, to) =
        unsafe { (std::slice::from_raw_parts(from.sub(count - 1), count), std::slice::from_raw_parts_mut(to, count)) };
    for (to, from) in to.iter_mut().zip(from.iter().rev()) {
        *to = *from;
    }
}

#[derive(Clone, Copy)]
struct Shared {
    input: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the input and write disjoint elements.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Kernel for Movement {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        if self.numel == 0 {
            return Ok(());
        }
        let at = Shared { input: buffers[0], out: buffers[1] };
        let elements = TASK_BYTES / self.size;
        parallel_for(self.numel.div_ceil(elements), |t| {
            let at: Shared = at;
            // SAFETY: a part of the elements, under the caller's contract.
            unsafe { self.task(at, piece(self.numel, elements, t)) };
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        30 + (self.numel * self.size) as u64 / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neuron_ir::DType;

    fn moved(kernel: &Movement, x: &[i32], n: usize) -> Vec<i32> {
        let (mut x, mut out) = (x.to_vec(), vec![-1; n]);
        // SAFETY: the buffers have the layouts the kernel was made for.
        unsafe { kernel.run(&[x.as_mut_ptr().cast(), out.as_mut_ptr().cast()], &[]).unwrap() };
        out
    }

    #[test]
    fn flips_and_rolls() {
        let x: Vec<i32> = (0..6).collect();
        let t = TensorType::contiguous(DType::I32, &[2, 3]);
        let transposed = TensorType::strided(DType::I32, &[2, 3], &[1, 2]);
        let flip = |dims: &[i64]| moved(&Movement::flip(&t, dims, &t).unwrap(), &x, 6);
        assert_eq!(flip(&[1]), [2, 1, 0, 5, 4, 3]);
        assert_eq!(flip(&[0, 1]), [5, 4, 3, 2, 1, 0]);
        assert_eq!(flip(&[]), x);
        assert_eq!(moved(&Movement::flip(&transposed, &[0], &t).unwrap(), &x, 6), [1, 3, 5, 0, 2, 4]);
        let roll = |shifts: &[i64]| moved(&Movement::roll(&t, shifts, &t).unwrap(), &x, 6);
        assert_eq!(roll(&[0, 1]), [2, 0, 1, 5, 3, 4]);
        assert_eq!(roll(&[1, 2]), [4, 5, 3, 1, 2, 0]);
        let scalar = TensorType::contiguous(DType::I32, &[]);
        assert_eq!(moved(&Movement::flip(&scalar, &[], &scalar).unwrap(), &[7], 1), [7]);
    }

    #[test]
    fn long_tensors_are_split() {
        let n = 100_003;
        let x: Vec<i32> = (0..n).collect();
        let t = TensorType::contiguous(DType::I32, &[i64::from(n)]);
        let flipped = moved(&Movement::flip(&t, &[0], &t).unwrap(), &x, n as usize);
        assert!(flipped.iter().copied().eq((0..n).rev()));
        let rolled = moved(&Movement::roll(&t, &[70_001], &t).unwrap(), &x, n as usize);
        assert!(rolled.iter().copied().eq((0..n).map(|i| (i + n - 70_001) % n)));
    }
}
