//! The gradient of a convolution's weight: products of the output's gradient with patches of the input, summed over all
//! positions of all batches.

use super::direct::Plane;
use super::gather::{Lines, gather};
use super::geometry::{Positions, Reads};
use super::{Windows, belong_together, by_element, phases};
use crate::gemm::Split;
use crate::gemm::element::{Accumulator, Element};
use crate::gemm::micro::{Ahead, Tile};
use crate::gemm::pack::{Strip, pack};
use crate::gemm::scratch::{self, Slot};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, TensorType};
use std::ops::Range;

/// Columns of a block of the sums.
const COLUMNS: usize = 512;
/// Panels of a task.
const PANELS: usize = 4;
/// Tasks aimed at.
const TASKS: usize = 8;
/// Fewer multiplications than this are not worth a hand-over.
const TASK_MULTIPLICATIONS: usize = 1 << 20;

/// Gradient of the weight of [`Convolution`](super::Convolution). Buffers: input, gradient of the output, result.
#[derive(Debug)]
pub struct ConvolutionWeightGradient {
    positions: Positions,
    groups: usize,
    /// Output channels of a group.
    rows: usize,
    /// Input channels of a group.
    channels: usize,
    input_channel: isize,
    /// Extent of a channel of the gradient.
    plane: usize,
    run: Run,
}

type Run = unsafe fn(&ConvolutionWeightGradient, &[*mut u8]);

/// The addresses of a launch.
struct Addresses<A, S> {
    input: *const S,
    grad: *const S,
    /// Sums by group and part.
    sums: *mut A,
}
// SAFETY: tasks read the inputs and write disjoint parts of the sums.
unsafe impl<A, S> Sync for Addresses<A, S> {}

impl ConvolutionWeightGradient {
    /// `input[n, c, ..]` of any strides, contiguous `grad[n, o, ..]` and `out[o, c / groups, ..]`, all of one type, a float or
    /// `i64`.
    ///
    /// # Errors
    /// Other types, other than one to three spatial dimensions, other layouts, shapes that do not belong together.
    pub fn new(input: &TensorType, grad: &TensorType, windows: Windows, out: &TensorType) -> Result<Self, KernelError> {
        let kernel = "convolution_weight_gradient";
        let dtype = input.dtype;
        let run = by_element!(dtype, A, S => Some(Self::run_as::<A, S> as Run), _ => None)
            .ok_or_else(|| KernelError::dtype(kernel, dtype))?;
        let fits = grad.dtype == dtype
            && out.dtype == dtype
            && grad.is_contiguous()
            && out.is_contiguous()
            && belong_together(input, out, windows, false, grad);
        if !fits {
            return Err(KernelError::Unsupported { kernel, what: format!("{input} by {grad} to {out}") });
        }
        let (positions, _) = phases(input, out, windows, false, grad).remove(0);
        Ok(ConvolutionWeightGradient {
            groups: windows.groups as usize,
            rows: (grad.sizes[1] / windows.groups) as usize,
            channels: out.sizes[1] as usize,
            input_channel: input.strides[1] as isize,
            plane: grad.sizes[2..].iter().product::<i64>() as usize,
            positions,
            run,
        })
    }

    /// Columns of the result: channels of a group times kernel positions.
    fn width(&self) -> usize {
        self.channels * self.positions.taps()
    }

    fn multiplications(&self) -> usize {
        self.groups * self.rows * self.width() * self.positions.columns()
    }

    /// # Safety
    /// As [`Kernel::run`]; `S` is the element type.
    unsafe fn run_as<A: Accumulator + Element<A>, S: Element<A>>(&self, buffers: &[*mut u8]) {
        let (rows, width) = (self.rows, self.width());
        let (columns, numel) = (self.positions.columns(), self.groups * rows * width);
        let blocks = Split::at_most(columns, COLUMNS);
        let narrow = rows * self.channels <= 4;
        let panels = width.div_ceil(A::micro().cols);
        let chunks = Split::at_most(panels, PANELS);
        let worth = (self.multiplications() / TASK_MULTIPLICATIONS).clamp(1, TASKS);
        let shared = worth.div_ceil(self.groups * chunks.parts).min(blocks.parts);
        let parts = Split { len: blocks.parts, parts: if narrow { 1 } else { shared } };
        let mut sums = vec![A::default(); numel * parts.parts];
        let at = Addresses {
            input: buffers[0].cast_const().cast::<S>(),
            grad: buffers[1].cast_const().cast::<S>(),
            sums: sums.as_mut_ptr(),
        };
        if columns > 0 && width > 0 && narrow {
            let plane = Plane::new(&self.positions);
            parallel_for(self.groups, |group| {
                let at: &Addresses<A, S> = &at;
                vectorized(
                    #[inline(always)]
                    // SAFETY: this group's sums are this task's.
                    || unsafe { self.dots::<A, S>(at, group, &plane, at.sums.add(group * rows * width)) },
                );
            });
        } else if columns > 0 && width > 0 {
            parallel_for(self.groups * chunks.parts * parts.parts, |task| {
                let at: &Addresses<A, S> = &at;
                let (rest, part) = (task / parts.parts, task % parts.parts);
                let (group, chunk) = (rest / chunks.parts, rest % chunks.parts);
                let (first, count) = parts.part(part);
                let sums = at.sums.wrapping_add(part * numel + group * rows * width);
                let (panel, panels) = chunks.part(chunk);
                for block in first..first + count {
                    let (begin, n) = blocks.part(block);
                    // SAFETY: this group's and part's sums are this task's, in the columns of its panels.
                    unsafe {
                        self.block::<A, S>(at, group, begin..begin + n, panel..panel + panels, block > first, sums);
                    }
                }
            });
        }
        let out = buffers[2].cast::<S>();
        let (first, others) = sums.split_at_mut(numel);
        vectorized(
            #[inline(always)]
            || {
                for other in others.chunks_exact(numel.max(1)) {
                    first.iter_mut().zip(other).for_each(|(v, x)| *v = v.plus(*x));
                }
                // SAFETY: the result is contiguous.
                unsafe { S::narrow_run(first, out) };
            },
        );
    }

    fn lines<'a>(&self, reads: &'a Reads, rows: Range<usize>) -> Lines<'a> {
        let step = self.positions.input_step();
        let width = reads.columns().next_multiple_of(16);
        Lines { reads, rows, taps: self.positions.taps(), channel_step: self.input_channel, step, width }
    }

    /// The columns by batch: batch, first position, count.
    fn batches(&self, columns: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
        let (plane, end) = (self.plane, columns.end);
        let mut at = columns.start;
        std::iter::from_fn(move || {
            let (batch, position) = (at / plane, at % plane);
            let count = (plane - position).min(end - at);
            at += count;
            (count > 0).then_some((batch, position, count))
        })
    }

    /// Adds a block of columns to the sums of some panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `sums` are those of the group.
    unsafe fn block<A: Accumulator + Element<A>, S: Element<A>>(
        &self,
        at: &Addresses<A, S>,
        group: usize,
        columns: Range<usize>,
        panels: Range<usize>,
        accumulate: bool,
        sums: *mut A,
    ) {
        let micro = A::micro();
        let (cols, depth, width) = (micro.cols, columns.len(), self.width());
        let padded = depth.next_multiple_of(16);
        let tiles = Split::at_most(self.rows, micro.rows);
        let mut reads = Reads::default();
        self.positions.reads(columns.clone(), &mut reads);
        let input = at.input.wrapping_offset((group * self.channels) as isize * self.input_channel);
        let channels = self.groups * self.rows;
        scratch::with(Slot::Panel, cols * padded + panels.len() * cols * depth, |room: *mut A| {
            scratch::with(Slot::Sums, self.rows * depth, |packed: *mut A| {
                let (lines, packed_panels) = (room, room.wrapping_add(cols * padded));
                for (i, panel) in panels.clone().enumerate() {
                    let range = panel * cols..((panel + 1) * cols).min(width);
                    // SAFETY: room for a panel of lines, and for each panel packed.
                    unsafe {
                        gather::<A, S>(&self.lines(&reads, range.clone()), input, lines);
                        let strip = Strip {
                            start: lines.cast_const(),
                            across: padded as isize,
                            along: 1,
                            width: range.len(),
                            depth,
                        };
                        pack(&strip, cols, packed_panels.add(i * cols * depth));
                    }
                }
                for tile in 0..tiles.parts {
                    let (row, rows) = tiles.part(tile);
                    let weight = packed.wrapping_add(row * depth);
                    let mut done = 0;
                    for (batch, position, count) in self.batches(columns.clone()) {
                        let start = (batch * channels + group * self.rows + row) * self.plane + position;
                        let strip = Strip {
                            start: at.grad.wrapping_add(start),
                            across: self.plane as isize,
                            along: 1,
                            width: rows,
                            depth: count,
                        };
                        // SAFETY: the strip is part of the gradient; room of this tile.
                        unsafe { pack(&strip, rows, weight.add(done * rows)) };
                        done += count;
                    }
                    for (i, panel) in panels.clone().enumerate() {
                        let tile = Tile {
                            rows,
                            cols: (width - panel * cols).min(cols),
                            depth,
                            a: weight.cast_const(),
                            b: packed_panels.wrapping_add(i * cols * depth).cast_const(),
                            c: sums.wrapping_add(row * width + panel * cols),
                            row_stride: width as isize,
                            accumulate,
                            ahead: Ahead::nothing(weight.cast_const().cast()),
                        };
                        // SAFETY: rows and panels are packed; the sums are this task's.
                        unsafe { (micro.tile)(&tile) };
                    }
                }
            });
        });
    }

    /// The sums of a group of a few rows and channels, line by line.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `sums` are those of the group.
    #[inline(always)]
    unsafe fn dots<A: Accumulator, S: Element<A>>(
        &self,
        at: &Addresses<A, S>,
        group: usize,
        plane: &Plane,
        sums: *mut A,
    ) {
        const LANES: usize = 16;
        let p = &self.positions;
        let [planes, rows, columns] = &p.axes;
        let width = self.width();
        let out = columns.out as usize;
        let mut unpacked = vec![A::default(); plane.len(p)];
        let mut grad = vec![A::default(); out];
        let mut lanes = vec![[A::default(); LANES]; self.rows * width];
        for batch in 0..p.batch {
            for c in 0..self.channels {
                let channel = (group * self.channels + c) as isize * self.input_channel;
                // SAFETY: a channel of the input.
                unsafe {
                    plane.unpack(p, at.input.offset(batch as isize * p.input_batch + channel), &mut unpacked);
                }
                for row in 0..self.rows {
                    let first = ((batch * self.groups + group) * self.rows + row) * self.plane;
                    for line in 0..(planes.out * rows.out) as usize {
                        let position = [line as i64 / rows.out, line as i64 % rows.out];
                        // SAFETY: a line of the gradient.
                        let from = unsafe { std::slice::from_raw_parts(at.grad.add(first + line * out), out) };
                        grad.iter_mut().zip(from).for_each(|(to, v)| *to = v.widen());
                        let mut tap = row * width + c * p.taps();
                        for z_shift in &planes.shifts {
                            for y_shift in &rows.shifts {
                                let Some(input) = plane.row(p, position, [*z_shift, *y_shift]) else {
                                    tap += columns.shifts.len();
                                    continue;
                                };
                                for offset in &plane.offsets {
                                    let input = &unpacked[input + offset..];
                                    let mut sum = lanes[tap];
                                    let (grads, inputs) = (grad.chunks_exact(LANES), input.chunks_exact(LANES));
                                    // What lies past the line may be infinite: it is not even multiplied by zero.
                                    let rest = grads.remainder();
                                    let tail = &input[out - rest.len()..];
                                    for (g, x) in grads.zip(inputs) {
                                        for i in 0..LANES {
                                            sum[i] = sum[i].multiply_add(g[i], x[i]);
                                        }
                                    }
                                    for ((v, g), x) in sum.iter_mut().zip(rest).zip(tail) {
                                        *v = v.multiply_add(*g, *x);
                                    }
                                    lanes[tap] = sum;
                                    tap += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
        for (i, lanes) in lanes.iter().enumerate() {
            // SAFETY: a sum of this task.
            unsafe { *sums.add(i) = lanes.iter().fold(A::default(), |a, b| a.plus(*b)) };
        }
    }
}

impl Kernel for ConvolutionWeightGradient {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: as the caller promises; `run` was chosen by the type.
        unsafe { (self.run)(self, buffers) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        200 + self.multiplications() as u64 / 16
    }
}
