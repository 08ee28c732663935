//! Gradients of normalisation.

use super::forward::{Dense, read_or_fill};
use crate::pool::parallel_for;
use crate::reduce::element::{Element, Float};
use crate::reduce::fold::{Combine, Sum};
use crate::reduce::plan::GRAIN;
use crate::reduce::scratch::{Scratch, map, sums};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar};
use std::marker::PhantomData;

/// Most blocks of rows whose contributions to the gradients of weight and bias are summed apart.
const BLOCKS: usize = 32;

/// Rows whose contributions are summed before they are added to the block's.
const STAGE: usize = 64;

/// Gradients of layer norm (`CENTER`) or RMS norm of rows of type `T`, in accumulators of type `C`.
#[derive(Debug)]
pub(super) struct Backward<C, T, const CENTER: bool, const L: usize> {
    rows: usize,
    length: usize,
    weight: Option<Dense<C>>,
    stats: Dense<C>,
    /// Of `grad_weight` and `grad_bias`.
    affine: Dense<C>,
    want: [bool; 3],
    element: PhantomData<T>,
}

/// Where everything is.
#[derive(Clone, Copy)]
struct Operands<'a> {
    buffers: &'a [*mut u8],
    grad_x: Option<*mut u8>,
    /// For every block a row of sums for the weight and one for the bias.
    sums: *mut u8,
}
// SAFETY: threads write to disjoint rows and blocks.
unsafe impl Sync for Operands<'_> {}

impl<C: Float, T: Element, const CENTER: bool, const L: usize> Backward<C, T, CENTER, L>
where
    Sum: Combine<C>,
{
    pub(super) fn boxed(
        (rows, length): (usize, usize),
        weight: Option<DType>,
        stats: DType,
        affine: DType,
        want: [bool; 3],
    ) -> Result<Box<dyn Kernel>, KernelError> {
        Ok(Box::new(Backward::<C, T, CENTER, L> {
            rows,
            length,
            weight: weight.map(Dense::new).transpose()?,
            stats: Dense::new(stats)?,
            affine: Dense::new(affine)?,
            want,
            element: PhantomData,
        }))
    }

    /// Number of blocks and rows in each, by size alone.
    fn blocks(&self) -> (usize, usize) {
        let blocks = (self.rows * self.length / GRAIN).clamp(1, BLOCKS);
        let rows = self.rows.div_ceil(blocks).max(1);
        (self.rows.div_ceil(rows), rows)
    }

    #[inline(always)]
    unsafe fn block(&self, at: Operands, block: usize, first: usize, last: usize) {
        let n = self.length;
        let affine = self.want[1] || self.want[2];
        let count = C::of(n as f64);
        // The weight, and the two sums of the current stage.
        let mut scratch = Scratch::new::<C>(3 * n);
        let buffer = scratch.get::<C>();
        // SAFETY: the rows exist; scratch memory and sums have room for those named.
        unsafe {
            let [w_buffer, w_stage, b_stage] = std::array::from_fn(|i| buffer.wrapping_add(i * n));
            let totals = at.sums.cast::<C>().wrapping_add(block * 2 * n);
            let (w_total, b_total) = (totals, totals.wrapping_add(n));
            let rstd_at = if CENTER { 3 } else { 2 };
            let from = if self.weight.is_some() { at.buffers[rstd_at + 1] } else { std::ptr::null_mut() };
            let weight = read_or_fill(&self.weight, from, n, w_buffer, C::of(1.0));
            if affine {
                for i in 0..n {
                    *w_total.add(i) = C::ZERO;
                    *b_total.add(i) = C::ZERO;
                    *w_stage.add(i) = C::ZERO;
                    *b_stage.add(i) = C::ZERO;
                }
            }
            for row in first..last {
                let g = at.buffers[0].cast::<T>().add(row * n);
                let x = at.buffers[1].cast::<T>().add(row * n);
                let mean = if CENTER { self.stats.get(at.buffers[2], row) } else { C::ZERO };
                let rstd = self.stats.get(at.buffers[rstd_at], row);
                if affine {
                    for i in 0..n {
                        let g = C::load(*g.add(i));
                        *w_stage.add(i) += g * ((C::load(*x.add(i)) - mean) * rstd);
                        if CENTER {
                            *b_stage.add(i) += g;
                        }
                    }
                    if (row - first) % STAGE == STAGE - 1 || row + 1 == last {
                        for i in 0..n {
                            *w_total.add(i) += *w_stage.add(i);
                            *b_total.add(i) += *b_stage.add(i);
                            *w_stage.add(i) = C::ZERO;
                            *b_stage.add(i) = C::ZERO;
                        }
                    }
                }
                let Some(grad_x) = at.grad_x else { continue };
                let to = grad_x.cast::<T>().add(row * n);
                if mean * C::ZERO != C::ZERO {
                    Self::beyond_numbers(n, (g, x, weight), mean, rstd, to);
                    continue;
                }
                let [along, offset] = sums::<C, L, 2>(
                    n,
                    #[inline(always)]
                    |i| {
                        let scaled = C::load(*g.add(i)) * *weight.add(i);
                        [scaled * (C::load(*x.add(i)) - mean), if CENTER { scaled } else { C::ZERO }]
                    },
                );
                let (slope, offset) = (along * rstd * rstd / count, offset / count);
                map(
                    g,
                    to,
                    n,
                    #[inline(always)]
                    |i, g| {
                        let scaled = C::load(g) * *weight.add(i);
                        (rstd * (scaled - offset - (C::load(*x.add(i)) - mean) * slope)).store::<T>()
                    },
                );
            }
        }
    }
}

impl<C: Float, T: Element, const CENTER: bool, const L: usize> Backward<C, T, CENTER, L>
where
    Sum: Combine<C>,
{
    /// A row whose mean is infinite or NaN. Deviations from it say nothing, so the gradient is PyTorch's
    /// `rstd * weight * grad + slope * x + shift`, which has infinities of its own.
    #[cold]
    unsafe fn beyond_numbers(n: usize, (g, x, weight): (*const T, *const T, *const C), mean: C, rstd: C, to: *mut T) {
        let (count, mut along, mut total) = (C::of(n as f64), C::ZERO, C::ZERO);
        // SAFETY: passed on to the caller.
        unsafe {
            for i in 0..n {
                let scaled = C::load(*g.add(i)) * *weight.add(i);
                along += scaled * C::load(*x.add(i));
                total += scaled;
            }
            let slope = (total * mean - along) * rstd * rstd * rstd / count;
            let shift = C::ZERO - slope * mean - total * rstd / count;
            for i in 0..n {
                let scaled = C::load(*g.add(i)) * *weight.add(i);
                *to.add(i) = (rstd * scaled + slope * C::load(*x.add(i)) + shift).store::<T>();
            }
        }
    }
}

impl<C: Float, T: Element, const CENTER: bool, const L: usize> Kernel for Backward<C, T, CENTER, L>
where
    Sum: Combine<C>,
{
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let n = self.length;
        let affine = self.want[1] || self.want[2];
        let (blocks, rows) = self.blocks();
        let mut sums = Scratch::new::<C>(if affine { blocks * 2 * n } else { 0 });
        let mut next = if CENTER { 4 } else { 3 } + self.weight.is_some() as usize;
        let wanted: [Option<*mut u8>; 3] = self.want.map(|want| {
            want.then(|| {
                next += 1;
                buffers[next - 1]
            })
        });
        let at = Operands { buffers, grad_x: wanted[0], sums: sums.get() };
        parallel_for(blocks, |block| {
            let at = &at;
            let (first, last) = (block * rows, ((block + 1) * rows).min(self.rows));
            // SAFETY: the rows exist; every block has its own sums.
            vectorized(
                #[inline(always)]
                || unsafe { self.block(*at, block, first, last) },
            );
        });
        for (which, to) in wanted[1..].iter().enumerate() {
            let Some(to) = *to else { continue };
            let mut zeros = Scratch::new::<C>(if blocks == 0 { n } else { 0 });
            let zeros = zeros.get::<C>();
            let first = if blocks == 0 { zeros } else { sums.get::<C>().wrapping_add(which * n) };
            // SAFETY: the blocks have written their sums; the output is a row.
            vectorized(
                #[inline(always)]
                || unsafe {
                    if blocks == 0 {
                        for i in 0..n {
                            *first.add(i) = C::ZERO;
                        }
                    }
                    for block in 1..blocks {
                        let from = first.add(block * 2 * n);
                        for i in 0..n {
                            *first.add(i) += *from.add(i);
                        }
                    }
                    self.affine.write(to, 0, n, first);
                },
            );
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        80 + (self.rows * (30 + self.length)) as u64
    }
}
