//! Large products: rows of `a` packed once for all tasks, panels of `b` packed by the task that multiplies them.
//!
//! A task owns a block of the output. For each block of the summed dimension and each panel of its columns it packs the
//! panel, which then stays in cache while the packed rows stream past it. Which
//! products are added in which order depends on the sizes alone.

use super::element::{Accumulator, Element};
use super::micro::{Ahead, Micro, Tile};
use super::output::Output;
use super::pack::{Strip, pack};
use super::scratch::{self, Slot};
use crate::pool::parallel_for;

/// Most rows of an output block: with a block of the summed dimension they fill half the second-level cache.
const BLOCK_ROWS: usize = 512;
/// Packed rows of this size stay in the second-level cache from panel to panel.
const RESIDENT_BYTES: usize = 3 << 19;
/// Most bytes of packed rows.
const PACKED_BYTES: usize = 32 << 20;
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
struct Split {
    len: usize,
    parts: usize,
}

impl Split {
    fn at_most(len: usize, part: usize) -> Split {
        Split { len, parts: len.div_ceil(part).max(1) }
    }

    /// First position and length of a part.
    fn part(&self, i: usize) -> (usize, usize) {
        let (each, longer) = (self.len / self.parts, self.len % self.parts);
        (i * each + i.min(longer), each + usize::from(i < longer))
    }
}

/// Addresses are shared by the tasks, each of which writes its own part.
struct Shared<T>(*mut T);
// SAFETY: see the type.
unsafe impl<T> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
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
    let most_rows = (PACKED_BYTES / (p.k * size_of::<A>())).clamp(BLOCK_ROWS / 4, p.m.max(BLOCK_ROWS / 4));
    let strips = Split::at_most(p.m, most_rows);
    for s in 0..strips.parts {
        let (row, rows) = strips.part(s);
        let strip = Product { m: rows, ..*p };
        scratch::with(Slot::Rows, rows * p.k, |packed| {
            // SAFETY: the strip is part of the product, and `packed` holds its rows.
            unsafe {
                let a = a.offset(row as isize * p.a[0]);
                multiply_strip(
                    micro,
                    &strip,
                    Shared(a.cast_mut()),
                    Shared(b.cast_mut()),
                    &out.at(row, 0),
                    Shared(packed),
                );
            }
        });
    }
}

/// # Safety
/// As [`multiply`]; `packed` has room for `m * k` values.
unsafe fn multiply_strip<A: Accumulator, S: Element<A>, D: Element<A>>(
    micro: &Micro<A>,
    p: &Product,
    a: Shared<S>,
    b: Shared<S>,
    out: &Output<A, D>,
    packed: Shared<A>,
) {
    let tiles = Split::at_most(p.m, micro.rows);
    let depths = Split::at_most(p.k, micro.depth);
    let panels = Split { len: p.n, parts: p.n.div_ceil(micro.cols) };

    let tasks = (2 * p.m * p.n * p.k / TASK_OPERATIONS).clamp(1, TASKS);
    // Each block of packed rows is read from the second-level cache for several panels.
    let least_panels = if p.m * p.k * size_of::<A>() > RESIDENT_BYTES { 4 } else { 1 };
    let col_blocks = Split { len: panels.parts, parts: tasks.min(panels.parts.div_ceil(least_panels)) };
    let row_parts = p.m.div_ceil(BLOCK_ROWS).max(tasks / col_blocks.parts).min(tiles.parts.div_ceil(4));
    let row_blocks = Split { len: tiles.parts, parts: row_parts };

    // Packed rows: for each block of the sums all tiles in turn, each `[depth, rows]`.
    let at = |depth: (usize, usize), row: usize| packed.get().wrapping_add(depth.0 * p.m + row * depth.1);

    let groups = if tasks == 1 { 1 } else { tiles.parts.div_ceil(4) };
    let groups = Split { len: tiles.parts, parts: groups };
    parallel_for(groups.parts * depths.parts, |task| {
        let depth = depths.part(task / groups.parts);
        let (first, count) = groups.part(task % groups.parts);
        for t in first..first + count {
            let (row, rows) = tiles.part(t);
            let strip = Strip {
                start: a.get().wrapping_offset(row as isize * p.a[0] + depth.0 as isize * p.a[1]).cast_const(),
                across: p.a[0],
                along: p.a[1],
                width: rows,
                depth: depth.1,
            };
            // SAFETY: the strip is part of `a`, and this tile's room is written by this task alone.
            unsafe { pack(&strip, rows, at(depth, row)) };
        }
    });

    parallel_for(row_blocks.parts * col_blocks.parts, |task| {
        let (first_tile, tile_count) = row_blocks.part(task % row_blocks.parts);
        let (first_panel, panel_count) = col_blocks.part(task / row_blocks.parts);
        let first_row = tiles.part(first_tile).0;
        let end = tiles.part(first_tile + tile_count - 1);
        let rows = end.0 + end.1 - first_row;
        let first_col = first_panel * micro.cols;
        let cols = (p.n - first_col).min(panel_count * micro.cols);
        let out = out.at(first_row, first_col);

        let block = |sums: *mut A, stride: isize| {
            scratch::with(Slot::Panel, micro.cols * depths.part(0).1, |panel: *mut A| {
                let panels = cols.div_ceil(micro.cols);
                let strip = |i: usize| {
                    let depth = depths.part(i / panels);
                    let col = i % panels * micro.cols;
                    let at = depth.0 as isize * p.b[0] + (first_col + col) as isize * p.b[1];
                    Strip {
                        start: b.get().wrapping_offset(at).cast_const(),
                        across: p.b[1],
                        along: p.b[0],
                        width: (cols - col).min(micro.cols),
                        depth: depth.1,
                    }
                };
                for i in 0..panels * depths.parts {
                    let (d, col) = (i / panels, i % panels * micro.cols);
                    let depth = depths.part(d);
                    let this = strip(i);
                    // SAFETY: the strip is part of `b`, and the panel has room for a whole one.
                    unsafe { pack(&this, micro.cols, panel) };
                    let next = strip(if i + 1 < panels * depths.parts { i + 1 } else { i });
                    for (nth, t) in (first_tile..first_tile + tile_count).enumerate() {
                        let (row, rows) = tiles.part(t);
                        let tile = Tile {
                            rows,
                            cols: this.width,
                            depth: depth.1,
                            a: at(depth, row).cast_const(),
                            b: panel.cast_const(),
                            c: sums.wrapping_offset((row - first_row) as isize * stride).wrapping_add(col),
                            row_stride: stride,
                            accumulate: d > 0,
                            ahead: ahead(&next, nth),
                        };
                        // SAFETY: rows and panel are packed; the tile is part of the block of sums.
                        unsafe { (micro.tile)(&tile) };
                    }
                    if d + 1 == depths.parts && !out.is_sums() {
                        // SAFETY: the panel's columns are part of this task's block.
                        unsafe { out.at(0, col).finish(sums.wrapping_add(col), stride, rows, this.width) };
                    }
                }
            });
        };
        if out.in_place() {
            block(out.c.cast(), out.row_stride);
        } else {
            let stride = cols.next_multiple_of(micro.cols);
            scratch::with(Slot::Sums, rows * stride, |sums| block(sums, stride as isize));
        }
    });
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
