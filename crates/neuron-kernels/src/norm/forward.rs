//! Normalisation.

use crate::pool::parallel_for;
use crate::reduce::element::{Element, Float, Load, Store, load_float, store_float};
use crate::reduce::fold::{Combine, Sum};
use crate::reduce::plan::GRAIN;
use crate::reduce::scratch::{Scratch, map, sum};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar};
use std::marker::PhantomData;

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

/// A row that every row of the input meets: read, or filled with `value` where there is none.
#[inline(always)]
pub(super) unsafe fn read_or_fill<C: Float>(
    operand: &Option<Dense<C>>,
    from: *const u8,
    n: usize,
    buffer: *mut C,
    value: C,
) -> *const C {
    // SAFETY: the caller vouches for the row and the buffer.
    unsafe {
        if let Some(operand) = operand {
            return operand.read(from, 0, n, buffer);
        }
        for i in 0..n {
            *buffer.add(i) = value;
        }
    }
    buffer
}

struct Addresses<'a>(&'a [*mut u8]);
// SAFETY: threads write to disjoint rows.
unsafe impl Sync for Addresses<'_> {}

/// Layer norm (`CENTER`) or RMS norm of rows of type `T`, in accumulators of type `C`.
#[derive(Debug)]
pub(super) struct Forward<C, T, const CENTER: bool, const L: usize> {
    rows: usize,
    length: usize,
    eps: f64,
    weight: Option<Dense<C>>,
    bias: Option<Dense<C>>,
    stats: Dense<C>,
    element: PhantomData<T>,
}

impl<C: Float, T: Element, const CENTER: bool, const L: usize> Forward<C, T, CENTER, L>
where
    Sum: Combine<C>,
{
    pub(super) fn boxed(
        (rows, length): (usize, usize),
        eps: f64,
        weight: Option<DType>,
        bias: Option<DType>,
        stats: DType,
    ) -> Result<Box<dyn Kernel>, KernelError> {
        let (weight, bias) = (weight.map(Dense::new).transpose()?, bias.map(Dense::new).transpose()?);
        let stats = Dense::new(stats)?;
        Ok(Box::new(Forward::<C, T, CENTER, L> { rows, length, eps, weight, bias, stats, element: PhantomData }))
    }

    #[inline(always)]
    unsafe fn rows(&self, buffers: &[*mut u8], first: usize, last: usize) {
        let n = self.length;
        let given = 1 + self.weight.is_some() as usize + self.bias.is_some() as usize;
        let in_place = |d: &Option<Dense<C>>| d.as_ref().is_some_and(|d| d.direct);
        let mut scratch =
            Scratch::new::<C>(if in_place(&self.weight) && (!CENTER || in_place(&self.bias)) { 0 } else { 2 * n });
        let buffer = scratch.get::<C>();
        let count = C::of(n as f64);
        // SAFETY: the rows exist; the scratch memory has room for a weight and a bias.
        unsafe {
            let weight = read_or_fill(&self.weight, buffers[1], n, buffer, C::of(1.0));
            let bias = if CENTER {
                read_or_fill(&self.bias, buffers[given - 1], n, buffer.wrapping_add(n), C::ZERO)
            } else {
                weight
            };
            for row in first..last {
                let x = buffers[0].cast::<T>().add(row * n);
                let y = buffers[given].cast::<T>().add(row * n);
                let (mean, square) = if CENTER {
                    let total = sum::<C, L>(
                        n,
                        #[inline(always)]
                        |i| C::load(*x.add(i)),
                    );
                    let mean = if n == 0 { C::ZERO } else { total / count };
                    let square = sum::<C, L>(
                        n,
                        #[inline(always)]
                        |i| {
                            let d = C::load(*x.add(i)) - mean;
                            d * d
                        },
                    );
                    (mean, square)
                } else {
                    let square = sum::<C, L>(
                        n,
                        #[inline(always)]
                        |i| {
                            let x = C::load(*x.add(i));
                            x * x
                        },
                    );
                    (C::ZERO, square)
                };
                let rstd = C::of(1.0) / (square / count + C::of(self.eps)).sqrt();
                map(
                    x,
                    y,
                    n,
                    #[inline(always)]
                    |i, x| {
                        let x = C::load(x);
                        let y = if CENTER {
                            ((x - mean) * rstd).mul_add(*weight.add(i), *bias.add(i))
                        } else {
                            x * rstd * *weight.add(i)
                        };
                        y.store::<T>()
                    },
                );
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

impl<C: Float, T: Element, const CENTER: bool, const L: usize> Kernel for Forward<C, T, CENTER, L>
where
    Sum: Combine<C>,
{
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let memory = Addresses(buffers);
        let group = (GRAIN / self.length.max(1)).max(1);
        parallel_for(self.rows.div_ceil(group), |task| {
            let memory = &memory;
            let (first, last) = (task * group, ((task + 1) * group).min(self.rows));
            vectorized(
                #[inline(always)]
                // SAFETY: the rows exist.
                || unsafe { self.rows(memory.0, first, last) },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + (self.rows * (20 + self.length / 2)) as u64
    }
}
