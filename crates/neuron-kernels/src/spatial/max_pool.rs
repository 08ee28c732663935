//! The largest element of each window.

use super::element::{Element, Wide};
use super::planes::{Planes, Shared, alike};
use super::windows::{Span, Windows};
use crate::pool::parallel_for;
use crate::scatter::float::{by_float, by_number};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType, Window};

/// Outputs computed side by side.
const CHUNK: usize = 16;

/// Outputs of a task.
const TASK: usize = 1 << 13;

/// Largest of each window and its position in the plane. Buffers: input, values, positions.
#[derive(Debug)]
pub struct MaxPool {
    x: Planes,
    out: Planes,
    windows: [Windows; 3],
    dtype: DType,
}

impl MaxPool {
    /// `[n, c, d, h, w]` all row-major or all with channels last; positions are `i64`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for `bool`, other layouts, and planes of more than 2^31 elements.
    pub fn new(
        x: &TensorType,
        windows: [Window; 3],
        values: &TensorType,
        positions: &TensorType,
    ) -> Result<MaxPool, KernelError> {
        if x.dtype == DType::Bool || values.dtype != x.dtype || positions.dtype != DType::I64 {
            return Err(KernelError::dtype("max_pool", x.dtype));
        }
        let [xp, out, _] = alike("max_pool", [x, values, positions])?;
        let windows = std::array::from_fn(|i| Windows::new(windows[i], x.sizes[i + 2], values.sizes[i + 2]));
        Ok(MaxPool { x: xp, out, windows, dtype: x.dtype })
    }

    /// One row of the result.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type and `row` exists.
    #[inline(always)]
    unsafe fn row<T: Element>(&self, at: &Shared<3>, row: usize) {
        let [plane, d, h] = self.out.place(row);
        let lanes = self.x.lanes;
        let [_, height, width] = self.x.size;
        let [wd, wh, ww] = &self.windows;
        let taps = Rows { d: wd.spans[d], h: wh.spans[h], steps: [wd.dilation, wh.dilation], height, width };
        // SAFETY: windows lie within the plane, and outputs within the row.
        unsafe {
            let x = at.at::<T>(0).add(plane * self.x.elements());
            let values = at.at::<T>(1).add(row * self.out.row());
            let positions = at.at::<i64>(2).add(row * self.out.row());
            let dilation = ww.dilation;
            let out = |o: usize| (values.add(o * lanes), positions.add(o * lanes));
            if lanes > 1 {
                for (o, w) in ww.spans.iter().enumerate() {
                    let (values, positions) = out(o);
                    let mut c = 0;
                    while c + CHUNK <= lanes {
                        taps.chunk::<T, CHUNK>(x.add(c), lanes, *w, dilation, 1, 0, values.add(c), positions.add(c));
                        c += CHUNK;
                    }
                    for c in c..lanes {
                        taps.chunk::<T, 1>(x.add(c), lanes, *w, dilation, 1, 0, values.add(c), positions.add(c));
                    }
                }
                return;
            }
            let mut o = 0;
            while o < ww.spans.len() {
                let (values, positions) = out(o);
                let w = ww.spans[o];
                if ww.regular.contains(&o) && o + CHUNK <= ww.regular.end {
                    match ww.stride {
                        1 => taps.chunk::<T, CHUNK>(x, 1, w, dilation, 1, 1, values, positions),
                        2 => taps.chunk::<T, CHUNK>(x, 1, w, dilation, 2, 2, values, positions),
                        s => taps.chunk::<T, CHUNK>(x, 1, w, dilation, s, s, values, positions),
                    }
                    o += CHUNK;
                } else {
                    taps.chunk::<T, 1>(x, 1, w, dilation, 1, 0, values, positions);
                    o += 1;
                }
            }
        }
    }
}

/// The rows of the input that a window spans.
#[derive(Clone, Copy)]
struct Rows {
    d: Span,
    h: Span,
    steps: [usize; 2],
    height: usize,
    width: usize,
}

impl Rows {
    /// `N` outputs whose elements are `step` apart in memory and `advance` apart in position.
    ///
    /// # Safety
    /// The windows lie within the plane at `x`, and `N` outputs exist.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "a hot loop's registers")]
    unsafe fn chunk<T: Element, const N: usize>(
        &self,
        x: *const T,
        lanes: usize,
        w: Span,
        dilation: usize,
        step: usize,
        advance: usize,
        values: *mut T,
        positions: *mut i64,
    ) {
        let first = (self.d.start as usize * self.height + self.h.start as usize) * self.width + w.start as usize;
        let mut best = [T::Wide::LOWEST; N];
        let mut found = [first as i32; N];
        for d in (self.d.start..self.d.end).step_by(self.steps[0]) {
            for h in (self.h.start..self.h.end).step_by(self.steps[1]) {
                let row = (d as usize * self.height + h as usize) * self.width;
                let mut i = w.start;
                while i < w.end {
                    let position = row + i as usize;
                    // SAFETY: elements of windows of the plane.
                    unsafe {
                        let x = x.add(position * lanes);
                        for j in 0..N {
                            let v = (*x.add(j * step)).widen();
                            // NaN is larger than all, and the last one wins.
                            #[allow(clippy::eq_op, reason = "true of NaN alone")]
                            let larger = (v > best[j]) | (v != v);
                            best[j] = if larger { v } else { best[j] };
                            found[j] = if larger { position as i32 } else { found[j] };
                        }
                    }
                    i += dilation as i32;
                }
            }
        }
        for j in 0..N {
            // SAFETY: the caller's outputs.
            unsafe {
                *values.add(j) = T::narrow(best[j]);
                *positions.add(j) = i64::from(found[j]) + (j * advance) as i64;
            }
        }
    }
}

impl Kernel for MaxPool {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<3>::of(buffers);
        let rows = self.out.rows();
        if self.out.row() == 0 {
            return Ok(());
        }
        let piece = (TASK / self.out.row()).max(1);
        parallel_for(rows.div_ceil(piece), |t| {
            let at = &at;
            by_number!(self.dtype, T => vectorized(
                #[inline(always)]
                || for row in t * piece..rows.min((t + 1) * piece) {
                    // SAFETY: the row exists.
                    unsafe { self.row::<T>(at, row) }
                },
            ), _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let taps: usize = self.windows.iter().map(taps).product();
        100 + (self.out.rows() * self.out.row() * taps) as u64 / 4
    }
}

/// About how many elements a window has.
pub(super) fn taps(windows: &Windows) -> usize {
    windows.spans.iter().map(|s| (s.end - s.start).max(1) as usize / windows.dilation).max().unwrap_or(0).max(1)
}

/// Largest of windows that samples place. Buffers: input, samples, values, positions.
#[derive(Debug)]
pub struct FractionalMaxPool {
    x: Planes,
    out: Planes,
    kernel: [usize; 3],
    dtype: DType,
    dims: usize,
}

impl FractionalMaxPool {
    /// `[n, c, d, h, w]`, row-major; samples `[n, c, 2 or 3]` of the input's type, width, height, depth. The last
    /// window ends with the input.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers and other layouts.
    pub fn new(
        x: &TensorType,
        samples: &TensorType,
        kernel: [i64; 3],
        values: &TensorType,
        positions: &TensorType,
    ) -> Result<FractionalMaxPool, KernelError> {
        let name = "fractional_max_pool";
        let [xp, out, _] = alike(name, [x, values, positions])?;
        let planes = samples.sizes[0] * samples.sizes[1];
        if xp.lanes != 1 || !samples.is_contiguous() || planes as usize != xp.count {
            return Err(KernelError::Unsupported { kernel: name, what: format!("{x} with samples {samples}") });
        }
        if !x.dtype.is_float() || samples.dtype != x.dtype {
            return Err(KernelError::dtype(name, samples.dtype));
        }
        let dims = samples.sizes[2] as usize;
        Ok(FractionalMaxPool { x: xp, out, kernel: kernel.map(|k| k as usize), dtype: x.dtype, dims })
    }

    /// Starts of the windows of dimension `i`, counted depth first.
    fn starts<T: Element>(&self, i: usize, sample: T) -> Vec<usize>
    where
        T::Wide: super::element::Real,
    {
        use super::element::Real;
        let (input, output, kernel) = (self.x.size[i], self.out.size[i], self.kernel[i]);
        let round = |v: T::Wide| T::narrow(v).widen();
        let sample = sample.widen();
        let mut starts = vec![0; output];
        if output > 1 {
            let alpha = round(T::Wide::of((input - kernel) as i64) / T::Wide::of(output as i64 - 1));
            let offset = round(sample * alpha).to_index();
            for (o, start) in starts.iter_mut().enumerate() {
                let at = round(round(T::Wide::of(o as i64) + sample) * alpha).to_index();
                *start = (at - offset).clamp(0, (input - kernel) as i64) as usize;
            }
        }
        if let Some(last) = starts.last_mut() {
            *last = input - kernel;
        }
        starts
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type and the plane exists.
    unsafe fn plane<T: Element>(&self, at: &Shared<4>, plane: usize)
    where
        T::Wide: super::element::Real,
    {
        // SAFETY: windows lie within the plane by construction of their starts.
        unsafe {
            let samples = at.at::<T>(1).add(plane * self.dims);
            let d = if self.dims == 3 { self.starts(0, *samples) } else { vec![0] };
            let axes: [Vec<usize>; 3] = if self.dims == 3 {
                [d, self.starts(1, *samples.add(1)), self.starts(2, *samples.add(2))]
            } else {
                [d, self.starts(1, *samples.add(1)), self.starts(2, *samples)]
            };
            let span = |start: usize, kernel: usize| Span {
                start: start as i32,
                end: (start + kernel) as i32,
                padded: kernel as i32,
            };
            let x = at.at::<T>(0).add(plane * self.x.elements());
            let mut to = plane * self.out.elements();
            let [_, height, width] = self.x.size;
            for &d in &axes[0] {
                for &h in &axes[1] {
                    let (d, h) = (span(d, self.kernel[0]), span(h, self.kernel[1]));
                    let rows = Rows { d, h, steps: [1, 1], height, width };
                    for &w in &axes[2] {
                        let (values, positions) = (at.at::<T>(2).add(to), at.at::<i64>(3).add(to));
                        rows.chunk::<T, 1>(x, 1, span(w, self.kernel[2]), 1, 1, 0, values, positions);
                        to += 1;
                    }
                }
            }
        }
    }
}

impl Kernel for FractionalMaxPool {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<4>::of(buffers);
        if self.out.elements() == 0 {
            return Ok(());
        }
        parallel_for(self.x.count, |plane| {
            let at = &at;
            // SAFETY: the plane exists.
            by_float!(self.dtype, T => unsafe { self.plane::<T>(at, plane) }, _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + (self.x.count * self.out.elements() * self.kernel.iter().product::<usize>()) as u64
    }
}
