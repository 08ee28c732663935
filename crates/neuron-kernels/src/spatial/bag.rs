//! Bags of embeddings.

use super::element::{Element, Wide};
use super::planes::Shared;
use crate::pool::parallel_for;
use crate::scatter::float::by_float;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{BagMode, DType, Scalar, TensorType};
use std::ops::Range;

/// Bytes of a task.
const TASK: usize = 1 << 15;

/// Rows of a table combined by bag. Buffers: table, indices, offsets, weights if present; output, bag of each index,
/// sizes of bags, rows of maxima.
#[derive(Debug)]
pub struct EmbeddingBag {
    mode: BagMode,
    include_last_offset: bool,
    padding: i64,
    weights: bool,
    dtype: DType,
    rows: i64,
    columns: usize,
    indices: usize,
    /// Offsets, of which the last may be no bag.
    offsets: usize,
    bags: usize,
}

impl EmbeddingBag {
    /// `table[rows, e]` of floats, `index[k]` and `offsets[..]` of `i64`, all row-major; `out[bags, e]`. Bags sum in
    /// the wide type; a mean divides the rounded sum.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other types and layouts. At run: an index outside of the table; offsets that
    /// do not ascend from 0 to at most `k`.
    #[allow(clippy::too_many_arguments, reason = "those of the operator")]
    pub fn new(
        table: &TensorType,
        index: &TensorType,
        offsets: &TensorType,
        weights: Option<&TensorType>,
        mode: BagMode,
        include_last_offset: bool,
        padding: i64,
        out: &TensorType,
    ) -> Result<EmbeddingBag, KernelError> {
        let fits = table.rank() == 2
            && index.rank() == 1
            && offsets.rank() == 1
            && out.rank() == 2
            && table.dtype.is_float()
            && out.dtype == table.dtype
            && out.sizes[1] == table.sizes[1]
            && out.sizes[0] == offsets.sizes[0] - i64::from(include_last_offset)
            && [index, offsets].iter().all(|t| t.dtype == DType::I64)
            && weights.is_none_or(|w| w.sizes == index.sizes && w.dtype == table.dtype && w.is_contiguous())
            && [table, index, offsets, out].iter().all(|t| t.is_contiguous());
        if !fits {
            return Err(KernelError::Unsupported {
                kernel: "embedding_bag",
                what: format!("{table}, {index}, {offsets} into {out}"),
            });
        }
        Ok(EmbeddingBag {
            mode,
            include_last_offset,
            padding,
            weights: weights.is_some(),
            dtype: table.dtype,
            rows: table.sizes[0],
            columns: table.sizes[1] as usize,
            indices: index.sizes[0] as usize,
            offsets: offsets.sizes[0] as usize,
            bags: out.sizes[0] as usize,
        })
    }

    /// Where the bags lie among the indices.
    fn bags(&self, offsets: &[i64], index: &[i64]) -> Result<Vec<Range<usize>>, KernelError> {
        let size = self.indices as i64;
        let ascend = offsets.first().is_none_or(|o| *o == 0) && offsets.windows(2).all(|w| w[0] <= w[1]);
        if !ascend || offsets.last().is_some_and(|o| *o > size) {
            let offset = offsets.iter().copied().find(|o| *o < 0 || *o > size).unwrap_or(offsets[0]);
            let message =
                format!("offsets have to ascend from 0 to at most {size}, the number of indices, got {offset}");
            return Err(KernelError::InvalidValue(message));
        }
        if let Some(&index) = index.iter().find(|i| **i < 0 || **i >= self.rows) {
            let message = format!("Expected 0 <= index < {} to be true, but got {index}", self.rows);
            return Err(KernelError::InvalidValue(message));
        }
        // PyTorch's path for sums of f32 and f16 ends with the last offset; all others take what is left.
        let stops = self.include_last_offset
            && self.mode == BagMode::Sum
            && self.padding < 0
            && matches!(self.dtype, DType::F32 | DType::F16);
        let end = |b: usize| match offsets.get(b + 1) {
            Some(end) if b + 1 < self.bags || stops => *end as usize,
            _ => self.indices,
        };
        Ok((0..self.bags).map(|b| offsets[b] as usize..end(b)).collect())
    }

    /// One row of the output.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type; indices have been checked.
    #[inline(always)]
    unsafe fn bag<T: Element>(
        &self,
        at: &Shared<8>,
        index: &[i64],
        bag: usize,
        range: Range<usize>,
        sums: &mut [T::Wide],
    ) {
        // SAFETY: rows of the table that checked indices name, and a row of the results.
        unsafe {
            let table = at.at::<T>(0).cast_const();
            let out = std::slice::from_raw_parts_mut(at.at::<T>(4).add(bag * self.columns), self.columns);
            let row = |i: usize| std::slice::from_raw_parts(table.add(index[i] as usize * self.columns), self.columns);
            let mut count = 0;
            let members = range.filter(|i| index[*i] != self.padding);
            sums.fill(T::Wide::ZERO);
            if self.mode == BagMode::Max {
                let from = std::slice::from_raw_parts_mut(at.at::<i64>(7).add(bag * self.columns), self.columns);
                from.fill(0);
                for i in members {
                    for ((sum, from), v) in sums.iter_mut().zip(from.iter_mut()).zip(row(i)) {
                        let v = v.widen();
                        if count == 0 || v > *sum {
                            *sum = v;
                            *from = index[i];
                        }
                    }
                    count += 1;
                }
            } else {
                let weights = self.weights.then(|| at.at::<T>(3).cast_const());
                for i in members {
                    match weights {
                        Some(weights) => {
                            let weight = (*weights.add(i)).widen();
                            sums.iter_mut().zip(row(i)).for_each(|(s, v)| *s = s.plus(v.widen().times(weight)));
                        }
                        None => sums.iter_mut().zip(row(i)).for_each(|(s, v)| *s = s.plus(v.widen())),
                    }
                    count += 1;
                }
            }
            *at.at::<i64>(6).add(bag) = count;
            for (out, sum) in out.iter_mut().zip(sums.iter()) {
                *out = T::narrow(*sum);
                if self.mode == BagMode::Mean {
                    *out = T::narrow(out.widen().over(T::Wide::of(count.max(1))));
                }
            }
        }
    }
}

impl Kernel for EmbeddingBag {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // Without weights their place holds the output's address, unused.
        let mut all = buffers.to_vec();
        if !self.weights {
            all.insert(3, buffers[3]);
        }
        let at = Shared::<8>::of(&all);
        // SAFETY: the caller's buffers are of the sizes the kernel was made for.
        let (index, offsets, bag_of, sizes) = unsafe {
            (
                std::slice::from_raw_parts(at.at::<i64>(1).cast_const(), self.indices),
                std::slice::from_raw_parts(at.at::<i64>(2).cast_const(), self.offsets),
                std::slice::from_raw_parts_mut(at.at::<i64>(5), self.indices),
                std::slice::from_raw_parts_mut(at.at::<i64>(6), self.offsets),
            )
        };
        let bags = self.bags(offsets, index)?;
        bag_of.fill((self.bags as i64 - 1).max(0));
        for (bag, range) in bags.iter().enumerate() {
            bag_of[range.clone()].fill(bag as i64);
        }
        sizes.fill(0);
        let piece =
            (TASK * self.bags / ((self.indices + self.bags) * (self.columns * self.dtype.size()).max(1)).max(1)).max(1);
        parallel_for(self.bags.div_ceil(piece), |t| {
            let at = &at;
            by_float!(self.dtype, T => vectorized(
                #[inline(always)]
                || {
                    let mut sums = vec![<T as Element>::Wide::ZERO; self.columns];
                    for (bag, range) in bags.iter().enumerate().skip(t * piece).take(piece) {
                        // SAFETY: the bag exists, and indices have been checked.
                        unsafe { self.bag::<T>(at, index, bag, range.clone(), &mut sums) }
                    }
                },
            ), _ => ());
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + ((self.indices + self.bags) * self.columns) as u64 / 2
    }
}
