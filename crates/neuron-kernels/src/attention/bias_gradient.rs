//! The gradient of the bias: that of the scores, summed over the dimensions in which the bias was broadcast.

use super::convert::store_rows;
use super::gradient_tile::{Inputs, Sources, Tile};
use super::problem::{KEYS, Operand, Problem, QUERIES};
use super::real::Real;
use super::scratch::{self, Scratch};
use crate::{KernelError, pool};
use neuron_ir::TensorType;
use std::ops::Range;

/// Keys per task.
const CHUNK: usize = 8 * KEYS;

/// Where the gradient goes, and which dimensions of `[b, h, l, s]` it keeps.
///
/// A task owns a part of the result and goes through everything that is summed into it, so the order of sums is fixed.
/// That recomputes the scores once more, which only those pay who train their bias.
#[derive(Debug)]
pub(super) struct BiasGradient {
    operand: Operand,
    kept: [bool; 4],
}

struct Target<'a> {
    inputs: &'a Inputs,
    sources: &'a Sources,
    base: *mut u8,
}

// SAFETY: the threads write disjoint parts of the result and only read the sources.
unsafe impl Sync for Target<'_> {}

/// All of a dimension, or the part that belongs to this task.
fn part(kept: bool, index: usize, extent: usize) -> Range<usize> {
    if kept { index..index + 1 } else { 0..extent }
}

impl BiasGradient {
    pub fn new(kernel: &'static str, problem: &Problem, tensor: &TensorType) -> Result<Self, KernelError> {
        let full = [problem.batch, problem.heads, problem.l, problem.s];
        let unsupported = |what: String| Err(KernelError::Unsupported { kernel, what });
        if problem.bias.is_none() || !tensor.dtype.is_float() || tensor.rank() != 4 {
            return unsupported(format!("a bias gradient of {tensor}"));
        }
        let sizes: Vec<usize> = tensor.sizes.iter().map(|&n| n as usize).collect();
        if sizes.iter().zip(full).any(|(&size, full)| size != full && size != 1) {
            return unsupported(format!("a bias gradient of {tensor} for scores of {full:?}"));
        }
        Ok(BiasGradient {
            operand: Operand::new(kernel, "bias gradient", tensor, tensor.dtype, &sizes)?,
            kept: std::array::from_fn(|dim| sizes[dim] == full[dim]),
        })
    }

    /// # Safety
    /// Sources and `base` are valid for their layouts.
    pub unsafe fn launch<T: Real>(&self, inputs: &Inputs, sources: &Sources, base: *mut u8) {
        let Problem { batch, heads, l, s, .. } = inputs.problem;
        let extents = [batch, heads, l.div_ceil(QUERIES), s.div_ceil(CHUNK)];
        let tasks: [usize; 4] = std::array::from_fn(|dim| if self.kept[dim] { extents[dim] } else { 1 });
        let target = Target { inputs, sources, base };
        pool::parallel_for(tasks.iter().product(), |task| {
            let (rest, chunk) = (task / tasks[3], task % tasks[3]);
            let (rest, block) = (rest / tasks[2], rest % tasks[2]);
            let index = [rest / tasks[1], rest % tasks[1], block, chunk];
            let parts = std::array::from_fn(|dim| part(self.kept[dim], index[dim], extents[dim]));
            // SAFETY: the caller's contract; each task has its own part of the result.
            unsafe { self.sum::<T>(&target, index, parts) };
        });
    }

    unsafe fn sum<T: Real>(&self, target: &Target, index: [usize; 4], parts: [Range<usize>; 4]) {
        let Target { inputs, sources, .. } = *target;
        let problem = &inputs.problem;
        let [batches, heads, blocks, chunks] = parts;
        let len = CHUNK * QUERIES;
        let bytes = 2 * Scratch::size::<T>(len) + Tile::<T>::size(problem);
        scratch::with(bytes, |mut scratch| {
            let [acc, result] = [(); 2].map(|()| scratch.take::<T>(len));
            let tile = Tile::<T>::new(problem, &mut scratch);
            // SAFETY: the scratch pieces have the lengths announced; operands are valid for the problem's sizes.
            unsafe {
                // `[keys of the chunk, queries of the block]`
                let acc = std::slice::from_raw_parts_mut(acc, len);
                acc.fill(T::ZERO);
                for batch in batches {
                    for head in heads.clone() {
                        for block in blocks.clone() {
                            let block = problem.block_of_head(batch, head, block);
                            inputs.load(sources, &block, &tile);
                            for chunk in chunks.clone() {
                                let end = problem.visible(&block).min((chunk + 1) * CHUNK);
                                for first in (chunk * CHUNK..end).step_by(KEYS) {
                                    let keys = KEYS.min(end - first);
                                    inputs.compute(sources, &block, 0, first, keys, &tile);
                                    let grads = std::slice::from_raw_parts(tile.score_grads, keys * block.width());
                                    let acc = acc[first % CHUNK * QUERIES..].chunks_mut(QUERIES);
                                    for (acc, grads) in acc.zip(grads.chunks(block.width())) {
                                        acc.iter_mut().zip(grads).for_each(|(acc, grad)| *acc += *grad);
                                    }
                                }
                            }
                        }
                    }
                }
                self.store(target, index, acc, std::slice::from_raw_parts_mut(result, len));
            }
        });
    }

    /// Sums what is left to sum, over the keys and queries of the task, and writes the task's part.
    unsafe fn store<T: Real>(&self, target: &Target, index: [usize; 4], acc: &[T], result: &mut [T]) {
        let problem = &target.inputs.problem;
        let [batch, head, block, chunk] = index;
        let (first_row, first_key) = (block * QUERIES, chunk * CHUNK);
        let rows = if self.kept[2] { QUERIES.min(problem.l - first_row) } else { 1 };
        let keys = if self.kept[3] { CHUNK.min(problem.s - first_key) } else { 1 };
        result[..rows * keys].fill(T::ZERO);
        for (key, line) in acc.chunks(QUERIES).enumerate() {
            for (row, grad) in line.iter().enumerate() {
                let row = if self.kept[2] { row } else { 0 };
                let key = if self.kept[3] { key } else { 0 };
                if row < rows && key < keys {
                    result[row * keys + key] += *grad;
                }
            }
        }
        let base = self.operand.at(target.base, [batch, head, first_row, first_key]);
        let row = |row: usize| base.wrapping_offset(row as isize * self.operand.step(2));
        // SAFETY: the part lies within the operand.
        unsafe {
            store_rows(self.operand.dtype, result.as_ptr(), keys, T::ONE, row, self.operand.strides[3], rows, keys)
        };
    }
}
