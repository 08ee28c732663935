//! Weighted sums along each dimension: linear and cubic interpolation, and all gradients of resampling and padding.

use super::element::{Element, Real};
use super::planes::{Planes, Shared, alike};
use super::taps::Table;
use crate::pool::parallel_for;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, Taps, TensorType};

/// Elements of a task.
const TASK: usize = 1 << 14;

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
        plane: usize,
        d: usize,
        rows: std::ops::Range<usize>,
    ) where
        T: Element<Wide = R>,
        R: Real,
    {
        let [td, th, tw] = tables;
        let (width, lanes) = (self.out.row(), self.out.lanes);
        let needed = rows.clone().flat_map(|h| th.taps(h).0).copied();
        let (low, high) = needed.fold((u32::MAX, 0), |(low, high), i| (low.min(i), high.max(i + 1)));
        let high = high.max(low.min(high));
        let low = low.min(high) as usize;
        let high = high as usize;
        let mut wide = vec![R::ZERO; (high - low) * width];
        let mut sums = vec![R::ZERO; rows.len() * width];
        let mut line = vec![R::ZERO; width];
        let (depths, weights) = td.taps(d);
        for (k, (&from, &weight)) in depths.iter().zip(weights).enumerate() {
            for h in low..high {
                let row = ((plane * self.x.size[0] + from as usize) * self.x.size[1] + h) * self.x.row();
                // SAFETY: a row of the input.
                let x = unsafe { std::slice::from_raw_parts(at.at::<T>(0).add(row).cast_const(), self.x.row()) };
                along_row(x, tw, lanes, &mut wide[(h - low) * width..][..width]);
            }
            for (h, sums) in rows.clone().zip(sums.chunks_exact_mut(width)) {
                let (from, by) = th.taps(h);
                let row = |i: usize| &wide[(from[i] as usize - low) * width..][..width];
                let to: &mut [R] = if depths.len() == 1 { sums } else { &mut line };
                match by.len() {
                    0 => to.fill(R::ZERO),
                    1 if by[0] == R::ONE => to.copy_from_slice(row(0)),
                    2 => {
                        for ((to, a), b) in to.iter_mut().zip(row(0)).zip(row(1)) {
                            *to = *a * by[0] + *b * by[1];
                        }
                    }
                    4 => {
                        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                        for i in 0..width {
                            to[i] = a[i] * by[0] + b[i] * by[1] + c[i] * by[2] + d[i] * by[3];
                        }
                    }
                    n => {
                        to.iter_mut().zip(row(0)).for_each(|(to, a)| *to = *a * by[0]);
                        for i in 1..n {
                            to.iter_mut().zip(row(i)).for_each(|(to, a)| *to = *to + *a * by[i]);
                        }
                    }
                }
                if depths.len() > 1 {
                    if k == 0 {
                        sums.iter_mut().zip(&line).for_each(|(sum, v)| *sum = *v * weight);
                    } else {
                        sums.iter_mut().zip(&line).for_each(|(sum, v)| *sum = *sum + *v * weight);
                    }
                } else if weight != R::ONE {
                    sums.iter_mut().for_each(|sum| *sum = *sum * weight);
                }
            }
        }
        let first = ((plane * self.out.size[0] + d) * self.out.size[1] + rows.start) * width;
        // SAFETY: these rows of the result are this task's.
        let out = unsafe { std::slice::from_raw_parts_mut(at.at::<T>(1).add(first), sums.len()) };
        out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::narrow(*sum));
    }

    fn each<T, R>(&self, at: Shared<2>, tables: &[Table<R>; 3])
    where
        T: Element<Wide = R>,
        R: Real,
    {
        let block = self.block();
        let [depth, height, _] = self.out.size;
        let blocks = height.div_ceil(block);
        parallel_for(self.out.count * depth * blocks, |t| {
            let at = &at;
            let (slab, block_start) = (t / blocks, t % blocks * block);
            let rows = block_start..height.min(block_start + block);
            vectorized(
                #[inline(always)]
                // SAFETY: rows of the result, each of one task.
                || unsafe { self.rows::<T, R>(at, tables, slab / depth, slab % depth, rows) },
            );
        });
    }
}

fn table<R: Real>(taps: Taps, from: &TensorType, to: &TensorType, dim: usize, gradient: bool) -> Table<R> {
    let (input, output) = (from.sizes[dim], to.sizes[dim]);
    if gradient && matches!(taps, Taps::Nearest { .. } | Taps::NearestExact { .. }) {
        let at = super::taps::sources::<R>(taps, input, output, true);
        let weights = vec![R::ONE; at.len()];
        let table = Table { starts: (0..=output as u32).collect(), at, weights, uniform: Some(1) };
        return table.transposed(input as usize);
    }
    let table = Table::new(taps, input, output);
    if gradient { table.transposed(input as usize) } else { table }
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
                    for k in 1..n {
                        out.iter_mut().zip(row(k)).for_each(|(out, a)| *out = *out + a.widen() * weights[k]);
                    }
                }
            }
        }
        return;
    }
    // SAFETY: tables hold positions below the extent of the input, and `uniform` positions for each output.
    let get = |i: u32| unsafe { x.get_unchecked(i as usize).widen() };
    debug_assert!(table.at.iter().all(|i| (*i as usize) < x.len()));
    match table.uniform {
        Some(1) if table.weights.iter().all(|w| *w == R::ONE) => {
            out.iter_mut().zip(&table.at).for_each(|(out, i)| *out = get(*i));
        }
        Some(2) => {
            let taps = table.at.chunks_exact(2).zip(table.weights.chunks_exact(2));
            for (out, (at, w)) in out.iter_mut().zip(taps) {
                *out = get(at[0]) * w[0] + get(at[1]) * w[1];
            }
        }
        Some(4) => {
            let taps = table.at.chunks_exact(4).zip(table.weights.chunks_exact(4));
            for (out, (at, w)) in out.iter_mut().zip(taps) {
                *out = get(at[0]) * w[0] + get(at[1]) * w[1] + get(at[2]) * w[2] + get(at[3]) * w[3];
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
