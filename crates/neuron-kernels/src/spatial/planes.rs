//! `[n, c, d, h, w]` in memory: planes of elements, or of pixels whose channels lie side by side.

use crate::KernelError;
use neuron_ir::{TensorType, contiguous_strides};

/// A dense tensor as planes of `size` pixels of `lanes` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub count: usize,
    /// Depth, height, width.
    pub size: [usize; 3],
    pub lanes: usize,
}

impl Planes {
    fn of(ty: &TensorType, last: bool) -> Planes {
        let size = |d: usize| ty.sizes[d] as usize;
        let (count, lanes) = if last { (size(0), size(1)) } else { (size(0) * size(1), 1) };
        Planes { count, size: [size(2), size(3), size(4)], lanes }
    }

    /// Pixels of a plane.
    pub fn pixels(&self) -> usize {
        self.size.iter().product()
    }

    /// Elements of a plane.
    pub fn elements(&self) -> usize {
        self.pixels() * self.lanes
    }

    /// Elements of a row.
    pub fn row(&self) -> usize {
        self.size[2] * self.lanes
    }

    /// Rows of all planes.
    pub fn rows(&self) -> usize {
        self.count * self.size[0] * self.size[1]
    }

    /// Plane, depth and height of row number `row`.
    pub fn place(&self, row: usize) -> [usize; 3] {
        let [d, h, _] = self.size;
        [row / (d * h), row / h % d, row % h]
    }
}

/// Tensors of rank 5 that are all row-major, or all have their channels last.
pub(super) fn alike<const N: usize>(
    kernel: &'static str,
    tensors: [&TensorType; N],
) -> Result<[Planes; N], KernelError> {
    if let Some(odd) = tensors.iter().find(|t| t.rank() != 5) {
        return Err(KernelError::Unsupported { kernel, what: format!("{odd}, not of 5 dimensions") });
    }
    // Positions in a plane are counted in 32 bits.
    if let Some(large) = tensors.iter().find(|t| t.sizes[2..].iter().product::<i64>() > i64::from(i32::MAX)) {
        return Err(KernelError::Unsupported { kernel, what: format!("the large planes of {large}") });
    }
    let last = if tensors.iter().all(|t| t.is_contiguous()) {
        false
    } else if tensors.iter().all(|t| is_channels_last(t)) {
        true
    } else {
        let layouts: Vec<String> = tensors.iter().map(ToString::to_string).collect();
        return Err(KernelError::Unsupported { kernel, what: format!("layouts {}", layouts.join(", ")) });
    };
    Ok(tensors.map(|t| Planes::of(t, last)))
}

/// True if the elements of `[n, c, d, h, w]` lie dense in the order `n, d, h, w, c`.
pub fn is_channels_last(ty: &TensorType) -> bool {
    ty.rank() == 5 && permuted(ty).is_contiguous()
}

fn permuted(ty: &TensorType) -> TensorType {
    let pick = |v: &[i64]| [v[0], v[2], v[3], v[4], v[1]];
    TensorType::strided(ty.dtype, &pick(&ty.sizes), &pick(&ty.strides))
}

/// The same tensor with its channels last.
pub fn channels_last(ty: &TensorType) -> TensorType {
    let s = contiguous_strides(&permuted(ty).sizes);
    TensorType::strided(ty.dtype, &ty.sizes, &[s[0], s[4], s[1], s[2], s[3]])
}

/// Addresses that tasks share.
#[derive(Clone, Copy)]
pub(super) struct Shared<const N: usize>(pub [*mut u8; N]);

// SAFETY: tasks read inputs and write disjoint elements, by the construction of each kernel.
unsafe impl<const N: usize> Send for Shared<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Shared<N> {}

impl<const N: usize> Shared<N> {
    pub fn of(buffers: &[*mut u8]) -> Self {
        Shared(std::array::from_fn(|i| buffers[i]))
    }

    /// Buffer `i` as elements of `T`.
    #[inline(always)]
    pub fn at<T>(&self, i: usize) -> *mut T {
        self.0[i].cast()
    }
}
