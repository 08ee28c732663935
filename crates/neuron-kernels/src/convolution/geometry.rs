//! Where a convolution reads: output positions as columns, and the runs of input that each kernel position gives them.

use neuron_ir::TensorType;
use smallvec::SmallVec;
use std::ops::Range;

/// Runs do not cross a multiple of this many columns: one vector of `f32`.
pub(super) const LANES: usize = 16;

/// A spatial dimension: kernel position `t` of output position `o` reads input position `o * stride + shifts[t]`.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub input: i64,
    pub out: i64,
    pub stride: i64,
    pub shifts: SmallVec<[i64; 8]>,
    /// Elements between neighbours of the input.
    pub input_step: i64,
    /// Elements between neighbours of the output.
    pub out_step: i64,
}

impl Axis {
    /// The input position, unless it lies in the padding.
    pub fn position(&self, out: i64, shift: i64) -> Option<i64> {
        let at = out * self.stride + shift;
        (0..self.input).contains(&at).then_some(at)
    }

    /// The output positions of `range` whose input does not lie in the padding.
    pub fn inside(&self, range: Range<i64>, shift: i64) -> Range<i64> {
        // The first output position that reads at or after this input position.
        let reaches = |input: i64| ((input - shift).max(0) + self.stride - 1) / self.stride;
        let first = reaches(0).clamp(range.start, range.end);
        first..reaches(self.input).clamp(first, range.end)
    }
}

/// Columns `to..to + count` of a panel, which read or write from element `at` on in steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub to: usize,
    pub count: usize,
    pub at: isize,
}

/// Columns of one row of output: the first column, batch, plane, row, and positions in the row.
type Segment = (usize, i64, i64, i64, Range<i64>);

/// The batches and positions of an output as columns, and what they read of one input channel.
#[derive(Clone, Debug)]
pub(super) struct Positions {
    pub batch: usize,
    pub axes: [Axis; 3],
    /// Elements between batches of the input.
    pub input_batch: isize,
    /// Elements between batches of the output.
    pub out_batch: isize,
    /// The output element of column 0.
    pub out_first: isize,
}

impl Positions {
    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.batch * self.axes.iter().map(|a| a.out as usize).product::<usize>()
    }

    /// How many kernel positions there are.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.shifts.len()).product()
    }

    /// Elements between neighbouring columns of one row of the input.
    pub fn input_step(&self) -> isize {
        (self.axes[2].stride * self.axes[2].input_step) as isize
    }

    /// Calls `body(column, batch, z, y, xs)` for the rows of output that make up these columns.
    fn rows(&self, columns: Range<usize>, mut body: impl FnMut(usize, i64, i64, i64, Range<i64>)) {
        let [planes, rows, width] = [0, 1, 2].map(|i| self.axes[i].out as usize);
        let mut at = columns.start;
        while at < columns.end {
            let (row, x) = (at / width, at % width);
            let count = (width - x).min(columns.end - at);
            let (rest, y) = (row / rows, row % rows);
            let (batch, z) = (rest / planes, rest % planes);
            body(at - columns.start, batch as i64, z as i64, y as i64, x as i64..(x + count) as i64);
            at += count;
        }
    }

    /// What these columns read of a channel, by kernel position.
    pub fn reads(&self, columns: Range<usize>, reads: &mut Reads) {
        reads.runs.clear();
        reads.ends.clear();
        reads.columns = columns.len();
        let mut segments: SmallVec<[Segment; 16]> = SmallVec::new();
        self.rows(columns, |to, b, z, y, xs| segments.push((to, b, z, y, xs)));
        let [planes, rows, line] = &self.axes;
        let step = self.input_step();
        let insides: SmallVec<[Range<i64>; 8]> =
            line.shifts.iter().map(|shift| line.inside(0..line.out, *shift)).collect();
        for z_shift in &planes.shifts {
            for y_shift in &rows.shifts {
                for (x_shift, inside) in line.shifts.iter().zip(&insides) {
                    let begin = reads.runs.len();
                    for (to, batch, z, y, xs) in &segments {
                        let (Some(z), Some(y)) = (planes.position(*z, *z_shift), rows.position(*y, *y_shift)) else {
                            continue;
                        };
                        let inside = inside.start.max(xs.start)..inside.end.min(xs.end);
                        if inside.is_empty() {
                            continue;
                        }
                        let x = inside.start * line.stride + x_shift;
                        let at = *batch as isize * self.input_batch
                            + (z * planes.input_step + y * rows.input_step + x * line.input_step) as isize;
                        let first = to + (inside.start - xs.start) as usize;
                        reads.add(begin, first, (inside.end - inside.start) as usize, at, step);
                    }
                    reads.close(begin);
                }
            }
        }
    }

    /// Where these columns are written, in steps of the last axis.
    pub fn writes(&self, columns: Range<usize>, writes: &mut Vec<Run>) {
        writes.clear();
        let [planes, rows, line] = &self.axes;
        let step = line.out_step as isize;
        self.rows(columns, |to, batch, z, y, xs| {
            let at = self.out_first
                + batch as isize * self.out_batch
                + (z * planes.out_step + y * rows.out_step + xs.start * line.out_step) as isize;
            let count = (xs.end - xs.start) as usize;
            match writes.last_mut() {
                Some(last) if last.at + last.count as isize * step == at => last.count += count,
                _ => writes.push(Run { to, count, at }),
            }
        });
    }
}

/// The runs of input that some columns read of a channel.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// By kernel position, then by column.
    runs: Vec<Run>,
    /// Where the runs of each vector of columns of each kernel position end.
    ends: Vec<usize>,
    columns: usize,
}

impl Reads {
    /// Adds a run to the kernel position whose runs begin at `begin`, joined with the one before or cut at vectors.
    fn add(&mut self, begin: usize, mut to: usize, mut count: usize, mut at: isize, step: isize) {
        while count > 0 {
            let room = LANES - to % LANES;
            let n = count.min(room);
            let joins = self.runs.len() > begin && !to.is_multiple_of(LANES);
            match self.runs.last_mut() {
                Some(last) if joins && last.to + last.count == to && last.at + last.count as isize * step == at => {
                    last.count += n;
                }
                _ => self.runs.push(Run { to, count: n, at }),
            }
            (to, count, at) = (to + n, count - n, at + n as isize * step);
        }
    }

    /// Ends a kernel position.
    fn close(&mut self, begin: usize) {
        let mut i = begin;
        for v in 0..self.vectors() {
            while i < self.runs.len() && self.runs[i].to < (v + 1) * LANES {
                i += 1;
            }
            self.ends.push(i);
        }
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How many vectors of columns there are.
    fn vectors(&self) -> usize {
        self.columns.div_ceil(LANES)
    }

    /// The runs of one vector of columns of a kernel position; none past the last.
    #[inline(always)]
    pub fn vector(&self, tap: usize, vector: usize) -> &[Run] {
        if vector >= self.vectors() {
            return &[];
        }
        let i = tap * self.vectors() + vector;
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.runs[begin..self.ends[i]]
    }

    /// The runs of a kernel position.
    #[inline(always)]
    pub fn tap(&self, tap: usize) -> &[Run] {
        let first = tap * self.vectors();
        let begin = if first == 0 { 0 } else { self.ends[first - 1] };
        &self.runs[begin..self.ends[first + self.vectors() - 1]]
    }
}

/// The spatial dimensions of a tensor `[n, c, ..]` as extents and strides, missing ones in front.
pub(super) fn spatial(ty: &TensorType) -> [(i64, i64); 3] {
    let mut all = [(1, 0); 3];
    let rank = ty.rank() - 2;
    for d in 0..rank {
        all[3 - rank + d] = (ty.sizes[d + 2], ty.strides[d + 2]);
    }
    all
}

/// One entry per spatial dimension, `missing` in front.
pub(super) fn three(values: &[i64], missing: i64) -> [i64; 3] {
    let mut all = [missing; 3];
    all[3 - values.len()..].copy_from_slice(values);
    all
}
