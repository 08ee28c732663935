//! Mean and variance.

use super::element::{Element, Store};
use super::plan::{Engine, Plan, TILE, drive};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::Scalar;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Variance and mean of elements of type `T`.
///
/// One pass over memory: sums of `x - s` and `(x - s)^2` in `f64`, where `s` is the first element. The cancellation at
/// the end costs at most a factor of the number of elements, since a single outlier dominates the variance itself:
/// nothing against the precision of `f32`, and no more than a plain sum loses in `f64`.
#[derive(Debug)]
pub(crate) struct Moments<T> {
    pub(crate) plan: Plan,
    /// What is taken off the number of elements before the division.
    pub(crate) correction: f64,
    pub(crate) store: [Store<f64>; 2],
    pub(crate) out_item: [usize; 2],
    pub(crate) element: PhantomData<T>,
}

/// Count, mean, and sum of squared deviations from the mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Partial {
    #[inline(always)]
    fn of(count: usize, shift: f64, sum: f64, squares: f64) -> Partial {
        let count = count as f64;
        let squares = squares - sum * sum / count;
        // Rounding may leave less than nothing; the comparison keeps NaN.
        Partial { count, mean: shift + sum / count, squares: if squares < 0.0 { 0.0 } else { squares } }
    }
}

/// An infinite shift would make every deviation NaN, the mean included.
#[inline(always)]
fn finite(v: f64) -> f64 {
    if v.is_finite() { v } else { 0.0 }
}

const LANES: usize = 32;

impl<T: Element> Moments<T> {
    #[inline(always)]
    unsafe fn row(&self, input: *const T, start: usize, end: usize) -> Partial {
        let stride = self.plan.run.strides[0];
        let mut sum = [0.0f64; LANES];
        let mut squares = [0.0f64; LANES];
        let mut shift = 0.0;
        let mut at = start;
        while at < end {
            let (offset, run) = self.plan.next_run(at, end);
            // SAFETY: a run of `run` elements.
            unsafe {
                let p = input.offset(offset);
                if at == start {
                    shift = finite((*p).to_f64());
                }
                let mut i = 0;
                if stride == 1 {
                    while i + LANES <= run {
                        let x = p.add(i).cast::<[T; LANES]>().read_unaligned();
                        for l in 0..LANES {
                            let d = x[l].to_f64() - shift;
                            sum[l] += d;
                            squares[l] = d.mul_add(d, squares[l]);
                        }
                        i += LANES;
                    }
                }
                while i < run {
                    let n = (run - i).min(LANES);
                    let mut d = [0.0f64; LANES];
                    for (l, d) in d.iter_mut().enumerate().take(n) {
                        *d = (*p.offset((i + l) as isize * stride)).to_f64() - shift;
                    }
                    for l in 0..LANES {
                        sum[l] += d[l];
                        squares[l] = d[l].mul_add(d[l], squares[l]);
                    }
                    i += n;
                }
            }
            at += run;
        }
        let mut half = LANES / 2;
        while half > 0 {
            for l in 0..half {
                sum[l] += sum[l + half];
                squares[l] += squares[l + half];
            }
            half /= 2;
        }
        Partial::of(end - start, shift, sum[0], squares[0])
    }

    #[inline(always)]
    unsafe fn columns(&self, input: *const T, width: usize, start: usize, end: usize, out: *mut Partial) {
        const GROUP: usize = 4;
        let stride = self.plan.run.strides[0];
        let inner = self.plan.inner.strides[0];
        let mut buffers = [const { MaybeUninit::<[f64; TILE]>::uninit() }; 3];
        let [shift, sum, squares] = buffers.each_mut().map(|b| b.as_mut_ptr().cast::<f64>());
        // SAFETY: `width <= TILE`; the rows are those of the input.
        unsafe {
            for j in 0..width {
                *shift.add(j) = 0.0;
                *sum.add(j) = 0.0;
                *squares.add(j) = 0.0;
            }
            let mut at = start;
            while at < end {
                let (offset, run) = self.plan.next_run(at, end);
                let p = input.offset(offset);
                if at == start {
                    for j in 0..width {
                        *shift.add(j) = finite((*p.offset(j as isize * inner)).to_f64());
                    }
                }
                let mut i = 0;
                while i < run {
                    let n = if run - i >= GROUP { GROUP } else { 1 };
                    let row = p.offset(i as isize * stride);
                    if inner == 1 && n == GROUP {
                        for j in 0..width {
                            let (mut s, mut q) = (*sum.add(j), *squares.add(j));
                            for k in 0..GROUP {
                                let d = (*row.offset(j as isize + k as isize * stride)).to_f64() - *shift.add(j);
                                s += d;
                                q = d.mul_add(d, q);
                            }
                            *sum.add(j) = s;
                            *squares.add(j) = q;
                        }
                    } else {
                        for k in 0..n {
                            let row = row.offset(k as isize * stride);
                            for j in 0..width {
                                let d = (*row.offset(j as isize * inner)).to_f64() - *shift.add(j);
                                *sum.add(j) += d;
                                *squares.add(j) = d.mul_add(d, *squares.add(j));
                            }
                        }
                    }
                    i += n;
                }
                at += run;
            }
            for j in 0..width {
                *out.add(j) = Partial::of(end - start, *shift.add(j), *sum.add(j), *squares.add(j));
            }
        }
    }
}

impl<T: Element> Engine for Moments<T> {
    type Partial = Partial;

    #[inline(always)]
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn reduce(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut Partial) {
        let input = input.cast::<T>();
        if self.plan.columns {
            // SAFETY: passed on to the caller.
            vectorized(
                #[inline(always)]
                || unsafe { self.columns(input, width, start, end, out) },
            );
        } else {
            vectorized(
                #[inline(always)]
                || {
                    for i in 0..width {
                        // SAFETY: passed on to the caller.
                        unsafe {
                            let row = input.offset(i as isize * self.plan.inner.strides[0]);
                            *out.add(i) = self.row(row, start, end);
                        }
                    }
                },
            );
        }
    }

    #[inline(always)]
    fn merge(a: Partial, b: Partial) -> Partial {
        let count = a.count + b.count;
        let delta = b.mean - a.mean;
        Partial {
            count,
            mean: a.mean + delta * (b.count / count),
            squares: a.squares + b.squares + delta * delta * (a.count * b.count / count),
        }
    }

    #[inline(always)]
    unsafe fn finish(&self, results: *const Partial, width: usize, outputs: [*mut u8; 2], at: [isize; 2]) {
        let strides = self.plan.inner.strides;
        for i in 0..width {
            // SAFETY: passed on to the caller.
            unsafe {
                let p = *results.add(i);
                // PyTorch: no negative number of degrees of freedom, and a division by zero as IEEE 754 has it.
                let values = [p.squares / (p.count - self.correction).max(0.0), p.mean];
                for o in 0..2 {
                    let place = (at[o] + i as isize * strides[1 + o]) * self.out_item[o] as isize;
                    (self.store[o])(&values[o], 1, outputs[o].offset(place), 1);
                }
            }
        }
    }
}

impl<T: Element> Kernel for Moments<T> {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: passed on to the caller.
        unsafe { drive(self, buffers[0], [buffers[1], buffers[2]]) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        80 + self.plan.elements() as u64 / 2
    }
}
