//! `torch.segment_reduce`: runs of a dimension, given by where they begin and end, become one value each.

use crate::pool::parallel_for;
use crate::reduce::element::{Element, with_element};
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, SegmentOp, TensorType};

/// Elements of one task.
const PIECE: usize = 16 << 10;

/// What both directions know: data of `[outer, size, inner]`, `[outer, segments + 1]` offsets of `i64`, and results of
/// `[outer, segments, inner]`, all row-major.
#[derive(Debug)]
struct Segments {
    dtype: DType,
    op: SegmentOp,
    initial: Option<f64>,
    outer: usize,
    size: usize,
    inner: usize,
    segments: usize,
}

impl Segments {
    fn new(
        kernel: &'static str,
        op: SegmentOp,
        initial: Option<f64>,
        data: &TensorType,
        offsets: &TensorType,
        result: &TensorType,
        all: &[&TensorType],
    ) -> Result<Self, KernelError> {
        let axis = offsets.rank().wrapping_sub(1);
        let segments = offsets.sizes.last().copied().unwrap_or(0) - 1;
        let fits = axis < data.rank()
            && data.sizes[..axis] == offsets.sizes[..axis]
            && segments >= 0
            && result.rank() == data.rank()
            && (0..data.rank()).all(|d| result.sizes[d] == if d == axis { segments } else { data.sizes[d] });
        let plain = |t: &&TensorType| t.is_contiguous() && t.dtype == data.dtype;
        if !fits || !all.iter().all(plain) || !offsets.is_contiguous() || offsets.dtype != DType::I64 {
            let what = format!("{data} by {offsets} to {result}");
            return Err(KernelError::Unsupported { kernel, what });
        }
        if !data.dtype.is_float() {
            return Err(KernelError::dtype(kernel, data.dtype));
        }
        let product = |sizes: &[i64]| sizes.iter().product::<i64>() as usize;
        Ok(Segments {
            dtype: data.dtype,
            op,
            initial,
            outer: product(&data.sizes[..axis]),
            size: data.sizes[axis] as usize,
            inner: product(&data.sizes[axis + 1..]),
            segments: segments as usize,
        })
    }

    /// Calls `body(segment, first, length)` with the numbers of a segment of the results, and of its first element.
    ///
    /// # Safety
    /// `offsets` is the buffer of the offsets.
    unsafe fn each(&self, offsets: *const u8, body: impl Fn(usize, usize, usize) + Sync) -> Result<(), KernelError> {
        let (count, per_row) = (self.outer * self.segments, self.segments + 1);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        let offsets = unsafe { std::slice::from_raw_parts(offsets.cast::<i64>(), self.outer * per_row) };
        for row in offsets.chunks(per_row) {
            let wrong = row.windows(2).find(|w| w[0] < 0 || w[1] < w[0] || w[1] > self.size as i64);
            if let Some(w) = wrong {
                let what = "Expected segment_length >= 0 to be true, but got false.";
                let message = format!("{what} A segment goes from {} to {} of {} elements", w[0], w[1], self.size);
                return Err(KernelError::InvalidValue(message));
            }
        }
        let average = (self.outer * self.size * self.inner / count).max(1);
        let piece = (PIECE / average).max(1);
        parallel_for(count.div_ceil(piece), |t| {
            for s in t * piece..count.min((t + 1) * piece) {
                let (row, segment) = (s / self.segments, s % self.segments);
                let [begin, end] = [0, 1].map(|k| offsets[row * per_row + segment + k] as usize);
                body(s, row * self.size + begin, end - begin);
            }
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        60 + 2 * (self.outer * self.size * self.inner) as u64
    }
}

#[derive(Clone, Copy)]
struct Addresses<const N: usize>([*mut u8; N]);
// SAFETY: tasks write disjoint segments.
unsafe impl<const N: usize> Send for Addresses<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Addresses<N> {}

/// `torch.segment_reduce`. Buffers: data, offsets, result.
#[derive(Debug)]
pub struct SegmentReduce(Segments);

impl SegmentReduce {
    /// Every step rounds to the type of the data, as on the CPU. `initial` is where a segment starts from.
    ///
    /// # Errors
    /// Shapes and types that do not belong together. At run: offsets that do not ascend or leave the data.
    pub fn new(
        op: SegmentOp,
        initial: Option<f64>,
        data: &TensorType,
        offsets: &TensorType,
        result: &TensorType,
    ) -> Result<Self, KernelError> {
        Ok(SegmentReduce(Segments::new("segment_reduce", op, initial, data, offsets, result, &[data, result])?))
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: Element>(&self, at: Addresses<3>) -> Result<(), KernelError> {
        let s = &self.0;
        let round = |v: f64| T::from_f64(v).to_f64();
        let start = s.initial.unwrap_or(match s.op {
            SegmentOp::Sum | SegmentOp::Mean => 0.0,
            SegmentOp::Prod => 1.0,
            SegmentOp::Max => f64::NEG_INFINITY,
            SegmentOp::Min => f64::INFINITY,
        });
        let body = |segment: usize, first: usize, length: usize| {
            let Addresses([data, _, out]) = { at };
            for l in 0..s.inner {
                let mut value = round(start);
                for j in 0..length {
                    // SAFETY: an element of the segment.
                    let x = unsafe { *data.cast::<T>().add((first + j) * s.inner + l) }.to_f64();
                    value = match s.op {
                        SegmentOp::Sum | SegmentOp::Mean => round(value + x),
                        SegmentOp::Prod => round(value * x),
                        SegmentOp::Max if x.is_nan() || value < x => x,
                        SegmentOp::Min if x.is_nan() || x < value => x,
                        SegmentOp::Max | SegmentOp::Min => value,
                    };
                }
                if s.op == SegmentOp::Mean {
                    value = match length {
                        0 if s.initial.is_none() => f64::NAN,
                        0 => value,
                        n => value / n as f64,
                    };
                }
                // SAFETY: the place of this segment.
                unsafe { *out.cast::<T>().add(segment * s.inner + l) = T::from_f64(value) };
            }
        };
        // SAFETY: the caller's contract.
        unsafe { s.each(at.0[1], body) }
    }
}

impl Kernel for SegmentReduce {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[2]]);
        // SAFETY: the caller's contract.
        unsafe { with_element!(floats: self.0.dtype, T => self.all::<T>(at)) }.unwrap_or(Ok(()))
    }

    fn cost(&self) -> u64 {
        self.0.cost()
    }
}

/// Gradient of [`SegmentReduce`]. Buffers: grad, result, data, offsets, out.
#[derive(Debug)]
pub struct SegmentReduceBackward(Segments);

impl SegmentReduceBackward {
    /// `grad` and `result` are of one layout, `data` and `out` of another. Elements outside of every segment get 0.
    ///
    /// # Errors
    /// As [`SegmentReduce::new`].
    pub fn new(
        op: SegmentOp,
        initial: Option<f64>,
        [grad, result]: [&TensorType; 2],
        data: &TensorType,
        offsets: &TensorType,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let all = [grad, result, data, out];
        let kernel = "segment_reduce_backward";
        if grad.sizes != result.sizes || out.sizes != data.sizes {
            return Err(KernelError::Unsupported { kernel, what: format!("{grad} of {result}, {out} of {data}") });
        }
        Ok(SegmentReduceBackward(Segments::new(kernel, op, initial, data, offsets, result, &all)?))
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    unsafe fn all<T: Element>(&self, at: Addresses<5>) -> Result<(), KernelError> {
        let s = &self.0;
        let round = |v: f64| T::from_f64(v).to_f64();
        // SAFETY: the out tensor.
        unsafe { at.0[4].write_bytes(0, s.outer * s.size * s.inner * size_of::<T>()) };
        let body = |segment: usize, first: usize, length: usize| {
            let Addresses([grad, result, data, _, out]) = { at };
            for l in 0..s.inner {
                let place = |j: usize| (first + j) * s.inner + l;
                // SAFETY: elements of the segment.
                let value = |j: usize| unsafe { *data.cast::<T>().add(place(j)) }.to_f64();
                // SAFETY: as above.
                let put = |j: usize, v: f64| unsafe { *out.cast::<T>().add(place(j)) = T::from_f64(v) };
                // SAFETY: the place of this segment.
                let [grad, result] =
                    [grad, result].map(|p| unsafe { *p.cast::<T>().add(segment * s.inner + l) }.to_f64());
                match s.op {
                    SegmentOp::Max | SegmentOp::Min => {
                        let shares = |j: usize| value(j).is_nan() || value(j) == result;
                        let count = (0..length).filter(|j| shares(*j)).count();
                        // Only positive gradients are divided among several, as on the CPU.
                        let share = if count > 1 && grad > 0.0 { grad / count as f64 } else { grad };
                        (0..length).filter(|j| shares(*j)).for_each(|j| put(j, share));
                    }
                    SegmentOp::Mean => (0..length).for_each(|j| put(j, grad / length as f64)),
                    SegmentOp::Sum => (0..length).for_each(|j| put(j, grad)),
                    SegmentOp::Prod => {
                        let total = round(grad * result);
                        for j in 0..length {
                            let x = value(j);
                            if x.is_nan() || x == 0.0 {
                                let start = round(s.initial.unwrap_or(1.0));
                                let others = (0..length).filter(|k| *k != j).fold(start, |p, k| round(p * value(k)));
                                put(j, grad * others);
                            } else {
                                put(j, total / x);
                            }
                        }
                    }
                }
            }
        };
        // SAFETY: the caller's contract.
        unsafe { s.each(at.0[3], body) }
    }
}

impl Kernel for SegmentReduceBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]]);
        // SAFETY: the caller's contract.
        unsafe { with_element!(floats: self.0.dtype, T => self.all::<T>(at)) }.unwrap_or(Ok(()))
    }

    fn cost(&self) -> u64 {
        self.0.cost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_rows() {
        let mut data = [1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0];
        let mut offsets = [0i64, 2, 2, 3];
        let x = TensorType::contiguous(DType::F32, &[3, 2]);
        let o = TensorType::contiguous(DType::I64, &[4]);
        for (op, expected) in [
            (SegmentOp::Sum, [3.0, 30.0, 0.0, 0.0, 3.0, 30.0]),
            (SegmentOp::Prod, [2.0, 200.0, 1.0, 1.0, 3.0, 30.0]),
            (SegmentOp::Max, [2.0, 20.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 3.0, 30.0]),
        ] {
            let mut out = [0f32; 6];
            let kernel = SegmentReduce::new(op, None, &x, &o, &x).unwrap();
            let buffers = [data.as_mut_ptr().cast(), offsets.as_mut_ptr().cast(), out.as_mut_ptr().cast()];
            // SAFETY: the buffers have the layouts the kernel was made for.
            unsafe { kernel.run(&buffers, &[]).unwrap() };
            assert_eq!(out, expected, "{op:?}");
        }
    }
}
