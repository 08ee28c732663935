//! Writing rows where index tensors say: `index_add`, `index_put`.

use super::combine::{Combine, by_dtype};
use crate::index::Indices;
use crate::index::lookup::{Lookup, TILE};
use crate::index::nest::{FirstError, Nest, TASK_BYTES, at_least_1d, by_size, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use neuron_ir::{DType, Scalar, TensorType};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of a row that a task takes at least, so that looking the indices up again is little beside.
const MIN_SEGMENT: usize = 8 << 10;

/// Bytes of a row from which positions are grouped by destination.
const MIN_GROUPED: usize = 128;

/// Most groups of positions.
const GROUPS: usize = 256;

/// What happens where an index leads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Set,
    Add,
    AddScaled(Scalar),
}

/// Writes one row per position, in the order of the positions.
///
/// Two positions may lead to the same row, so threads share the destinations, not the positions: long rows by columns,
/// others by where positions lead, grouped in their order. Every element sees its updates in index order.
#[derive(Debug)]
struct Put {
    dtype: DType,
    lookup: Lookup,
    /// Dimensions of the indices in the updates.
    positions: Nest<1>,
    /// Other dimensions: out, updates.
    columns: Nest<2>,
    /// The innermost loop runs over positions: rows are too short or too scattered.
    positions_inner: bool,
}

impl Put {
    fn new(
        kernel: &'static str,
        out: &TensorType,
        dims: &[i64],
        result_dim: usize,
        updates: &TensorType,
        indices: &[TensorType],
        wrap: bool,
    ) -> Result<Self, KernelError> {
        let lookup = Lookup::new(kernel, out, dims, indices, wrap)?;
        let kept: SmallVec<[usize; 6]> = (0..out.rank()).filter(|d| !dims.contains(&(*d as i64))).collect();
        let rank = indices[0].rank();
        let mismatch = || KernelError::Unsupported { kernel, what: format!("updates {updates} of {out}") };
        if out.dtype != updates.dtype || updates.rank() != kept.len() + rank || result_dim > kept.len() {
            return Err(mismatch());
        }
        let from = |i: usize| if i < result_dim { i } else { i + rank };
        let sizes_match = kept.iter().enumerate().all(|(i, &d)| updates.sizes[from(i)] == out.sizes[d])
            && updates.sizes[result_dim..result_dim + rank] == indices[0].sizes[..];
        if !sizes_match {
            return Err(mismatch());
        }
        let size = out.dtype.size() as i64;
        let columns = Nest::new(kept.iter().enumerate().map(|(i, &d)| {
            let u = from(i);
            (out.sizes[d], [out.strides[d] * size, updates.strides[u] * size])
        }));
        let positions = Nest::of(&updates.sizes, [updates], result_dim..result_dim + rank);
        let [out_step, update_step] = columns.inner_strides();
        let gapless = out_step == size as isize && (update_step == out_step || update_step == 0);
        let positions_inner = !gapless || columns.inner() < 8;
        Ok(Put { dtype: out.dtype, lookup, positions, columns, positions_inner })
    }

    fn numel(&self) -> usize {
        self.columns.numel() * self.lookup.positions()
    }

    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn run(&self, updates: *const u8, indices: &[*mut u8], out: *mut u8, mode: Mode) -> Result<(), KernelError> {
        if self.numel() == 0 {
            return Ok(());
        }
        let (columns, size) = (self.columns.numel(), self.dtype.size());
        let at = Shared { updates, out };
        let (bytes, row_bytes) = (self.numel() * size, columns * size);
        let groups = (bytes / TASK_BYTES).min(GROUPS);
        let groupable = !self.positions_inner && (MIN_GROUPED..4 * MIN_SEGMENT).contains(&row_bytes);
        if groupable && groups > 1 && u32::try_from(self.lookup.positions()).is_ok() {
            // SAFETY: the caller's contract.
            return unsafe { self.grouped(at, indices, groups, mode) };
        }
        let wanted = bytes.div_ceil(TASK_BYTES).clamp(1, row_bytes.div_ceil(MIN_SEGMENT));
        let columns_piece = columns.div_ceil(wanted).next_multiple_of(64 / size);
        let indices = Indices(indices);
        let errors = FirstError::default();
        parallel_for(columns.div_ceil(columns_piece), |t| {
            let (at, indices): (Shared, Indices) = (at, indices);
            let range = piece(columns, columns_piece, t);
            // SAFETY: disjoint columns, under the caller's contract; `T` is the element type, or one as wide.
            let result = unsafe {
                match mode {
                    Mode::Set => by_size!(size, T => self.task::<T>(at, indices, range, |_, update| update)),
                    Mode::Add => {
                        by_dtype!(self.dtype, T => vectorized(|| self.task::<T>(at, indices, range, T::add)))
                    }
                    Mode::AddScaled(factor) => by_dtype!(self.dtype, T => {
                        let factor = T::factor(factor);
                        vectorized(|| self.task::<T>(at, indices, range, |old, update| old.add_scaled(update, factor)))
                    }),
                }
            };
            errors.note(t, result);
        });
        errors.finish()
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` has the size of an element.
    #[inline(always)]
    unsafe fn task<T: Copy>(
        &self,
        at: Shared,
        indices: Indices,
        columns: Range<usize>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), KernelError> {
        let mut to = [0isize; TILE];
        let mut from = [0isize; TILE];
        let [out_step, update_step] = self.columns.inner_strides();
        let [position_step] = self.positions.inner_strides();
        let positions = self.lookup.positions();
        let mut first = 0;
        while first < positions {
            let n = TILE.min(positions - first);
            // SAFETY: positions below their number.
            unsafe { self.lookup.resolve(indices.get(), first, &mut to[..n])? };
            let mut filled = 0;
            self.positions.runs(first..first + n, |[offset], count| {
                for (i, from) in from[filled..filled + count].iter_mut().enumerate() {
                    *from = offset + i as isize * position_step;
                }
                filled += count;
            });
            if self.positions_inner {
                self.columns.runs(columns.clone(), |[out, update], count| {
                    for i in 0..count as isize {
                        let (out, update) = (out + i * out_step, update + i * update_step);
                        for (&to, &from) in to[..n].iter().zip(&from[..n]) {
                            // SAFETY: an element of a checked row, and its update.
                            unsafe {
                                let place = at.out.offset(out + to).cast::<T>();
                                *place = combine(*place, *at.updates.offset(update + from).cast::<T>());
                            }
                        }
                    }
                });
            } else {
                for (&to, &from) in to[..n].iter().zip(&from[..n]) {
                    // SAFETY: a checked row and its updates.
                    unsafe { self.row(at, to, from, columns.clone(), &combine) };
                }
            }
            first += n;
        }
        Ok(())
    }

    /// Combines some columns of one row, whose runs are gapless.
    ///
    /// # Safety
    /// As [`Put::task`]; `to` is the offset of a row, `from` that of its updates.
    #[inline(always)]
    unsafe fn row<T: Copy>(
        &self,
        at: Shared,
        to: isize,
        from: isize,
        columns: Range<usize>,
        combine: &impl Fn(T, T) -> T,
    ) {
        let [_, update_step] = self.columns.inner_strides();
        self.columns.runs(columns, |[out, update], count| {
            // SAFETY: a run of the row, and its updates: as many, or one for all.
            unsafe {
                let place = std::slice::from_raw_parts_mut(at.out.offset(out + to).cast::<T>(), count);
                let update = at.updates.offset(update + from).cast::<T>();
                if update_step == 0 {
                    let update = *update;
                    place.iter_mut().for_each(|p| *p = combine(*p, update));
                } else {
                    let updates = std::slice::from_raw_parts(update, count);
                    place.iter_mut().zip(updates).for_each(|(p, u)| *p = combine(*p, *u));
                }
            }
        });
    }

    /// Groups positions by where they lead, in their order, and shares the groups: rows stay whole, and a row that is
    /// named often stays in the cache.
    ///
    /// # Safety
    /// As [`Put::run`], for at most 2^32 positions.
    unsafe fn grouped(&self, at: Shared, indices: &[*mut u8], groups: usize, mode: Mode) -> Result<(), KernelError> {
        let positions = self.lookup.positions();
        let mut to = vec![0isize; positions];
        for first in (0..positions).step_by(TILE) {
            let end = positions.min(first + TILE);
            // SAFETY: positions below their number.
            unsafe { self.lookup.resolve(indices, first, &mut to[first..end])? };
        }
        let span = self.lookup.span();
        let group = |to: isize| to as usize * groups / span;
        let mut starts = [0u32; GROUPS + 1];
        for &to in &to {
            starts[group(to) + 1] += 1;
        }
        for g in 0..groups {
            starts[g + 1] += starts[g];
        }
        let mut order = vec![0u32; positions];
        let mut next = starts;
        for (position, &to) in to.iter().enumerate() {
            let place = &mut next[group(to)];
            order[*place as usize] = position as u32;
            *place += 1;
        }
        let rows = Grouped { to: &to, order: &order, starts: &starts };
        parallel_for(groups, |g| {
            let at: Shared = at;
            // SAFETY: rows of one group, which no other group has; `T` is the element type, or one as wide.
            unsafe {
                match mode {
                    Mode::Set => by_size!(self.dtype.size(), T => self.group::<T>(at, rows, g, |_, update| update)),
                    Mode::Add => by_dtype!(self.dtype, T => vectorized(|| self.group::<T>(at, rows, g, T::add))),
                    Mode::AddScaled(factor) => by_dtype!(self.dtype, T => {
                        let factor = T::factor(factor);
                        vectorized(|| self.group::<T>(at, rows, g, |old, update| old.add_scaled(update, factor)))
                    }),
                }
            }
        });
        Ok(())
    }

    /// # Safety
    /// As [`Put::task`], for offsets that were checked.
    #[inline(always)]
    unsafe fn group<T: Copy>(&self, at: Shared, rows: Grouped, g: usize, combine: impl Fn(T, T) -> T) {
        let columns = self.columns.numel();
        for &position in &rows.order[rows.starts[g] as usize..rows.starts[g + 1] as usize] {
            let [from] = self.positions.offsets(position as usize);
            // SAFETY: a checked row and its updates.
            unsafe { self.row(at, rows.to[position as usize], from, 0..columns, &combine) };
        }
    }

    fn cost(&self) -> u64 {
        50 + 2 * self.lookup.positions() as u64 + (self.numel() * self.dtype.size()) as u64 / 6
    }
}

/// Offsets of rows by position, and positions by group: group `g` is `order[starts[g]..starts[g + 1]]`.
#[derive(Clone, Copy)]
struct Grouped<'a> {
    to: &'a [isize],
    order: &'a [u32],
    starts: &'a [u32; GROUPS + 1],
}

#[derive(Clone, Copy)]
struct Shared {
    updates: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the updates and write disjoint columns.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// `torch.index_add`: `out[.., index[i], ..] += alpha * updates[.., i, ..]`, in the order of `i`. Buffers: index,
/// updates, out, which already holds the input.
#[derive(Debug)]
pub struct IndexAdd {
    put: Put,
    alpha: Option<usize>,
}

impl IndexAdd {
    /// `index` (`i64` or `i32`) has at most one dimension; `alpha` is the position of the factor among the launch
    /// scalars, `None` for 1. Any strides.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `0..size`.
    pub fn new(
        dim: usize,
        index: &TensorType,
        updates: &TensorType,
        out: &TensorType,
        alpha: Option<usize>,
    ) -> Result<Self, KernelError> {
        let [index, updates, out] = [index, updates, out].map(at_least_1d);
        if index.rank() != 1 {
            return Err(KernelError::Unsupported { kernel: "index_add", what: format!("an index {index}") });
        }
        let put = Put::new("index_add", &out, &[dim as i64], dim, &updates, &[index], false)?;
        Ok(IndexAdd { put, alpha })
    }
}

impl Kernel for IndexAdd {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let mode = self.alpha.map_or(Mode::Add, |alpha| Mode::AddScaled(scalars[alpha]));
        // SAFETY: the caller's contract.
        unsafe { self.put.run(buffers[1], &buffers[..1], buffers[2], mode) }
    }

    fn cost(&self) -> u64 {
        self.put.cost()
    }
}

/// `torch.index_copy`: `out[.., index[i], ..] = updates[.., i, ..]`, in the order of `i`. Buffers: index, updates, out,
/// which already holds the input.
#[derive(Debug)]
pub struct IndexCopy {
    put: Put,
}

impl IndexCopy {
    /// `index` (`i64` or `i32`) has at most one dimension. Any strides; those of `updates` may be 0.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `0..size`.
    pub fn new(dim: usize, index: &TensorType, updates: &TensorType, out: &TensorType) -> Result<Self, KernelError> {
        let [index, updates, out] = [index, updates, out].map(at_least_1d);
        if index.rank() != 1 {
            return Err(KernelError::Unsupported { kernel: "index_copy", what: format!("an index {index}") });
        }
        Ok(IndexCopy { put: Put::new("index_copy", &out, &[dim as i64], dim, &updates, &[index], false)? })
    }
}

impl Kernel for IndexCopy {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe { self.put.run(buffers[1], &buffers[..1], buffers[2], Mode::Set) }
    }

    fn cost(&self) -> u64 {
        self.put.cost()
    }
}

/// `torch.index_put`: writes or adds where [`Index`](crate::index::Index) would read, in index order: of several
/// updates of one element the last stays. Buffers: updates, indices, out, which already holds the input.
#[derive(Debug)]
pub struct IndexPut {
    put: Put,
    mode: Mode,
}

impl IndexPut {
    /// `indices[i]` (`i64` or `i32`, all of one shape) names dimension `dims[i]` of `out`; negative indices count from
    /// the end. The dimensions of the indices stand at `result_dim` of `updates`, the others around them in their
    /// order. Any strides; those of `updates` may be 0.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `-size..size`.
    pub fn new(
        out: &TensorType,
        dims: &[i64],
        result_dim: usize,
        updates: &TensorType,
        indices: &[TensorType],
        accumulate: bool,
    ) -> Result<Self, KernelError> {
        let put = Put::new("index_put", out, dims, result_dim, updates, indices, true)?;
        Ok(IndexPut { put, mode: if accumulate { Mode::Add } else { Mode::Set } })
    }
}

impl Kernel for IndexPut {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let indices = self.put.lookup.operands();
        // SAFETY: the caller's contract.
        unsafe { self.put.run(buffers[0], &buffers[1..=indices], buffers[indices + 1], self.mode) }
    }

    fn cost(&self) -> u64 {
        self.put.cost()
    }
}
