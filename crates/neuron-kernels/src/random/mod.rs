//! Random tensors: a counter-based generator, so that a value depends on seed, offset and position alone.

mod normal;
mod philox;

pub use philox::philox;

use crate::index::nest::{Nest, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use half::{bf16, f16};
use neuron_ir::{DType, RandomOp, Scalar, TensorType};
use normal::{normal_f32, normal_f64, uniform_f32, uniform_f64};
use philox::{LANES, philox_lanes};
use std::ops::Range;

/// Words of one call of the generator.
const WORDS: usize = 4 * LANES;

/// Words of one task.
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

    /// Fills the elements `range`, which starts at a multiple of `N`, with what `batch` makes of consecutive calls.
    ///
    /// # Safety
    /// `out` is the out tensor, of elements as wide as `T`.
    #[inline(always)]
    unsafe fn fill<T: Copy, const N: usize>(&self, out: *mut u8, range: Range<usize>, batch: impl Fn(u64) -> [T; N]) {
        let blocks = (LANES as u64) * (range.start / N) as u64;
        let run = self.out.is_run(size_of::<T>());
        let [step] = self.out.inner_strides();
        for (i, first) in range.clone().step_by(N).enumerate() {
            let values = batch(blocks + (i * LANES) as u64);
            let count = N.min(range.end - first);
            if run {
                // SAFETY: elements of a gapless out tensor.
                unsafe {
                    let to = out.add(first * size_of::<T>()).cast::<T>();
                    if count == N {
                        *to.cast::<[T; N]>() = values;
                    } else {
                        std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
                    }
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
    /// As [`Random::fill`]; the range starts at a multiple of `WORDS`.
    #[inline(always)]
    unsafe fn task(&self, out: *mut u8, range: Range<usize>, seed: u64, offset: u64) {
        let words = |block| philox_lanes(seed, offset, block);
        let uniform = |block| interleave(words(block).map(|w| w.map(uniform_f32)));
        let normal = |block| {
            let [a, b, c, d] = words(block);
            let ([n0, n1], [n2, n3]) = (normal_f32(&a, &b), normal_f32(&c, &d));
            interleave([n0, n1, n2, n3])
        };
        // SAFETY: the caller's contract; each closure makes elements of the out tensor's type.
        unsafe {
            match (self.op, self.dtype) {
                (RandomOp::Uniform, DType::F32) => self.fill::<f32, WORDS>(out, range, uniform),
                (RandomOp::Uniform, DType::BF16) => self.fill::<bf16, WORDS>(out, range, |b| {
                    uniform(b).map(|u| bf16::from_bits((u.to_bits() >> 16) as u16))
                }),
                (RandomOp::Uniform, DType::F16) => {
                    // Cut to 11 significant bits first: rounding could reach 1.
                    let cut = |u: f32| f16::from_f32(f32::from_bits(u.to_bits() & !0x1FFF));
                    self.fill::<f16, WORDS>(out, range, |b| uniform(b).map(cut))
                }
                (RandomOp::Normal, DType::F32) => self.fill::<f32, WORDS>(out, range, normal),
                (RandomOp::Normal, DType::BF16) => {
                    self.fill::<bf16, WORDS>(out, range, |b| normal(b).map(bf16::from_f32))
                }
                (RandomOp::Normal, DType::F16) => self.fill::<f16, WORDS>(out, range, |b| normal(b).map(f16::from_f32)),
                (RandomOp::Uniform, _) => {
                    self.fill::<f64, { WORDS / 2 }>(out, range, |b| pairs(words(b)).map(uniform_f64))
                }
                (RandomOp::Normal, _) => self.fill::<f64, { WORDS / 2 }>(out, range, |b| {
                    let pairs = pairs(words(b));
                    let mut values = [0.0; WORDS / 2];
                    for (value, pair) in values.chunks_exact_mut(2).zip(pairs.chunks_exact(2)) {
                        value.copy_from_slice(&normal_f64(pair[0], pair[1]));
                    }
                    values
                }),
                (RandomOp::Bits, _) => self.fill::<u64, { WORDS / 2 }>(out, range, |b| pairs(words(b))),
            }
        }
    }
}

/// Word `w` of block `l` to place `4 * l + w`.
#[inline(always)]
fn interleave<T: Copy + Default>(words: [[T; LANES]; 4]) -> [T; WORDS] {
    let mut out = [T::default(); WORDS];
    for l in 0..LANES {
        for w in 0..4 {
            out[4 * l + w] = words[w][l];
        }
    }
    out
}

/// Neighbouring words as 64-bit ones, the first word low.
#[inline(always)]
fn pairs(words: [[u32; LANES]; 4]) -> [u64; WORDS / 2] {
    let mut out = [0; WORDS / 2];
    for l in 0..LANES {
        for w in 0..2 {
            out[2 * l + w] = u64::from(words[2 * w][l]) | u64::from(words[2 * w + 1][l]) << 32;
        }
    }
    out
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
            vectorized(|| unsafe { self.task(out.0, range, seed, offset) });
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
