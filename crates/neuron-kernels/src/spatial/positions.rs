//! Elements put or added at positions of a plane: the gradient of pooling, and unpooling.

use super::element::{Element, Wide};
use super::planes::{Planes, Shared, alike};
use crate::pool::parallel_for;
use crate::scatter::float::by_float;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType};
use std::sync::atomic::{AtomicI64, Ordering};

/// Channels of a task where they lie side by side.
const LANES: usize = 32;

/// Planes of zeros with elements put or added at positions. Buffers: elements, positions, output.
#[derive(Debug)]
pub struct ToPositions {
    x: Planes,
    out: Planes,
    accumulate: bool,
    dtype: DType,
}

impl ToPositions {
    /// `[n, c, d, h, w]` all row-major or all with channels last; positions are `i64` and count within a plane.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers and other layouts. At run: a position outside of its plane.
    pub fn new(
        x: &TensorType,
        positions: &TensorType,
        accumulate: bool,
        out: &TensorType,
    ) -> Result<ToPositions, KernelError> {
        if !x.dtype.is_float() || out.dtype != x.dtype || positions.dtype != DType::I64 {
            return Err(KernelError::dtype("to_positions", x.dtype));
        }
        let [xp, _, op] = alike("to_positions", [x, positions, out])?;
        Ok(ToPositions { x: xp, out: op, accumulate, dtype: x.dtype })
    }

    /// Channels `first..end` of a plane; a position outside, if there is one.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn plane<T: Element>(&self, at: &Shared<3>, plane: usize, first: usize, end: usize) -> Option<i64> {
        let (lanes, pixels) = (self.x.lanes, self.out.pixels());
        let mut outside = None;
        // SAFETY: positions are checked, the rest lies within the plane.
        unsafe {
            let x = at.at::<T>(0).add(plane * self.x.elements());
            let positions = at.at::<i64>(1).add(plane * self.x.elements());
            let out = at.at::<T>(2).add(plane * self.out.elements());
            for pixel in 0..pixels {
                std::slice::from_raw_parts_mut(out.add(pixel * lanes + first), end - first)
                    .fill(T::narrow(T::Wide::ZERO));
            }
            for pixel in 0..self.x.pixels() {
                for i in pixel * lanes + first..pixel * lanes + end {
                    let position = *positions.add(i);
                    if position as u64 >= pixels as u64 {
                        outside = Some(position);
                        continue;
                    }
                    let out = out.add(position as usize * lanes + i % lanes);
                    *out =
                        if self.accumulate { T::narrow((*out).widen().plus((*x.add(i)).widen())) } else { *x.add(i) };
                }
            }
        }
        outside
    }
}

impl Kernel for ToPositions {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        const NONE: i64 = i64::MIN;
        let at = Shared::<3>::of(buffers);
        let outside = AtomicI64::new(NONE);
        let pieces = self.out.lanes.div_ceil(LANES);
        parallel_for(self.out.count * pieces, |t| {
            let at = &at;
            let first = t % pieces * LANES;
            let end = self.out.lanes.min(first + LANES);
            // SAFETY: the plane and its channels exist.
            let found = by_float!(self.dtype, T => unsafe { self.plane::<T>(at, t / pieces, first, end) }, _ => None);
            if let Some(position) = found {
                outside.fetch_max(position.max(NONE + 1), Ordering::Relaxed);
            }
        });
        match outside.into_inner() {
            NONE => Ok(()),
            index => {
                let size = self.out.pixels();
                Err(KernelError::InvalidValue(format!("Found an invalid max index: {index} in a plane of {size}")))
            }
        }
    }

    fn cost(&self) -> u64 {
        100 + (self.x.count * self.x.elements() * 2 + self.out.count * self.out.elements() / 4) as u64
    }
}
