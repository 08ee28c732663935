//! The mean of each window.

use super::element::{Element, Wide};
use super::max_pool::taps;
use super::planes::{Planes, Shared, alike};
use super::windows::{Span, Windows};
use crate::pool::parallel_for;
use crate::scatter::float::by_number;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Divisor, Scalar, TensorType, Window};
use std::ops::Range;

/// Outputs computed side by side.
const CHUNK: usize = 16;

/// Outputs of a task.
const TASK: usize = 1 << 13;

/// Divides a sum by what belongs to a window.
#[inline(always)]
fn divide<W: Wide>(sum: W, divisor: Divisor, [d, h, w]: [Span; 3]) -> W {
    let extent = |s: Span| i64::from(s.end - s.start);
    match divisor {
        Divisor::Existing => sum.over(W::of(extent(d) * extent(h) * extent(w))),
        Divisor::Padded => sum.over(W::of(i64::from(d.padded) * i64::from(h.padded) * i64::from(w.padded))),
        Divisor::Extents => sum.over(W::of(extent(d))).over(W::of(extent(h))).over(W::of(extent(w))),
        Divisor::Fixed(n) => sum.over(W::of(n)),
    }
}

fn check(
    kernel: &'static str,
    x: &TensorType,
    out: &TensorType,
    windows: [Window; 3],
    divisor: Divisor,
) -> Result<(Planes, Planes, [Windows; 3]), KernelError> {
    let dilated = windows.iter().any(|w| matches!(w, Window::Strided { dilation, .. } if *dilation != 1));
    if dilated || divisor == Divisor::Fixed(0) {
        return Err(KernelError::Unsupported { kernel, what: "a dilated mean or a divisor of 0".into() });
    }
    if out.dtype != x.dtype || !(x.dtype.is_float() || x.dtype == DType::I64) {
        return Err(KernelError::dtype(kernel, x.dtype));
    }
    let [xp, op] = alike(kernel, [x, out])?;
    Ok((xp, op, std::array::from_fn(|i| Windows::new(windows[i], x.sizes[i + 2], out.sizes[i + 2]))))
}

/// Mean of each window. Buffers: input, output.
#[derive(Debug)]
pub struct AvgPool {
    x: Planes,
    out: Planes,
    windows: [Windows; 3],
    divisor: Divisor,
    dtype: DType,
}

impl AvgPool {
    /// `[n, c, d, h, w]` of floats or `i64`, both row-major or both with channels last.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other types, other layouts, and dilated windows.
    pub fn new(
        x: &TensorType,
        windows: [Window; 3],
        divisor: Divisor,
        out: &TensorType,
    ) -> Result<AvgPool, KernelError> {
        let (xp, op, windows) = check("avg_pool", x, out, windows, divisor)?;
        Ok(AvgPool { x: xp, out: op, windows, divisor, dtype: x.dtype })
    }

    /// One row of the result.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type and `row` exists.
    #[inline(always)]
    unsafe fn row<T: Element>(&self, at: &Shared<2>, row: usize) {
        let [plane, d, h] = self.out.place(row);
        let lanes = self.x.lanes;
        let [wd, wh, ww] = &self.windows;
        let (d, h) = (wd.spans[d], wh.spans[h]);
        // SAFETY: windows lie within the plane, and outputs within the row.
        unsafe {
            let x = at.at::<T>(0).add(plane * self.x.elements());
            let out = at.at::<T>(1).add(row * self.out.row());
            if lanes > 1 {
                for (o, w) in ww.spans.iter().enumerate() {
                    let out = out.add(o * lanes);
                    let mut c = 0;
                    while c + CHUNK <= lanes {
                        self.chunk::<T, CHUNK>(x.add(c), [d, h, *w], 1, out.add(c));
                        c += CHUNK;
                    }
                    for c in c..lanes {
                        self.chunk::<T, 1>(x.add(c), [d, h, *w], 1, out.add(c));
                    }
                }
                return;
            }
            let mut o = 0;
            while o < ww.spans.len() {
                let spans = [d, h, ww.spans[o]];
                if ww.regular.contains(&o) && o + CHUNK <= ww.regular.end {
                    match ww.stride {
                        1 => self.chunk::<T, CHUNK>(x, spans, 1, out.add(o)),
                        2 => self.chunk::<T, CHUNK>(x, spans, 2, out.add(o)),
                        s => self.chunk::<T, CHUNK>(x, spans, s, out.add(o)),
                    }
                    o += CHUNK;
                } else {
                    self.chunk::<T, 1>(x, spans, 1, out.add(o));
                    o += 1;
                }
            }
        }
    }

    /// `N` outputs whose elements are `step` apart.
    ///
    /// # Safety
    /// The windows lie within the plane at `x`, and `N` outputs exist.
    #[inline(always)]
    unsafe fn chunk<T: Element, const N: usize>(&self, x: *const T, spans: [Span; 3], step: usize, out: *mut T) {
        let [_, height, width] = self.x.size;
        let [d, h, w] = spans;
        let mut sum = [T::Wide::ZERO; N];
        if spans.iter().all(|s| s.start < s.end) {
            for d in d.start..d.end {
                for h in h.start..h.end {
                    let row = (d as usize * height + h as usize) * width;
                    for i in w.start..w.end {
                        // SAFETY: elements of windows of the plane.
                        unsafe {
                            let x = x.add((row + i as usize) * self.x.lanes);
                            for (j, sum) in sum.iter_mut().enumerate() {
                                *sum = sum.plus((*x.add(j * step)).widen());
                            }
                        }
                    }
                }
            }
            for sum in &mut sum {
                *sum = divide(*sum, self.divisor, spans);
            }
        }
        for (j, sum) in sum.into_iter().enumerate() {
            // SAFETY: the caller's outputs.
            unsafe { *out.add(j) = T::narrow(sum) };
        }
    }
}

impl Kernel for AvgPool {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
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

/// Gradient of [`AvgPool`]. Buffers: gradient of the output, gradient of the input.
#[derive(Debug)]
pub struct AvgPoolBackward {
    grad: Planes,
    out: Planes,
    windows: [Windows; 3],
    /// Windows over each depth and each row.
    cover: [Vec<Range<usize>>; 2],
    /// Extent, distance and padding of windows along the width, if they have these.
    strided: Option<[i64; 3]>,
    divisor: Divisor,
    dtype: DType,
}

impl AvgPoolBackward {
    /// `[n, c, d, h, w]` of floats or `i64`, both row-major or both with channels last.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other types, other layouts, and dilated windows.
    pub fn new(
        grad: &TensorType,
        windows: [Window; 3],
        divisor: Divisor,
        out: &TensorType,
    ) -> Result<AvgPoolBackward, KernelError> {
        let dtype = out.dtype;
        let strided = match windows[2] {
            Window::Strided { kernel, stride, padding, .. } => Some([kernel, stride, padding]),
            Window::Adaptive => None,
        };
        let (out, grad, windows) = check("avg_pool_backward", out, grad, windows, divisor)?;
        let cover = [windows[0].cover(out.size[0]), windows[1].cover(out.size[1])];
        Ok(AvgPoolBackward { grad, out, windows, cover, strided, divisor, dtype })
    }

    /// One row of the gradient of the input: what each window over it gives, in order.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type, `row` exists, `shares` holds a row of the gradient.
    #[inline(always)]
    unsafe fn row<T: Element>(&self, at: &Shared<2>, row: usize, shares: &mut [T]) {
        let [plane, d, h] = self.out.place(row);
        let lanes = self.out.lanes;
        let [wd, wh, ww] = &self.windows;
        let (d, h) = (self.cover[0][d].clone(), self.cover[1][h].clone());
        // SAFETY: windows lie within the row, and rows within the planes.
        unsafe {
            let out = std::slice::from_raw_parts_mut(at.at::<T>(1).add(row * self.out.row()), self.out.row());
            out.fill(T::narrow(T::Wide::ZERO));
            for d in d {
                for h in h.clone() {
                    let from = ((plane * self.grad.size[0] + d) * self.grad.size[1] + h) * self.grad.row();
                    let grad = std::slice::from_raw_parts(at.at::<T>(0).add(from), self.grad.row());
                    self.share(grad, [wd.spans[d], wh.spans[h]], shares);
                    if lanes == 1 && self.reversed(shares, out) {
                        continue;
                    }
                    for (o, w) in ww.spans.iter().enumerate() {
                        let share = &shares[o * lanes..][..lanes];
                        for i in w.start..w.end {
                            let out = &mut out[i as usize * lanes..][..lanes];
                            for (out, share) in out.iter_mut().zip(share) {
                                *out = T::narrow(out.widen().plus(share.widen()));
                            }
                        }
                    }
                }
            }
        }
    }
}

impl AvgPoolBackward {
    /// What each window of a row gives to each of its elements.
    #[inline(always)]
    fn share<T: Element>(&self, grad: &[T], [d, h]: [Span; 2], shares: &mut [T]) {
        let lanes = self.out.lanes;
        let spans = &self.windows[2].spans;
        if lanes > 1 || self.divisor == Divisor::Extents {
            for ((w, grad), shares) in spans.iter().zip(grad.chunks_exact(lanes)).zip(shares.chunks_exact_mut(lanes)) {
                for (share, g) in shares.iter_mut().zip(grad) {
                    *share = T::narrow(divide(g.widen(), self.divisor, [d, h, *w]));
                }
            }
            return;
        }
        // Extents are far below what a float holds exactly.
        let by = |area: i32, extent: fn(&Span) -> i32, shares: &mut [T]| {
            for ((share, g), w) in shares.iter_mut().zip(grad).zip(spans) {
                *share = T::narrow(g.widen().over(T::Wide::of(i64::from(area) * i64::from(extent(w)))));
            }
        };
        match self.divisor {
            Divisor::Padded => by(d.padded * h.padded, |w| w.padded, shares),
            Divisor::Fixed(n) => {
                let n = T::Wide::of(n);
                shares.iter_mut().zip(grad).for_each(|(share, g)| *share = T::narrow(g.widen().over(n)));
            }
            _ => by((d.end - d.start) * (h.end - h.start), |w| w.end - w.start, shares),
        }
    }

    /// Adds the shares by element of the windows, the last first: every element of `out` then still gets them in the
    /// order of the windows. False where windows are irregular.
    #[inline(always)]
    fn reversed<T: Element>(&self, shares: &[T], out: &mut [T]) -> bool {
        let Some([kernel, stride, padding]) = self.strided else { return false };
        for k in (0..kernel).rev() {
            let offset = k - padding;
            let first = if offset < 0 { (-offset + stride - 1) / stride } else { 0 };
            let room = out.len() as i64 - 1 - offset;
            let end = if room < 0 { 0 } else { (room / stride + 1).min(shares.len() as i64) };
            if first >= end {
                continue;
            }
            let shares = &shares[first as usize..end as usize];
            let out = &mut out[(first * stride + offset) as usize..];
            let add = |out: &mut T, share: &T| *out = T::narrow(out.widen().plus(share.widen()));
            match stride {
                1 => out.iter_mut().zip(shares).for_each(|(out, share)| add(out, share)),
                _ => out.iter_mut().step_by(stride as usize).zip(shares).for_each(|(out, share)| add(out, share)),
            }
        }
        true
    }
}

impl Kernel for AvgPoolBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        let rows = self.out.rows();
        if self.out.row() == 0 {
            return Ok(());
        }
        let piece = (TASK / self.out.row()).max(1);
        parallel_for(rows.div_ceil(piece), |t| {
            let at = &at;
            by_number!(self.dtype, T => vectorized(
                #[inline(always)]
                || {
                    let mut shares = vec![T::narrow(<T as Element>::Wide::ZERO); self.grad.row()];
                    for row in t * piece..rows.min((t + 1) * piece) {
                        // SAFETY: the row exists.
                        unsafe { self.row::<T>(at, row, &mut shares) }
                    }
                },
            ), _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let taps: usize = self.windows.iter().map(taps).product();
        100 + (self.grad.rows() * self.grad.row() * taps) as u64
    }
}
