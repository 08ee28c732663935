//! Sliding blocks: `im2col` and `col2im`.

use super::element::{Element, Wide};
use super::planes::Shared;
use crate::pool::parallel_for;
use crate::scatter::float::by_float;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{Blocks, DType, Scalar, TensorType};

/// Extents of an image and of the blocks over it.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    blocks: Blocks,
    /// Images times channels.
    planes: usize,
    /// Height and width of a plane.
    size: [i64; 2],
    /// Blocks along height and width.
    counts: [i64; 2],
}

impl Geometry {
    /// `image[n, c, h, w]` and `columns[n, c * kh * kw, blocks]`, both row-major.
    fn new(
        kernel: &'static str,
        image: &TensorType,
        columns: &TensorType,
        blocks: Blocks,
    ) -> Result<Self, KernelError> {
        let unsupported = || KernelError::Unsupported { kernel, what: format!("{image} and {columns}") };
        if image.rank() != 4 || columns.rank() != 3 || !image.is_contiguous() || !columns.is_contiguous() {
            return Err(unsupported());
        }
        let size = [image.sizes[2], image.sizes[3]];
        let counts = std::array::from_fn(|i| {
            let room = size[i] + 2 * blocks.padding[i] - blocks.dilation[i] * (blocks.kernel[i] - 1) - 1;
            if room < 0 { 0 } else { room / blocks.stride[i] + 1 }
        });
        let [kh, kw] = blocks.kernel;
        if image.dtype != columns.dtype
            || columns.sizes[..] != [image.sizes[0], image.sizes[1] * kh * kw, counts[0] * counts[1]]
        {
            return Err(unsupported());
        }
        Ok(Geometry { blocks, planes: (image.sizes[0] * image.sizes[1]) as usize, size, counts })
    }

    /// Blocks of a dimension whose element `k` lies within the image, and where that of the first block is.
    #[inline(always)]
    fn inside(&self, i: usize, k: i64) -> (i64, i64, i64) {
        let Blocks { stride, padding, dilation, .. } = self.blocks;
        let offset = k * dilation[i] - padding[i];
        let first = if offset < 0 { (-offset + stride[i] - 1) / stride[i] } else { 0 };
        let end = if offset >= self.size[i] { 0 } else { (self.size[i] - 1 - offset) / stride[i] + 1 };
        let first = first.min(self.counts[i]);
        (first, end.clamp(first, self.counts[i]), offset)
    }

    fn image(&self) -> usize {
        (self.size[0] * self.size[1]) as usize
    }

    /// Elements of the columns that one element of a block fills.
    fn row(&self) -> usize {
        (self.counts[0] * self.counts[1]) as usize
    }

    fn taps(&self) -> usize {
        (self.blocks.kernel[0] * self.blocks.kernel[1]) as usize
    }

    fn cost(&self) -> u64 {
        100 + (self.planes * self.taps() * self.row()) as u64
    }
}

/// Blocks of an image side by side. Buffers: image, columns.
#[derive(Debug)]
pub struct Unfold {
    geometry: Geometry,
    size: usize,
}

impl Unfold {
    /// `x[n, c, h, w]`, `out[n, c * kernel height * kernel width, blocks]`, row-major.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other layouts.
    pub fn new(x: &TensorType, blocks: Blocks, out: &TensorType) -> Result<Unfold, KernelError> {
        Ok(Unfold { geometry: Geometry::new("unfold", x, out, blocks)?, size: x.dtype.size() })
    }

    /// Element `tap` of the blocks of a plane.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` has the size of an element, and all of its bits zero is 0.
    #[inline(always)]
    unsafe fn tap<T: Copy + Default>(&self, at: &Shared<2>, plane: usize, tap: usize) {
        let g = &self.geometry;
        let (kh, kw) = (tap as i64 / g.blocks.kernel[1], tap as i64 % g.blocks.kernel[1]);
        let (h_first, h_end, h_offset) = g.inside(0, kh);
        let (w_first, w_end, w_offset) = g.inside(1, kw);
        let [h_stride, w_stride] = g.blocks.stride;
        // SAFETY: blocks `first..end` lie within the image.
        unsafe {
            let x = at.at::<T>(0).add(plane * g.image()).cast_const();
            let out = at.at::<T>(1).add((plane * g.taps() + tap) * g.row());
            for h in 0..g.counts[0] {
                let out = std::slice::from_raw_parts_mut(out.add((h * g.counts[1]) as usize), g.counts[1] as usize);
                if h < h_first || h >= h_end || w_first >= w_end {
                    out.fill(T::default());
                    continue;
                }
                out[..w_first as usize].fill(T::default());
                out[w_end as usize..].fill(T::default());
                let row = (h * h_stride + h_offset) * g.size[1] + w_first * w_stride + w_offset;
                let x = x.offset(row as isize);
                let out = &mut out[w_first as usize..w_end as usize];
                if w_stride == 1 {
                    x.copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
                } else {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = *x.add(i * w_stride as usize);
                    }
                }
            }
        }
    }
}

impl Kernel for Unfold {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        let taps = self.geometry.taps();
        parallel_for(self.geometry.planes * taps, |t| {
            let at = &at;
            vectorized(
                #[inline(always)]
                // SAFETY: the plane and the tap exist.
                || unsafe {
                    match self.size {
                        1 => self.tap::<u8>(at, t / taps, t % taps),
                        2 => self.tap::<u16>(at, t / taps, t % taps),
                        4 => self.tap::<u32>(at, t / taps, t % taps),
                        _ => self.tap::<u64>(at, t / taps, t % taps),
                    }
                },
            );
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.geometry.cost()
    }
}

/// Blocks summed into an image. Buffers: columns, image.
#[derive(Debug)]
pub struct Fold {
    geometry: Geometry,
    dtype: DType,
}

impl Fold {
    /// `x[n, c * kernel height * kernel width, blocks]`, `out[n, c, h, w]` of floats, row-major.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other types and layouts.
    pub fn new(x: &TensorType, blocks: Blocks, out: &TensorType) -> Result<Fold, KernelError> {
        if !x.dtype.is_float() {
            return Err(KernelError::dtype("fold", x.dtype));
        }
        Ok(Fold { geometry: Geometry::new("fold", out, x, blocks)?, dtype: x.dtype })
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    #[inline(always)]
    unsafe fn plane<T: Element>(&self, at: &Shared<2>, plane: usize) {
        let g = &self.geometry;
        let [h_stride, w_stride] = g.blocks.stride;
        // SAFETY: blocks `first..end` of each element lie within the image.
        unsafe {
            let out = std::slice::from_raw_parts_mut(at.at::<T>(1).add(plane * g.image()), g.image());
            out.fill(T::narrow(T::Wide::ZERO));
            for tap in 0..g.taps() {
                let (kh, kw) = (tap as i64 / g.blocks.kernel[1], tap as i64 % g.blocks.kernel[1]);
                let (h_first, h_end, h_offset) = g.inside(0, kh);
                let (w_first, w_end, w_offset) = g.inside(1, kw);
                let x = at.at::<T>(0).add((plane * g.taps() + tap) * g.row()).cast_const();
                for h in h_first..h_end {
                    let x = x.add((h * g.counts[1] + w_first) as usize);
                    let x = std::slice::from_raw_parts(x, (w_end - w_first) as usize);
                    let row = (h * h_stride + h_offset) * g.size[1] + w_first * w_stride + w_offset;
                    let out = out.as_mut_ptr().offset(row as isize);
                    if w_stride == 1 {
                        let out = std::slice::from_raw_parts_mut(out, x.len());
                        out.iter_mut().zip(x).for_each(|(o, x)| *o = T::narrow(o.widen().plus(x.widen())));
                    } else {
                        for (i, x) in x.iter().enumerate() {
                            let out = out.add(i * w_stride as usize);
                            *out = T::narrow((*out).widen().plus(x.widen()));
                        }
                    }
                }
            }
        }
    }
}

impl Kernel for Fold {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<2>::of(buffers);
        parallel_for(self.geometry.planes, |plane| {
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
        self.geometry.cost()
    }
}
