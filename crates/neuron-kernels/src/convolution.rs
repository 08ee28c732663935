//! `torch.conv1d`, `conv2d` and `conv3d`: products of the weight with patches of the input, one tile at a time.

use crate::gemm::f32_block;
use crate::index::nest::{Nest, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::scatter::float::Float;
use neuron_ir::{DType, Scalar, TensorType};
use smallvec::SmallVec;
use std::ops::Range;

/// Output positions of one tile.
const TILE: usize = 256;

/// Rows of the patch matrix at a time: with `TILE` columns a quarter of the second-level cache.
const DEPTH: usize = 256;

/// Output channels of one task, where there are too few tiles to share.
const CHANNELS: usize = 64;

/// Fewer tiles than this are split by channels as well.
const FEW_TILES: usize = 16;

/// A spatial dimension of a convolution.
#[derive(Clone, Copy, Debug)]
struct Window {
    input: i64,
    out: i64,
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    /// Bytes between neighbours of the input.
    step: i64,
}

impl Window {
    /// A dimension that is not there.
    const NONE: Window = Window { input: 1, out: 1, kernel: 1, stride: 1, padding: 0, dilation: 1, step: 0 };

    /// Where the input is read for output position 0 and this kernel position; negative in the padding.
    fn shift(&self, kernel: i64) -> i64 {
        kernel * self.dilation - self.padding
    }

    /// The input position, unless it lies in the padding.
    fn position(&self, out: i64, kernel: i64) -> Option<i64> {
        let at = out * self.stride + self.shift(kernel);
        (0..self.input).contains(&at).then_some(at)
    }

    /// The output positions of `range` whose input does not lie in the padding.
    fn inside(&self, range: Range<i64>, kernel: i64) -> Range<i64> {
        let shift = self.shift(kernel);
        // The first output position that reads at or after this input position.
        let reaches = |input: i64| ((input - shift).max(0) + self.stride - 1) / self.stride;
        let (first, end) = (reaches(0), reaches(self.input));
        let first = first.clamp(range.start, range.end);
        first..end.clamp(first, range.end)
    }
}

/// A forward convolution of one to three spatial dimensions. Buffers: input, weight, bias if present, out.
///
/// Sums are `f32`; half floats are widened as patches are gathered and rounded once.
#[derive(Debug)]
pub struct Convolution {
    dtype: DType,
    bias: Option<DType>,
    batch: usize,
    groups: usize,
    /// Channels of one group.
    in_channels: usize,
    out_channels: usize,
    windows: [Window; 3],
    /// Bytes between batches and channels of the input.
    input_steps: [isize; 2],
    /// The weight, row by row.
    weight: Nest<1>,
    weight_is_rows: bool,
    /// Bytes between batches and channels of the out tensor, and its spatial dimensions.
    out_steps: [isize; 2],
    out_positions: Nest<1>,
}

/// Output positions of a tile that share all but the last coordinate.
struct Segment {
    at: [i64; 2],
    columns: Range<i64>,
}

impl Convolution {
    /// `input[n, c, ..]`, `weight[o, c / groups, ..]`, `out[n, o, ..]` of one float type but `f64`, any strides; `bias[o]`
    /// contiguous and of that type. `stride`, `padding` and `dilation` have an entry per spatial dimension.
    ///
    /// # Errors
    /// Other types, more than three spatial dimensions, shapes that do not belong together.
    #[expect(clippy::too_many_arguments, reason = "the arguments of aten::convolution")]
    pub fn new(
        input: &TensorType,
        weight: &TensorType,
        bias: Option<DType>,
        stride: &[i64],
        padding: &[i64],
        dilation: &[i64],
        groups: i64,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let kernel = "convolution";
        let mismatch = || KernelError::Unsupported { kernel, what: format!("{input} by {weight} to {out}") };
        let dtype = input.dtype;
        if !dtype.is_float() || dtype == DType::F64 {
            return Err(KernelError::dtype(kernel, dtype));
        }
        let spatial = input.rank().wrapping_sub(2);
        let ranks = [weight.rank(), out.rank()] == [input.rank(); 2];
        let arguments = [stride, padding, dilation].iter().all(|a| a.len() == spatial);
        let types = weight.dtype == dtype && out.dtype == dtype && bias.is_none_or(|b| b == dtype);
        if !(1..=3).contains(&spatial) || !ranks || !arguments || !types || groups < 1 {
            return Err(mismatch());
        }
        let channels = input.sizes[1] == weight.sizes[1] * groups
            && out.sizes[1] == weight.sizes[0]
            && weight.sizes[0] % groups == 0
            && input.sizes[0] == out.sizes[0];
        let size = dtype.size() as i64;
        let mut windows = [Window::NONE; 3];
        for (d, window) in windows[3 - spatial..].iter_mut().enumerate() {
            *window = Window {
                input: input.sizes[d + 2],
                out: out.sizes[d + 2],
                kernel: weight.sizes[d + 2],
                stride: stride[d],
                padding: padding[d],
                dilation: dilation[d],
                step: input.strides[d + 2] * size,
            };
        }
        let positive = windows.iter().all(|w| w.stride > 0 && w.dilation > 0 && w.padding >= 0);
        if !channels || !positive {
            return Err(mismatch());
        }
        Ok(Convolution {
            dtype,
            bias,
            batch: input.sizes[0] as usize,
            groups: groups as usize,
            in_channels: weight.sizes[1] as usize,
            out_channels: (weight.sizes[0] / groups) as usize,
            windows,
            input_steps: [input.strides[0] * size, input.strides[1] * size].map(|s| s as isize),
            weight: Nest::of(&weight.sizes, [weight], 0..weight.rank()),
            weight_is_rows: dtype == DType::F32 && weight.is_contiguous(),
            out_steps: [out.strides[0] * size, out.strides[1] * size].map(|s| s as isize),
            out_positions: Nest::of(&out.sizes, [out], 2..out.rank()),
        })
    }

    /// Rows of the patch matrix: channels of a group times kernel positions.
    fn depth(&self) -> usize {
        self.in_channels * self.windows.iter().map(|w| w.kernel as usize).product::<usize>()
    }

    /// The output positions `range` by rows.
    fn segments(&self, range: Range<usize>) -> SmallVec<[Segment; 16]> {
        let [_, rows, columns] = self.windows.map(|w| w.out);
        let (mut at, end) = (range.start as i64, range.end as i64);
        let mut segments = SmallVec::new();
        while at < end {
            let (row, column) = (at / columns, at % columns);
            let count = (columns - column).min(end - at);
            segments.push(Segment { at: [row / rows, row % rows], columns: column..column + count });
            at += count;
        }
        segments
    }

    /// Gathers the rows `depth` of the patch matrix for the positions of `segments`.
    ///
    /// # Safety
    /// `input` is the first channel of a group of the input, of type `T`; `patches` holds `TILE` columns per row.
    unsafe fn gather<T: Float<Wide = f32>>(
        &self,
        input: *const u8,
        segments: &[Segment],
        depth: Range<usize>,
        patches: &mut [f32],
    ) {
        let [planes, rows, columns] = &self.windows;
        for (row, patches) in depth.zip(patches.chunks_exact_mut(TILE)) {
            let row = row as i64;
            let (rest, kx) = (row / columns.kernel, row % columns.kernel);
            let (rest, ky) = (rest / rows.kernel, rest % rows.kernel);
            let (channel, kz) = (rest / planes.kernel, rest % planes.kernel);
            let mut to = 0;
            for segment in segments {
                let range = segment.columns.clone();
                let line = &mut patches[to..to + (range.end - range.start) as usize];
                to += line.len();
                let (Some(z), Some(y)) = (planes.position(segment.at[0], kz), rows.position(segment.at[1], ky)) else {
                    line.fill(0.0);
                    continue;
                };
                let inside = columns.inside(range.clone(), kx);
                let (begin, end) = ((inside.start - range.start) as usize, (inside.end - range.start) as usize);
                line[..begin].fill(0.0);
                line[end..].fill(0.0);
                if inside.is_empty() {
                    continue;
                }
                let first = inside.start * columns.stride + columns.shift(kx);
                let offset = channel as isize * self.input_steps[1]
                    + (z * planes.step + y * rows.step + first * columns.step) as isize;
                let step = (columns.stride * columns.step) as isize;
                // SAFETY: positions within the input, as `position` and `inside` say.
                unsafe {
                    let from = input.offset(offset);
                    if step == size_of::<T>() as isize {
                        let from = std::slice::from_raw_parts(from.cast::<T>(), end - begin);
                        line[begin..end].iter_mut().zip(from).for_each(|(to, v)| *to = v.widen());
                    } else {
                        for (i, to) in line[begin..end].iter_mut().enumerate() {
                            *to = (*from.offset(i as isize * step).cast::<T>()).widen();
                        }
                    }
                }
            }
        }
    }

    /// One tile of positions for some channels of a group.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type, `weight` the weight in rows of `f32`.
    unsafe fn tile<T: Float<Wide = f32>>(
        &self,
        at: Addresses,
        weight: &[f32],
        batch: usize,
        group: usize,
        channels: Range<usize>,
        positions: Range<usize>,
    ) {
        let (depth, width) = (self.depth(), positions.len());
        let segments = self.segments(positions.clone());
        let first = group * self.out_channels + channels.start;
        let mut sums = vec![0f32; channels.len() * width];
        let mut patches = vec![0f32; TILE * DEPTH.min(depth)];
        // SAFETY: parts of the operands that belong to this batch, group, tile and these channels.
        unsafe {
            let input = at.input.offset(
                batch as isize * self.input_steps[0] + (group * self.in_channels) as isize * self.input_steps[1],
            );
            for begin in (0..depth).step_by(DEPTH) {
                let end = depth.min(begin + DEPTH);
                self.gather::<T>(input, &segments, begin..end, &mut patches);
                f32_block(
                    channels.len(),
                    width,
                    end - begin,
                    weight.as_ptr().add(first * depth + begin),
                    depth as isize,
                    1,
                    patches.as_ptr(),
                    TILE as isize,
                    1,
                    sums.as_mut_ptr(),
                    width as isize,
                    1,
                    1.0,
                    begin > 0,
                );
            }
            let [step] = self.out_positions.inner_strides();
            for (c, sums) in (first..).zip(sums.chunks_exact(width)) {
                let bias = if at.bias.is_null() { 0.0 } else { (*at.bias.cast::<T>().add(c)).widen() };
                let out = at.out.offset(batch as isize * self.out_steps[0] + c as isize * self.out_steps[1]);
                let mut sums = sums.iter();
                self.out_positions.runs(positions.clone(), |[offset], count| {
                    for (i, sum) in sums.by_ref().take(count).enumerate() {
                        *out.offset(offset + i as isize * step).cast::<T>() = T::narrow(sum + bias);
                    }
                });
            }
        }
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn forward<T: Float<Wide = f32>>(&self, at: Addresses, weight: *const u8) {
        let rows = self.groups * self.out_channels;
        let mut widened = Vec::new();
        let weight = if self.weight_is_rows {
            // SAFETY: a contiguous weight of `f32`.
            unsafe { std::slice::from_raw_parts(weight.cast::<f32>(), rows * self.depth()) }
        } else {
            widened.reserve(rows * self.depth());
            let [step] = self.weight.inner_strides();
            self.weight.runs(0..self.weight.numel(), |[offset], count| {
                // SAFETY: elements of the weight.
                widened.extend(
                    (0..count as isize).map(|i| unsafe { *weight.offset(offset + i * step).cast::<T>() }.widen()),
                );
            });
            &widened
        };
        let positions = self.out_positions.numel();
        let tiles = positions.div_ceil(TILE);
        let whole = self.batch * self.groups * tiles;
        let channels_piece = if whole < FEW_TILES { CHANNELS } else { self.out_channels };
        let parts = self.out_channels.div_ceil(channels_piece);
        parallel_for(whole * parts, |t| {
            let at: Addresses = at;
            let (rest, part) = (t / parts, t % parts);
            let (rest, tile) = (rest / tiles, rest % tiles);
            let (batch, group) = (rest / self.groups, rest % self.groups);
            let channels = piece(self.out_channels, channels_piece, part);
            // SAFETY: a part of the result, under the caller's contract.
            unsafe { self.tile::<T>(at, weight, batch, group, channels, piece(positions, TILE, tile)) };
        });
    }
}

#[derive(Clone, Copy)]
struct Addresses {
    input: *const u8,
    /// Null if there is none.
    bias: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the inputs and write disjoint parts of the result.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Kernel for Convolution {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        if self.batch * self.groups * self.out_channels * self.out_positions.numel() == 0 {
            return Ok(());
        }
        let bias = usize::from(self.bias.is_some());
        let at = Addresses {
            input: buffers[0],
            bias: if bias == 1 { buffers[2] } else { std::ptr::null() },
            out: buffers[2 + bias],
        };
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F32 => self.forward::<f32>(at, buffers[1]),
                DType::BF16 => self.forward::<half::bf16>(at, buffers[1]),
                _ => self.forward::<half::f16>(at, buffers[1]),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        let outputs = self.batch * self.groups * self.out_channels * self.out_positions.numel();
        200 + (outputs * self.depth()) as u64 / 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::reference::{Cases, coordinates, run};

    #[test]
    fn convolutions_agree_with_their_definition() {
        let mut cases = Cases::new(31);
        for case in 0..250 {
            let spatial = 1 + cases.below(3) as usize;
            let groups = 1 + cases.below(3);
            let (batch, ic, oc) = (cases.below(3), 1 + cases.below(4), 1 + cases.below(5));
            let many = |cases: &mut Cases, low, n| (0..spatial).map(|_| low + cases.below(n)).collect::<Vec<i64>>();
            let kernel = many(&mut cases, 1, 3);
            let (stride, padding, dilation) = (many(&mut cases, 1, 3), many(&mut cases, 0, 3), many(&mut cases, 1, 2));
            let extra = many(&mut cases, 0, if spatial == 1 { 600 } else { 9 });
            // Large enough for one output position.
            let extent = |d: usize| ((kernel[d] - 1) * dilation[d] + 1 - 2 * padding[d]).max(1) + extra[d];
            let sizes: Vec<i64> = (0..spatial).map(extent).collect();
            let out_extent = |d: usize| (sizes[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
            let out_sizes: Vec<i64> = (0..spatial).map(out_extent).collect();
            let dtype = cases.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16]);
            let input = cases.tensor(dtype, &[&[batch, ic * groups], &sizes[..]].concat(), |c| c.below(3) - 1);
            let weight = cases.tensor(dtype, &[&[oc * groups, ic], &kernel[..]].concat(), |c| c.below(3) - 1);
            let bias = cases.strided(TensorType::contiguous(dtype, &[oc * groups]), |c| c.below(5));
            let out = cases.tensor(dtype, &[&[batch, oc * groups], &out_sizes[..]].concat(), |_| 7);
            let with_bias = cases.below(2) == 0;
            let convolution = Convolution::new(
                &input.tensor,
                &weight.tensor,
                with_bias.then_some(dtype),
                &stride,
                &padding,
                &dilation,
                groups,
                &out.tensor,
            )
            .unwrap();
            let mut tensors = vec![&input, &weight, &bias, &out];
            if !with_bias {
                tensors.remove(2);
            }
            run(&convolution, &tensors, &[]).unwrap();
            for at in out.coordinates() {
                let mut expected = if with_bias { bias.get(&[at[1]]) } else { 0 };
                for k in coordinates(&weight.tensor.sizes[1..]) {
                    let mut from = vec![at[0], at[1] / oc * ic + k[0]];
                    from.extend((0..spatial).map(|d| at[d + 2] * stride[d] + k[d + 1] * dilation[d] - padding[d]));
                    if (0..spatial).all(|d| (0..sizes[d]).contains(&from[d + 2])) {
                        expected += input.get(&from) * weight.get(&[&at[1..2], &k[..]].concat());
                    }
                }
                assert_eq!(out.get(&at), expected, "case {case}: {convolution:?} at {at:?}");
            }
        }
    }

    #[test]
    fn other_types_and_shapes_are_refused() {
        let t = |dtype, sizes: &[i64]| TensorType::contiguous(dtype, sizes);
        let new = |dtype, out: &[i64], groups| {
            let (input, weight) = (t(dtype, &[1, 4, 8]), t(dtype, &[6, 2, 3]));
            Convolution::new(&input, &weight, None, &[1], &[0], &[1], groups, &t(dtype, out))
        };
        assert!(new(DType::F32, &[1, 6, 6], 2).is_ok());
        assert!(new(DType::F32, &[1, 5, 6], 2).is_err() && new(DType::F32, &[1, 6, 6], 1).is_err());
        assert!(new(DType::F64, &[1, 6, 6], 2).is_err() && new(DType::I32, &[1, 6, 6], 2).is_err());
    }
}
