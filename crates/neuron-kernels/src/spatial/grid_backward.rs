//! Gradients of sampling at the positions of a grid.

use super::element::{Element, Real};
use super::grid::{Geometry, Point, by_sampled, position};
use super::planes::Shared;
use crate::pool::parallel_for;
use crate::{Kernel, KernelError};
use neuron_ir::{Outside, Sampling, Scalar, TensorType};

/// Channels of a task: what a sample takes is computed once for them.
const CHANNELS: usize = 8;

/// Samples of a task of the grid's gradient.
const SAMPLES: usize = 256;

/// Gradients of [`super::GridSample`]. Buffers: gradient of the output, input, grid, gradients of input and grid.
#[derive(Debug)]
pub struct GridSampleBackward {
    geometry: Geometry,
}

impl GridSampleBackward {
    /// Tensors as in the forward. Samples are added to the input's gradient in order, each sum rounded.
    ///
    /// # Errors
    /// As the forward.
    pub fn new(
        grad: &TensorType,
        x: &TensorType,
        grid: &TensorType,
        sampling: Sampling,
        outside: Outside,
        align_corners: bool,
    ) -> Result<GridSampleBackward, KernelError> {
        let options = (sampling, outside, align_corners);
        Ok(GridSampleBackward { geometry: Geometry::new("grid_sample_backward", x, grid, grad, options)? })
    }

    /// The input's gradient of channels `first..end` of image `n`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn input<T, R>(&self, at: &Shared<5>, n: usize, first: usize, end: usize)
    where
        T: Element<Wide = R>,
        R: Real,
    {
        let g = &self.geometry;
        // SAFETY: samples exist, and their elements lie within a plane.
        unsafe {
            let plane = |c: usize| n * g.channels + c;
            let out = |c: usize| at.at::<T>(3).add(plane(c) * g.input);
            for c in first..end {
                std::slice::from_raw_parts_mut(out(c), g.input).fill(T::narrow(R::ZERO));
            }
            let mut point = Point::new();
            for sample in 0..g.output {
                let position = position::<T, R>(at.at(2), g.locator.dims, n * g.output + sample);
                g.locator.point::<R, true>(position, &mut point);
                for c in first..end {
                    let grad = (*at.at::<T>(0).add(plane(c) * g.output + sample)).widen();
                    for k in 0..point.count {
                        if point.at[k] >= 0 {
                            let out = out(c).add(point.at[k] as usize);
                            *out = T::narrow((*out).widen() + point.weights[k] * grad);
                        }
                    }
                }
            }
        }
    }

    /// The grid's gradient of samples `first..end` of image `n`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn grid<T, R>(&self, at: &Shared<5>, n: usize, first: usize, end: usize)
    where
        T: Element<Wide = R>,
        R: Real,
    {
        let g = &self.geometry;
        let dims = g.locator.dims;
        // SAFETY: samples exist, and their elements lie within a plane.
        unsafe {
            let mut point = Point::new();
            for sample in first..end {
                let i = n * g.output + sample;
                g.locator.point::<R, true>(position::<T, R>(at.at(2), dims, i), &mut point);
                let mut sums = [R::ZERO; 3];
                for c in 0..if g.locator.is_constant() { 0 } else { g.channels } {
                    let plane = n * g.channels + c;
                    let grad = (*at.at::<T>(0).add(plane * g.output + sample)).widen();
                    let x = at.at::<T>(1).add(plane * g.input);
                    for k in 0..point.count {
                        if point.at[k] >= 0 {
                            let value = (*x.add(point.at[k] as usize)).widen() * grad;
                            for (sum, slopes) in sums.iter_mut().zip(&point.slopes) {
                                *sum = *sum + value * slopes[k];
                            }
                        }
                    }
                }
                for (d, sum) in sums[..dims].iter().enumerate() {
                    *at.at::<T>(4).add(i * dims + d) = T::narrow(*sum * point.factor[d]);
                }
            }
        }
    }
}

impl Kernel for GridSampleBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<5>::of(buffers);
        let g = &self.geometry;
        let pieces = g.channels.div_ceil(CHANNELS);
        parallel_for(g.batch * pieces, |t| {
            let at = &at;
            let first = t % pieces * CHANNELS;
            let end = g.channels.min(first + CHANNELS);
            // SAFETY: channels of an image.
            by_sampled!(g.dtype, T => unsafe { self.input::<T, <T as Element>::Wide>(at, t / pieces, first, end) });
        });
        let pieces = g.output.div_ceil(SAMPLES);
        parallel_for(g.batch * pieces, |t| {
            let at = &at;
            let first = t % pieces * SAMPLES;
            let end = g.output.min(first + SAMPLES);
            // SAFETY: samples of an image.
            by_sampled!(g.dtype, T => unsafe { self.grid::<T, <T as Element>::Wide>(at, t / pieces, first, end) });
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let g = &self.geometry;
        100 + (g.batch * g.output * (g.channels * 8 + 32)) as u64
    }
}
