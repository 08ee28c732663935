//! How an iteration space is cut into tiles.
//!
//! Dimensions are ordered by the strides of the first store, and merged where every operand allows it. A tile is a grid
//! of `rows` by `cols` elements: the columns run along the innermost dimension, the rows along another one:
//! - the columns alone fill a tile: one row;
//! - a short innermost dimension: as many rows as fill a tile, along the next dimension that has them;
//! - an operand whose neighbours lie along another dimension (a transpose): square tiles over both, so that each cache
//!   line is read once.

use neuron_ir::Dims;

/// One operand over the iteration space.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Bytes between neighbours along each dimension; for a coordinate, its increments.
    pub strides: Dims,
    /// Bytes of an element; 0 for a coordinate.
    pub size: usize,
}

/// Where the elements of a tile lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One after the other.
    Linear,
    /// All in one place.
    Splat,
    /// At a row and a column stride.
    Grid,
}

/// One operand as the tiles see it.
#[derive(Clone, Debug)]
pub struct View {
    /// Shape of a tile's memory.
    pub access: Access,
    /// Bytes from row to row.
    pub row_stride: isize,
    /// Bytes from column to column.
    pub col_stride: isize,
    /// The same element everywhere.
    pub uniform: bool,
    /// Consecutive tiles may see the same memory.
    pub repeats: bool,
}

/// What one step along a loop over tiles changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Rows of the tile.
    Rows,
    /// Columns of the tile.
    Cols,
    /// A dimension that tiles do not extend over.
    Outer,
}

/// A loop over tiles; the last is the innermost.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Number of steps.
    pub count: usize,
    /// What the loop runs along.
    pub axis: Axis,
    /// Bytes per step, for each operand.
    pub strides: Vec<isize>,
}

/// The tiles of an iteration space.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Most rows of a tile.
    pub rows: usize,
    /// Most columns of a tile.
    pub cols: usize,
    /// Extent of the dimension of the rows.
    pub row_extent: usize,
    /// Extent of the dimension of the columns.
    pub col_extent: usize,
    /// Loops over tiles, outermost first.
    pub loops: Vec<Loop>,
    /// The operands.
    pub views: Vec<View>,
}

/// Below this extent a row alone makes a poor tile.
const SHORT_ROW: i64 = 128;

impl Layout {
    /// Tiles of at most `tile` elements. No extent is 0; `order` is the operand whose strides order the dimensions.
    pub fn new(sizes: &[i64], operands: &[Operand], order: usize, tile: usize) -> Layout {
        let (sizes, strides) = merged(sizes, operands, order);
        let rank = sizes.len();
        let k = rank - 1;
        let unit = |v: usize, d: usize| operands[v].size != 0 && strides[v][d] == operands[v].size as i64;

        let across = |v: usize| operands[v].size != 0 && !unit(v, k) && strides[v][k] != 0;
        let transposed = (0..operands.len())
            .filter(|&v| across(v))
            .flat_map(|v| (0..k).filter(move |&d| unit(v, d)))
            .max_by_key(|&d| sizes[d]);
        // The dimension of the rows, the extents of a tile, and whether the rows' loop goes around all others.
        let (row_dim, rows, cols, around) = match transposed {
            Some(d) if sizes[d] >= 8 && sizes[k] >= 8 => {
                let (h, w) = (sizes[d] as usize, sizes[k] as usize);
                let side = 1 << (tile.ilog2() / 2);
                let rows = if w < side { (tile / w).min(h) } else { h.min(side) };
                (Some(d), rows, w.min(tile / rows), false)
            }
            _ if sizes[k] < SHORT_ROW && k > 0 => {
                let width = sizes[k] as usize;
                let next = k - 1;
                let widest = (0..k).rev().max_by_key(|&d| (sizes[d], d)).unwrap_or(next);
                let d = if sizes[next] as usize * width < tile / 4 { widest } else { next };
                (Some(d), (tile / width).min(sizes[d] as usize), width, d != next)
            }
            _ => {
                let width = sizes[k] as usize;
                let tiles = width.div_ceil(tile);
                let cols = if tiles == 1 { width } else { width.div_ceil(tiles).next_multiple_of(64).min(tile) };
                (None, 1, cols, false)
            }
        };

        let views = (0..operands.len())
            .map(|v| {
                let size = operands[v].size as i64;
                let col_stride = strides[v][k];
                let row_stride = row_dim.map_or(0, |d| strides[v][d]);
                let dense_rows = rows == 1 || (cols as i64 == sizes[k] && row_stride == cols as i64 * size);
                let access = if (col_stride == 0 || cols == 1) && (row_stride == 0 || rows == 1) {
                    Access::Splat
                } else if size != 0 && (col_stride == size || cols == 1) && dense_rows {
                    Access::Linear
                } else {
                    Access::Grid
                };
                let uniform = strides[v].iter().all(|s| *s == 0);
                View {
                    access,
                    row_stride: row_stride as isize,
                    col_stride: col_stride as isize,
                    uniform,
                    repeats: false,
                }
            })
            .collect();
        let mut layout = Layout {
            rows,
            cols,
            row_extent: row_dim.map_or(1, |d| sizes[d] as usize),
            col_extent: sizes[k] as usize,
            loops: Vec::new(),
            views,
        };
        let outer = (0..k).filter(|&d| Some(d) != row_dim).map(|d| (d, sizes[d] as usize, 1, Axis::Outer));
        let row_loop = row_dim.map(|d| (d, layout.row_extent.div_ceil(rows), rows as i64, Axis::Rows));
        let col_loop = (k, layout.col_extent.div_ceil(cols), cols as i64, Axis::Cols);
        let order: Vec<_> = match around {
            true => row_loop.into_iter().chain(outer).chain([col_loop]).collect(),
            false => outer.chain(row_loop).chain([col_loop]).collect(),
        };
        for (d, count, step, axis) in order.into_iter().filter(|l| l.1 > 1) {
            let strides = strides.iter().map(|s| (s[d] * step) as isize).collect();
            layout.loops.push(Loop { count, axis, strides });
        }
        for v in 0..layout.views.len() {
            layout.views[v].repeats = layout.loops.last().is_some_and(|l| l.strides[v] == 0);
        }
        layout
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        self.loops.iter().map(|l| l.count).product()
    }
}

/// Sizes and strides, ordered and merged; at least one dimension is left.
fn merged(sizes: &[i64], operands: &[Operand], order: usize) -> (Dims, Vec<Dims>) {
    let mut dims: Vec<usize> = (0..sizes.len()).filter(|&d| sizes[d] != 1).collect();
    // A stable insertion sort, as TensorIterator's: the first operand that tells two dimensions apart decides.
    let lead = || std::iter::once(order).chain((0..operands.len()).filter(move |v| *v != order));
    let outside = |a: usize, b: usize| {
        for v in lead() {
            let (x, y) = (operands[v].strides[a].unsigned_abs(), operands[v].strides[b].unsigned_abs());
            if x != y && x != 0 && y != 0 {
                return x > y;
            }
        }
        false
    };
    for i in 1..dims.len() {
        let mut j = i;
        while j > 0 && outside(dims[j], dims[j - 1]) {
            dims.swap(j, j - 1);
            j -= 1;
        }
    }
    let mut new_sizes = Dims::new();
    let mut new_strides = vec![Dims::new(); operands.len()];
    for &d in &dims {
        let merges = new_sizes.last().is_some()
            && operands.iter().zip(&new_strides).all(|(o, s)| s.last() == Some(&(o.strides[d] * sizes[d])));
        if merges {
            *new_sizes.last_mut().expect("there is a dimension to merge with") *= sizes[d];
            for (o, s) in operands.iter().zip(&mut new_strides) {
                *s.last_mut().expect("as many strides as sizes") = o.strides[d];
            }
        } else {
            new_sizes.push(sizes[d]);
            for (o, s) in operands.iter().zip(&mut new_strides) {
                s.push(o.strides[d]);
            }
        }
    }
    if new_sizes.is_empty() {
        new_sizes.push(1);
        new_strides.iter_mut().for_each(|s| s.push(0));
    }
    (new_sizes, new_strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(strides: &[i64]) -> Operand {
        Operand { strides: strides.iter().map(|s| s * 4).collect(), size: 4 }
    }

    #[test]
    fn contiguous_dimensions_merge() {
        let l = Layout::new(&[64, 1, 64], &[operand(&[64, 7, 1]), operand(&[64, 64, 1])], 0, 1024);
        assert_eq!((l.rows, l.cols, l.tiles()), (1, 1024, 4));
        assert!(l.views.iter().all(|v| v.access == Access::Linear));
    }

    #[test]
    fn permuted_alike_is_contiguous() {
        let l = Layout::new(&[8, 64], &[operand(&[1, 8]), operand(&[1, 8])], 0, 1024);
        assert_eq!((l.rows, l.cols, l.tiles()), (1, 512, 1));
    }

    #[test]
    fn short_rows_share_a_tile() {
        let l = Layout::new(&[1000, 4], &[operand(&[4, 1]), operand(&[0, 1]), operand(&[1, 0])], 0, 1024);
        assert_eq!((l.rows, l.cols), (256, 4));
        assert_eq!(l.views[0].access, Access::Linear);
        assert!(l.views[1].access == Access::Grid && l.views[1].repeats);
    }

    #[test]
    fn transposes_are_square() {
        let l = Layout::new(&[2048, 2048], &[operand(&[2048, 1]), operand(&[1, 2048])], 0, 1024);
        assert_eq!((l.rows, l.cols, l.tiles()), (32, 32, 4096));
    }
}
