//! Nests of loops over strided operands.

use crate::kernel::KernelError;
use neuron_ir::TensorType;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes that one task of a memory-bound kernel moves.
pub(crate) const TASK_BYTES: usize = 128 << 10;

/// A nest of loops in row-major order that moves `N` operands, with neighbouring loops merged where the layouts allow.
#[derive(Clone, Debug)]
pub(crate) struct Nest<const N: usize> {
    sizes: SmallVec<[usize; 6]>,
    strides: SmallVec<[[isize; N]; 6]>,
    numel: usize,
}

impl<const N: usize> Nest<N> {
    /// Loops outermost first: an extent, and how many bytes a step moves each operand.
    pub fn new(dims: impl IntoIterator<Item = (i64, [i64; N])>) -> Self {
        let mut nest = Nest { sizes: SmallVec::new(), strides: SmallVec::new(), numel: 1 };
        for (size, stride) in dims {
            nest.numel *= size as usize;
            if size == 1 {
                continue;
            }
            let stride = stride.map(|s| s as isize);
            if let (Some(outer), Some(outer_stride)) = (nest.sizes.last_mut(), nest.strides.last_mut())
                && (0..N).all(|k| outer_stride[k] == stride[k] * size as isize)
            {
                *outer *= size as usize;
                *outer_stride = stride;
                continue;
            }
            nest.sizes.push(size as usize);
            nest.strides.push(stride);
        }
        if nest.sizes.is_empty() {
            nest.sizes.push(1);
            nest.strides.push([0; N]);
        }
        nest
    }

    /// The loops over the dimensions `dims` of `N` tensors of one rank; a tensor's own extent is not looked at.
    pub fn of(sizes: &[i64], tensors: [&TensorType; N], dims: impl IntoIterator<Item = usize>) -> Self {
        Nest::new(dims.into_iter().map(|d| (sizes[d], tensors.map(|t| t.strides[d] * t.dtype.size() as i64))))
    }

    /// How often the innermost body runs.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Extent of the innermost loop.
    pub fn inner(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Bytes a step of the innermost loop moves each operand.
    #[inline(always)]
    pub fn inner_strides(&self) -> [isize; N] {
        self.strides[self.strides.len() - 1]
    }

    /// True if every operand is one gapless run of elements of `size` bytes.
    pub fn is_run(&self, size: usize) -> bool {
        self.numel == 1 || (self.sizes.len() == 1 && self.inner_strides().iter().all(|s| *s == size as isize))
    }

    /// Where each operand stands at iteration `at`, in bytes.
    #[inline]
    pub fn offsets(&self, at: usize) -> [isize; N] {
        let mut offsets = [0; N];
        let mut rest = at;
        for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
            let coordinate = (rest % size) as isize;
            rest /= size;
            for k in 0..N {
                offsets[k] += coordinate * stride[k];
            }
        }
        offsets
    }

    /// Calls `body(offsets, count)` for the runs of the innermost loop that make up the iterations `range`, in order.
    #[inline(always)]
    pub fn try_runs<E>(
        &self,
        range: Range<usize>,
        mut body: impl FnMut([isize; N], usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = range.len();
        if left == 0 {
            return Ok(());
        }
        let last = self.sizes.len() - 1;
        let inner = self.sizes[last];
        if last == 0 {
            let stride = self.strides[0];
            return body(stride.map(|s| s * range.start as isize), left);
        }
        let mut coordinates: SmallVec<[usize; 6]> = SmallVec::from_elem(0, last);
        let mut rest = range.start / inner;
        for d in (0..last).rev() {
            coordinates[d] = rest % self.sizes[d];
            rest /= self.sizes[d];
        }
        let mut at = range.start % inner;
        let mut offsets = self.offsets(range.start - at);
        loop {
            let count = (inner - at).min(left);
            let stride = self.strides[last];
            body(std::array::from_fn(|k| offsets[k] + at as isize * stride[k]), count)?;
            left -= count;
            if left == 0 {
                return Ok(());
            }
            at = 0;
            let mut d = last;
            loop {
                d -= 1;
                coordinates[d] += 1;
                let stride = self.strides[d];
                offsets = std::array::from_fn(|k| offsets[k] + stride[k]);
                if coordinates[d] < self.sizes[d] {
                    break;
                }
                offsets = std::array::from_fn(|k| offsets[k] - stride[k] * self.sizes[d] as isize);
                coordinates[d] = 0;
            }
        }
    }

    /// [`Nest::try_runs`] with a body that cannot fail.
    #[inline(always)]
    pub fn runs(&self, range: Range<usize>, mut body: impl FnMut([isize; N], usize)) {
        let done: Result<(), std::convert::Infallible> = self.try_runs(range, |offsets, count| {
            body(offsets, count);
            Ok(())
        });
        match done {
            Ok(()) => {}
        }
    }
}

/// Number `task` of the pieces of at most `piece` iterations that `total` is cut into.
#[inline(always)]
pub(crate) fn piece(total: usize, piece: usize, task: usize) -> Range<usize> {
    task * piece..((task + 1) * piece).min(total)
}

/// A tensor of rank 0 as one of rank 1, as PyTorch's indexing operators see it.
pub(crate) fn at_least_1d(tensor: &TensorType) -> TensorType {
    if tensor.rank() == 0 { TensorType::contiguous(tensor.dtype, &[1]) } else { tensor.clone() }
}

/// The error of a parallel kernel: that of its first failing task, whatever the order they ran in.
#[derive(Default)]
pub(crate) struct FirstError(Mutex<Option<(usize, KernelError)>>);

impl FirstError {
    /// Notes how `task` ended.
    #[inline(always)]
    pub fn note(&self, task: usize, result: Result<(), KernelError>) {
        if let Err(error) = result {
            let mut first = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if first.as_ref().is_none_or(|(t, _)| task < *t) {
                *first = Some((task, error));
            }
        }
    }

    /// The outcome of all tasks.
    pub fn finish(self) -> Result<(), KernelError> {
        match self.0.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

/// Expands to `$body` with `$t` an unsigned integer of `$size` bytes: for kernels that only move elements.
macro_rules! by_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(crate) use by_size;

/// Copies `count` elements of type `T` between strided places.
///
/// # Safety
/// Both sides are valid for `count` elements at their strides (in bytes) and do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_strided<T: Copy>(
    from: *const u8,
    from_stride: isize,
    to: *mut u8,
    to_stride: isize,
    count: usize,
) {
    let size = size_of::<T>() as isize;
    if from_stride == size && to_stride == size {
        // SAFETY: gapless runs, valid by the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count * size_of::<T>()) };
    } else {
        for i in 0..count as isize {
            // SAFETY: element `i` of the caller's runs.
            unsafe { *to.offset(i * to_stride).cast::<T>() = *from.offset(i * from_stride).cast::<T>() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_loops_merge() {
        let nest = Nest::<1>::new([(2, [12]), (3, [4]), (1, [77]), (1, [0])]);
        assert_eq!((nest.inner(), nest.inner_strides(), nest.numel()), (6, [4], 6));
        assert!(nest.is_run(4));
        let transposed = Nest::<2>::new([(2, [4, 12]), (3, [8, 4])]);
        assert_eq!(transposed.inner(), 3);
    }

    #[test]
    fn runs_cover_any_range_in_order() {
        let nest = Nest::<2>::new([(3, [1, 100]), (2, [50, 7]), (4, [9, 2])]);
        let mut expected = Vec::new();
        for i in 0..3 {
            for j in 0..2 {
                for k in 0..4 {
                    expected.push([i + 50 * j + 9 * k, 100 * i + 7 * j + 2 * k]);
                }
            }
        }
        for begin in 0..=24 {
            for end in begin..=24 {
                let mut seen = Vec::new();
                let [s, t] = nest.inner_strides();
                nest.runs(begin..end, |[a, b], n| seen.extend((0..n as isize).map(|i| [a + i * s, b + i * t])));
                assert_eq!(seen, expected[begin..end]);
            }
        }
        assert_eq!(nest.offsets(13), expected[13]);
    }

    #[test]
    fn scalars_and_empty_nests() {
        let mut calls = 0;
        Nest::<1>::new([]).runs(0..1, |_, n| calls += n);
        assert_eq!(calls, 1);
        assert_eq!(Nest::<1>::new([(3, [4]), (0, [4])]).numel(), 0);
    }

    #[test]
    fn first_error_does_not_depend_on_the_order() {
        let errors = FirstError::default();
        for target in [5, 2, 9] {
            errors.note(target as usize, Err(KernelError::TargetOutOfRange { target }));
        }
        assert_eq!(errors.finish(), Err(KernelError::TargetOutOfRange { target: 2 }));
    }
}
