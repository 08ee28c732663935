//! Running sums and products.

mod running;
#[cfg(test)]
mod tests;

pub use running::{LogCumSumExp, RunningExtreme};

use crate::reduce::element::{Accumulator, Load, Store, load_float, load_integer, store_any, store_float};
use crate::reduce::fold::{Combine, Prod, Sum};
use crate::reduce::walk::{Addresses, WIDTH, Walk};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, ReduceOp, Scalar, TensorType};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Elements of a row in the cache at a time.
const TILE: usize = 1024;

/// Runs of a tile summed side by side, since one sum waits for the last.
const RUNS: usize = 8;

/// Running sum or product along a dimension. Buffers: input, output; they may be the same.
#[derive(Debug)]
pub struct Cumulative {
    kernel: Box<dyn Kernel>,
}

impl Cumulative {
    /// [`ReduceOp::Sum`] or [`ReduceOp::Prod`] of the elements of `input` up to each along `dim`; both tensors of any
    /// strides and type. Floats accumulate in `f64`, as PyTorch does for `f32` on the CPU; the rest in `i64`, wrapping.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other operators, for a float input with another kind of output, or where the
    /// sizes differ.
    pub fn new(op: ReduceOp, input: &TensorType, dim: usize, output: &TensorType) -> Result<Cumulative, KernelError> {
        let walk = Walk::new("cumulative", &[input, output], dim)?;
        let items = [input.dtype.size() as isize, output.dtype.size() as isize];
        let kernel: Box<dyn Kernel> = if input.dtype.is_float() {
            let (load, store) = (load_float(input.dtype)?, store_float(output.dtype)?);
            match op {
                // In f64 a run cannot overflow where the whole would not, unless the input is f64 itself.
                ReduceOp::Sum => Scan::<f64, Sum>::boxed(walk, input.dtype != DType::F64, load, store, items),
                ReduceOp::Prod => Scan::<f64, Prod>::boxed(walk, false, load, store, items),
                _ => return Err(KernelError::Unsupported { kernel: "cumulative", what: format!("{op:?}") }),
            }
        } else {
            let (load, store) = (load_integer(input.dtype)?, store_any(output.dtype)?);
            match op {
                ReduceOp::Sum => Scan::<i64, Sum>::boxed(walk, true, load, store, items),
                ReduceOp::Prod => Scan::<i64, Prod>::boxed(walk, true, load, store, items),
                _ => return Err(KernelError::Unsupported { kernel: "cumulative", what: format!("{op:?}") }),
            }
        };
        Ok(Cumulative { kernel })
    }
}

impl Kernel for Cumulative {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: passed on to the caller.
        unsafe { self.kernel.run(buffers, scalars) }
    }

    fn cost(&self) -> u64 {
        self.kernel.cost()
    }
}

#[derive(Debug)]
struct Scan<C, O> {
    walk: Walk,
    /// Combining the elements of a run before what precedes them gives the same result.
    associative: bool,
    load: Load<C>,
    store: Store<C>,
    items: [isize; 2],
    op: PhantomData<O>,
}

impl<C: Accumulator, O: Combine<C>> Scan<C, O> {
    fn boxed(walk: Walk, associative: bool, load: Load<C>, store: Store<C>, items: [isize; 2]) -> Box<dyn Kernel> {
        Box::new(Scan::<C, O> { walk, associative, load, store, items, op: PhantomData })
    }

    #[inline(always)]
    unsafe fn rows(&self, x: *const u8, y: *mut u8, width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let mut tile = [const { MaybeUninit::<C>::uninit() }; TILE];
        let tile = tile.as_mut_ptr().cast::<C>();
        for r in 0..width as isize {
            let mut carry = O::IDENTITY;
            let mut i = 0;
            while i < n {
                let m = TILE.min(n - i);
                // SAFETY: elements `i` to `i + m` of row `r` exist in both tensors, and `m <= TILE`.
                unsafe {
                    let place = |t: usize| (r * inner[t] + i as isize * strides[t]) * self.items[t];
                    (self.load)(x.offset(place(0)), strides[0], m, tile);
                    carry = if self.associative { runs::<C, O>(tile, m, carry) } else { scan::<C, O>(tile, m, carry) };
                    (self.store)(tile, m, y.offset(place(1)), strides[1]);
                }
                i += m;
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(&self, x: *const u8, y: *mut u8, width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let mut total = [O::IDENTITY; WIDTH];
        let mut row = [O::IDENTITY; WIDTH];
        for i in 0..n as isize {
            // SAFETY: row `i` exists in both tensors, and `width <= WIDTH`.
            unsafe {
                (self.load)(x.offset(i * strides[0] * self.items[0]), inner[0], width, row.as_mut_ptr());
                for (total, row) in total[..width].iter_mut().zip(&row) {
                    *total = O::combine(*total, *row);
                }
                (self.store)(total.as_ptr(), width, y.offset(i * strides[1] * self.items[1]), inner[1]);
            }
        }
    }
}

/// Scans `n` elements in place after `carry`; returns the last.
#[inline(always)]
unsafe fn scan<C: Accumulator, O: Combine<C>>(p: *mut C, n: usize, mut carry: C) -> C {
    for i in 0..n {
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            carry = O::combine(carry, *p.add(i));
            *p.add(i) = carry;
        }
    }
    carry
}

/// As [`scan`], by runs that are scanned side by side, then combined with what precedes them.
#[inline(always)]
unsafe fn runs<C: Accumulator, O: Combine<C>>(p: *mut C, n: usize, carry: C) -> C {
    let length = n / RUNS;
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        if length < 8 {
            return scan::<C, O>(p, n, carry);
        }
        let mut totals = [O::IDENTITY; RUNS];
        totals[0] = carry;
        for i in 0..length {
            for (run, total) in totals.iter_mut().enumerate() {
                let p = p.add(run * length + i);
                *total = O::combine(*total, *p);
                *p = *total;
            }
        }
        let mut before = totals[0];
        for (run, total) in totals.into_iter().enumerate().skip(1) {
            let p = p.add(run * length);
            for i in 0..length {
                *p.add(i) = O::combine(before, *p.add(i));
            }
            before = O::combine(before, total);
        }
        scan::<C, O>(p.add(RUNS * length), n - RUNS * length, before)
    }
}

impl<C: Accumulator, O: Combine<C>> Kernel for Scan<C, O> {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let memory = Addresses([buffers[0], buffers[1]]);
        self.walk.run(|at, width| {
            let memory = &memory;
            vectorized(
                #[inline(always)]
                // SAFETY: the offsets are those of elements of the tensors.
                || unsafe {
                    let x = memory.0[0].offset(at[0] * self.items[0]);
                    let y = memory.0[1].offset(at[1] * self.items[1]);
                    if self.walk.columns { self.columns(x, y, width) } else { self.rows(x, y, width) }
                },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + self.walk.elements()
    }
}
