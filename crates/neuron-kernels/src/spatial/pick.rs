//! Each output is one element of the input: nearest neighbours, padding by reflection and replication.

use super::element::{Element, Wide};
use super::planes::{Planes, Shared, alike};
use super::taps::sources;
use crate::pool::parallel_for;
use crate::scatter::float::by_float;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, Taps, TensorType};
use std::ops::Range;

/// Bytes of a task.
const TASK: usize = 1 << 15;

/// Elements of the input by position along each dimension. Buffers: input, output.
#[derive(Debug)]
pub struct Pick {
    x: Planes,
    out: Planes,
    at: [Vec<u32>; 3],
    /// Outputs of a row whose elements follow each other.
    run: Range<usize>,
    size: usize,
}

impl Pick {
    /// `[n, c, d, h, w]`, both row-major or both with channels last, of one type.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other layouts.
    pub fn new(x: &TensorType, taps: [Taps; 3], out: &TensorType) -> Result<Pick, KernelError> {
        let [xp, op] = alike("pick", [x, out])?;
        if x.dtype != out.dtype
            || xp.count != op.count
            || xp.lanes != op.lanes
            || (x.numel() == 0) != (out.numel() == 0)
        {
            return Err(KernelError::Unsupported { kernel: "pick", what: format!("{x} into {out}") });
        }
        let at: [Vec<u32>; 3] = std::array::from_fn(|i| {
            let (input, output) = (x.sizes[i + 2], out.sizes[i + 2]);
            match x.dtype {
                DType::F64 => sources::<f64>(taps[i], input, output, false),
                _ => sources::<f32>(taps[i], input, output, false),
            }
        });
        let run = longest_run(&at[2]);
        Ok(Pick { x: xp, out: op, at, run, size: x.dtype.size() })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` has the size of an element and `row` exists.
    #[inline(always)]
    unsafe fn row<T: Copy>(&self, at: &Shared<2>, row: usize) {
        let [plane, d, h] = self.out.place(row);
        let (d, h) = (self.at[0][d] as usize, self.at[1][h] as usize);
        let from = ((plane * self.x.size[0] + d) * self.x.size[1] + h) * self.x.row();
        let (lanes, columns) = (self.x.lanes, &self.at[2]);
        // SAFETY: positions lie within the row of the input.
        unsafe {
            let x = at.at::<T>(0).add(from).cast_const();
            let out = at.at::<T>(1).add(row * self.out.row());
            let gather = |range: Range<usize>| {
                for (o, &i) in range.clone().zip(&columns[range]) {
                    if lanes == 1 {
                        *out.add(o) = *x.add(i as usize);
                    } else {
                        x.add(i as usize * lanes).copy_to_nonoverlapping(out.add(o * lanes), lanes);
                    }
                }
            };
            gather(0..self.run.start);
            if !self.run.is_empty() {
                let first = columns[self.run.start] as usize;
                let to = out.add(self.run.start * lanes);
                x.add(first * lanes).copy_to_nonoverlapping(to, self.run.len() * lanes);
            }
            gather(self.run.end..columns.len());
        }
    }
}

/// The longest range of outputs that takes consecutive elements, if it is worth a copy.
fn longest_run(at: &[u32]) -> Range<usize> {
    let (mut best, mut start) = (0..0, 0);
    for o in 1..=at.len() {
        if o == at.len() || at[o] != at[o - 1] + 1 {
            if o - start > best.len() {
                best = start..o;
            }
            start = o;
        }
    }
    if best.len() < 8 { 0..0 } else { best }
}

impl Kernel for Pick {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        let rows = self.out.rows();
        if self.out.row() == 0 {
            return Ok(());
        }
        let piece = (TASK / (self.out.row() * self.size)).max(1);
        parallel_for(rows.div_ceil(piece), |t| {
            let at = &at;
            vectorized(
                #[inline(always)]
                || {
                    for row in t * piece..rows.min((t + 1) * piece) {
                        // SAFETY: the row exists.
                        unsafe {
                            match self.size {
                                1 => self.row::<u8>(at, row),
                                2 => self.row::<u16>(at, row),
                                4 => self.row::<u32>(at, row),
                                _ => self.row::<u64>(at, row),
                            }
                        }
                    }
                },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + (self.out.count * self.out.elements()) as u64 / 2
    }
}

/// Gradient of [`Pick`]. Buffers: gradient of the output, gradient of the input.
#[derive(Debug)]
pub struct PickBackward {
    grad: Planes,
    out: Planes,
    at: [Vec<u32>; 3],
    run: Range<usize>,
    dtype: DType,
}

impl PickBackward {
    /// `[n, c, d, h, w]` of floats, both row-major or both with channels last. Elements are added in order, each sum
    /// rounded.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers and other layouts.
    pub fn new(grad: &TensorType, taps: [Taps; 3], out: &TensorType) -> Result<PickBackward, KernelError> {
        let [gp, op] = alike("pick_backward", [grad, out])?;
        if !grad.dtype.is_float() || grad.dtype != out.dtype || gp.count != op.count || gp.lanes != op.lanes {
            return Err(KernelError::Unsupported { kernel: "pick_backward", what: format!("{grad} into {out}") });
        }
        let at: [Vec<u32>; 3] =
            std::array::from_fn(|i| sources::<f32>(taps[i], out.sizes[i + 2], grad.sizes[i + 2], true));
        let run = longest_run(&at[2]);
        Ok(PickBackward { grad: gp, out: op, at, run, dtype: grad.dtype })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type and the plane exists.
    #[inline(always)]
    unsafe fn plane<T: Element>(&self, at: &Shared<2>, plane: usize) {
        let (lanes, columns) = (self.grad.lanes, &self.at[2]);
        let add = |out: &mut [T], grad: &[T]| {
            out.iter_mut().zip(grad).for_each(|(out, g)| *out = T::narrow(out.widen().plus(g.widen())));
        };
        // SAFETY: the planes exist.
        let (grad, out) = unsafe {
            let grad = at.at::<T>(0).add(plane * self.grad.elements()).cast_const();
            let out = at.at::<T>(1).add(plane * self.out.elements());
            (
                std::slice::from_raw_parts(grad, self.grad.elements()),
                std::slice::from_raw_parts_mut(out, self.out.elements()),
            )
        };
        out.fill(T::narrow(T::Wide::ZERO));
        let mut rows = grad.chunks_exact(self.grad.row());
        for &d in &self.at[0] {
            for &h in &self.at[1] {
                let Some(grad) = rows.next() else { return };
                let from = (d as usize * self.out.size[1] + h as usize) * self.out.row();
                let out = &mut out[from..][..self.out.row()];
                // What lies before the run, the run at once, what lies after it.
                for part in [0..self.run.start, self.run.clone(), self.run.end..columns.len()] {
                    if part == self.run && !part.is_empty() {
                        let first = columns[part.start] as usize * lanes;
                        let grad = &grad[part.start * lanes..part.end * lanes];
                        add(&mut out[first..first + grad.len()], grad);
                        continue;
                    }
                    for (o, &i) in part.clone().zip(&columns[part]) {
                        add(&mut out[i as usize * lanes..][..lanes], &grad[o * lanes..][..lanes]);
                    }
                }
            }
        }
    }
}

impl Kernel for PickBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        parallel_for(self.out.count, |plane| {
            let at = &at;
            by_float!(self.dtype, T => vectorized(
                #[inline(always)]
                // SAFETY: the plane exists.
                || unsafe { self.plane::<T>(at, plane) },
            ), _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + (self.grad.count * self.grad.elements()) as u64 / 2
    }
}
