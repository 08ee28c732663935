//! Where a mask is true: counted first, since the count is the size of the result, then written.

use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{Dims, Op, Scalar, TensorType};

/// Elements whose true ones are counted together; as many consecutive results are written by one task.
const BLOCK: usize = Op::TRUE_BLOCK as usize;

/// Blocks of one task.
const BLOCKS: usize = 16;

/// A pointer that tasks write disjoint parts through.
struct Shared<T>(*mut T);
// SAFETY: every task writes its own elements only.
unsafe impl<T> Sync for Shared<T> {}

/// How many elements of a row-major mask are true before each block, and in all. Buffers: mask, counts.
#[derive(Debug)]
pub struct TrueCounts {
    elements: usize,
}

impl TrueCounts {
    /// `mask` is row-major `bool`; the result has one `i64` for each block, rounded up, and one more.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for a mask of another layout.
    pub fn new(mask: &TensorType) -> Result<TrueCounts, KernelError> {
        check(mask)?;
        Ok(TrueCounts { elements: mask.numel() as usize })
    }
}

impl Kernel for TrueCounts {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract: the buffers have the layouts of the constructor; a `bool` is a byte 0 or 1.
        let (mask, counts) = unsafe {
            let blocks = self.elements.div_ceil(BLOCK);
            (
                std::slice::from_raw_parts(buffers[0], self.elements),
                std::slice::from_raw_parts_mut(buffers[1].cast::<i64>(), blocks + 1),
            )
        };
        let target = Shared(counts.as_mut_ptr());
        let target = &target;
        parallel_for(self.elements.div_ceil(BLOCK * BLOCKS), |task| {
            let from = task * BLOCKS;
            for (b, part) in mask[from * BLOCK..].chunks(BLOCK).take(BLOCKS).enumerate() {
                // SAFETY: block `from + b` exists and is this task's.
                unsafe { target.0.add(from + b).write(count(part)) };
            }
        });
        let mut before = 0;
        for c in counts.iter_mut() {
            before += std::mem::replace(c, before);
        }
        // The last element had nothing to add: it is what all blocks before it add up to.
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.elements as u64 / 16
    }
}

/// Sum of bytes that are 0 or 1, in pieces that fit a byte's neighbours' sums.
fn count(mask: &[u8]) -> i64 {
    mask.chunks(128).map(|piece| i64::from(piece.iter().sum::<u8>())).sum()
}

/// The coordinates of the true elements of a row-major mask. Buffers: mask, counts, coordinates.
#[derive(Debug)]
pub struct TruePositions {
    sizes: Dims,
    elements: usize,
    found: usize,
}

impl TruePositions {
    /// The result is row-major `i64` of shape `[rank of the mask, true elements]`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for a mask or a result of another layout.
    pub fn new(mask: &TensorType, out: &TensorType) -> Result<TruePositions, KernelError> {
        check(mask)?;
        if !out.is_contiguous() || out.rank() != 2 || out.sizes[0] != mask.rank() as i64 {
            return Err(KernelError::Unsupported { kernel: "true_positions", what: out.to_string() });
        }
        Ok(TruePositions { sizes: mask.sizes.clone(), elements: mask.numel() as usize, found: out.sizes[1] as usize })
    }

    /// # Safety
    /// `out` has the layout of the result; `results` of its columns from `first` on are those of `mask`, a part that
    /// begins at `offset`.
    unsafe fn part(&self, mask: &[u8], offset: usize, first: usize, out: *mut i64) {
        let rank = self.sizes.len();
        let extent = self.sizes[rank - 1] as usize;
        // Coordinates of the row that is walked, and where it ends.
        let mut row = Dims::from_elem(0, rank - 1);
        let mut row_start = offset / extent * extent;
        let mut rest = offset / extent;
        for d in (0..rank - 1).rev() {
            row[d] = (rest % self.sizes[d] as usize) as i64;
            rest /= self.sizes[d] as usize;
        }
        let mut k = first;
        let mut at = |i: usize| {
            let position = offset + i;
            while position >= row_start + extent {
                row_start += extent;
                for d in (0..rank - 1).rev() {
                    row[d] += 1;
                    if row[d] < self.sizes[d] {
                        break;
                    }
                    row[d] = 0;
                }
            }
            // SAFETY: the caller's contract: column `k` is one of the part's.
            unsafe {
                for (d, c) in row.iter().enumerate() {
                    out.add(d * self.found + k).write(*c);
                }
                out.add((rank - 1) * self.found + k).write((position - row_start) as i64);
            }
            k += 1;
        };
        // Eight elements at a time, to pass over what is false.
        let (words, tail) = mask.as_chunks::<8>();
        for (w, word) in words.iter().enumerate() {
            let mut bits = u64::from_le_bytes(*word);
            while bits != 0 {
                let byte = bits.trailing_zeros() as usize / 8;
                at(w * 8 + byte);
                bits &= bits - 1;
            }
        }
        let done = words.len() * 8;
        tail.iter().enumerate().filter(|(_, b)| **b != 0).for_each(|(i, _)| at(done + i));
    }
}

impl Kernel for TruePositions {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract: the buffers have the layouts of the constructor.
        let (mask, counts) = unsafe {
            let blocks = self.elements.div_ceil(BLOCK);
            (
                std::slice::from_raw_parts(buffers[0], self.elements),
                std::slice::from_raw_parts(buffers[1].cast::<i64>(), blocks + 1),
            )
        };
        let out = Shared(buffers[2].cast::<i64>());
        let out = &out;
        parallel_for(self.elements.div_ceil(BLOCK * BLOCKS), |task| {
            let from = task * BLOCKS;
            for (b, part) in mask[from * BLOCK..].chunks(BLOCK).take(BLOCKS).enumerate() {
                let block = from + b;
                if counts[block] < counts[block + 1] {
                    // SAFETY: the counts say which columns are this block's; they add up to the columns of the result.
                    unsafe { self.part(part, block * BLOCK, counts[block] as usize, out.0) };
                }
            }
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        (self.elements / 16 + self.found * self.sizes.len()) as u64
    }
}

fn check(mask: &TensorType) -> Result<(), KernelError> {
    if mask.dtype != neuron_ir::DType::Bool || !mask.is_contiguous() || mask.rank() == 0 {
        return Err(KernelError::Unsupported { kernel: "nonzero", what: mask.to_string() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use neuron_ir::DType;

    fn coordinates(mask: &[u8], sizes: &[i64]) -> Vec<Vec<i64>> {
        let ty = TensorType::contiguous(DType::Bool, sizes);
        let mut mask = mask.to_vec();
        let mut counts = vec![-1i64; mask.len().div_ceil(BLOCK) + 1];
        let kernel = TrueCounts::new(&ty).unwrap();
        // SAFETY: buffers of the layouts the kernel was made for.
        unsafe { kernel.run(&[mask.as_mut_ptr(), counts.as_mut_ptr().cast()], &[]).unwrap() };
        let found = *counts.last().unwrap();
        assert_eq!(found, mask.iter().map(|b| i64::from(*b)).sum::<i64>());
        let out = TensorType::contiguous(DType::I64, &[sizes.len() as i64, found]);
        let mut data = vec![-1i64; out.numel() as usize];
        let kernel = TruePositions::new(&ty, &out).unwrap();
        let buffers = [mask.as_mut_ptr(), counts.as_mut_ptr().cast(), data.as_mut_ptr().cast()];
        // SAFETY: as above.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        (0..found as usize).map(|k| (0..sizes.len()).map(|d| data[d * found as usize + k]).collect()).collect()
    }

    #[test]
    fn coordinates_are_those_of_a_loop() {
        for (sizes, step) in
            [(vec![5], 2), (vec![70000], 3), (vec![3, 40000], 7), (vec![9, 1, 33, 40], 1), (vec![0], 1)]
        {
            let n: i64 = sizes.iter().product();
            for sparse in [step, 4099] {
                let mask: Vec<u8> = (0..n).map(|i| u8::from(i % sparse == 1 % sparse)).collect();
                let expected: Vec<Vec<i64>> = (0..n)
                    .filter(|i| mask[*i as usize] != 0)
                    .map(|i| {
                        let mut left = i;
                        let mut c: Vec<i64> = sizes.iter().rev().map(|s| (left % s, left /= s).0).collect();
                        c.reverse();
                        c
                    })
                    .collect();
                assert_eq!(coordinates(&mask, &sizes), expected, "{sizes:?}");
            }
        }
    }
}
