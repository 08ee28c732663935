//! Softmax and its logarithm, with their gradients.
//!
//! Rows along memory are normalised one by one; where another dimension lies along memory a tile of neighbouring
//! rows is brought into the cache and normalised at once, one vector lane to a row.

#![allow(clippy::needless_range_loop, reason = "one index walks rows, tiles and totals alike")]

pub(crate) mod exp;
#[cfg(test)]
mod tests;

use crate::reduce::element::{BFloat16, Element, Float, Half};
use crate::reduce::fold::{Combine, Max, Sum, horizontal, lanes};
use crate::reduce::scratch::{Scratch, map, sum};
use crate::reduce::walk::{Addresses, Operand, WIDTH, Walk};
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Exponentials computed before they are summed: they are still in the first-level cache.
const BLOCK: usize = 1024;

/// The element type all the tensors have; where they differ `f64` if any is, else `f32`.
fn element_type(kernel: &'static str, tensors: &[&TensorType]) -> Result<DType, KernelError> {
    for t in tensors {
        if !t.dtype.is_float() {
            return Err(KernelError::dtype(kernel, t.dtype));
        }
    }
    let first = tensors[0].dtype;
    Ok(if tensors.iter().all(|t| t.dtype == first) {
        first
    } else if tensors.iter().any(|t| t.dtype == DType::F64) {
        DType::F64
    } else {
        DType::F32
    })
}

/// Softmax or its logarithm. Buffers: input, output; they may be the same.
#[derive(Debug)]
pub struct Softmax {
    kernel: Box<dyn Kernel>,
}

impl Softmax {
    /// Normalises `input` along `dim`; both of any strides and floating-point type. Computed in `f64` if either is,
    /// else in `f32`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or where the sizes differ.
    pub fn new(input: &TensorType, dim: usize, log: bool, output: &TensorType) -> Result<Softmax, KernelError> {
        let walk = Walk::new("softmax", &[input, output], dim)?;
        let kernel = match element_type("softmax", &[input, output])? {
            DType::F64 => Forward::<f64, f64, 32>::boxed(walk, log, input, output, DType::F64)?,
            DType::F16 => Forward::<f32, Half, 64>::boxed(walk, log, input, output, DType::F16)?,
            DType::BF16 => Forward::<f32, BFloat16, 64>::boxed(walk, log, input, output, DType::BF16)?,
            _ => Forward::<f32, f32, 64>::boxed(walk, log, input, output, DType::F32)?,
        };
        Ok(Softmax { kernel })
    }
}

impl Kernel for Softmax {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: passed on to the caller.
        unsafe { self.kernel.run(buffers, scalars) }
    }

    fn cost(&self) -> u64 {
        self.kernel.cost()
    }
}

/// In accumulators of type `C`; `T` is what rows that lie along memory hold.
#[derive(Debug)]
struct Forward<C, T, const L: usize> {
    walk: Walk,
    log: bool,
    x: Operand<C>,
    y: Operand<C>,
    /// Rows of both tensors are dense and of type `T`.
    direct: bool,
    element: PhantomData<T>,
}

impl<C: Float, T: Element, const L: usize> Forward<C, T, L>
where
    Max: Combine<C>,
    Sum: Combine<C>,
{
    fn boxed(
        walk: Walk,
        log: bool,
        input: &TensorType,
        output: &TensorType,
        element: DType,
    ) -> Result<Box<dyn Kernel>, KernelError> {
        let (x, y) = (Operand::new(input, element, &walk, 0)?, Operand::new(output, element, &walk, 1)?);
        let direct = x.direct && y.direct;
        Ok(Box::new(Forward::<C, T, L> { walk, log, x, y, direct, element: PhantomData }))
    }

    #[inline(always)]
    unsafe fn rows(&self, x: *const u8, y: *mut u8, width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let wide = size_of::<T>() == size_of::<C>();
        let mut scratch = Scratch::new::<C>(if self.direct && wide { 0 } else { n });
        let buffer = scratch.get::<C>();
        for r in 0..width as isize {
            // SAFETY: row `r` exists in both tensors; the scratch memory has room for it.
            unsafe {
                let x = x.offset(r * inner[0] * self.x.item);
                let y = y.offset(r * inner[1] * self.y.item);
                if self.direct {
                    let exps = if wide { y.cast::<C>() } else { buffer };
                    self.row::<T>(x.cast(), y.cast(), exps);
                } else {
                    (self.x.load)(x, strides[0], n, buffer);
                    self.row::<C>(buffer, buffer, buffer);
                    (self.y.store)(buffer, n, y, strides[1]);
                }
            }
        }
    }

    /// One dense row; `exps` is room for the exponentials and may be `y`.
    #[inline(always)]
    unsafe fn row<E: Element>(&self, x: *const E, y: *mut E, exps: *mut C) {
        let n = self.walk.dim.extent;
        let mut tile = [const { MaybeUninit::<C>::uninit() }; BLOCK];
        let tile = tile.as_mut_ptr().cast::<C>();
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            let max = horizontal::<C, Max, L>(lanes::<C, E, Max, L>([C::NEG_INFINITY; L], x, n));
            let mut total = C::ZERO;
            let mut i = 0;
            while i < n {
                let m = BLOCK.min(n - i);
                let to = if self.log { tile } else { exps.add(i) };
                map(
                    x.add(i),
                    to,
                    m,
                    #[inline(always)]
                    |_, v| (C::load(v) - max).exp(),
                );
                total += sum::<C, L>(
                    m,
                    #[inline(always)]
                    |j| *to.add(j),
                );
                i += m;
            }
            if self.log {
                let log = total.ln();
                map(
                    x,
                    y,
                    n,
                    #[inline(always)]
                    |_, v| (C::load(v) - max - log).store::<E>(),
                );
            } else {
                let scale = C::of(1.0) / total;
                map(
                    exps,
                    y,
                    n,
                    #[inline(always)]
                    |_, e| (e * scale).store::<E>(),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(&self, x: *const u8, y: *mut u8, width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let mut scratch = Scratch::new::<C>(n * width);
        let tile = scratch.get::<C>();
        let (mut max, mut total, mut part) = ([C::NEG_INFINITY; WIDTH], [C::ZERO; WIDTH], [C::ZERO; WIDTH]);
        let (max, total, part) = (&mut max[..width], &mut total[..width], &mut part[..width]);
        // SAFETY: the rows exist in both tensors; the scratch memory has room for them.
        unsafe {
            for i in 0..n {
                let row = tile.add(i * width);
                (self.x.load)(x.offset(i as isize * strides[0] * self.x.item), inner[0], width, row);
                for (j, max) in max.iter_mut().enumerate() {
                    *max = Max::combine(*max, *row.add(j));
                }
            }
            for i in 0..n {
                let row = tile.add(i * width);
                for j in 0..width {
                    let shifted = *row.add(j) - max[j];
                    let e = shifted.exp();
                    *row.add(j) = if self.log { shifted } else { e };
                    part[j] += e;
                }
                if i % 64 == 63 || i + 1 == n {
                    for j in 0..width {
                        total[j] += part[j];
                        part[j] = C::ZERO;
                    }
                }
            }
            for total in total.iter_mut() {
                *total = if self.log { total.ln() } else { C::of(1.0) / *total };
            }
            for i in 0..n {
                let row = tile.add(i * width);
                if self.log {
                    for j in 0..width {
                        *row.add(j) = *row.add(j) - total[j];
                    }
                } else {
                    for j in 0..width {
                        *row.add(j) = *row.add(j) * total[j];
                    }
                }
                (self.y.store)(row, width, y.offset(i as isize * strides[1] * self.y.item), inner[1]);
            }
        }
    }
}

impl<C: Float, T: Element, const L: usize> Kernel for Forward<C, T, L>
where
    Max: Combine<C>,
    Sum: Combine<C>,
{
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let memory = Addresses([buffers[0], buffers[1]]);
        self.walk.run(|at, width| {
            let memory = &memory;
            // SAFETY: the offsets are those of elements of the tensors.
            vectorized(
                #[inline(always)]
                || unsafe {
                    let x = memory.0[0].offset(at[0] * self.x.item);
                    let y = memory.0[1].offset(at[1] * self.y.item);
                    if self.walk.columns { self.columns(x, y, width) } else { self.rows(x, y, width) }
                },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + self.walk.elements() / 2
    }
}

/// Gradient of [`Softmax`]. Buffers: gradient, output of the softmax, gradient of its input; the last may be the first.
#[derive(Debug)]
pub struct SoftmaxBackward {
    kernel: Box<dyn Kernel>,
}

impl SoftmaxBackward {
    /// `out * (grad - sum(grad * out))`, or for the logarithm `grad - exp(out) * sum(grad)`, sums along `dim`; all of
    /// any strides and floating-point type.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or where the sizes differ.
    pub fn new(
        grad: &TensorType,
        out: &TensorType,
        dim: usize,
        log: bool,
        grad_in: &TensorType,
    ) -> Result<SoftmaxBackward, KernelError> {
        let tensors = [grad, out, grad_in];
        let walk = Walk::new("softmax_backward", &tensors, dim)?;
        let kernel = match element_type("softmax_backward", &tensors)? {
            DType::F64 => Backward::<f64, f64, 32>::boxed(walk, log, &tensors, DType::F64)?,
            DType::F16 => Backward::<f32, Half, 64>::boxed(walk, log, &tensors, DType::F16)?,
            DType::BF16 => Backward::<f32, BFloat16, 64>::boxed(walk, log, &tensors, DType::BF16)?,
            _ => Backward::<f32, f32, 64>::boxed(walk, log, &tensors, DType::F32)?,
        };
        Ok(SoftmaxBackward { kernel })
    }
}

impl Kernel for SoftmaxBackward {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: passed on to the caller.
        unsafe { self.kernel.run(buffers, scalars) }
    }

    fn cost(&self) -> u64 {
        self.kernel.cost()
    }
}

/// In accumulators of type `C`; `T` is what rows that lie along memory hold.
#[derive(Debug)]
struct Backward<C, T, const L: usize> {
    walk: Walk,
    log: bool,
    operands: [Operand<C>; 3],
    /// Rows of all tensors are dense and of type `T`.
    direct: bool,
    element: PhantomData<T>,
}

impl<C: Float, T: Element, const L: usize> Backward<C, T, L>
where
    Sum: Combine<C>,
{
    fn boxed(
        walk: Walk,
        log: bool,
        tensors: &[&TensorType; 3],
        element: DType,
    ) -> Result<Box<dyn Kernel>, KernelError> {
        let operand = |i: usize| Operand::new(tensors[i], element, &walk, i);
        let operands = [operand(0)?, operand(1)?, operand(2)?];
        let direct = operands.iter().all(|o| o.direct);
        Ok(Box::new(Backward::<C, T, L> { walk, log, operands, direct, element: PhantomData }))
    }

    #[inline(always)]
    unsafe fn rows(&self, at: [*mut u8; 3], width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let mut scratch = Scratch::new::<C>(if self.direct { 0 } else { 2 * n });
        let (g, o) = (scratch.get::<C>(), scratch.get::<C>().wrapping_add(n));
        for r in 0..width as isize {
            // SAFETY: row `r` exists in all tensors; the scratch memory has room for two.
            unsafe {
                let p: [*mut u8; 3] = std::array::from_fn(|i| at[i].offset(r * inner[i] * self.operands[i].item));
                if self.direct {
                    self.row::<T>(p[0].cast(), p[1].cast(), p[2].cast());
                } else {
                    (self.operands[0].load)(p[0], strides[0], n, g);
                    (self.operands[1].load)(p[1], strides[1], n, o);
                    self.row::<C>(g, o, g);
                    (self.operands[2].store)(g, n, p[2], strides[2]);
                }
            }
        }
    }

    /// One dense row; `to` may be `g`.
    #[inline(always)]
    unsafe fn row<E: Element>(&self, g: *const E, o: *const E, to: *mut E) {
        let n = self.walk.dim.extent;
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            if self.log {
                let total = sum::<C, L>(
                    n,
                    #[inline(always)]
                    |i| C::load(*g.add(i)),
                );
                map(
                    g,
                    to,
                    n,
                    #[inline(always)]
                    |i, g| (C::load(g) - C::load(*o.add(i)).exp() * total).store::<E>(),
                );
            } else {
                let total = sum::<C, L>(
                    n,
                    #[inline(always)]
                    |i| C::load(*g.add(i)) * C::load(*o.add(i)),
                );
                map(
                    g,
                    to,
                    n,
                    #[inline(always)]
                    |i, g| (C::load(*o.add(i)) * (C::load(g) - total)).store::<E>(),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(&self, at: [*mut u8; 3], width: usize) {
        let (n, strides, inner) = (self.walk.dim.extent, self.walk.dim.strides, self.walk.inner.strides);
        let [grad, out, grad_in] = &self.operands;
        let mut scratch = Scratch::new::<C>(2 * n * width);
        let (g, o) = (scratch.get::<C>(), scratch.get::<C>().wrapping_add(n * width));
        let (mut total, mut part) = ([C::ZERO; WIDTH], [C::ZERO; WIDTH]);
        let (total, part) = (&mut total[..width], &mut part[..width]);
        // SAFETY: the rows exist in all tensors; the scratch memory has room for them twice.
        unsafe {
            for i in 0..n {
                let (g, o) = (g.add(i * width), o.add(i * width));
                (grad.load)(at[0].offset(i as isize * strides[0] * grad.item), inner[0], width, g);
                (out.load)(at[1].offset(i as isize * strides[1] * out.item), inner[1], width, o);
                if self.log {
                    for j in 0..width {
                        part[j] += *g.add(j);
                    }
                } else {
                    for j in 0..width {
                        part[j] += *g.add(j) * *o.add(j);
                    }
                }
                if i % 64 == 63 || i + 1 == n {
                    for j in 0..width {
                        total[j] += part[j];
                        part[j] = C::ZERO;
                    }
                }
            }
            for i in 0..n {
                let (g, o) = (g.add(i * width), o.add(i * width));
                if self.log {
                    for j in 0..width {
                        *g.add(j) = *g.add(j) - (*o.add(j)).exp() * total[j];
                    }
                } else {
                    for j in 0..width {
                        *g.add(j) = *o.add(j) * (*g.add(j) - total[j]);
                    }
                }
                (grad_in.store)(g, width, at[2].offset(i as isize * strides[2] * grad_in.item), inner[2]);
            }
        }
    }
}

impl<C: Float, T: Element, const L: usize> Kernel for Backward<C, T, L>
where
    Sum: Combine<C>,
{
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let memory = Addresses([buffers[0], buffers[1], buffers[2]]);
        self.walk.run(|at, width| {
            let memory = &memory;
            // SAFETY: the offsets are those of elements of the tensors.
            vectorized(
                #[inline(always)]
                || unsafe {
                    let p = std::array::from_fn(|i| memory.0[i].offset(at[i] * self.operands[i].item));
                    if self.walk.columns { self.columns(p, width) } else { self.rows(p, width) }
                },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + self.walk.elements() / 2
    }
}
