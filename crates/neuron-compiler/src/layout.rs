//! Views of buffers: what a broadcast, a transpose or a reshape does to strides.

use neuron_ir::{Dims, TensorType};

/// Strides that show `ty` broadcast to `sizes`: leading dimensions are added, extents of 1 repeat.
pub(crate) fn broadcast(ty: &TensorType, sizes: &[i64]) -> TensorType {
    let missing = sizes.len() - ty.rank();
    let strides: Dims = (0..sizes.len())
        .map(|i| match i.checked_sub(missing) {
            Some(k) if ty.sizes[k] == sizes[i] => ty.strides[k],
            _ => 0,
        })
        .collect();
    TensorType::strided(ty.dtype, sizes, &strides)
}

/// Result dimension `i` is dimension `permutation[i]` of `ty`.
pub(crate) fn transpose(ty: &TensorType, permutation: &[i64]) -> TensorType {
    let sizes: Dims = permutation.iter().map(|p| ty.sizes[*p as usize]).collect();
    let strides: Dims = permutation.iter().map(|p| ty.strides[*p as usize]).collect();
    TensorType::strided(ty.dtype, &sizes, &strides)
}

/// Where, in bytes, every `step`-th position of dimension `dim` from `start` on begins, and how it lies.
pub(crate) fn slice(ty: &TensorType, dim: usize, start: i64, step: i64, extent: i64) -> (usize, TensorType) {
    let mut part = ty.clone();
    part.sizes[dim] = extent;
    part.strides[dim] *= step;
    let elements = if part.numel() == 0 { 0 } else { start * ty.strides[dim] };
    (elements as usize * ty.dtype.size(), part)
}

/// Strides under which the memory of `ty`, read row-major, has `sizes`; `None` where only a copy does.
pub(crate) fn reshape(ty: &TensorType, sizes: &[i64]) -> Option<TensorType> {
    if ty.numel() == 0 || ty.is_contiguous() {
        return Some(TensorType::contiguous(ty.dtype, sizes));
    }
    let mut strides = Dims::from_elem(0, sizes.len());
    // Old dimensions in runs that are contiguous among themselves; each run is divided among new dimensions.
    let old: Vec<(i64, i64)> =
        ty.sizes.iter().copied().zip(ty.strides.iter().copied()).filter(|(size, _)| *size != 1).collect();
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in old {
        match runs.last_mut() {
            Some((extent, inner)) if *inner == size * stride => (*extent, *inner) = (*extent * size, stride),
            _ => runs.push((size, stride)),
        }
    }
    let mut new = sizes.len();
    for (extent, stride) in runs.into_iter().rev() {
        let (mut left, mut stride) = (extent, stride);
        while left > 1 {
            new = new.checked_sub(1)?;
            if sizes[new] == 1 {
                continue;
            }
            if left % sizes[new] != 0 {
                return None;
            }
            strides[new] = stride;
            stride *= sizes[new];
            left /= sizes[new];
        }
    }
    Some(TensorType::strided(ty.dtype, sizes, &strides))
}

#[cfg(test)]
mod tests {
    use super::*;
    use neuron_ir::DType;

    fn strided(sizes: &[i64], strides: &[i64]) -> TensorType {
        TensorType::strided(DType::F32, sizes, strides)
    }

    #[test]
    fn broadcasting_repeats_with_stride_zero() {
        let t = broadcast(&strided(&[3, 1], &[1, 7]), &[2, 3, 4]);
        assert_eq!(t.strides.as_slice(), [0, 1, 0]);
    }

    #[test]
    fn reshape_divides_contiguous_runs() {
        // A [4, 6] matrix of which 3 columns are used: rows can be split, columns too, but not joined.
        let t = strided(&[4, 3], &[6, 1]);
        assert_eq!(reshape(&t, &[2, 2, 3]).unwrap().strides.as_slice(), [12, 6, 1]);
        assert_eq!(reshape(&t, &[4, 1, 3]).unwrap().strides.as_slice(), [6, 0, 1]);
        assert_eq!(reshape(&t, &[12]), None);
        assert_eq!(reshape(&strided(&[2, 3], &[1, 2]), &[6]), None);
    }

    #[test]
    fn reshape_to_and_from_scalars() {
        assert_eq!(reshape(&strided(&[1, 1], &[9, 9]), &[]).unwrap().rank(), 0);
        assert_eq!(reshape(&strided(&[], &[]), &[1, 1]).unwrap().numel(), 1);
    }
}
