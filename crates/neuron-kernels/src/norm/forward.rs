//! Normalisation.

use crate::pool::parallel_for;
use crate::reduce::element::{Float, Load, Store, load_float, store_float};
use crate::reduce::plan::GRAIN;
use crate::reduce::scratch::{Scratch, sum};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar};

/// A dense operand: its element type's reader and writer.
#[derive(Debug)]
pub(super) struct Dense<C> {
    pub(super) load: Load<C>,
    pub(super) store: Store<C>,
    /// Elements are of type `C`.
    pub(super) direct: bool,
    pub(super) item: usize,
}

impl<C: Float> Dense<C> {
    pub(super) fn new(dtype: DType) -> Result<Dense<C>, KernelError> {
        let direct = dtype == if size_of::<C>() == 8 { DType::F64 } else { DType::F32 };
        Ok(Dense { load: load_float(dtype)?, store: store_float(dtype)?, direct, item: dtype.size() })
    }

    /// The `n` elements from number `first`: in place, or converted into `buffer`.
    #[inline(always)]
    pub(super) unsafe fn read(&self, from: *const u8, first: usize, n: usize, buffer: *mut C) -> *const C {
        // SAFETY: the caller vouches for the elements and the buffer.
        unsafe {
            let from = from.add(first * self.item);
            if self.direct {
                return from.cast();
            }
            (self.load)(from, 1, n, buffer);
            buffer
        }
    }

    /// Element number `index`.
    #[inline(always)]
    pub(super) unsafe fn get(&self, from: *const u8, index: usize) -> C {
        let mut v = C::ZERO;
        // SAFETY: the caller vouches for the element.
        unsafe { *self.read(from, index, 1, &mut v) }
    }

    /// Writes `n` elements from number `first`.
    #[inline(always)]
    pub(super) unsafe fn write(&self, to: *mut u8, first: usize, n: usize, values: *const C) {
        // SAFETY: the caller vouches for the elements.
        unsafe { (self.store)(values, n, to.add(first * self.item), 1) }
    }
}

struct Addresses<'a>(&'a [*mut u8]);
// SAFETY: threads write to disjoint rows.
unsafe impl Sync for Addresses<'_> {}

/// Layer norm (`CENTER`) or RMS norm.
#[derive(Debug)]
pub(super) struct Forward<C, const CENTER: bool, const L: usize> {
    rows: usize,
    length: usize,
    eps: f64,
    x: Dense<C>,
    weight: Option<Dense<C>>,
    bias: Option<Dense<C>>,
    out: Dense<C>,
    stats: Dense<C>,
}

impl<C: Float, const CENTER: bool, const L: usize> Forward<C, CENTER, L> {
    pub(super) fn new(
        x: DType,
        (rows, length): (usize, usize),
        eps: f64,
        weight: Option<DType>,
        bias: Option<DType>,
        out: DType,
        stats: DType,
    ) -> Result<Self, KernelError> {
        let (weight, bias) = (weight.map(Dense::new).transpose()?, bias.map(Dense::new).transpose()?);
        let (x, out, stats) = (Dense::new(x)?, Dense::new(out)?, Dense::new(stats)?);
        Ok(Forward { rows, length, eps, x, weight, bias, out, stats })
    }

    #[inline(always)]
    unsafe fn rows(&self, buffers: &[*mut u8], first: usize, last: usize) {
        let n = self.length;
        let given = 1 + self.weight.is_some() as usize + self.bias.is_some() as usize;
        let in_place = |d: &Option<Dense<C>>| d.as_ref().is_none_or(|d| d.direct);
        let plain = self.x.direct && self.out.direct && in_place(&self.weight) && in_place(&self.bias);
        let mut scratch = Scratch::new::<C>(if plain { 0 } else { 3 * n });
        let buffer = scratch.get::<C>();
        let (w_buffer, b_buffer) = (buffer.wrapping_add(n), buffer.wrapping_add(2 * n));
        let count = C::of(n as f64);
        // SAFETY: the rows exist; the scratch memory has room for a row, a weight and a bias.
        unsafe {
            let weight = self.weight.as_ref().map(|w| w.read(buffers[1], 0, n, w_buffer));
            let bias = self.bias.as_ref().map(|b| b.read(buffers[given - 1], 0, n, b_buffer));
            for row in first..last {
                let x = self.x.read(buffers[0], row * n, n, buffer);
                let y = if self.out.direct { buffers[given].cast::<C>().add(row * n) } else { buffer };
                let (mean, square) = if CENTER {
                    let mean = if n == 0 {
                        C::ZERO
                    } else {
                        sum::<C, L>(
                            n,
                            #[inline(always)]
                            |i| *x.add(i),
                        ) / count
                    };
                    let square = sum::<C, L>(
                        n,
                        #[inline(always)]
                        |i| {
                            let d = *x.add(i) - mean;
                            d * d
                        },
                    );
                    (mean, square)
                } else {
                    (
                        C::ZERO,
                        sum::<C, L>(
                            n,
                            #[inline(always)]
                            |i| *x.add(i) * *x.add(i),
                        ),
                    )
                };
                let rstd = C::of(1.0) / (square / count + C::of(self.eps)).sqrt();
                match (weight, bias) {
                    (Some(w), Some(b)) => {
                        for i in 0..n {
                            *y.add(i) = ((*x.add(i) - mean) * rstd).mul_add(*w.add(i), *b.add(i));
                        }
                    }
                    (Some(w), None) => {
                        for i in 0..n {
                            *y.add(i) = (*x.add(i) - mean) * rstd * *w.add(i);
                        }
                    }
                    (None, Some(b)) => {
                        for i in 0..n {
                            *y.add(i) = (*x.add(i) - mean).mul_add(rstd, *b.add(i));
                        }
                    }
                    (None, None) => {
                        for i in 0..n {
                            *y.add(i) = (*x.add(i) - mean) * rstd;
                        }
                    }
                }
                if !self.out.direct {
                    self.out.write(buffers[given], row * n, n, buffer);
                }
                if CENTER {
                    self.stats.write(buffers[given + 1], row, 1, &mean);
                    self.stats.write(buffers[given + 2], row, 1, &rstd);
                } else {
                    self.stats.write(buffers[given + 1], row, 1, &rstd);
                }
            }
        }
    }
}

impl<C: Float, const CENTER: bool, const L: usize> Kernel for Forward<C, CENTER, L> {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let memory = Addresses(buffers);
        let group = (GRAIN / self.length.max(1)).max(1);
        parallel_for(self.rows.div_ceil(group), |task| {
            let memory = &memory;
            let (first, last) = (task * group, ((task + 1) * group).min(self.rows));
            // SAFETY: the rows exist.
            vectorized(
                #[inline(always)]
                || unsafe { self.rows(memory.0, first, last) },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + (self.rows * (20 + self.length / 2)) as u64
    }
}
