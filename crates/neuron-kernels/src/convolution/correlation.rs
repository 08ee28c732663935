//! One convolution as a product: rows are output channels, columns are positions of all batches.

use super::gather::{Lines, gather};
use super::geometry::{LANES, Positions, Reads, Run};
use crate::gemm::Split;
use crate::gemm::element::{Accumulator, Element};
use crate::gemm::micro::{Ahead, Micro, Tile};
use crate::gemm::pack::{Strip, pack};
use crate::gemm::scratch::{self, Slot};
use crate::pool::parallel_for;
use crate::simd::vectorized;

/// Panels of columns that a task multiplies with a tile of rows while that is in the first-level cache.
const PANELS: usize = 4;
/// Most rows of a task: the sums of its panels stay in the second-level cache.
const MOST_ROWS: usize = 512;
/// Fewer rows than this do not pay for gathering the columns again.
const LEAST_ROWS: usize = 56;
/// Tasks aimed at, so that a few threads end together.
const TASKS: usize = 8;
/// Fewer multiplications than this are not worth a hand-over.
const TASK_MULTIPLICATIONS: usize = 1 << 20;

/// `out[n, o, position] = bias[o] + sum over c, tap of weight[o, c, tap] * input[n, c, read(position, tap)]`, by groups.
#[derive(Debug)]
pub(super) struct Correlation {
    pub positions: Positions,
    pub groups: usize,
    /// Output channels of a group.
    pub rows: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Elements between channels.
    pub input_channel: isize,
    pub out_channel: isize,
    /// Elements between groups, rows and channels of the weight.
    pub weight_group: isize,
    pub weight_row: isize,
    pub weight_channel: isize,
    /// Offset of each kernel position in the weight.
    pub taps: Vec<isize>,
}

/// The addresses of a launch.
#[derive(Clone, Copy)]
pub(super) struct Addresses<S> {
    pub input: *const S,
    /// Null if there is none.
    pub bias: *const S,
    pub out: *mut S,
}
// SAFETY: tasks read the inputs and write disjoint parts of the output.
unsafe impl<S> Sync for Addresses<S> {}

/// Packed weights, written by disjoint tasks and then only read.
#[derive(Clone, Copy)]
struct Packed<A>(*mut A);
// SAFETY: see the type.
unsafe impl<A> Sync for Packed<A> {}

impl<A> Packed<A> {
    fn at(&self, offset: usize) -> *mut A {
        self.0.wrapping_add(offset)
    }
}

impl Correlation {
    /// Length of the sums.
    pub fn depth(&self) -> usize {
        self.channels * self.taps.len()
    }

    /// How many multiplications there are.
    pub fn multiplications(&self) -> usize {
        self.groups * self.rows * self.depth() * self.positions.columns()
    }

    /// # Safety
    /// The operands have the layouts this was made for.
    pub unsafe fn run<A: Accumulator, S: Element<A>>(
        &self,
        input: *const S,
        weight: *const S,
        bias: *const S,
        out: *mut S,
    ) {
        let at = Addresses { input, bias, out };
        if self.rows * self.channels <= 4 || self.depth() == 0 {
            // SAFETY: as the caller promises.
            return unsafe { self.direct::<A, S>(at, weight) };
        }
        let micro = A::micro();
        let blocks = Split::at_most(self.depth(), micro.depth);
        scratch::with(Slot::Rows, self.groups * self.rows * self.depth(), |packed| {
            let packed = Packed(packed);
            // SAFETY: as the caller promises; the room is that of the whole weight.
            unsafe {
                self.pack_weight::<A, S>(micro, blocks, weight, packed);
                self.multiply::<A, S>(micro, blocks, packed, at);
            }
        });
    }

    /// Lays the weight out as the register tiles read it: by group, block of the sums, tile of rows.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn pack_weight<A: Accumulator, S: Element<A>>(
        &self,
        micro: &Micro<A>,
        blocks: Split,
        weight: *const S,
        packed: Packed<A>,
    ) {
        let tiles = Split::at_most(self.rows, micro.rows);
        let shares = Split::at_most(tiles.parts, 4);
        let taps = self.taps.len();
        // The offset of the next step of the sums, where that is the same everywhere.
        let along = if taps > 1 { self.taps[1] - self.taps[0] } else { self.weight_channel };
        let linear = self.taps.iter().enumerate().all(|(i, t)| t - self.taps[0] == i as isize * along)
            && (self.channels == 1 || self.weight_channel == along * taps as isize);
        let weight = Addresses { input: weight, bias: std::ptr::null(), out: std::ptr::null_mut::<S>() };
        let body = |task: usize| {
            let weight: &Addresses<S> = &weight;
            let (rest, share) = (task / shares.parts, task % shares.parts);
            let (group, block) = (rest / blocks.parts, rest % blocks.parts);
            let (begin, depth) = blocks.part(block);
            let (first, count) = shares.part(share);
            for tile in first..first + count {
                let (row, rows) = tiles.part(tile);
                let to = packed.at(group * self.rows * self.depth() + begin * self.rows + row * depth);
                let from =
                    weight.input.wrapping_offset(group as isize * self.weight_group + row as isize * self.weight_row);
                if linear {
                    let start = from.wrapping_offset(self.taps[0] + begin as isize * along);
                    let strip = Strip { start, across: self.weight_row, along, width: rows, depth };
                    // SAFETY: the strip is part of the weight, and its room is this task's.
                    unsafe { pack(&strip, rows, to) };
                    continue;
                }
                for d in begin..begin + depth {
                    let from = from.wrapping_offset((d / taps) as isize * self.weight_channel + self.taps[d % taps]);
                    for r in 0..rows {
                        // SAFETY: an element of the weight, and room of this task.
                        unsafe {
                            *to.add((d - begin) * rows + r) = (*from.offset(r as isize * self.weight_row)).widen();
                        }
                    }
                }
            }
        };
        let tasks = self.groups * blocks.parts * shares.parts;
        if self.groups * self.rows * self.depth() < 1 << 15 {
            (0..tasks).for_each(body);
        } else {
            parallel_for(tasks, body);
        }
    }

    /// # Safety
    /// As [`run`](Self::run), with the weight packed.
    unsafe fn multiply<A: Accumulator, S: Element<A>>(
        &self,
        micro: &'static Micro<A>,
        blocks: Split,
        packed: Packed<A>,
        at: Addresses<S>,
    ) {
        let columns = self.positions.columns();
        let chunks = Split::at_most(columns.div_ceil(micro.cols), PANELS);
        let worth = (self.multiplications() / TASK_MULTIPLICATIONS).clamp(1, TASKS);
        let shares = worth.div_ceil(self.groups * chunks.parts).min(self.rows.div_ceil(LEAST_ROWS));
        let tiles = Split::at_most(self.rows, micro.rows);
        let row_parts = Split { len: tiles.parts, parts: shares.max(self.rows.div_ceil(MOST_ROWS)).min(tiles.parts) };
        parallel_for(self.groups * chunks.parts * row_parts.parts, |task| {
            let at: &Addresses<S> = &at;
            let (rest, part) = (task / row_parts.parts, task % row_parts.parts);
            let (group, chunk) = (rest / chunks.parts, rest % chunks.parts);
            let (first_panel, panels) = chunks.part(chunk);
            let (first_tile, count) = row_parts.part(part);
            let job = Job { micro, blocks, tiles, group, first_tile, count };
            // SAFETY: a part of the output, under the caller's contract.
            unsafe { self.task::<A, S>(&job, packed, first_panel..first_panel + panels, *at) };
        });
    }

    /// Some panels of columns for some tiles of rows.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    unsafe fn task<A: Accumulator, S: Element<A>>(
        &self,
        job: &Job<A>,
        packed: Packed<A>,
        panels: std::ops::Range<usize>,
        at: Addresses<S>,
    ) {
        let Job { micro, blocks, tiles, group, first_tile, count } = *job;
        let (cols, taps) = (micro.cols, self.taps.len());
        let first_row = tiles.part(first_tile).0;
        let last = tiles.part(first_tile + count - 1);
        let rows = last.0 + last.1 - first_row;
        let columns = self.positions.columns();
        let range = |panel: usize| panel * cols..((panel + 1) * cols).min(columns);
        let chunk = panels.start * cols..range(panels.end - 1).end;
        let mut reads = Reads::default();
        self.positions.reads(chunk, &mut reads);
        let input = at.input.wrapping_offset((group * self.channels) as isize * self.input_channel);
        scratch::with(Slot::Panel, PANELS * cols * blocks.part(0).1, |gathered: *mut A| {
            scratch::with(Slot::Sums, PANELS * cols * rows, |sums: *mut A| {
                for block in 0..blocks.parts {
                    let (begin, depth) = blocks.part(block);
                    let lines = Lines {
                        reads: &reads,
                        rows: begin..begin + depth,
                        taps,
                        channel_step: self.input_channel,
                        step: self.positions.input_step(),
                        width: cols,
                    };
                    // SAFETY: the input is the caller's; the room is that of the panels.
                    unsafe { gather::<A, S>(&lines, input, gathered) };
                    for tile in first_tile..first_tile + count {
                        let (row, height) = tiles.part(tile);
                        let weight = packed.at(group * self.rows * self.depth() + begin * self.rows + row * depth);
                        for i in 0..panels.len() {
                            let tile = Tile {
                                rows: height,
                                cols,
                                depth,
                                a: weight.cast_const(),
                                b: gathered.wrapping_add(i * cols * depth).cast_const(),
                                c: sums.wrapping_add((i * rows + row - first_row) * cols),
                                row_stride: cols as isize,
                                accumulate: block > 0,
                                ahead: Ahead::nothing(weight.cast_const().cast()),
                            };
                            // SAFETY: weight and panel are packed; the sums are this task's.
                            unsafe { (micro.tile)(&tile) };
                        }
                    }
                }
                let mut writes = Vec::new();
                for (i, panel) in panels.clone().enumerate() {
                    self.positions.writes(range(panel), &mut writes);
                    // SAFETY: the sums of these rows and columns are complete, and the output is this task's.
                    unsafe {
                        self.finish::<A, S>(
                            sums.add(i * rows * cols),
                            cols,
                            group * self.rows + first_row,
                            rows,
                            &writes,
                            at,
                        )
                    };
                }
            });
        });
    }

    /// Adds the bias to sums, rounds and writes them.
    ///
    /// # Safety
    /// `sums` are `rows` rows of `cols`, and the channels from `first` on are those of the output.
    unsafe fn finish<A: Accumulator, S: Element<A>>(
        &self,
        sums: *const A,
        cols: usize,
        first: usize,
        rows: usize,
        writes: &[Run],
        at: Addresses<S>,
    ) {
        let step = self.positions.axes[2].out_step as isize;
        vectorized(
            #[inline(always)]
            || {
                for row in 0..rows {
                    let mut line = [A::default(); 4 * LANES];
                    // SAFETY: as the caller promises.
                    unsafe {
                        let line = &mut line[..cols];
                        std::ptr::copy_nonoverlapping(sums.add(row * cols), line.as_mut_ptr(), cols);
                        if !at.bias.is_null() {
                            let bias = (*at.bias.add(first + row)).widen();
                            line.iter_mut().for_each(|v| *v = v.plus(bias));
                        }
                        let out = at.out.offset((first + row) as isize * self.out_channel);
                        for run in writes {
                            let to = out.offset(run.at);
                            let values = &line[run.to..run.to + run.count];
                            if step == 1 {
                                S::narrow_run(values, to);
                            } else {
                                for (k, v) in values.iter().enumerate() {
                                    *to.offset(k as isize * step) = S::narrow(*v);
                                }
                            }
                        }
                    }
                }
            },
        );
    }
}

/// The rows of a task.
struct Job<A: 'static> {
    micro: &'static Micro<A>,
    blocks: Split,
    tiles: Split,
    group: usize,
    first_tile: usize,
    count: usize,
}
