//! Views of a value: what memory shows under other sizes, strides and offset, as operators on the value stored there.

use neuron_ir::{Dims, GraphBuilder, Op, Shape, TensorType, Value};

/// Operators that show, of a value stored as `stored`, what `wanted` sees from `offset` elements further on.
#[derive(Debug)]
pub(crate) struct View {
    /// Order of the stored dimensions in memory.
    permutation: Option<Dims>,
    /// Memory as dimensions that contain those of the view.
    factors: Dims,
    /// First position and extent of the view in each factor.
    ranges: Vec<(i64, i64)>,
    /// Order of the view's dimensions among those of the factors.
    order: Dims,
}

/// The view, if such operators exist: memory without gaps, and strides that divide each other.
pub(crate) fn view(stored: &TensorType, mut offset: i64, wanted: &TensorType) -> Option<View> {
    if stored.dtype != wanted.dtype || offset < 0 || wanted.numel() == 0 {
        return None;
    }
    let numel = stored.numel();
    let mut memory: Vec<usize> = (0..stored.rank()).filter(|d| stored.sizes[*d] != 1).collect();
    memory.sort_by_key(|d| std::cmp::Reverse(stored.strides[*d]));
    let mut dense = 1;
    for d in memory.iter().rev() {
        if stored.strides[*d] != dense {
            return None;
        }
        dense *= stored.sizes[*d];
    }
    let permutation = (!memory.is_sorted()).then(|| {
        let units = (0..stored.rank()).filter(|d| stored.sizes[*d] == 1);
        units.chain(memory.iter().copied()).map(|d| d as i64).collect()
    });

    // Dimensions of the view that move in memory, farthest first.
    let mut seen: Vec<usize> =
        (0..wanted.rank()).filter(|d| wanted.sizes[*d] != 1 && wanted.strides[*d] != 0).collect();
    seen.sort_by_key(|d| std::cmp::Reverse(wanted.strides[*d]));
    let (mut factors, mut ranges) = (Dims::new(), Vec::new());
    let mut around = numel;
    for d in &seen {
        let (size, stride) = (wanted.sizes[*d], wanted.strides[*d]);
        if stride <= 0 || around % stride != 0 {
            return None;
        }
        let (extent, first) = (around / stride, offset / stride);
        if first + size > extent {
            return None;
        }
        factors.push(extent);
        ranges.push((first, size));
        offset %= stride;
        around = stride;
    }
    if around > 1 {
        if offset >= around {
            return None;
        }
        factors.push(around);
        ranges.push((offset, 1));
    } else if offset > 0 {
        return None;
    }
    let mut order: Vec<usize> = (0..seen.len()).collect();
    order.sort_by_key(|i| seen[*i]);
    Some(View { permutation, factors, ranges, order: order.iter().map(|i| *i as i64).collect() })
}

impl View {
    /// Adds the operators to a graph.
    pub(crate) fn apply(&self, g: &mut GraphBuilder, mut value: Value, wanted: &TensorType) -> Value {
        if self.is_whole(g.shape(value), wanted) {
            return g.reshape(value, &wanted.sizes);
        }
        let dtype = wanted.dtype;
        if let Some(permutation) = &self.permutation {
            let sizes: Dims = permutation.iter().map(|d| g.shape(value).sizes[*d as usize]).collect();
            value = g.op(Op::Transpose { permutation: permutation.clone() }, &[value], Shape::new(dtype, &sizes));
        }
        value = g.reshape(value, &self.factors);
        for (dim, (start, size)) in self.ranges.iter().enumerate() {
            if g.shape(value).sizes[dim] != *size {
                let mut shape = g.shape(value).clone();
                shape.sizes[dim] = *size;
                value = g.op(Op::Slice { dim, start: *start, step: 1 }, &[value], shape);
            }
        }
        let moving: Dims = self.ranges[..self.order.len()].iter().map(|r| r.1).collect();
        value = g.reshape(value, &moving);
        if !self.order.is_sorted() {
            let sizes: Dims = self.order.iter().map(|i| moving[*i as usize]).collect();
            value = g.op(Op::Transpose { permutation: self.order.clone() }, &[value], Shape::new(dtype, &sizes));
        }
        let kept: Dims = (0..wanted.rank()).map(|d| if wanted.strides[d] == 0 { 1 } else { wanted.sizes[d] }).collect();
        value = g.reshape(value, &kept);
        g.broadcast(value, &wanted.sizes)
    }

    /// True if the view is all of the value in its own order: a reshape.
    fn is_whole(&self, stored: &Shape, wanted: &TensorType) -> bool {
        self.permutation.is_none() && stored.numel() == wanted.numel() && wanted.is_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neuron_ir::DType;

    fn strided(sizes: &[i64], strides: &[i64]) -> TensorType {
        TensorType::strided(DType::F32, sizes, strides)
    }

    /// Positions in memory of the view's elements, found by carrying out the operators on the memory positions themselves.
    fn positions(stored: &TensorType, offset: i64, wanted: &TensorType) -> Option<Vec<i64>> {
        let view = view(stored, offset, wanted)?;
        let mut memory: Vec<i64> = (0..stored.numel()).collect();
        let mut sizes = view.factors.clone();
        for (dim, (start, size)) in view.ranges.iter().enumerate() {
            let inner: i64 = sizes[dim + 1..].iter().product();
            let extent = sizes[dim];
            let keep = |i: usize| (((i as i64 / inner) % extent - start) as u64) < *size as u64;
            memory = memory.into_iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, m)| m).collect();
            sizes[dim] = *size;
        }
        let order: Vec<usize> = view.order.iter().map(|o| *o as usize).collect();
        let extents: Vec<i64> = order.iter().map(|o| sizes[*o]).collect();
        let mut result = Vec::new();
        for mut i in 0..extents.iter().product::<i64>() {
            let mut at = vec![0; order.len()];
            for (k, extent) in extents.iter().enumerate().rev() {
                at[order[k]] = i % extent;
                i /= extent;
            }
            let index = at.iter().zip(&sizes).fold(0, |index, (a, s)| index * s + a);
            result.push(memory[index as usize]);
        }
        Some(result)
    }

    fn expected(offset: i64, wanted: &TensorType) -> Vec<i64> {
        let moving: Vec<usize> =
            (0..wanted.rank()).filter(|d| wanted.strides[*d] != 0 && wanted.sizes[*d] != 1).collect();
        let count: i64 = moving.iter().map(|d| wanted.sizes[*d]).product();
        (0..count)
            .map(|mut i| {
                let mut at = offset;
                for d in moving.iter().rev() {
                    at += i % wanted.sizes[*d] * wanted.strides[*d];
                    i /= wanted.sizes[*d];
                }
                at
            })
            .collect()
    }

    #[test]
    fn views_of_dense_memory() {
        let stored = strided(&[4, 6, 8], &[48, 8, 1]);
        for (offset, sizes, strides) in [
            (0, vec![192], vec![1]),
            (0, vec![8, 24], vec![1, 8]),
            (48, vec![3, 6, 8], vec![48, 8, 1]),
            (4, vec![4, 6, 4], vec![48, 8, 1]),
            (0, vec![4, 2, 6, 4], vec![48, 4, 8, 1]),
            (9, vec![2, 3, 2], vec![96, 16, 4]),
            (17, vec![], vec![]),
            (8, vec![4, 5, 8], vec![48, 0, 1]),
        ] {
            let wanted = strided(&sizes, &strides);
            assert_eq!(positions(&stored, offset, &wanted), Some(expected(offset, &wanted)), "{wanted} at {offset}");
        }
    }

    #[test]
    fn what_is_no_such_view() {
        let stored = strided(&[4, 6], &[6, 1]);
        assert!(view(&stored, 0, &strided(&[2, 4], &[5, 1])).is_none(), "rows that do not divide memory");
        assert!(view(&stored, 20, &strided(&[6], &[1])).is_none(), "beyond the end");
        assert!(view(&strided(&[4, 3], &[6, 1]), 0, &strided(&[12], &[1])).is_none(), "memory with gaps");
        assert!(view(&stored, 3, &strided(&[2, 6], &[6, 1])).is_none(), "across rows");
    }
}
