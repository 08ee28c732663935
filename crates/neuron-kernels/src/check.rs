//! Elements that have to lie in a range: PyTorch raises an error for those that do not.

use crate::pool::parallel_for;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use half::{bf16, f16};
use neuron_ir::{CheckOp, DType, Scalar, TensorType};
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements of one task.
const PIECE: usize = 1 << 15;

/// What PyTorch says of an element that is out of range.
pub const fn message(op: CheckOp) -> &'static str {
    match op {
        CheckOp::Weight => "probability tensor contains either `inf`, `nan` or element < 0",
        CheckOp::Total => "invalid multinomial distribution (sum of probabilities <= 0)",
        CheckOp::Probability => "Expected p_in >= 0 && p_in <= 1 to be true, but got false.",
        CheckOp::Prediction => "all elements of input should be between 0 and 1",
        CheckOp::Deviation => "normal expects all elements of std >= 0.0",
        CheckOp::Rate => "invalid Poisson rate, expected rate to be non-negative",
        CheckOp::Target => "all elements of target should be between 0 and 1",
        CheckOp::Excess => "Expected all rows of lengths along axis to sum to the size of data along it",
        CheckOp::Class => "target out of range: expected classes below their number",
    }
}

/// A check of every element. Buffer: the tensor.
#[derive(Debug)]
pub struct Check {
    op: CheckOp,
    dtype: DType,
    numel: usize,
}

impl Check {
    /// A row-major tensor of floats.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for others.
    pub fn new(op: CheckOp, ty: &TensorType) -> Result<Check, KernelError> {
        if !ty.dtype.is_float() || !ty.is_contiguous() {
            return Err(KernelError::dtype("check", ty.dtype));
        }
        Ok(Check { op, dtype: ty.dtype, numel: ty.numel() as usize })
    }

    /// # Safety
    /// The tensor is that of the constructor, of elements `T`.
    unsafe fn all<T: Copy>(&self, from: *const u8, wide: impl Fn(T) -> f64 + Sync) -> bool {
        // Comparisons with NaN are false, so NaN is out of every range.
        let (low, high) = match self.op {
            CheckOp::Weight => (0.0, f64::MAX),
            CheckOp::Total => (f64::from_bits(1), f64::INFINITY),
            CheckOp::Probability | CheckOp::Prediction | CheckOp::Target => (0.0, 1.0),
            CheckOp::Excess => (0.0, 0.0),
            CheckOp::Deviation | CheckOp::Rate => (0.0, f64::INFINITY),
            CheckOp::Class => (f64::NEG_INFINITY, -1.0),
        };
        let from = Input(from);
        let failed = AtomicBool::new(false);
        parallel_for(self.numel.div_ceil(PIECE), |task| {
            let from: Input = from;
            let at = task * PIECE;
            // SAFETY: a part of the tensor.
            let part = unsafe { std::slice::from_raw_parts(from.0.cast::<T>().add(at), PIECE.min(self.numel - at)) };
            let fits = vectorized(
                #[inline(always)]
                || part.iter().fold(true, |all, x| all & (wide(*x) >= low) & (wide(*x) <= high)),
            );
            if !fits {
                failed.store(true, Ordering::Relaxed);
            }
        });
        !failed.into_inner()
    }
}

#[derive(Clone, Copy)]
struct Input(*const u8);

// SAFETY: only read.
unsafe impl Send for Input {}
// SAFETY: as above.
unsafe impl Sync for Input {}

impl Kernel for Check {
    unsafe fn run(&self, buffers: &[*mut u8], _scalars: &[Scalar]) -> Result<(), KernelError> {
        let from = buffers[0].cast_const();
        // SAFETY: the caller's buffer, of this type.
        let fits = unsafe {
            match self.dtype {
                DType::F32 => self.all(from, |x: f32| f64::from(x)),
                DType::F64 => self.all(from, |x: f64| x),
                DType::BF16 => self.all(from, |x: bf16| f64::from(f32::from_bits(u32::from(x.to_bits()) << 16))),
                _ => self.all(from, |x: f16| x.to_f64()),
            }
        };
        if fits { Ok(()) } else { Err(KernelError::InvalidElement(message(self.op))) }
    }

    fn cost(&self) -> u64 {
        20 + self.numel as u64 / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(op: CheckOp, x: &[f32]) -> bool {
        let check = Check::new(op, &TensorType::contiguous(DType::F32, &[x.len() as i64])).unwrap();
        // SAFETY: the buffer has the elements of the type, and is only read.
        unsafe { check.run(&[x.as_ptr() as *mut u8], &[]).is_ok() }
    }

    #[test]
    fn ranges() {
        assert!(fits(CheckOp::Probability, &[0.0, 0.5, 1.0, -0.0]) && fits(CheckOp::Probability, &[]));
        assert!(!fits(CheckOp::Probability, &[0.5; 100_000].map(|x: f32| x * 3.0)));
        assert!(!fits(CheckOp::Weight, &[1.0, f32::INFINITY]) && !fits(CheckOp::Weight, &[f32::NAN]));
        assert!(fits(CheckOp::Total, &[1e-45]) && !fits(CheckOp::Total, &[1.0, 0.0]));
        assert!(!fits(CheckOp::Rate, &[-1e-45]));
    }
}
