//! Running extremes with their positions, and the running logarithm of a sum of exponentials.

use crate::index::nest::{Nest, piece};
use crate::pool::parallel_for;
use crate::reduce::element::{Accumulator, Element, with_element};
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType};
use std::fmt::Debug;
use std::ops::Range;

/// Elements of one task.
const PIECE: usize = 16 << 10;

/// Lines of up to three tensors along a dimension.
#[derive(Debug)]
struct Lines<const N: usize> {
    /// Dimensions but the one run along.
    lines: Nest<N>,
    size: usize,
    /// Bytes between neighbours of a line.
    steps: [isize; N],
}

impl<const N: usize> Lines<N> {
    fn new(kernel: &'static str, tensors: [&TensorType; N], dim: usize) -> Result<Self, KernelError> {
        let first = tensors[0];
        if dim >= first.rank() || tensors.iter().any(|t| t.sizes != first.sizes) {
            return Err(KernelError::Unsupported { kernel, what: format!("{first} along dimension {dim}") });
        }
        Ok(Lines {
            lines: Nest::of(&first.sizes, tensors, (0..first.rank()).filter(|d| *d != dim)),
            size: first.sizes[dim] as usize,
            steps: tensors.map(|t| (t.strides[dim] * t.dtype.size() as i64) as isize),
        })
    }

    fn each(&self, body: impl Fn([isize; N]) + Sync) {
        let lines = self.lines.numel();
        if self.size == 0 || lines == 0 {
            return;
        }
        let lines_piece = (PIECE / self.size).max(1);
        parallel_for(lines.div_ceil(lines_piece), |t| {
            let range: Range<usize> = piece(lines, lines_piece, t);
            let step = self.lines.inner_strides();
            self.lines.runs(range, |at, count| {
                for i in 0..count as isize {
                    body(std::array::from_fn(|k| at[k] + i * step[k]));
                }
            });
        });
    }
}

#[derive(Clone, Copy)]
struct Addresses([*mut u8; 3]);
// SAFETY: tasks write disjoint lines.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

/// `torch.cummax` and `torch.cummin`. Buffers: input, values, indices.
#[derive(Debug)]
pub struct RunningExtreme {
    dtype: DType,
    max: bool,
    lines: Lines<3>,
}

impl RunningExtreme {
    /// Any strides, `indices` of `i64`. Of equal elements the last is named; a NaN stays until the next one.
    ///
    /// # Errors
    /// Shapes or types that do not belong together.
    pub fn new(
        max: bool,
        input: &TensorType,
        dim: usize,
        values: &TensorType,
        indices: &TensorType,
    ) -> Result<Self, KernelError> {
        if values.dtype != input.dtype || indices.dtype != DType::I64 {
            let what = format!("{input} to {values} and {indices}");
            return Err(KernelError::Unsupported { kernel: "running_extreme", what });
        }
        let lines = Lines::new("running_extreme", [input, values, indices], dim)?;
        Ok(RunningExtreme { dtype: input.dtype, max, lines })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type, `C` holds its values.
    unsafe fn all<T: Element, C: Accumulator>(&self, at: Addresses) {
        let [x_step, value_step, index_step] = self.lines.steps;
        self.lines.each(|[x, value, index]| {
            let Addresses([px, pv, pi]) = { at };
            // SAFETY: the first element of a line, which is not empty.
            let mut stored = unsafe { *px.offset(x).cast::<T>() };
            let (mut best, mut position) = (C::load(stored), 0);
            for i in 0..self.lines.size as isize {
                // SAFETY: element `i` of a line of each tensor.
                unsafe {
                    let element = *px.offset(x + i * x_step).cast::<T>();
                    let v = C::load(element);
                    let beyond = if self.max { v >= best } else { v <= best };
                    if v.is_nan() | (beyond & !best.is_nan()) {
                        (best, stored, position) = (v, element, i as i64);
                    }
                    *pv.offset(value + i * value_step).cast::<T>() = stored;
                    *pi.offset(index + i * index_step).cast::<i64>() = position;
                }
            }
        });
    }
}

impl Kernel for RunningExtreme {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[2]]);
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                d if d.is_float() => with_element!(floats: d, T => self.all::<T, f64>(at)),
                d => with_element!(integers: d, T => self.all::<T, i64>(at)),
            }
        };
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + 2 * (self.lines.lines.numel() * self.lines.size) as u64
    }
}

/// `torch.logcumsumexp`. Buffers: input, output.
#[derive(Debug)]
pub struct LogCumSumExp {
    dtype: DType,
    lines: Lines<2>,
}

impl LogCumSumExp {
    /// Floats of any strides; carried in `f64` for `f32` and `f64`, in `f32` for the half floats.
    ///
    /// # Errors
    /// Shapes or types that do not belong together.
    pub fn new(input: &TensorType, dim: usize, output: &TensorType) -> Result<Self, KernelError> {
        if !input.dtype.is_float() || output.dtype != input.dtype {
            return Err(KernelError::dtype("logcumsumexp", input.dtype));
        }
        Ok(LogCumSumExp { dtype: input.dtype, lines: Lines::new("logcumsumexp", [input, output], dim)? })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: Element>(&self, at: Addresses) {
        let [x_step, y_step] = self.lines.steps;
        self.lines.each(|[x, y]| {
            let Addresses([px, py, _]) = { at };
            let mut total = f64::NEG_INFINITY;
            for i in 0..self.lines.size as isize {
                // SAFETY: element `i` of a line of either tensor.
                unsafe {
                    let v = (*px.offset(x + i * x_step).cast::<T>()).to_f64();
                    total = log_add_exp(v, total);
                    *py.offset(y + i * y_step).cast::<T>() = T::from_f64(total);
                }
            }
        });
    }
}

fn log_add_exp(x: f64, y: f64) -> f64 {
    // NaN in either wins; equal infinities are the sum themselves.
    let (low, high) = if x.is_nan() || x < y { (x, y) } else { (y, x) };
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if low != high || low.is_finite() {
        (low - high).exp().ln_1p() + high
    } else {
        x
    }
}

impl Kernel for LogCumSumExp {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[1]]);
        // SAFETY: the caller's contract.
        unsafe { with_element!(floats: self.dtype, T => self.all::<T>(at)) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + 20 * (self.lines.lines.numel() * self.lines.size) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_stays_and_the_last_of_equals_is_named() {
        let mut x = [1.0f32, 3.0, 3.0, 2.0, f32::NAN, 9.0, f32::NAN];
        let (mut values, mut indices) = ([0f32; 7], [0i64; 7]);
        let t = TensorType::contiguous(DType::F32, &[7]);
        let kernel = RunningExtreme::new(true, &t, 0, &t, &TensorType::contiguous(DType::I64, &[7])).unwrap();
        let buffers = [x.as_mut_ptr().cast(), values.as_mut_ptr().cast(), indices.as_mut_ptr().cast()];
        // SAFETY: the buffers have the layouts the kernel was made for.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        assert_eq!(indices, [0, 1, 2, 2, 4, 4, 6]);
        assert_eq!(values[..4], [1.0, 3.0, 3.0, 3.0]);
        assert!(values[4..].iter().all(|v| v.is_nan()));
    }

    #[test]
    fn infinities_do_not_make_nan() {
        let mut x = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0, f32::INFINITY, 1.0];
        let mut y = [0f32; 6];
        let t = TensorType::contiguous(DType::F32, &[6]);
        let kernel = LogCumSumExp::new(&t, 0, &t).unwrap();
        // SAFETY: as above.
        unsafe { kernel.run(&[x.as_mut_ptr().cast(), y.as_mut_ptr().cast()], &[]).unwrap() };
        let ln2 = std::f32::consts::LN_2;
        assert_eq!(y, [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, ln2, f32::INFINITY, f32::INFINITY]);
    }
}
