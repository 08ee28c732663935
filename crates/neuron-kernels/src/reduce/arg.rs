//! Reductions to a position: argmax, argmin, and the extreme of a dimension with its index.

use super::element::{Accumulator, Load, Store};
use super::fold::{Extreme, horizontal, lanes};
use super::plan::{Engine, Plan, TILE, drive};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::Scalar;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The first extreme element by `O` and its position, in values of type `C`, `L` of which are in flight.
#[derive(Debug)]
pub(crate) struct Arg<C, O, const L: usize> {
    pub(crate) plan: Plan,
    /// The input holds values of type `C`.
    pub(crate) native: bool,
    pub(crate) load: Load<C>,
    pub(crate) item: usize,
    /// Where the values go, if anywhere: output number and writer.
    pub(crate) values: Option<(Store<C>, usize)>,
    pub(crate) op: PhantomData<O>,
}

/// Elements whose extreme is found before it is compared with the best so far.
const BLOCK: usize = 4096;

impl<C: Accumulator, O: Extreme<C>, const L: usize> Arg<C, O, L> {
    #[inline(always)]
    unsafe fn row(&self, input: *const u8, start: usize, end: usize) -> (C, u32) {
        let stride = self.plan.run.strides[0];
        let direct = self.native && (stride == 1 || self.plan.run.extent == 1);
        let mut tile = [const { MaybeUninit::<C>::uninit() }; TILE];
        let tile = tile.as_mut_ptr().cast::<C>();
        // SAFETY: `n` elements from `p` are elements of a run, and `n <= TILE` unless read in place.
        let read = |p: *const u8, n: usize| unsafe {
            if direct {
                return p.cast::<C>();
            }
            (self.load)(p, stride, n, tile);
            tile.cast_const()
        };
        let limit = if direct { BLOCK } else { TILE };
        let (mut best, mut best_at, mut best_n, mut best_p) = (O::IDENTITY, start, 0, input);
        let mut at = start;
        'all: while at < end {
            let (offset, run) = self.plan.next_run(at, end);
            let mut i = 0;
            while i < run {
                let n = (run - i).min(limit);
                // SAFETY: elements `i` to `i + n` of the run exist.
                unsafe {
                    let p = input.offset((offset + i as isize * stride) * self.item as isize);
                    let extreme = horizontal::<C, O, L>(lanes::<C, C, O, L>([O::IDENTITY; L], read(p, n), n));
                    if best_n == 0 || O::better(extreme, best) {
                        (best, best_at, best_n, best_p) = (extreme, at + i, n, p);
                        if best.is_nan() {
                            break 'all;
                        }
                    }
                }
                i += n;
            }
            at += run;
        }
        let p = read(best_p, best_n);
        let mut i = 0;
        // SAFETY: `i` stays below `best_n`.
        unsafe {
            while i + L <= best_n {
                let x = p.add(i).cast::<[C; L]>().read_unaligned();
                let mut found = false;
                for x in x {
                    found |= (x == best) | (x.is_nan() & best.is_nan());
                }
                if found {
                    break;
                }
                i += L;
            }
            while i < best_n {
                // The element itself: the comparison does not tell -0.0 from 0.0.
                let x = *p.add(i);
                if x == best || x.is_nan() && best.is_nan() {
                    return (x, (best_at + i) as u32);
                }
                i += 1;
            }
        }
        (best, best_at as u32)
    }

    #[inline(always)]
    unsafe fn columns(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut (C, u32)) {
        const GROUP: usize = 4;
        let stride = self.plan.run.strides[0];
        let inner = self.plan.inner.strides[0];
        let direct = self.native && (inner == 1 || width == 1);
        let mut best = [const { MaybeUninit::<C>::uninit() }; TILE];
        let mut place = [const { MaybeUninit::<u32>::uninit() }; TILE];
        let mut tile = [const { MaybeUninit::<C>::uninit() }; GROUP * TILE];
        let (best, place, tile) =
            (best.as_mut_ptr().cast::<C>(), place.as_mut_ptr().cast::<u32>(), tile.as_mut_ptr().cast::<C>());
        // SAFETY: `width <= TILE`; the rows are those of the input.
        unsafe {
            for j in 0..width {
                *best.add(j) = O::IDENTITY;
                *place.add(j) = start as u32;
            }
            let mut at = start;
            while at < end {
                let (offset, run) = self.plan.next_run(at, end);
                let mut i = 0;
                while i < run {
                    let n = (run - i).min(GROUP);
                    let mut row = [std::ptr::null::<C>(); GROUP];
                    for (k, row) in row.iter_mut().enumerate().take(n) {
                        let p = input.offset((offset + (i + k) as isize * stride) * self.item as isize);
                        *row = if direct {
                            p.cast()
                        } else {
                            (self.load)(p, inner, width, tile.add(k * TILE));
                            tile.add(k * TILE)
                        };
                    }
                    if at == start && i == 0 {
                        for j in 0..width {
                            *best.add(j) = *row[0].add(j);
                        }
                    }
                    let first = (at + i) as u32;
                    if n == GROUP {
                        for j in 0..width {
                            let (mut v, mut w) = (*best.add(j), *place.add(j));
                            for (k, row) in row.iter().enumerate() {
                                let x = *row.add(j);
                                let better = O::better(x, v);
                                v = if better { x } else { v };
                                w = if better { first + k as u32 } else { w };
                            }
                            *best.add(j) = v;
                            *place.add(j) = w;
                        }
                    } else {
                        for (k, row) in row[..n].iter().enumerate() {
                            for j in 0..width {
                                let x = *row.add(j);
                                let better = O::better(x, *best.add(j));
                                *best.add(j) = if better { x } else { *best.add(j) };
                                *place.add(j) = if better { first + k as u32 } else { *place.add(j) };
                            }
                        }
                    }
                    i += n;
                }
                at += run;
            }
            for j in 0..width {
                *out.add(j) = (*best.add(j), *place.add(j));
            }
        }
    }
}

impl<C: Accumulator, O: Extreme<C>, const L: usize> Engine for Arg<C, O, L> {
    type Partial = (C, u32);

    #[inline(always)]
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn reduce(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut (C, u32)) {
        if self.plan.columns {
            // SAFETY: passed on to the caller.
            vectorized(
                #[inline(always)]
                || unsafe { self.columns(input, width, start, end, out) },
            );
        } else {
            let stride = self.plan.inner.strides[0] * self.item as isize;
            vectorized(
                #[inline(always)]
                || {
                    for i in 0..width {
                        // SAFETY: passed on to the caller.
                        unsafe { *out.add(i) = self.row(input.offset(i as isize * stride), start, end) };
                    }
                },
            );
        }
    }

    #[inline(always)]
    fn merge(a: (C, u32), b: (C, u32)) -> (C, u32) {
        if O::better(b.0, a.0) { b } else { a }
    }

    #[inline(always)]
    unsafe fn finish(&self, results: *const (C, u32), width: usize, outputs: [*mut u8; 2], at: [isize; 2]) {
        let strides = self.plan.inner.strides;
        // SAFETY: passed on to the caller.
        unsafe {
            let indices = self.values.is_some() as usize;
            let to = outputs[indices].cast::<i64>().offset(at[indices]);
            for i in 0..width {
                *to.offset(i as isize * strides[1 + indices]) = (*results.add(i)).1 as i64;
            }
            if let Some((store, item)) = self.values {
                for i in 0..width {
                    let place = at[0] + i as isize * strides[1];
                    store(&raw const (*results.add(i)).0, 1, outputs[0].offset(place * item as isize), 1);
                }
            }
        }
    }
}

impl<C: Accumulator, O: Extreme<C>, const L: usize> Kernel for Arg<C, O, L> {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let second = if self.values.is_some() { buffers[2] } else { std::ptr::null_mut() };
        // SAFETY: passed on to the caller.
        unsafe { drive(self, buffers[0], [buffers[1], second]) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + (self.plan.elements() * self.item) as u64 / 6
    }
}
