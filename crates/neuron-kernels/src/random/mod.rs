//! Random tensors: a counter-based generator, so that a value depends on seed, offset and position alone.

mod batch;
mod normal;
mod philox;
mod sample;

pub use philox::philox;
pub use sample::Sample;

use crate::index::nest::{Nest, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use batch::{Batch, WORDS};
use half::f16;
use neuron_ir::{DType, RandomOp, Scalar, TensorType};
use normal::{normal_f64, uniform_f64};
use std::ops::Range;

/// Elements of one task.
const PIECE: usize = 32 << 10;

/// 32-bit words of the generator that one element takes.
///
/// A tensor of `n` elements advances the generator's offset by `n` times this, rounded up to a multiple of 4.
pub fn values_per_element(op: RandomOp, dtype: DType) -> u64 {
    match (op, dtype) {
        (RandomOp::Bits, _) | (_, DType::F64) => 2,
        _ => 1,
    }
}

/// A random tensor. Buffer: out; the last two launch scalars are the seed and the offset of the generator.
///
/// Element `i` in row-major order comes from word `i`, or words `2 * i` and `2 * i + 1`, after the offset: strides and
/// threads have no part in it. Normal values come in pairs from the words of both.
#[derive(Debug)]
pub struct Random {
    op: RandomOp,
    dtype: DType,
    out: Nest<1>,
}

impl Random {
    /// `out` of floats for [`RandomOp::Uniform`] and [`RandomOp::Normal`], of `i64` for [`RandomOp::Bits`]. Any strides.
    ///
    /// # Errors
    /// Another element type.
    pub fn new(op: RandomOp, out: &TensorType) -> Result<Self, KernelError> {
        let covered = if op == RandomOp::Bits { out.dtype == DType::I64 } else { out.dtype.is_float() };
        if !covered {
            return Err(KernelError::dtype("random", out.dtype));
        }
        Ok(Random { op, dtype: out.dtype, out: Nest::of(&out.sizes, [out], 0..out.rank()) })
    }

    /// Fills the elements `range`, whose start is a multiple of `WORDS`: `convert` makes elements of a batch of words.
    ///
    /// # Safety
    /// `out` is the out tensor, of elements as wide as `T`.
    unsafe fn fill<T: Copy + Default>(
        &self,
        out: *mut u8,
        range: Range<usize>,
        state: [u64; 2],
        batch: Batch,
        convert: impl Fn(&[u32], &mut [T]),
    ) {
        let per_element = values_per_element(self.op, self.dtype) as usize;
        let elements = WORDS / per_element;
        let run = self.out.is_run(size_of::<T>());
        let [step] = self.out.inner_strides();
        let mut words = [0; WORDS];
        let mut values = [T::default(); WORDS];
        for first in range.clone().step_by(elements) {
            let count = elements.min(range.end - first);
            let block = (first * per_element / 4) as u64;
            batch.make(state[0], state[1], block, (count * per_element).div_ceil(4), &mut words);
            // Pairs are converted together, so an odd last element has a neighbour.
            let converted = count.next_multiple_of(2);
            let values = &mut values[..converted];
            convert(&words[..converted * per_element], values);
            if run {
                // SAFETY: elements of a gapless out tensor.
                unsafe {
                    let to = out.add(first * size_of::<T>()).cast::<T>();
                    std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
                }
            } else {
                let mut values = values.iter();
                self.out.runs(first..first + count, |[offset], count| {
                    for (i, value) in values.by_ref().take(count).enumerate() {
                        // SAFETY: an element of the out tensor.
                        unsafe { *out.offset(offset + i as isize * step).cast::<T>() = *value };
                    }
                });
            }
        }
    }

    /// # Safety
    /// As [`Random::fill`].
    unsafe fn task(&self, out: *mut u8, range: Range<usize>, state: [u64; 2]) {
        let float = if self.op == RandomOp::Normal { Batch::Normal } else { Batch::Uniform };
        // SAFETY: the caller's contract; each closure makes elements of the out tensor's type.
        unsafe {
            match (self.op, self.dtype) {
                (_, DType::F32) => self.fill(out, range, state, float, |words, out: &mut [u32]| {
                    out.copy_from_slice(words);
                }),
                (RandomOp::Uniform, DType::BF16) => self.fill(out, range, state, float, |words, out: &mut [u16]| {
                    // Cut, not rounded: rounding could reach 1.
                    out.iter_mut().zip(words).for_each(|(o, w)| *o = (w >> 16) as u16);
                }),
                (_, DType::BF16) => self.fill(out, range, state, float, |words, out: &mut [u16]| {
                    // Never NaN, so rounding to nearest even is an addition.
                    out.iter_mut().zip(words).for_each(|(o, w)| *o = ((w + 0x7FFF + (w >> 16 & 1)) >> 16) as u16);
                }),
                (_, DType::F16) => self.fill(out, range, state, float, |words, out: &mut [f16]| {
                    // Uniform values are cut to 11 significant bits first: rounding could reach 1.
                    let kept = if self.op == RandomOp::Uniform { !0x1FFF } else { !0 };
                    out.iter_mut().zip(words).for_each(|(o, w)| *o = f16::from_f32(f32::from_bits(w & kept)));
                }),
                (RandomOp::Normal, _) => self.fill(out, range, state, Batch::Words, |words, out: &mut [f64]| {
                    for (pair, words) in out.chunks_exact_mut(2).zip(words.chunks_exact(4)) {
                        pair.copy_from_slice(&normal_f64(long(&words[..2]), long(&words[2..])));
                    }
                }),
                (RandomOp::Uniform, _) => self.fill(out, range, state, Batch::Words, |words, out: &mut [f64]| {
                    out.iter_mut().zip(words.chunks_exact(2)).for_each(|(o, w)| *o = uniform_f64(long(w)));
                }),
                (RandomOp::Bits, _) => self.fill(out, range, state, Batch::Words, |words, out: &mut [u64]| {
                    out.iter_mut().zip(words.chunks_exact(2)).for_each(|(o, w)| *o = long(w));
                }),
            }
        }
    }
}

/// Two words as one of 64 bits, the first word low.
#[inline(always)]
fn long(words: &[u32]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

#[derive(Clone, Copy)]
struct Out(*mut u8);

// SAFETY: tasks write disjoint elements.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Kernel for Random {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let [.., seed, offset] = scalars else {
            return Err(KernelError::Unsupported { kernel: "random", what: "a launch without seed and offset".into() });
        };
        let (seed, offset) = (seed.to_i64() as u64, offset.to_i64() as u64);
        let out = Out(buffers[0]);
        let numel = self.out.numel();
        parallel_for(numel.div_ceil(PIECE), |t| {
            let out: Out = out;
            let range = piece(numel, PIECE, t);
            // SAFETY: a part of the out tensor, under the caller's contract.
            unsafe { self.task(out.0, range, [seed, offset]) };
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let per_element = if self.op == RandomOp::Normal && self.dtype == DType::F64 { 12 } else { 1 };
        60 + per_element * self.out.numel() as u64
    }
}

#[cfg(test)]
mod tests;
