//! `torch.scatter`: along each line of the indexed dimension, one element per index.

use super::combine::{Combine, by_dtype};
use super::float::Float;
use crate::index::lookup::{Axis, BadIndex, IndexValue, check_index};
use crate::index::nest::{FirstError, Nest, at_least_1d, by_size, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, ScatterOp, TensorType};
use std::ops::Range;

/// Elements of one task.
const PIECE: usize = 16 << 10;

/// Lines of one task at least, where neighbouring lines share cache lines.
const SIDE_BY_SIDE: usize = 64;

/// `torch.scatter` and `scatter_reduce`: `out[.., index[.., j, ..], ..] op= updates[.., j, ..]`, in the order of `j`.
/// Buffers: index, updates, out, which already holds the input.
///
/// Lines are independent of each other and shared among threads; along a line the order is that of the index. Sums and
/// products of half floats are kept in `f32` until the end.
#[derive(Debug)]
pub struct Scatter {
    op: ScatterOp,
    dtype: DType,
    index: DType,
    /// Dimensions but the indexed one: out, index, updates.
    lines: Nest<3>,
    /// Indices of a line, and the bytes between them: index, updates.
    along: usize,
    along_steps: [isize; 2],
    /// The innermost loop runs along the line.
    along_inner: bool,
    axis: Axis,
}

impl Scatter {
    /// `index` (`i64` or `i32`) is at most as large as `updates` in every dimension, and as `out` in every dimension
    /// but `dim`. Any strides; those of `updates` may be 0.
    ///
    /// # Errors
    /// Shapes that do not belong together. At run: an index outside `0..size`.
    pub fn new(
        dim: usize,
        op: ScatterOp,
        index: &TensorType,
        updates: &TensorType,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let [index, updates, out] = [index, updates, out].map(at_least_1d);
        check_index("scatter", &index)?;
        let rank = out.rank();
        let fits = index.rank() == rank && updates.rank() == rank && dim < rank && updates.dtype == out.dtype;
        let within = |d: usize| index.sizes[d] <= updates.sizes[d] && (d == dim || index.sizes[d] <= out.sizes[d]);
        if !fits || (index.numel() > 0 && !(0..rank).all(within)) {
            let what = format!("{updates} by {index} into {out}");
            return Err(KernelError::Unsupported { kernel: "scatter", what });
        }
        let lines = Nest::of(&index.sizes, [&out, &index, &updates], (0..rank).filter(|d| *d != dim));
        let step = |t: &TensorType| (t.strides[dim] * t.dtype.size() as i64) as isize;
        let along_steps = [step(&index), step(&updates)];
        let along = index.sizes[dim] as usize;
        let along_inner = lines.numel() == 1 || along_steps[0] <= lines.inner_strides()[1];
        let axis = Axis::of(&out, dim);
        Ok(Scatter { op, dtype: out.dtype, index: index.dtype, lines, along, along_steps, along_inner, axis })
    }

    fn numel(&self) -> usize {
        self.lines.numel() * self.along
    }

    /// Half floats accumulate in a buffer of `f32`.
    fn buffered(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16) && matches!(self.op, ScatterOp::Add | ScatterOp::Prod)
    }

    /// Calls `body(line, out, index, update)` for every index of the lines `range`: the number of the line within the
    /// range, the offset of its first element, the index, and the offset of the update.
    ///
    /// # Safety
    /// `index` is the index tensor.
    #[inline(always)]
    unsafe fn each<I: IndexValue>(
        &self,
        index: *const u8,
        range: Range<usize>,
        mut body: impl FnMut(usize, isize, i64, isize) -> Result<(), BadIndex>,
    ) -> Result<(), BadIndex> {
        let [out_step, index_step, update_step] = self.lines.inner_strides();
        let [index_along, update_along] = self.along_steps;
        let mut pass = |along: Range<usize>| {
            let mut line = 0;
            self.lines.try_runs(range.clone(), |[out, at, update], count| {
                for i in 0..count as isize {
                    let (out, at, update) = (out + i * out_step, at + i * index_step, update + i * update_step);
                    for j in along.start as isize..along.end as isize {
                        // SAFETY: position `j` of a line of the index tensor.
                        let named = unsafe { *index.offset(at + j * index_along).cast::<I>() }.get();
                        body(line, out, named, update + j * update_along)?;
                    }
                    line += 1;
                }
                Ok(())
            })
        };
        if self.along_inner { pass(0..self.along) } else { (0..self.along).try_for_each(|j| pass(j..j + 1)) }
    }

    /// Combines elements of type `T` where they are.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `I` is the type of the index and `T` has as many bytes as an element.
    #[inline(always)]
    unsafe fn direct<I: IndexValue, T: Copy>(
        &self,
        at: Addresses,
        range: Range<usize>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), BadIndex> {
        // SAFETY: the caller's contract; the index is checked before its element is touched.
        unsafe {
            self.each::<I>(at.index, range, |_, out, index, update| {
                let to = at.out.offset(out + self.axis.offset(index)?).cast::<T>();
                *to = combine(*to, *at.updates.offset(update).cast::<T>());
                Ok(())
            })
        }
    }

    /// Combines half floats in a buffer of `f32` and rounds each element once.
    ///
    /// # Safety
    /// As [`Scatter::direct`].
    unsafe fn widened<I: IndexValue, T: Float<Wide = f32>>(
        &self,
        at: Addresses,
        range: Range<usize>,
    ) -> Result<(), BadIndex> {
        let (lines, size) = (range.len(), self.axis.size as usize);
        // Laid out so that the innermost loop of `each` stays within cache lines.
        let (line_step, index_step) = if self.along_inner { (size, 1) } else { (1, lines) };
        let mut sums = vec![0f32; lines * size];
        let [out_step, ..] = self.lines.inner_strides();
        let transfer = |sums: &mut [f32], move_element: &dyn Fn(&mut f32, *mut T)| {
            let mut line = 0;
            self.lines.runs(range.clone(), |[out, ..], count| {
                for i in 0..count as isize {
                    for j in 0..size {
                        // SAFETY: element `j` of a line of the out tensor.
                        let element = unsafe { at.out.offset(out + i * out_step + j as isize * self.axis.stride) };
                        move_element(&mut sums[line * line_step + j * index_step], element.cast());
                    }
                    line += 1;
                }
            });
        };
        // SAFETY: an element of the out tensor, see `transfer`.
        transfer(&mut sums, &|sum, element: *mut T| *sum = unsafe { *element }.widen());
        let product = self.op == ScatterOp::Prod;
        // SAFETY: the caller's contract.
        let result = unsafe {
            self.each::<I>(at.index, range.clone(), |line, _, index, update| {
                self.axis.offset(index)?;
                let update = (*at.updates.offset(update).cast::<T>()).widen();
                let sum = &mut sums[line * line_step + index as usize * index_step];
                *sum = if product { *sum * update } else { *sum + update };
                Ok(())
            })
        };
        // SAFETY: an element of the out tensor, see `transfer`.
        transfer(&mut sums, &|sum, element| unsafe { *element = T::narrow(*sum) });
        result
    }

    /// # Safety
    /// As [`Kernel::run`]; `I` is the type of the index.
    unsafe fn task<I: IndexValue>(&self, at: Addresses, range: Range<usize>) -> Result<(), BadIndex> {
        // SAFETY: the caller's contract; `T` is the element type, or one as wide where elements only move.
        unsafe {
            match (self.op, self.dtype) {
                (ScatterOp::Set, dtype) => {
                    by_size!(dtype.size(), T => self.direct::<I, T>(at, range, |_, update| update))
                }
                (ScatterOp::Add | ScatterOp::Prod, DType::F16) => self.widened::<I, f16>(at, range),
                (ScatterOp::Add | ScatterOp::Prod, DType::BF16) => self.widened::<I, bf16>(at, range),
                (ScatterOp::Add, dtype) => by_dtype!(dtype, T => self.direct::<I, T>(at, range, T::add)),
                (ScatterOp::Prod, dtype) => by_dtype!(dtype, T => self.direct::<I, T>(at, range, T::mul)),
                (ScatterOp::Max, dtype) => by_dtype!(dtype, T => self.direct::<I, T>(at, range, <T as Combine>::max)),
                (ScatterOp::Min, dtype) => by_dtype!(dtype, T => self.direct::<I, T>(at, range, <T as Combine>::min)),
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Addresses {
    index: *const u8,
    updates: *const u8,
    out: *mut u8,
}

// SAFETY: tasks read the inputs and write disjoint lines.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Kernel for Scatter {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses { index: buffers[0], updates: buffers[1], out: buffers[2] };
        if self.numel() == 0 {
            return Ok(());
        }
        let length = if self.buffered() { self.along.max(self.axis.size as usize) } else { self.along };
        let lines = self.lines.numel();
        // Lines that lie across memory are walked side by side: whole cache lines of them.
        let fewest = if self.along_inner { 1 } else { SIDE_BY_SIDE.min(lines) };
        let lines_piece = (PIECE / length).clamp(fewest, lines);
        let errors = FirstError::default();
        parallel_for(lines.div_ceil(lines_piece), |t| {
            let at: Addresses = at;
            let range = piece(lines, lines_piece, t);
            // SAFETY: some lines, under the caller's contract.
            let result = unsafe {
                match self.index {
                    DType::I32 => self.task::<i32>(at, range),
                    _ => self.task::<i64>(at, range),
                }
            };
            errors.note(t, result.map_err(|bad| self.axis.error(bad)));
        });
        errors.finish()
    }

    fn cost(&self) -> u64 {
        50 + 2 * self.numel() as u64
    }
}
