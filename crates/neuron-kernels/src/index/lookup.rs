//! Index operands: from index values to byte offsets, checked.

use super::nest::Nest;
use crate::kernel::KernelError;
use neuron_ir::{DType, TensorType};
use smallvec::SmallVec;

/// Positions resolved at a time, on the stack.
pub(crate) const TILE: usize = 128;

/// An element type of index tensors.
pub(crate) trait IndexValue: Copy {
    fn get(self) -> i64;
}

impl IndexValue for i64 {
    #[inline(always)]
    fn get(self) -> i64 {
        self
    }
}

impl IndexValue for i32 {
    #[inline(always)]
    fn get(self) -> i64 {
        i64::from(self)
    }
}

/// An index out of range, small enough for the result of a hot loop; [`Axis::error`] completes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadIndex(pub i64);

/// The dimension of a tensor that indices name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub dim: usize,
    pub size: i64,
    /// Bytes between neighbours.
    pub stride: isize,
}

impl Axis {
    pub fn of(tensor: &TensorType, dim: usize) -> Self {
        let stride = tensor.strides[dim] * tensor.dtype.size() as i64;
        Axis { dim, size: tensor.sizes[dim], stride: stride as isize }
    }

    /// Byte offset of `index`, which must not be negative.
    #[inline(always)]
    pub fn offset(&self, index: i64) -> Result<isize, BadIndex> {
        if (index as u64) < self.size as u64 { Ok(index as isize * self.stride) } else { Err(BadIndex(index)) }
    }

    /// Byte offset of `index`, which counts from the end if negative.
    #[inline(always)]
    pub fn wrapped_offset(&self, index: i64) -> Result<isize, BadIndex> {
        let wrapped = if index < 0 { index.wrapping_add(self.size) } else { index };
        if (wrapped as u64) < self.size as u64 { Ok(wrapped as isize * self.stride) } else { Err(BadIndex(index)) }
    }

    #[cold]
    pub fn error(&self, BadIndex(index): BadIndex) -> KernelError {
        KernelError::IndexOutOfRange { index, dim: self.dim, size: self.size }
    }
}

/// Refuses element types that indices do not come in.
pub(crate) fn check_index(kernel: &'static str, index: &TensorType) -> Result<(), KernelError> {
    match index.dtype {
        DType::I64 | DType::I32 => Ok(()),
        dtype => Err(KernelError::Unsupported { kernel, what: format!("an index of {dtype}") }),
    }
}

/// Index tensors of one shape, each naming a dimension of the same tensor.
#[derive(Debug)]
pub(crate) struct Lookup {
    operands: SmallVec<[(Nest<1>, DType, Axis); 2]>,
    positions: usize,
    wrap: bool,
}

impl Lookup {
    /// `indices[i]` names `dims[i]` of `target`; with `wrap` negative indices count from the end.
    pub fn new(
        kernel: &'static str,
        target: &TensorType,
        dims: &[i64],
        indices: &[TensorType],
        wrap: bool,
    ) -> Result<Self, KernelError> {
        let unsupported = |what: &str| KernelError::Unsupported { kernel, what: what.to_string() };
        let [first, ..] = indices else { return Err(unsupported("no index")) };
        let ascending = dims.windows(2).all(|w| w[0] < w[1]);
        let in_range = dims.iter().all(|d| (0..target.rank() as i64).contains(d));
        if dims.len() != indices.len() || !ascending || !in_range {
            return Err(unsupported("indices that do not match the dimensions"));
        }
        if indices.iter().any(|index| index.sizes != first.sizes) {
            return Err(unsupported("indices of different shapes"));
        }
        let operands = dims
            .iter()
            .zip(indices)
            .map(|(&dim, index)| {
                check_index(kernel, index)?;
                Ok((Nest::of(&index.sizes, [index], 0..index.rank()), index.dtype, Axis::of(target, dim as usize)))
            })
            .collect::<Result<_, KernelError>>()?;
        Ok(Lookup { operands, positions: first.numel() as usize, wrap })
    }

    /// Number of index tensors.
    pub fn operands(&self) -> usize {
        self.operands.len()
    }

    /// Elements of each index tensor.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Writes where the positions from `first` on lead, in bytes from the target's first element.
    ///
    /// # Safety
    /// `buffers` are the index tensors, valid for their layouts; `first + offsets.len()` is at most the number of
    /// positions.
    #[inline]
    pub unsafe fn resolve(&self, buffers: &[*mut u8], first: usize, offsets: &mut [isize]) -> Result<(), KernelError> {
        offsets.fill(0);
        for ((nest, dtype, axis), &buffer) in self.operands.iter().zip(buffers) {
            // SAFETY: the caller's contract, for each index tensor of the element type it was declared with.
            let resolved = unsafe {
                match (dtype, self.wrap) {
                    (DType::I32, wrap) => resolve_one::<i32>(nest, axis, wrap, buffer, first, offsets),
                    (_, true) => resolve_one::<i64>(nest, axis, true, buffer, first, offsets),
                    (_, false) => resolve_one::<i64>(nest, axis, false, buffer, first, offsets),
                }
            };
            resolved.map_err(|bad| axis.error(bad))?;
        }
        Ok(())
    }

    /// Bytes from the target's first element to the last that positions can lead to, and one more.
    pub fn span(&self) -> usize {
        self.operands.iter().map(|(_, _, axis)| (axis.size - 1).max(0) as usize * axis.stride as usize).sum::<usize>()
            + 1
    }
}

/// Adds one index tensor's share to `offsets`.
///
/// # Safety
/// As [`Lookup::resolve`], for elements of type `I`.
#[inline(always)]
unsafe fn resolve_one<I: IndexValue>(
    nest: &Nest<1>,
    axis: &Axis,
    wrap: bool,
    buffer: *const u8,
    first: usize,
    offsets: &mut [isize],
) -> Result<(), BadIndex> {
    let [stride] = nest.inner_strides();
    let mut filled = 0;
    nest.try_runs(first..first + offsets.len(), |[offset], count| {
        for (i, out) in offsets[filled..filled + count].iter_mut().enumerate() {
            // SAFETY: a position below the number of positions.
            let index = unsafe { *buffer.offset(offset + i as isize * stride).cast::<I>() }.get();
            *out += if wrap { axis.wrapped_offset(index)? } else { axis.offset(index)? };
        }
        filled += count;
        Ok(())
    })
}
