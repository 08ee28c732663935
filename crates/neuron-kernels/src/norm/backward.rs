//! Gradients of normalisation.

use super::forward::Dense;
use crate::pool::parallel_for;
use crate::reduce::element::Float;
use crate::reduce::plan::GRAIN;
use crate::reduce::scratch::{Scratch, sum};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar};

/// Most blocks of rows whose contributions to the gradients of weight and bias are summed apart.
const BLOCKS: usize = 32;

/// Rows whose contributions are summed before they are added to the block's.
const STAGE: usize = 64;

/// Gradients of layer norm (`CENTER`) or RMS norm.
#[derive(Debug)]
pub(super) struct Backward<C, const CENTER: bool, const L: usize> {
    rows: usize,
    length: usize,
    grad: Dense<C>,
    x: Dense<C>,
    weight: Option<Dense<C>>,
    stats: Dense<C>,
    /// Of `grad_weight` and `grad_bias`.
    affine: Dense<C>,
    want: [bool; 3],
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

impl<C: Float, const CENTER: bool, const L: usize> Backward<C, CENTER, L> {
    pub(super) fn new(
        grad: DType,
        x: DType,
        (rows, length): (usize, usize),
        weight: Option<DType>,
        stats: DType,
        want: [bool; 3],
    ) -> Result<Self, KernelError> {
        Ok(Backward {
            rows,
            length,
            grad: Dense::new(grad)?,
            x: Dense::new(x)?,
            weight: weight.map(Dense::new).transpose()?,
            stats: Dense::new(stats)?,
            affine: Dense::new(weight.unwrap_or(x))?,
            want,
        })
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
        // Grad, x, weight, and the two sums of the current stage.
        let mut scratch = Scratch::new::<C>(5 * n);
        let buffer = scratch.get::<C>();
        // SAFETY: the rows exist; scratch memory and sums have room for those named.
        unsafe {
            let [g_buffer, x_buffer, w_buffer, w_stage, b_stage] = std::array::from_fn(|i| buffer.add(i * n));
            let totals = at.sums.cast::<C>().wrapping_add(block * 2 * n);
            let (w_total, b_total) = (totals, totals.wrapping_add(n));
            let rstd_at = if CENTER { 3 } else { 2 };
            let weight = self.weight.as_ref().map(|w| w.read(at.buffers[rstd_at + 1], 0, n, w_buffer));
            if affine {
                for i in 0..n {
                    *w_total.add(i) = C::ZERO;
                    *b_total.add(i) = C::ZERO;
                    *w_stage.add(i) = C::ZERO;
                    *b_stage.add(i) = C::ZERO;
                }
            }
            for row in first..last {
                let g = self.grad.read(at.buffers[0], row * n, n, g_buffer);
                let x = self.x.read(at.buffers[1], row * n, n, x_buffer);
                let mean = if CENTER { self.stats.get(at.buffers[2], row) } else { C::ZERO };
                let rstd = self.stats.get(at.buffers[rstd_at], row);
                if affine {
                    for i in 0..n {
                        *w_stage.add(i) += *g.add(i) * ((*x.add(i) - mean) * rstd);
                        if CENTER {
                            *b_stage.add(i) += *g.add(i);
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
                if let Some(grad_x) = at.grad_x {
                    let to = if self.x.direct { grad_x.cast::<C>().add(row * n) } else { x_buffer };
                    match weight {
                        Some(w) => self.row(
                            x,
                            to,
                            mean,
                            rstd,
                            #[inline(always)]
                            |i| *g.add(i) * *w.add(i),
                        ),
                        None => self.row(
                            x,
                            to,
                            mean,
                            rstd,
                            #[inline(always)]
                            |i| *g.add(i),
                        ),
                    }
                    if !self.x.direct {
                        self.x.write(grad_x, row * n, n, x_buffer);
                    }
                }
            }
        }
    }

    /// One row of the gradient of x; `scaled(i)` is gradient `i` times weight `i`.
    #[inline(always)]
    unsafe fn row(&self, x: *const C, to: *mut C, mean: C, rstd: C, scaled: impl Fn(usize) -> C) {
        let n = self.length;
        let count = C::of(n as f64);
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            let along = sum::<C, L>(
                n,
                #[inline(always)]
                |i| scaled(i) * (*x.add(i) - mean),
            );
            let slope = along * rstd * rstd / count;
            let offset = if CENTER { sum::<C, L>(n, &scaled) / count } else { C::ZERO };
            for i in 0..n {
                *to.add(i) = rstd * (scaled(i) - offset - (*x.add(i) - mean) * slope);
            }
        }
    }
}

impl<C: Float, const CENTER: bool, const L: usize> Kernel for Backward<C, CENTER, L> {
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
