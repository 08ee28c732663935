//! Tensor types: an element type with sizes and, where memory is concerned, strides.

use crate::DType;
use smallvec::SmallVec;
use std::fmt;

/// Sizes or strides of a tensor; few tensors have more than six dimensions.
pub type Dims = SmallVec<[i64; 6]>;

/// A logical tensor: element type and sizes, nothing said of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension, in elements.
    pub sizes: Dims,
}

impl Shape {
    /// A shape of the given element type and sizes.
    pub fn new(dtype: DType, sizes: &[i64]) -> Self {
        Shape { dtype, sizes: Dims::from_slice(sizes) }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, s) in self.sizes.iter().enumerate() {
            write!(f, "{}{s}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// A tensor in memory: element type, sizes, and strides in elements.
///
/// The address of a buffer is that of its first element; the storage offset is already applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension, in elements.
    pub sizes: Dims,
    /// Distance between neighbours along each dimension, in elements; 0 for an expanded dimension.
    pub strides: Dims,
}

impl TensorType {
    /// A tensor of the given layout.
    ///
    /// # Panics
    /// If `sizes` and `strides` differ in length.
    pub fn strided(dtype: DType, sizes: &[i64], strides: &[i64]) -> Self {
        assert_eq!(sizes.len(), strides.len(), "sizes and strides of one rank");
        TensorType { dtype, sizes: Dims::from_slice(sizes), strides: Dims::from_slice(strides) }
    }

    /// A row-major tensor.
    pub fn contiguous(dtype: DType, sizes: &[i64]) -> Self {
        TensorType { dtype, sizes: Dims::from_slice(sizes), strides: contiguous_strides(sizes) }
    }

    /// The logical shape.
    pub fn shape(&self) -> Shape {
        Shape { dtype: self.dtype, sizes: self.sizes.clone() }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Bytes from the first element to the end of the last; strides are not negative.
    pub fn extent(&self) -> usize {
        if self.numel() == 0 {
            return 0;
        }
        let last: i64 = self.sizes.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        (last as usize + 1) * self.dtype.size()
    }

    /// True if the elements lie row-major without gaps; dimensions of extent 1 may have any stride.
    pub fn is_contiguous(&self) -> bool {
        if self.numel() == 0 {
            return true;
        }
        let mut expected = 1;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            if size != 1 {
                if stride != expected {
                    return false;
                }
                expected *= size;
            }
        }
        true
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shape().fmt(f)?;
        if !self.is_contiguous() {
            write!(f, ":{:?}", self.strides.as_slice())?;
        }
        Ok(())
    }
}

/// Row-major strides for these sizes, as PyTorch gives them: an extent of 0 counts as 1.
pub fn contiguous_strides(sizes: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, sizes.len());
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i].max(1);
    }
    strides
}

/// The shape two operands broadcast to, by PyTorch's rules; `None` where they do not.
pub fn broadcast_sizes(a: &[i64], b: &[i64]) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let at = |s: &[i64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |k| s[k]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguity_ignores_unit_dimensions() {
        assert!(TensorType::strided(DType::F32, &[3, 1, 4], &[4, 99, 1]).is_contiguous());
        assert!(!TensorType::strided(DType::F32, &[3, 4], &[1, 3]).is_contiguous());
        assert!(TensorType::strided(DType::F32, &[0, 4], &[7, 9]).is_contiguous());
    }

    #[test]
    fn broadcasting_follows_pytorch() {
        assert_eq!(broadcast_sizes(&[3, 1], &[4]).unwrap().as_slice(), [3, 4]);
        assert_eq!(broadcast_sizes(&[0], &[1]).unwrap().as_slice(), [0]);
        assert_eq!(broadcast_sizes(&[2], &[3]), None);
    }

    #[test]
    fn strides_of_empty_dimensions() {
        assert_eq!(contiguous_strides(&[2, 0, 3]).as_slice(), [3, 3, 1]);
    }
}
