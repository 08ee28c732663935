//! Layer norm and RMS norm, with their gradients.
//!
//! All tensors are row-major: a row is everything the trailing normalised dimensions hold. The arithmetic is that of
//! `f32`, of `f64` where the input is.

mod backward;
mod channel;
mod forward;
#[cfg(test)]
mod tests;

use crate::reduce::element::{BFloat16, Half};
use crate::{Kernel, KernelError};
use backward::Backward;
pub use channel::ChannelSums;
use forward::Forward;
use neuron_ir::{DType, Scalar, TensorType};

macro_rules! delegate_kernel {
    ($t:ty) => {
        impl Kernel for $t {
            unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
                // SAFETY: passed on to the caller.
                unsafe { self.kernel.run(buffers, scalars) }
            }

            fn cost(&self) -> u64 {
                self.kernel.cost()
            }
        }
    };
}

/// Makes a kernel for rows of a floating-point type.
macro_rules! for_element {
    ($kernel:ident, $center:literal, $dtype:expr, $($argument:expr),*) => {
        match $dtype {
            DType::F64 => $kernel::<f64, f64, $center, 32>::boxed($($argument),*)?,
            DType::F16 => $kernel::<f32, Half, $center, 64>::boxed($($argument),*)?,
            DType::BF16 => $kernel::<f32, BFloat16, $center, 64>::boxed($($argument),*)?,
            _ => $kernel::<f32, f32, $center, 64>::boxed($($argument),*)?,
        }
    };
}

/// Number of rows and their length, if the tensors are row-major, floating-point and of one type and shape.
fn rows(
    kernel: &'static str,
    tensors: &[&TensorType],
    dims: usize,
    others: &[Option<DType>],
) -> Result<(usize, usize), KernelError> {
    let first = tensors[0];
    if let Some(d) = tensors.iter().map(|t| t.dtype).chain(others.iter().flatten().copied()).find(|d| !d.is_float()) {
        return Err(KernelError::dtype(kernel, d));
    }
    if dims > first.rank()
        || tensors.iter().any(|t| t.sizes != first.sizes || t.dtype != first.dtype || !t.is_contiguous())
    {
        let what = format!("{first} normalised over {dims} dimensions: tensors of one type and shape, row-major");
        return Err(KernelError::Unsupported { kernel, what });
    }
    let (outer, inner) = first.sizes.split_at(first.rank() - dims);
    Ok((outer.iter().product::<i64>() as usize, inner.iter().product::<i64>() as usize))
}

/// Layer norm. Buffers: x, weight?, bias?, out, mean, rstd; out may be x.
#[derive(Debug)]
pub struct LayerNorm {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(LayerNorm);

impl LayerNorm {
    /// `(x - mean) * rstd * weight + bias` over the last `dims` dimensions, `rstd = 1 / sqrt(variance + eps)` with the
    /// biased variance. `x` and `out` are row-major and of one type; `weight` and `bias`, given by their types, are dense and as long as a
    /// row; `mean` and `rstd` are dense, one per row, of type `stats`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or other layouts.
    pub fn new(
        x: &TensorType,
        dims: usize,
        eps: f64,
        weight: Option<DType>,
        bias: Option<DType>,
        out: &TensorType,
        stats: DType,
    ) -> Result<LayerNorm, KernelError> {
        let size = rows("layer_norm", &[x, out], dims, &[weight, bias, Some(stats)])?;
        let kernel = for_element!(Forward, true, x.dtype, size, eps, weight, bias, stats);
        Ok(LayerNorm { kernel })
    }
}

/// RMS norm, as `aten::_fused_rms_norm`. Buffers: x, weight?, out, rstd; out may be x.
#[derive(Debug)]
pub struct RmsNorm {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(RmsNorm);

impl RmsNorm {
    /// `x * rstd * weight` over the last `dims` dimensions, `rstd = 1 / sqrt(mean(x^2) + eps)`; layouts as in
    /// [`LayerNorm::new`].
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or other layouts.
    pub fn new(
        x: &TensorType,
        dims: usize,
        eps: f64,
        weight: Option<DType>,
        out: &TensorType,
        stats: DType,
    ) -> Result<RmsNorm, KernelError> {
        let size = rows("rms_norm", &[x, out], dims, &[weight, Some(stats)])?;
        let kernel = for_element!(Forward, false, x.dtype, size, eps, weight, None, stats);
        Ok(RmsNorm { kernel })
    }
}

/// Gradients of [`LayerNorm`]. Buffers: grad, x, mean, rstd, weight?, then the wanted of grad_x, grad_weight, grad_bias.
#[derive(Debug)]
pub struct LayerNormBackward {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(LayerNormBackward);

impl LayerNormBackward {
    /// Gradients with respect to x, weight and bias, as far as `want` says. `grad`, `x` and `grad_x` are row-major
    /// and of one type; `grad_weight` and `grad_bias` are dense rows of the weight's type, or x's without a weight.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or other layouts.
    pub fn new(
        grad: &TensorType,
        x: &TensorType,
        dims: usize,
        weight: Option<DType>,
        stats: DType,
        want: [bool; 3],
    ) -> Result<LayerNormBackward, KernelError> {
        let size = rows("layer_norm_backward", &[grad, x], dims, &[weight, Some(stats)])?;
        let kernel = for_element!(Backward, true, x.dtype, size, weight, stats, weight.unwrap_or(x.dtype), want);
        Ok(LayerNormBackward { kernel })
    }
}

/// Gradients of [`RmsNorm`]. Buffers: grad, x, rstd, weight?, then the wanted of grad_x, grad_weight.
#[derive(Debug)]
pub struct RmsNormBackward {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(RmsNormBackward);

impl RmsNormBackward {
    /// Gradients with respect to x and weight, as far as `want` says; layouts as in [`LayerNormBackward::new`].
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or other layouts.
    pub fn new(
        grad: &TensorType,
        x: &TensorType,
        dims: usize,
        weight: Option<DType>,
        stats: DType,
        want: [bool; 2],
    ) -> Result<RmsNormBackward, KernelError> {
        let size = rows("rms_norm_backward", &[grad, x], dims, &[weight, Some(stats)])?;
        let want = [want[0], want[1], false];
        let kernel = for_element!(Backward, false, x.dtype, size, weight, stats, weight.unwrap_or(x.dtype), want);
        Ok(RmsNormBackward { kernel })
    }
}
