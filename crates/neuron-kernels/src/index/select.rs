//! Rows of a tensor named by index tensors: `index_select`, `embedding`, advanced indexing.

use super::lookup::{Lookup, TILE};
use super::nest::{FirstError, Nest, TASK_BYTES, at_least_1d, by_size, copy_strided, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{Scalar, TensorType};
use smallvec::SmallVec;
use std::ops::Range;

/// Copies what index tensors name: for each outer iteration and each position, one row.
#[derive(Debug)]
struct Rows {
    lookup: Lookup,
    /// Dimensions before those of the indices: source, out.
    outer: Nest<2>,
    /// Dimensions of the indices in the out tensor.
    positions: Nest<1>,
    /// Dimensions after: source, out.
    row: Nest<2>,
    /// Bytes of an element.
    size: usize,
}

impl Rows {
    fn new(
        kernel: &'static str,
        source: &TensorType,
        dims: &[i64],
        indices: &[TensorType],
        result_dim: usize,
        out: &TensorType,
        wrap: bool,
    ) -> Result<Self, KernelError> {
        let lookup = Lookup::new(kernel, source, dims, indices, wrap)?;
        let kept: SmallVec<[usize; 6]> = (0..source.rank()).filter(|d| !dims.contains(&(*d as i64))).collect();
        let rank = indices[0].rank();
        let mismatch = || KernelError::Unsupported { kernel, what: format!("a result {out} of a source {source}") };
        if out.dtype != source.dtype || out.rank() != kept.len() + rank || result_dim > kept.len() {
            return Err(mismatch());
        }
        let into = |i: usize| if i < result_dim { i } else { i + rank };
        let sizes_match = kept.iter().enumerate().all(|(i, &d)| out.sizes[into(i)] == source.sizes[d])
            && out.sizes[result_dim..result_dim + rank] == indices[0].sizes[..];
        if !sizes_match {
            return Err(mismatch());
        }
        let size = out.dtype.size();
        let loops = |range: Range<usize>| {
            Nest::new(range.map(|i| {
                let (d, o) = (kept[i], into(i));
                (source.sizes[d], [source.strides[d] * size as i64, out.strides[o] * size as i64])
            }))
        };
        Ok(Rows {
            lookup,
            outer: loops(0..result_dim),
            positions: Nest::of(&out.sizes, [out], result_dim..result_dim + rank),
            row: loops(result_dim..kept.len()),
            size,
        })
    }

    fn numel(&self) -> usize {
        self.outer.numel() * self.lookup.positions() * self.row.numel()
    }

    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn run(&self, source: *const u8, indices: &[*mut u8], out: *mut u8) -> Result<(), KernelError> {
        if self.numel() == 0 {
            return Ok(());
        }
        let shared = Shared { source, out };
        let (outer, positions, row) = (self.outer.numel(), self.lookup.positions(), self.row.numel());
        let row_bytes = row * self.size;
        // A task is some outer iterations, or some positions of one, or a piece of one row: whatever makes enough bytes.
        let outer_piece = (TASK_BYTES / (positions * row_bytes)).clamp(1, outer);
        let position_piece = (TASK_BYTES / row_bytes).div_ceil(TILE).max(1) * TILE;
        let position_piece = if positions <= TILE { positions } else { position_piece.min(positions) };
        let row_piece = (TASK_BYTES / self.size).min(row);
        let tasks = [outer.div_ceil(outer_piece), positions.div_ceil(position_piece), row.div_ceil(row_piece)];
        if tasks == [1, 1, 1] {
            // SAFETY: the whole range, under the caller's contract.
            return unsafe { self.task(shared, indices, 0..outer, 0..positions, 0..row) };
        }
        let errors = FirstError::default();
        let indices = Indices(indices);
        parallel_for(tasks.iter().product(), |t| {
            let (rest, r) = (t / tasks[2], t % tasks[2]);
            let (o, p) = (rest / tasks[1], rest % tasks[1]);
            let (shared, indices) = (shared, indices);
            // SAFETY: disjoint parts of the result.
            let result = unsafe {
                self.task(
                    shared,
                    indices.get(),
                    piece(outer, outer_piece, o),
                    piece(positions, position_piece, p),
                    piece(row, row_piece, r),
                )
            };
            errors.note(t, result);
        });
        errors.finish()
    }

    /// # Safety
    /// As [`Kernel::run`]; the ranges lie within the loops.
    unsafe fn task(
        &self,
        at: Shared,
        indices: &[*mut u8],
        outer: Range<usize>,
        positions: Range<usize>,
        row: Range<usize>,
    ) -> Result<(), KernelError> {
        let mut from = [0isize; TILE];
        let mut to = [0isize; TILE];
        let [from_step, to_step] = self.outer.inner_strides();
        let [position_step] = self.positions.inner_strides();
        let mut first = positions.start;
        while first < positions.end {
            let n = TILE.min(positions.end - first);
            // SAFETY: positions below their number.
            unsafe { self.lookup.resolve(indices, first, &mut from[..n])? };
            let mut filled = 0;
            self.positions.runs(first..first + n, |[offset], count| {
                for (i, to) in to[filled..filled + count].iter_mut().enumerate() {
                    *to = offset + i as isize * position_step;
                }
                filled += count;
            });
            self.outer.runs(outer.clone(), |[source, out], count| {
                for i in 0..count as isize {
                    // SAFETY: offsets of outer iterations within the layouts; `from` was checked.
                    unsafe {
                        let source = at.source.offset(source + i * from_step);
                        let out = at.out.offset(out + i * to_step);
                        self.copy(source, &from[..n], out, &to[..n], row.clone());
                    }
                }
            });
            first += n;
        }
        Ok(())
    }

    /// Copies the part `part` of one row for each pair of offsets.
    ///
    /// # Safety
    /// The offsets are those of rows within both tensors.
    #[inline(always)]
    unsafe fn copy(&self, source: *const u8, from: &[isize], out: *mut u8, to: &[isize], part: Range<usize>) {
        if self.row.numel() == 1 {
            by_size!(self.size, T => for (&f, &t) in from.iter().zip(to) {
                // SAFETY: rows of one element.
                unsafe { *out.offset(t).cast::<T>() = *source.offset(f).cast::<T>() };
            });
        } else if self.row.is_run(self.size) {
            let (skip, bytes) = ((part.start * self.size) as isize, part.len() * self.size);
            for (&f, &t) in from.iter().zip(to) {
                // SAFETY: a gapless part of a row on both sides.
                unsafe { std::ptr::copy_nonoverlapping(source.offset(f + skip), out.offset(t + skip), bytes) };
            }
        } else {
            let [from_step, to_step] = self.row.inner_strides();
            by_size!(self.size, T => for (&f, &t) in from.iter().zip(to) {
                self.row.runs(part.clone(), |[a, b], count| {
                    // SAFETY: runs within a row on both sides.
                    unsafe {
                        copy_strided::<T>(source.offset(f + a), from_step, out.offset(t + b), to_step, count);
                    }
                });
            });
        }
    }
}

/// Addresses that tasks share.
#[derive(Clone, Copy)]
struct Shared {
    source: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the source and write disjoint parts of the result.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Addresses of index tensors, which tasks only read.
#[derive(Clone, Copy)]
pub(crate) struct Indices<'a>(pub &'a [*mut u8]);

impl<'a> Indices<'a> {
    /// The addresses; a method, so that a closure captures the wrapper.
    pub fn get(self) -> &'a [*mut u8] {
        self.0
    }
}

// SAFETY: index tensors are read only.
unsafe impl Send for Indices<'_> {}
// SAFETY: as above.
unsafe impl Sync for Indices<'_> {}

/// `torch.index_select` and `torch.embedding`: rows along one dimension. Buffers: table, index, out.
#[derive(Debug)]
pub struct IndexSelect(Rows);

impl IndexSelect {
    /// Rows of `table` along `dim` named by `index` (`i64` or `i32`, any rank), whose dimensions replace `dim` in
    /// `out`. Any strides.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `0..size`.
    pub fn new(table: &TensorType, dim: usize, index: &TensorType, out: &TensorType) -> Result<Self, KernelError> {
        let table = &at_least_1d(table);
        let promoted = out.rank() == 0 && index.rank() == 1;
        let out = if promoted { &at_least_1d(out) } else { out };
        let index = std::slice::from_ref(index);
        Rows::new("index_select", table, &[dim as i64], index, dim, out, false).map(IndexSelect)
    }
}

impl Kernel for IndexSelect {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe { self.0.run(buffers[0], &buffers[1..2], buffers[2]) }
    }

    fn cost(&self) -> u64 {
        cost(&self.0)
    }
}

/// Advanced indexing, `input[.., index, ..]`. Buffers: input, indices, out.
#[derive(Debug)]
pub struct Index(Rows);

impl Index {
    /// `indices[i]` (`i64` or `i32`, all of one shape, any strides) names dimension `dims[i]` of `input`; negative
    /// indices count from the end. The dimensions of the indices stand at `result_dim` of `out`, the others around
    /// them in their order.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `-size..size`.
    pub fn new(
        input: &TensorType,
        dims: &[i64],
        indices: &[TensorType],
        result_dim: usize,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        Rows::new("index", input, dims, indices, result_dim, out, true).map(Index)
    }
}

impl Kernel for Index {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let indices = self.0.lookup.operands();
        // SAFETY: the caller's contract.
        unsafe { self.0.run(buffers[0], &buffers[1..=indices], buffers[indices + 1]) }
    }

    fn cost(&self) -> u64 {
        cost(&self.0)
    }
}

fn cost(rows: &Rows) -> u64 {
    let looked_up = (rows.outer.numel() * rows.lookup.positions()) as u64;
    50 + 2 * looked_up + (rows.numel() * rows.size) as u64 / 8
}
