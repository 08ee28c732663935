//! Weighted sums along each dimension: linear and cubic interpolation, and all gradients of resampling and padding.

use super::element::{Element, Real};
use super::planes::{Planes, Shared, alike};
use super::taps::Table;
use crate::pool::parallel_for;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, Taps, TensorType};
use std::cell::RefCell;
use std::ops::Range;

/// Elements of a task.
const TASK: usize = 1 << 16;

/// Columns whose sums stay in registers.
const COLUMNS: usize = 32;

/// Elements of scratch that a thread keeps.
const MOST_KEPT: usize = 1 << 20;

/// Each dimension resampled, width first. Buffers: input, output.
#[derive(Debug)]
pub struct Resample {
    x: Planes,
    out: Planes,
    tables: Tables,
    dtype: DType,
}

#[derive(Debug)]
enum Tables {
    Single([Table<f32>; 3]),
    Double([Table<f64>; 3]),
}

impl Resample {
    /// `[n, c, d, h, w]` of floats, both row-major or both with channels last. The `gradient` is of the opposite
    /// direction: `x` has the extents of a result, `out` those of the input.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers and other layouts.
    pub fn new(x: &TensorType, taps: [Taps; 3], gradient: bool, out: &TensorType) -> Result<Resample, KernelError> {
        if !x.dtype.is_float() || x.dtype != out.dtype {
            return Err(KernelError::dtype("resample", x.dtype));
        }
        let [xp, op] = alike("resample", [x, out])?;
        if xp.count != op.count || xp.lanes != op.lanes || (x.numel() == 0 && out.numel() != 0) {
            return Err(KernelError::Unsupported { kernel: "resample", what: format!("{x} into {out}") });
        }
        let (from, to) = if gradient { (out, x) } else { (x, out) };
        let tables = match x.dtype {
            DType::F64 => Tables::Double(std::array::from_fn(|i| table(taps[i], from, to, i + 2, gradient))),
            _ => Tables::Single(std::array::from_fn(|i| table(taps[i], from, to, i + 2, gradient))),
        };
        Ok(Resample { x: xp, out: op, tables, dtype: x.dtype })
    }

    /// Rows of the result that one task computes: those of one depth, so that they share rows of the input.
    fn block(&self) -> usize {
        (TASK / self.out.row()).clamp(1, self.out.size[1])
    }

    /// Rows `rows` of depth `d` of a plane of the result.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type, of tables `R`.
    #[inline(always)]
    unsafe fn rows<T, R>(
        &self,
        at: &Shared<2>,
        tables: &[Table<R>; 3],
        [plane, d]: [usize; 2],
        rows: Range<usize>,
        scratch: &mut Vec<R>,
    ) where
        T: Element<Wide = R>,
        R: Real,
    {
        let [td, th, tw] = tables;
        let (width, lanes) = (self.out.row(), self.out.lanes);
        let needed = rows.clone().flat_map(|h| th.taps(h).0).map(|i| *i as usize);
        let (low, high) = needed.fold((usize::MAX, 0), |(low, high), i| (low.min(i), high.max(i + 1)));
        let low = low.min(high);
        let (depths, weights) = td.taps(d);
        let flat = depths.len() == 1 && weights[0] == R::ONE;
        scratch.resize((high - low) * width + if flat { 0 } else { (rows.len() + 1) * width }, R::ZERO);
        let (wide, rest) = scratch.split_at_mut((high - low) * width);
        let first = ((plane * self.out.size[0] + d) * self.out.size[1] + rows.start) * width;
        // SAFETY: these rows of the result are this task's.
        let out = unsafe { std::slice::from_raw_parts_mut(at.at::<T>(1).add(first), rows.len() * width) };
        let widen = |from: u32, wide: &mut [R]| {
            for (h, wide) in (low..high).zip(wide.chunks_exact_mut(width)) {
                let row = ((plane * self.x.size[0] + from as usize) * self.x.size[1] + h) * self.x.row();
                // SAFETY: a row of the input.
                let x = unsafe { std::slice::from_raw_parts(at.at::<T>(0).add(row).cast_const(), self.x.row()) };
                along_row(x, tw, lanes, wide);
            }
        };
        if flat {
            widen(depths[0], wide);
            for (h, out) in rows.zip(out.chunks_exact_mut(width)) {
                combine(th.taps(h), wide, low, width, out, T::narrow);
            }
            return;
        }
        let (line, sums) = rest.split_at_mut(width);
        sums.fill(R::ZERO);
        for (k, (&from, &weight)) in depths.iter().zip(weights).enumerate() {
            widen(from, wide);
            for (h, sums) in rows.clone().zip(sums.chunks_exact_mut(width)) {
                combine(th.taps(h), wide, low, width, line, |v| v);
                if k == 0 {
                    sums.iter_mut().zip(line.iter()).for_each(|(sum, v)| *sum = *v * weight);
                } else {
                    sums.iter_mut().zip(line.iter()).for_each(|(sum, v)| *sum = *sum + *v * weight);
                }
            }
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::narrow(*sum));
    }

    fn each<T, R>(&self, at: Shared<2>, tables: &[Table<R>; 3])
    where
        T: Element<Wide = R>,
        R: Real + Scratch,
    {
        let block = self.block();
        let [depth, height, _] = self.out.size;
        let blocks = height.div_ceil(block);
        parallel_for(self.out.count * depth * blocks, |t| {
            let at = &at;
            let (slab, block_start) = (t / blocks, t % blocks * block);
            let rows = block_start..height.min(block_start + block);
            R::with_scratch(|scratch| {
                vectorized(
                    #[inline(always)]
                    // SAFETY: rows of the result, each of one task.
                    || unsafe { self.rows::<T, R>(at, tables, [slab / depth, slab % depth], rows, scratch) },
                );
            });
        });
    }
}

fn table<R: Real>(taps: Taps, from: &TensorType, to: &TensorType, dim: usize, gradient: bool) -> Table<R> {
    let (input, output) = (from.sizes[dim], to.sizes[dim]);
    if gradient {
        let table = match taps {
            Taps::Filter { .. } => Table::new(taps, input, output),
            _ => Table::of(super::taps::sources::<R>(taps, input, output, true)),
        };
        return table.transposed(input as usize);
    }
    Table::new(taps, input, output)
}

/// A weighted sum of rows of `wide`, the first of which is row `low`.
#[inline(always)]
fn combine<R: Real, O>(
    (from, by): (&[u32], &[R]),
    wide: &[R],
    low: usize,
    width: usize,
    out: &mut [O],
    narrow: impl Fn(R) -> O + Copy,
) {
    let row = |i: usize| &wide[(from[i] as usize - low) * width..][..width];
    let out = &mut out[..width];
    match *by {
        [] => out.iter_mut().for_each(|out| *out = narrow(R::ZERO)),
        [a] if a == R::ONE => out.iter_mut().zip(row(0)).for_each(|(out, v)| *out = narrow(*v)),
        [a] => out.iter_mut().zip(row(0)).for_each(|(out, v)| *out = narrow(*v * a)),
        [a, b] => {
            for ((out, v), w) in out.iter_mut().zip(row(0)).zip(row(1)) {
                *out = narrow(*v * a + *w * b);
            }
        }
        [a, b, c] => {
            for (((out, v), w), x) in out.iter_mut().zip(row(0)).zip(row(1)).zip(row(2)) {
                *out = narrow(*v * a + *w * b + *x * c);
            }
        }
        [a, b, c, d] => {
            for ((((out, v), w), x), y) in out.iter_mut().zip(row(0)).zip(row(1)).zip(row(2)).zip(row(3)) {
                *out = narrow(*v * a + *w * b + *x * c + *y * d);
            }
        }
        _ => {
            // A few columns at a time, so that their sums stay in registers.
            for (first, out) in (0..width).step_by(COLUMNS).zip(out.chunks_mut(COLUMNS)) {
                let mut sums = [R::ZERO; COLUMNS];
                for (i, by) in by.iter().enumerate() {
                    for (sum, v) in sums.iter_mut().zip(&row(i)[first..]) {
                        *sum = if i == 0 { *v * *by } else { *sum + *v * *by };
                    }
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = narrow(sum));
            }
        }
    }
}

/// One row of the input resampled along its width.
#[inline(always)]
fn along_row<T, R>(x: &[T], table: &Table<R>, lanes: usize, out: &mut [R])
where
    T: Element<Wide = R>,
    R: Real,
{
    let outputs = out.len() / lanes;
    if lanes > 1 {
        for o in 0..outputs {
            let (at, weights) = table.taps(o);
            let out = &mut out[o * lanes..][..lanes];
            let row = |k: usize| &x[at[k] as usize * lanes..][..lanes];
            match at.len() {
                0 => out.fill(R::ZERO),
                2 => {
                    for ((out, a), b) in out.iter_mut().zip(row(0)).zip(row(1)) {
                        *out = a.widen() * weights[0] + b.widen() * weights[1];
                    }
                }
                n => {
                    out.iter_mut().zip(row(0)).for_each(|(out, a)| *out = a.widen() * weights[0]);
                    for (k, &weight) in weights.iter().enumerate().take(n).skip(1) {
                        out.iter_mut().zip(row(k)).for_each(|(out, a)| *out = *out + a.widen() * weight);
                    }
                }
            }
        }
        return;
    }
    // SAFETY: tables hold positions below the extent of the input, and `uniform` positions for each output.
    let get = |i: u32| unsafe { x.get_unchecked(i as usize).widen() };
    debug_assert!(table.at.iter().all(|i| (*i as usize) < x.len()));
    match &table.columns[..] {
        [(at, by)] if by.iter().all(|w| *w == R::ONE) => {
            out.iter_mut().zip(at).for_each(|(out, i)| *out = get(*i));
        }
        [a, b] => {
            let (a, b) = (a.0.iter().zip(&a.1), b.0.iter().zip(&b.1));
            for ((out, (i, v)), (j, w)) in out.iter_mut().zip(a).zip(b) {
                *out = get(*i) * *v + get(*j) * *w;
            }
        }
        [a, b, c, d] => {
            let [a, b, c, d] = [a, b, c, d].map(|t| t.0.iter().zip(&t.1));
            for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *out = get(*a.0) * *a.1 + get(*b.0) * *b.1 + get(*c.0) * *c.1 + get(*d.0) * *d.1;
            }
        }
        _ => {
            for (o, out) in out.iter_mut().enumerate() {
                let (at, weights) = table.taps(o);
                let mut sum = R::ZERO;
                for (k, (i, w)) in at.iter().zip(weights).enumerate() {
                    let term = get(*i) * *w;
                    sum = if k == 0 { term } else { sum + term };
                }
                *out = sum;
            }
        }
    }
}

/// The space that tasks of a thread work in: not allocated, and not faulted in, by each of them.
trait Scratch: Sized {
    fn with_scratch<O>(body: impl FnOnce(&mut Vec<Self>) -> O) -> O;
}

macro_rules! scratch {
    ($t:ty) => {
        impl Scratch for $t {
            fn with_scratch<O>(body: impl FnOnce(&mut Vec<Self>) -> O) -> O {
                thread_local! {
                    static SCRATCH: RefCell<Vec<$t>> = const { RefCell::new(Vec::new()) };
                }
                SCRATCH.with_borrow_mut(|scratch| {
                    let result = body(scratch);
                    if scratch.capacity() > MOST_KEPT {
                        *scratch = Vec::new();
                    }
                    result
                })
            }
        }
    };
}
scratch!(f32);
scratch!(f64);

impl Kernel for Resample {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        if self.out.row() == 0 {
            return Ok(());
        }
        match &self.tables {
            Tables::Double(tables) => self.each::<f64, f64>(at, tables),
            Tables::Single(tables) => match self.dtype {
                DType::F16 => self.each::<half::f16, f32>(at, tables),
                DType::BF16 => self.each::<half::bf16, f32>(at, tables),
                _ => self.each::<f32, f32>(at, tables),
            },
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + (self.out.count * self.out.elements() + self.x.count * self.x.elements()) as u64
    }
}
