//! Reductions whose elements combine in any order: sum, product, extremes, any and all.

#![allow(clippy::needless_range_loop, reason = "one index walks several rows of lanes")]

use super::element::{Accumulator, Element, Load, Store};
use super::plan::{Engine, Plan, TILE, drive};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::Scalar;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// How two values become one.
pub(crate) trait Combine<C>: Send + Sync + Debug + 'static {
    /// The value that changes no other.
    const IDENTITY: C;
    /// The combination.
    fn combine(a: C, b: C) -> C;
}

/// An order that has a first element.
pub(crate) trait Extreme<C>: Combine<C> {
    /// True if `x` comes strictly before the best so far; NaN comes before everything.
    fn better(x: C, best: C) -> bool;
}

/// Addition; integers wrap.
#[derive(Debug)]
pub(crate) struct Sum;
/// Multiplication; integers wrap.
#[derive(Debug)]
pub(crate) struct Prod;
/// The larger, or NaN.
#[derive(Debug)]
pub(crate) struct Max;
/// The smaller, or NaN.
#[derive(Debug)]
pub(crate) struct Min;
/// Logical or of 0 and 1.
#[derive(Debug)]
pub(crate) struct Any;
/// Logical and of 0 and 1.
#[derive(Debug)]
pub(crate) struct All;

macro_rules! combine {
    ($op:ident, $t:ident, $identity:expr, |$a:ident, $b:ident| $body:expr) => {
        impl Combine<$t> for $op {
            const IDENTITY: $t = $identity;
            #[inline(always)]
            fn combine($a: $t, $b: $t) -> $t {
                $body
            }
        }
    };
}
combine!(Sum, f32, 0.0, |a, b| a + b);
combine!(Sum, f64, 0.0, |a, b| a + b);
combine!(Sum, i64, 0, |a, b| a.wrapping_add(b));
combine!(Prod, f32, 1.0, |a, b| a * b);
combine!(Prod, f64, 1.0, |a, b| a * b);
combine!(Prod, i64, 1, |a, b| a.wrapping_mul(b));
combine!(Any, u8, 0, |a, b| a | b);
combine!(All, u8, 1, |a, b| a & b);

macro_rules! extreme {
    ($op:ident, $compare:tt, $($t:ident: $identity:expr),*) => {$(
        combine!($op, $t, $identity, |a, b| if (b $compare a) | b.is_nan() { b } else { a });
        impl Extreme<$t> for $op {
            #[inline(always)]
            fn better(x: $t, best: $t) -> bool {
                (x $compare best) | (x.is_nan() & !best.is_nan())
            }
        }
    )*};
}
extreme!(Max, >, f32: f32::NEG_INFINITY, f64: f64::NEG_INFINITY, i64: i64::MIN, i32: i32::MIN);
extreme!(Min, <, f32: f32::INFINITY, f64: f64::INFINITY, i64: i64::MAX, i32: i32::MAX);

/// Elements a lane takes up before it is added to the next level, and levels likewise: the error of a sum grows with
/// 64 times the number of levels, not with its length.
const BLOCK: usize = 64;

/// Combines `n` neighbours into the lanes, element `i` into lane `i % L`.
#[inline(always)]
pub(crate) unsafe fn lanes<C: Accumulator, T: Element, O: Combine<C>, const L: usize>(
    mut acc: [C; L],
    p: *const T,
    n: usize,
) -> [C; L] {
    let mut i = 0;
    while i + L <= n {
        // SAFETY: the caller vouches for `n` elements.
        let x = unsafe { p.add(i).cast::<[T; L]>().read_unaligned() };
        for l in 0..L {
            acc[l] = O::combine(acc[l], C::load(x[l]));
        }
        i += L;
    }
    if i < n {
        // A whole row of lanes again: indexing the lanes by a variable would take them out of the registers.
        let mut x = [O::IDENTITY; L];
        for (l, x) in x.iter_mut().enumerate().take(n - i) {
            // SAFETY: `i + l < n`.
            *x = C::load(unsafe { *p.add(i + l) });
        }
        for l in 0..L {
            acc[l] = O::combine(acc[l], x[l]);
        }
    }
    acc
}

/// Combines the lanes, a multiple of 16: first to 16, then halves with halves. Every step is an array of its own, or the
/// lanes would go through memory one by one.
#[inline(always)]
pub(crate) fn horizontal<C: Accumulator, O: Combine<C>, const L: usize>(acc: [C; L]) -> C {
    const { assert!(L.is_multiple_of(16)) };
    let mut lanes: [C; 16] = std::array::from_fn(|l| acc[l]);
    for row in 1..L / 16 {
        for l in 0..16 {
            lanes[l] = O::combine(lanes[l], acc[row * 16 + l]);
        }
    }
    let lanes: [C; 8] = std::array::from_fn(|l| O::combine(lanes[l], lanes[l + 8]));
    let lanes: [C; 4] = std::array::from_fn(|l| O::combine(lanes[l], lanes[l + 4]));
    O::combine(O::combine(lanes[0], lanes[2]), O::combine(lanes[1], lanes[3]))
}

/// A reduction by `O` in accumulators of type `C`, `L` of which are in flight.
#[derive(Debug)]
pub(crate) struct Fold<C, T, O, const L: usize> {
    pub(crate) plan: Plan,
    /// The input holds elements of type `T`, which are read in place where they lie side by side.
    pub(crate) native: bool,
    pub(crate) load: Load<C>,
    pub(crate) store: Store<C>,
    pub(crate) item: usize,
    pub(crate) out_item: usize,
    pub(crate) types: PhantomData<(T, O)>,
}

impl<C: Accumulator, T: Element, O: Combine<C>, const L: usize> Fold<C, T, O, L> {
    #[inline(always)]
    unsafe fn row(&self, input: *const u8, start: usize, end: usize) -> C {
        let stride = self.plan.run.strides[0];
        let direct = self.native && (stride == 1 || self.plan.run.extent == 1);
        if direct && end - start <= 16 {
            let (at, n) = self.plan.next_run(start, end);
            if n == end - start {
                // SAFETY: a run of `n` elements.
                return unsafe { short::<C, T, O>(input.cast::<T>().offset(at), n) };
            }
        }
        let mut tile = [const { MaybeUninit::<C>::uninit() }; TILE];
        let mut acc = [O::IDENTITY; L];
        let mut levels = [[O::IDENTITY; L]; 2];
        let (mut fill, mut blocks, mut at) = (0, 0usize, start);
        while at < end {
            let (offset, run) = self.plan.next_run(at, end);
            let mut i = 0;
            while i < run {
                let mut n = (run - i).min(BLOCK * L - fill);
                // SAFETY: elements `i` to `i + n` of the run exist, and `n <= TILE` where the tile is used.
                unsafe {
                    let p = input.offset((offset + i as isize * stride) * self.item as isize);
                    acc = if direct {
                        lanes::<C, T, O, L>(acc, p.cast::<T>(), n)
                    } else {
                        n = n.min(TILE);
                        (self.load)(p, stride, n, tile.as_mut_ptr().cast());
                        lanes::<C, C, O, L>(acc, tile.as_ptr().cast::<C>(), n)
                    };
                }
                i += n;
                fill += n;
                if fill == BLOCK * L {
                    fill = 0;
                    blocks += 1;
                    for l in 0..L {
                        levels[0][l] = O::combine(levels[0][l], acc[l]);
                    }
                    acc = [O::IDENTITY; L];
                    if blocks.is_multiple_of(BLOCK) {
                        for l in 0..L {
                            levels[1][l] = O::combine(levels[1][l], levels[0][l]);
                        }
                        levels[0] = [O::IDENTITY; L];
                    }
                }
            }
            at += run;
        }
        if blocks > 0 {
            for l in 0..L {
                acc[l] = O::combine(O::combine(levels[1][l], levels[0][l]), acc[l]);
            }
        }
        horizontal::<C, O, L>(acc)
    }

    #[inline(always)]
    unsafe fn columns(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut C) {
        let plan = &self.plan;
        let fold = plan.fold;
        let stride = plan.run.strides[0];
        let mut acc = [const { MaybeUninit::<C>::uninit() }; TILE];
        let mut first = [const { MaybeUninit::<C>::uninit() }; TILE];
        let mut second = [const { MaybeUninit::<C>::uninit() }; TILE];
        let (acc, first, second) =
            (acc.as_mut_ptr().cast::<C>(), first.as_mut_ptr().cast::<C>(), second.as_mut_ptr().cast::<C>());
        let wide = width * fold;
        // SAFETY: `wide <= TILE`, by `Plan::new`; the rows are those of the input.
        unsafe {
            fill::<C, O>(acc, wide);
            let (mut filled, mut blocks, mut at) = (0, 0usize, start);
            while at < end {
                let (offset, run) = plan.next_run(at, end);
                let row = |i: usize| input.offset((offset + i as isize * stride) * self.item as isize);
                let mut i = 0;
                while i + fold <= run {
                    let rows = ((run - i) / fold).min(BLOCK - filled);
                    self.rows(acc, row(i), stride * fold as isize, rows, wide);
                    i += rows * fold;
                    filled += rows;
                    if filled == BLOCK {
                        filled = 0;
                        if blocks == 0 {
                            fill::<C, O>(first, wide);
                            fill::<C, O>(second, wide);
                        }
                        blocks += 1;
                        combine_into::<C, C, O>(first, acc, wide);
                        fill::<C, O>(acc, wide);
                        if blocks.is_multiple_of(BLOCK) {
                            combine_into::<C, C, O>(second, first, wide);
                            fill::<C, O>(first, wide);
                        }
                    }
                }
                self.rows(acc, row(i), stride, run - i, width);
                at += run;
            }
            if blocks > 0 {
                combine_into::<C, C, O>(first, second, wide);
                combine_into::<C, C, O>(acc, first, wide);
            }
            for j in 0..width {
                let mut v = *acc.add(j);
                for f in 1..fold {
                    v = O::combine(v, *acc.add(f * width + j));
                }
                *out.add(j) = v;
            }
        }
    }

    /// Combines `rows` rows of `width` elements, `stride` elements apart, into `acc`.
    #[inline(always)]
    unsafe fn rows(&self, acc: *mut C, input: *const u8, stride: isize, rows: usize, width: usize) {
        let inner = self.plan.inner.strides[0];
        let row = |i: usize| input.wrapping_offset(i as isize * stride * self.item as isize);
        let mut i = 0;
        // SAFETY: the rows exist; the tile has a place for each.
        unsafe {
            if self.native && (inner == 1 || width == 1) {
                while i < rows {
                    let n = (rows - i).min(GROUP);
                    let group = std::array::from_fn(|k| row(i + k).cast::<T>());
                    group_into::<C, T, O>(acc, group, n, width);
                    i += n;
                }
            } else {
                let mut tile = [const { MaybeUninit::<C>::uninit() }; GROUP * TILE];
                let tile = tile.as_mut_ptr().cast::<C>();
                while i < rows {
                    let n = (rows - i).min(GROUP);
                    for k in 0..n {
                        (self.load)(row(i + k), inner, width, tile.add(k * TILE));
                    }
                    group_into::<C, C, O>(acc, std::array::from_fn(|k| tile.add(k * TILE).cast_const()), n, width);
                    i += n;
                }
            }
        }
    }
}

/// Rows combined with each other before they are combined with the accumulators.
const GROUP: usize = 4;

/// Combines the first `n` of the rows into `acc`.
#[inline(always)]
unsafe fn group_into<C: Accumulator, T: Element, O: Combine<C>>(
    acc: *mut C,
    rows: [*const T; GROUP],
    n: usize,
    width: usize,
) {
    // SAFETY: the caller vouches for `width` elements each.
    unsafe {
        if n == GROUP {
            let [a, b, c, d] = rows;
            for j in 0..width {
                let left = O::combine(C::load(*a.add(j)), C::load(*b.add(j)));
                let right = O::combine(C::load(*c.add(j)), C::load(*d.add(j)));
                *acc.add(j) = O::combine(*acc.add(j), O::combine(left, right));
            }
        } else {
            for row in &rows[..n] {
                combine_into::<C, T, O>(acc, *row, width);
            }
        }
    }
}

/// Combines at most 16 elements in four chains.
#[inline(always)]
unsafe fn short<C: Accumulator, T: Element, O: Combine<C>>(p: *const T, n: usize) -> C {
    let mut acc = [O::IDENTITY; 4];
    let mut i = 0;
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        while i + 4 <= n {
            for (l, acc) in acc.iter_mut().enumerate() {
                *acc = O::combine(*acc, C::load(*p.add(i + l)));
            }
            i += 4;
        }
        let mut rest = O::IDENTITY;
        while i < n {
            rest = O::combine(rest, C::load(*p.add(i)));
            i += 1;
        }
        O::combine(O::combine(O::combine(acc[0], acc[1]), O::combine(acc[2], acc[3])), rest)
    }
}

#[inline(always)]
unsafe fn fill<C: Accumulator, O: Combine<C>>(to: *mut C, n: usize) {
    for i in 0..n {
        // SAFETY: the caller vouches for `n` elements.
        unsafe { *to.add(i) = O::IDENTITY };
    }
}

#[inline(always)]
unsafe fn combine_into<C: Accumulator, T: Element, O: Combine<C>>(to: *mut C, from: *const T, n: usize) {
    for i in 0..n {
        // SAFETY: the caller vouches for `n` elements.
        unsafe { *to.add(i) = O::combine(*to.add(i), C::load(*from.add(i))) };
    }
}

impl<C: Accumulator, T: Element, O: Combine<C>, const L: usize> Engine for Fold<C, T, O, L> {
    type Partial = C;

    #[inline(always)]
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn reduce(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut C) {
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
    fn merge(a: C, b: C) -> C {
        O::combine(a, b)
    }

    #[inline(always)]
    unsafe fn finish(&self, results: *const C, width: usize, outputs: [*mut u8; 2], at: [isize; 2]) {
        // SAFETY: passed on to the caller.
        unsafe {
            let to = outputs[0].offset(at[0] * self.out_item as isize);
            (self.store)(results, width, to, self.plan.inner.strides[1]);
        }
    }
}

impl<C: Accumulator, T: Element, O: Combine<C>, const L: usize> Kernel for Fold<C, T, O, L> {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: passed on to the caller.
        unsafe { drive(self, buffers[0], [buffers[1], std::ptr::null_mut()]) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        40 + (self.plan.elements() * self.item) as u64 / 8
    }
}
