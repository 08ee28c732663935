//! Convolutions of a channel or two with each other, depthwise ones above all: not enough for a product.

use super::correlation::{Addresses, Correlation};
use crate::gemm::element::{Accumulator, Element};
use crate::pool::parallel_for;
use crate::simd::vectorized;

/// Multiplications of one task.
const TASK_MULTIPLICATIONS: usize = 128 << 10;

impl Correlation {
    /// # Safety
    /// As [`Correlation::run`].
    pub(super) unsafe fn direct<A: Accumulator, S: Element<A>>(&self, at: Addresses<S>, weight: *const S) {
        let images = self.positions.batch * self.groups;
        let each = self.rows * (self.depth() + 1) * self.positions.columns() / self.positions.batch;
        let share = (TASK_MULTIPLICATIONS / each.max(1)).clamp(1, images);
        let weight = Addresses { input: weight, bias: std::ptr::null(), out: std::ptr::null_mut::<S>() };
        parallel_for(images.div_ceil(share), |task| {
            let (at, weight): (&Addresses<S>, &Addresses<S>) = (&at, &weight);
            vectorized(
                #[inline(always)]
                || {
                    let mut line = vec![A::default(); self.positions.axes[2].out as usize];
                    for image in task * share..((task + 1) * share).min(images) {
                        // SAFETY: one group of one batch, under the caller's contract.
                        unsafe {
                            self.image::<A, S>(*at, weight.input, image / self.groups, image % self.groups, &mut line)
                        };
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
        line: &mut [A],
    ) {
        let p = &self.positions;
        let [planes, rows, columns] = &p.axes;
        // SAFETY: offsets of elements of the operands.
        unsafe {
            let input = at.input.offset(batch as isize * p.input_batch);
            let weight = weight.offset(group as isize * self.weight_group);
            for row in 0..self.rows {
                let channel = group * self.rows + row;
                let weight = weight.offset(row as isize * self.weight_row);
                let bias = if at.bias.is_null() { A::default() } else { (*at.bias.add(channel)).widen() };
                let out =
                    at.out.offset(p.out_first + batch as isize * p.out_batch + channel as isize * self.out_channel);
                for z in 0..planes.out {
                    for y in 0..rows.out {
                        line.fill(A::default());
                        for c in 0..self.channels {
                            let input = input.offset((group * self.channels + c) as isize * self.input_channel);
                            let weight = weight.offset(c as isize * self.weight_channel);
                            let mut tap = 0;
                            for z_shift in &planes.shifts {
                                for y_shift in &rows.shifts {
                                    let taps = &self.taps[tap..tap + columns.shifts.len()];
                                    tap += taps.len();
                                    let (Some(z), Some(y)) = (planes.position(z, *z_shift), rows.position(y, *y_shift))
                                    else {
                                        continue;
                                    };
                                    let input = input.offset((z * planes.input_step + y * rows.input_step) as isize);
                                    for (x_shift, offset) in columns.shifts.iter().zip(taps) {
                                        let inside = columns.inside(0..columns.out, *x_shift);
                                        if inside.is_empty() {
                                            continue;
                                        }
                                        let w = (*weight.offset(*offset)).widen();
                                        let first = inside.start * columns.stride + x_shift;
                                        let input = input.offset((first * columns.input_step) as isize);
                                        let line = &mut line[inside.start as usize..inside.end as usize];
                                        add(line, w, input, p.input_step());
                                    }
                                }
                            }
                        }
                        let out = out.offset((z * planes.out_step + y * rows.out_step) as isize);
                        line.iter_mut().for_each(|v| *v = v.plus(bias));
                        if columns.out_step == 1 {
                            S::narrow_run(line, out);
                        } else {
                            for (x, v) in line.iter().enumerate() {
                                *out.offset(x as isize * columns.out_step as isize) = S::narrow(*v);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `line += w * input`.
///
/// # Safety
/// The input has as many elements, `step` apart.
#[inline(always)]
unsafe fn add<A: Accumulator, S: Element<A>>(line: &mut [A], w: A, input: *const S, step: isize) {
    // SAFETY: as the caller promises.
    unsafe {
        if step == 1 {
            let input = std::slice::from_raw_parts(input, line.len());
            line.iter_mut().zip(input).for_each(|(v, x)| *v = v.multiply_add(x.widen(), w));
        } else if step == 2 {
            for (i, v) in line.iter_mut().enumerate() {
                *v = v.multiply_add((*input.add(2 * i)).widen(), w);
            }
        } else {
            for (i, v) in line.iter_mut().enumerate() {
                *v = v.multiply_add((*input.offset(i as isize * step)).widen(), w);
            }
        }
    }
}
