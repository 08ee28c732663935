//! Convolutions of a channel or two with each other, depthwise ones above all: not enough for a product.
//!
//! A channel is unpacked once: widened, its padding made zeros, and its columns sorted by their residue by the stride.
//! Every kernel position then reads a line of output from consecutive elements.

use super::correlation::{Addresses, Correlation};
use super::geometry::Positions;
use crate::gemm::element::{Accumulator, Element};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use smallvec::SmallVec;

/// Multiplications of one task.
const TASK_MULTIPLICATIONS: usize = 128 << 10;

/// Outputs computed at a time: their sums stay in registers.
pub(super) const RUN: usize = 32;

/// How unpacked channels lie.
pub(super) struct Plane {
    /// Leftmost position that is read, in steps of the stride.
    low: i64,
    /// Elements of one residue of a line.
    width: usize,
    /// Residues.
    stride: usize,
    /// Where output column 0 reads in an unpacked line, by kernel position of the last axis.
    pub offsets: SmallVec<[usize; 8]>,
}

impl Plane {
    pub fn new(p: &Positions) -> Plane {
        let columns = &p.axes[2];
        let steps = columns.shifts.iter().map(|s| s.div_euclid(columns.stride));
        let (low, high) = (steps.clone().min().unwrap_or(0), steps.max().unwrap_or(0));
        let width = (high - low) as usize + (columns.out as usize).next_multiple_of(RUN);
        let offset = |shift: &i64| {
            let (step, residue) = (shift.div_euclid(columns.stride), shift.rem_euclid(columns.stride));
            residue as usize * width + (step - low) as usize
        };
        let offsets = columns.shifts.iter().map(offset).collect();
        Plane { low, width, stride: columns.stride as usize, offsets }
    }

    /// Elements of an unpacked channel.
    pub fn len(&self, p: &Positions) -> usize {
        (p.axes[0].input * p.axes[1].input) as usize * self.line()
    }

    /// Elements of an unpacked line.
    fn line(&self) -> usize {
        self.width * self.stride
    }

    /// Where a line of the input begins, `None` in the padding.
    #[inline(always)]
    pub fn row(&self, p: &Positions, [z, y]: [i64; 2], [z_shift, y_shift]: [i64; 2]) -> Option<usize> {
        let [planes, rows, _] = &p.axes;
        let (z, y) = (planes.position(z, z_shift)?, rows.position(y, y_shift)?);
        Some((z * rows.input + y) as usize * self.line())
    }

    /// Unpacks a channel.
    ///
    /// # Safety
    /// `input` is a channel of type `S`.
    #[inline(always)]
    pub unsafe fn unpack<A: Accumulator, S: Element<A>>(&self, p: &Positions, input: *const S, to: &mut [A]) {
        let [planes, rows, columns] = &p.axes;
        let lines = (0..planes.input).flat_map(|z| (0..rows.input).map(move |y| (z, y)));
        for ((z, y), line) in lines.zip(to.chunks_exact_mut(self.line())) {
            // SAFETY: a line of the input, and positions within it.
            unsafe {
                let input = input.offset((z * planes.input_step + y * rows.input_step) as isize);
                for (residue, to) in line.chunks_exact_mut(self.width).enumerate() {
                    let residue = residue as i64;
                    let count = (columns.input - residue + columns.stride - 1).max(0) / columns.stride;
                    // The first position that exists, and how many of those read do.
                    let begin = (-self.low).max(0) as usize;
                    let skipped = self.low.max(0);
                    let count = (count - skipped).max(0).min(self.width as i64 - begin as i64).max(0) as usize;
                    to[..begin.min(self.width)].fill(A::default());
                    let from =
                        input.wrapping_offset(((residue + skipped * columns.stride) * columns.input_step) as isize);
                    let step = (columns.stride * columns.input_step) as isize;
                    if count > 0 {
                        let to = &mut to[begin..begin + count];
                        if step == 1 {
                            let from = std::slice::from_raw_parts(from, count);
                            to.iter_mut().zip(from).for_each(|(to, v)| *to = v.widen());
                        } else if step == 2 {
                            to.iter_mut().enumerate().for_each(|(i, to)| *to = (*from.add(2 * i)).widen());
                        } else {
                            for (i, to) in to.iter_mut().enumerate() {
                                *to = (*from.offset(i as isize * step)).widen();
                            }
                        }
                    }
                    to[(begin + count).min(self.width)..].fill(A::default());
                }
            }
        }
    }
}

impl Correlation {
    /// # Safety
    /// As [`Correlation::run`].
    pub(super) unsafe fn direct<A: Accumulator, S: Element<A>>(&self, at: Addresses<S>, weight: *const S) {
        let images = self.positions.batch * self.groups;
        let each = self.rows * (self.depth() + 1) * self.positions.columns() / self.positions.batch;
        let share = (TASK_MULTIPLICATIONS / each.max(1)).clamp(1, images);
        let plane = Plane::new(&self.positions);
        let weight = Addresses { input: weight, bias: std::ptr::null(), out: std::ptr::null_mut::<S>() };
        parallel_for(images.div_ceil(share), |task| {
            let (at, weight): (&Addresses<S>, &Addresses<S>) = (&at, &weight);
            let mut unpacked = vec![A::default(); self.channels * plane.len(&self.positions)];
            vectorized(
                #[inline(always)]
                || {
                    for image in task * share..((task + 1) * share).min(images) {
                        let (batch, group) = (image / self.groups, image % self.groups);
                        // SAFETY: one group of one batch, under the caller's contract.
                        unsafe { self.image::<A, S>(*at, weight.input, batch, group, &plane, &mut unpacked) };
                    }
                },
            );
        });
    }

    /// One group of one batch, a line of output at a time.
    ///
    /// # Safety
    /// As [`Correlation::run`].
    #[inline(always)]
    unsafe fn image<A: Accumulator, S: Element<A>>(
        &self,
        at: Addresses<S>,
        weight: *const S,
        batch: usize,
        group: usize,
        plane: &Plane,
        unpacked: &mut [A],
    ) {
        let p = &self.positions;
        let [planes, rows, columns] = &p.axes;
        let each = plane.len(p);
        // SAFETY: offsets of elements of the operands.
        unsafe {
            if self.depth() > 0 {
                for (c, to) in unpacked.chunks_exact_mut(each.max(1)).enumerate().take(self.channels) {
                    let channel = (group * self.channels + c) as isize * self.input_channel;
                    plane.unpack(p, at.input.offset(batch as isize * p.input_batch + channel), to);
                }
            }
            for row in 0..self.rows {
                let channel = group * self.rows + row;
                let weight =
                    weight.wrapping_offset(group as isize * self.weight_group + row as isize * self.weight_row);
                let bias = if at.bias.is_null() { A::default() } else { (*at.bias.add(channel)).widen() };
                let out =
                    at.out.offset(p.out_first + batch as isize * p.out_batch + channel as isize * self.out_channel);
                for z in 0..planes.out {
                    for y in 0..rows.out {
                        let mut terms: SmallVec<[(A, usize); 32]> = SmallVec::new();
                        for c in 0..self.channels {
                            let mut taps = self.taps.chunks_exact(columns.shifts.len().max(1));
                            for z_shift in &planes.shifts {
                                for y_shift in &rows.shifts {
                                    let Some(taps) = taps.next() else { continue };
                                    let Some(line) = plane.row(p, [z, y], [*z_shift, *y_shift]) else { continue };
                                    for (offset, tap) in plane.offsets.iter().zip(taps) {
                                        let w = *weight.offset(c as isize * self.weight_channel + tap);
                                        terms.push((w.widen(), c * each + line + offset));
                                    }
                                }
                            }
                        }
                        let out = out.offset((z * planes.out_step + y * rows.out_step) as isize);
                        for x in (0..columns.out as usize).step_by(RUN) {
                            let mut sums = [A::default(); RUN];
                            for (w, from) in &terms {
                                let from = &*unpacked.as_ptr().add(from + x).cast::<[A; RUN]>();
                                for i in 0..RUN {
                                    sums[i] = sums[i].multiply_add(from[i], *w);
                                }
                            }
                            sums.iter_mut().for_each(|v| *v = v.plus(bias));
                            let sums = &sums[..RUN.min(columns.out as usize - x)];
                            let out = out.offset(x as isize * columns.out_step as isize);
                            if columns.out_step == 1 {
                                S::narrow_run(sums, out);
                            } else {
                                for (x, v) in sums.iter().enumerate() {
                                    *out.offset(x as isize * columns.out_step as isize) = S::narrow(*v);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
