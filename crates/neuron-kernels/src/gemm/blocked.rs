//! Large products: a block of `a` packed once for all tasks, panels of `b` packed by the task that multiplies them.
//!
//! The product is made strip by strip of rows, and in each by blocks of the summed dimension: such a block of rows,
//! packed, stays in the second-level cache, and the tasks share the columns. A task packs one panel of `b` after the
//! other and multiplies it with all the packed rows. Which products are added in which order depends on the sizes alone.

use super::element::{Accumulator, Element};
use super::micro::{Ahead, Micro, Tile};
use super::output::Output;
use super::pack::{Strip, pack};
use super::scratch::{self, Slot};
use crate::pool::parallel_for;

/// Rows of a strip: with a block of the summed dimension they fill half the second-level cache.
const STRIP_ROWS: usize = 512;
/// Most bytes of sums that wait for the next block of the summed dimension, where the output cannot hold them.
const SUMS_BYTES: usize = 16 << 20;
/// Output blocks aimed at, so that a few threads end together.
const TASKS: usize = 8;
/// Fewer operations (multiplications and additions) than this are not worth a hand-over.
const TASK_OPERATIONS: usize = 2 << 20;

/// Sizes and input strides of a matrix product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Strides of `a` along m and k.
    pub a: [isize; 2],
    /// Strides of `b` along k and n.
    pub b: [isize; 2],
}

/// How a length is cut into parts that differ by one at most.
#[derive(Clone, Copy)]
pub(crate) struct Split {
    pub len: usize,
    pub parts: usize,
}

impl Split {
    pub fn at_most(len: usize, part: usize) -> Split {
        Split { len, parts: len.div_ceil(part).max(1) }
    }

    /// First position and length of a part.
    pub fn part(&self, i: usize) -> (usize, usize) {
        let (each, longer) = (self.len / self.parts, self.len % self.parts);
        (i * each + i.min(longer), each + usize::from(i < longer))
    }
}

/// Computes the product, `m` and `n` not zero.
///
/// # Safety
/// The operands are valid for the sizes and strides.
pub(super) unsafe fn multiply<A: Accumulator, S: Element<A>, D: Element<A>>(
    p: &Product,
    a: *const S,
    b: *const S,
    out: &Output<A, D>,
) {
    if p.k == 0 {
        let zeros = vec![A::default(); p.n];
        // SAFETY: with a row stride of 0 one row of zeros serves all.
        unsafe { out.finish(zeros.as_ptr(), 0, p.m, p.n) };
        return;
    }
    let micro = A::micro();
    let depths = Split::at_most(p.k, micro.depth);
    // A narrow product has taller strips, or their tasks would be too small.
    let mut most_rows = STRIP_ROWS * (STRIP_ROWS / p.n).clamp(1, 8);
    let keeps_sums = depths.parts > 1 && !out.in_place();
    if keeps_sums {
        most_rows = most_rows.min(SUMS_BYTES / (p.n * size_of::<A>())).max(4 * micro.rows);
    }
    let strips = Split::at_most(p.m, most_rows);
    let rows = strips.part(0).1;
    let sums_len = if keeps_sums { rows * p.n } else { 0 };
    scratch::with(Slot::Rows, rows * depths.part(0).1, |packed| {
        scratch::with(Slot::Sums, sums_len, |sums| {
            for s in 0..strips.parts {
                let (row, rows) = strips.part(s);
                let a = a.wrapping_offset(row as isize * p.a[0]);
                let out = out.at(row, 0);
                let (sums, stride) = match (out.in_place(), keeps_sums) {
                    (true, _) => (out.c.cast(), out.row_stride),
                    (_, true) => (sums, p.n as isize),
                    _ => (std::ptr::null_mut(), 0),
                };
                let strip = RowStrip { micro, product: Product { m: rows, ..*p }, a, b, packed, sums, stride };
                for d in 0..depths.parts {
                    strip.pack(depths.part(d));
                    strip.multiply(depths.part(d), depths, &out);
                }
            }
        });
    });
}

/// A strip of rows of a product. Its addresses are shared by tasks, each of which writes its own part.
struct RowStrip<A: 'static, S> {
    micro: &'static Micro<A>,
    /// Of the strip.
    product: Product,
    a: *const S,
    b: *const S,
    /// Room for the rows of one block of the summed dimension: all tiles in turn, each `[depth, rows]`.
    packed: *mut A,
    /// The sums of all columns, from block to block; null where there is one block only and the output cannot hold them.
    sums: *mut A,
    /// Distance between rows of `sums`.
    stride: isize,
}
// SAFETY: see the type.
unsafe impl<A: 'static, S> Sync for RowStrip<A, S> {}

impl<A: Accumulator, S: Element<A>> RowStrip<A, S> {
    fn tiles(&self) -> Split {
        Split::at_most(self.product.m, self.micro.rows)
    }

    /// Tasks worth handing over for a block of the summed dimension.
    fn tasks(&self, depth: usize) -> usize {
        (2 * self.product.m * self.product.n * depth / TASK_OPERATIONS).clamp(1, TASKS)
    }

    /// Packs the rows of a block of the summed dimension, given by first step and length.
    fn pack(&self, (first_step, depth): (usize, usize)) {
        let (p, tiles) = (&self.product, self.tiles());
        let groups =
            Split { len: tiles.parts, parts: if self.tasks(depth) == 1 { 1 } else { tiles.parts.div_ceil(4) } };
        parallel_for(groups.parts, |g| {
            let (first, count) = groups.part(g);
            for t in first..first + count {
                let (row, rows) = tiles.part(t);
                let at = row as isize * p.a[0] + first_step as isize * p.a[1];
                let start = self.a.wrapping_offset(at);
                let strip = Strip { start, across: p.a[0], along: p.a[1], width: rows, depth };
                // SAFETY: the strip is part of `a`, and this tile's room is written by this task alone.
                unsafe { pack(&strip, rows, self.packed.add(row * depth)) };
            }
        });
    }

    /// Multiplies the packed rows, adds to the sums, and after the last block finishes the output.
    fn multiply<D: Element<A>>(&self, block: (usize, usize), blocks: Split, out: &Output<A, D>) {
        let (p, tiles, cols) = (&self.product, self.tiles(), self.micro.cols);
        let panels = p.n.div_ceil(cols);
        let tasks = self.tasks(block.1);
        let col_blocks = Split { len: panels, parts: tasks.min(panels) };
        let row_blocks =
            Split { len: tiles.parts, parts: (tasks / col_blocks.parts).clamp(1, tiles.parts.div_ceil(4)) };
        parallel_for(row_blocks.parts * col_blocks.parts, |task| {
            let own_tiles = row_blocks.part(task % row_blocks.parts);
            let (first, count) = col_blocks.part(task / row_blocks.parts);
            scratch::with(Slot::Panel, cols * block.1, |panel| {
                if self.sums.is_null() {
                    let end = tiles.part(own_tiles.0 + own_tiles.1 - 1);
                    let rows = end.0 + end.1 - tiles.part(own_tiles.0).0;
                    scratch::with(Slot::Sums, rows * cols, |sums| {
                        for i in first..first + count {
                            self.panel(block, blocks, i, i + 1 < first + count, own_tiles, panel, Some(sums), out);
                        }
                    });
                } else {
                    for i in first..first + count {
                        self.panel(block, blocks, i, i + 1 < first + count, own_tiles, panel, None, out);
                    }
                }
            });
        });
    }

    /// Part `index` of the panels of `b` in a block of the summed dimension.
    fn strip(&self, (first_step, depth): (usize, usize), index: usize) -> Strip<S> {
        let (p, cols) = (&self.product, self.micro.cols);
        let col = index * cols;
        let start = self.b.wrapping_offset(first_step as isize * p.b[0] + col as isize * p.b[1]);
        Strip { start, across: p.b[1], along: p.b[0], width: (p.n - col).min(cols), depth }
    }

    /// Packs a panel and multiplies it with some tiles of rows.
    #[allow(clippy::too_many_arguments, reason = "one step of a loop that two callers share")]
    fn panel<D: Element<A>>(
        &self,
        block: (usize, usize),
        blocks: Split,
        index: usize,
        more: bool,
        (first_tile, tile_count): (usize, usize),
        panel: *mut A,
        local: Option<*mut A>,
        out: &Output<A, D>,
    ) {
        let (tiles, col) = (self.tiles(), index * self.micro.cols);
        let this = self.strip(block, index);
        let next = self.strip(block, index + usize::from(more));
        // SAFETY: the strip is part of `b`, and the panel has room for a whole one.
        unsafe { pack(&this, self.micro.cols, panel) };
        let first_row = tiles.part(first_tile).0;
        let (sums, stride) = match local {
            Some(sums) => (sums, self.micro.cols as isize),
            None => (self.sums.wrapping_offset(first_row as isize * self.stride).wrapping_add(col), self.stride),
        };
        let mut done = 0;
        for nth in 0..tile_count {
            let (row, rows) = tiles.part(first_tile + nth);
            let tile = Tile {
                rows,
                cols: this.width,
                depth: block.1,
                a: self.packed.wrapping_add(row * block.1).cast_const(),
                b: panel.cast_const(),
                c: sums.wrapping_offset(done as isize * stride),
                row_stride: stride,
                accumulate: block.0 > 0,
                ahead: ahead(&next, nth),
            };
            // SAFETY: rows and panel are packed; the tile is part of this task's sums.
            unsafe { (self.micro.tile)(&tile) };
            done += rows;
        }
        if block.0 + block.1 == blocks.len && !out.is_sums() {
            // SAFETY: these rows and columns are this task's, and their sums are complete.
            unsafe { out.at(first_row, col).finish(sums, stride, done, this.width) };
        }
    }
}

/// What the `nth` tile of a panel prefetches of the next panel: one line per step, until the panel is covered.
fn ahead<S>(next: &Strip<S>, nth: usize) -> Ahead {
    let size = size_of::<S>();
    let start = next.start.cast::<u8>();
    // Rows in memory: steps of the sums where columns are neighbours, else columns.
    let (rows, row_stride, row_bytes) = if next.across == 1 {
        (next.depth, next.along, next.width * size)
    } else {
        (next.width, next.across, next.depth * size)
    };
    let log2_rows = rows.next_power_of_two().trailing_zeros();
    let lines = next.depth >> log2_rows.min(63);
    let offset = nth * lines.max(1) * 64;
    if offset >= row_bytes + 63 {
        return Ahead::nothing(start);
    }
    Ahead { start: start.wrapping_add(offset), row_stride: row_stride * size as isize, log2_rows }
}
