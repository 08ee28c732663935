//! Reductions: sum, product, extremes, their positions, any and all, variance.
//!
//! ```
//! use neuron_ir::{DType, ReduceOp, TensorType};
//! use neuron_kernels::{Kernel, reduce::Reduce};
//!
//! let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
//! let mut rows = [0.0f32; 2];
//! let input = TensorType::contiguous(DType::F32, &[2, 3]);
//! let sum = Reduce::new(ReduceOp::Sum, &input, &[1], &TensorType::contiguous(DType::F32, &[2, 1])).unwrap();
//! // SAFETY: both buffers have the layout the kernel was made for.
//! unsafe { sum.run(&[x.as_mut_ptr().cast(), rows.as_mut_ptr().cast()], &[]).unwrap() };
//! assert_eq!(rows, [6.0, 15.0]);
//! ```

mod arg;
pub(crate) mod element;
pub(crate) mod fold;
pub(crate) mod plan;
pub(crate) mod scratch;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod variance;
pub(crate) mod walk;

use crate::{Kernel, KernelError};
use arg::Arg;
use element::{BFloat16, load_float, load_integer, loader_of_truth, store_any, store_float, store_integer};
use fold::{All, Any, Fold, Max, Min, Prod, Sum};
use neuron_ir::{DType, ReduceOp, Scalar, TensorType};
use plan::Plan;
use std::marker::PhantomData;
use variance::Moments;

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

/// Reduces dimensions of a tensor. Buffers: input, output.
#[derive(Debug)]
pub struct Reduce {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(Reduce);

impl Reduce {
    /// Reduces `dims` of `input`, of any strides, to `output`, of any strides and with those extents 1. No dimension in
    /// `dims` reduces nothing: every element is a reduction of its own.
    ///
    /// - [`ReduceOp::Sum`], [`ReduceOp::Prod`]: any input; accumulated in `f32` for `f32` and the half floats, `f64` for
    ///   `f64`, `i64` (wrapping) for the rest, and converted to the output's type, which is floating-point where the input is.
    ///   0 and 1 where nothing is reduced.
    /// - [`ReduceOp::Max`], [`ReduceOp::Min`]: any input; NaN if any element is.
    /// - [`ReduceOp::ArgMax`], [`ReduceOp::ArgMin`]: any input, `i64` output, one dimension or all of them, which count
    ///   as flattened row-major. The first of equals; the first NaN, if any.
    /// - [`ReduceOp::Any`], [`ReduceOp::All`]: any input, non-zero being true; `bool` or `uint8` output.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for layouts that do not belong together, output types other than those named,
    /// positions along several but not all dimensions, or beyond 2^32.
    pub fn new(op: ReduceOp, input: &TensorType, dims: &[i64], output: &TensorType) -> Result<Reduce, KernelError> {
        let arg = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
        let plan = Plan::new("reduce", input, dims, &[output], arg)?;
        let unsupported = |what: String| Err(KernelError::Unsupported { kernel: "reduce", what });
        let kernel = match op {
            ReduceOp::Sum => accumulate::<Sum>(plan, input.dtype, output.dtype)?,
            ReduceOp::Prod => accumulate::<Prod>(plan, input.dtype, output.dtype)?,
            ReduceOp::Max => extreme::<Max>(plan, input.dtype, output.dtype)?,
            ReduceOp::Min => extreme::<Min>(plan, input.dtype, output.dtype)?,
            ReduceOp::Any | ReduceOp::All => {
                if !matches!(output.dtype, DType::Bool | DType::U8) {
                    return unsupported(format!("{op:?} as {}", output.dtype));
                }
                let (load, store) = (loader_of_truth(input.dtype)?, store_integer(output.dtype)?);
                if op == ReduceOp::Any {
                    fold::<u8, u8, Any, 128>(plan, false, load, store, input.dtype, output.dtype)
                } else {
                    fold::<u8, u8, All, 128>(plan, false, load, store, input.dtype, output.dtype)
                }
            }
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                if output.dtype != DType::I64 {
                    return unsupported(format!("{op:?} as {}", output.dtype));
                }
                let counted = (0..input.rank()).filter(|&d| input.sizes[d] != 1).count();
                let reduced = dims.iter().filter(|&&d| input.sizes[d as usize] != 1).count();
                if reduced > 1 && reduced != counted {
                    return unsupported(format!("{op:?} of {input} over {dims:?}"));
                }
                position(op == ReduceOp::ArgMax, plan, input.dtype, false)?
            }
        };
        Ok(Reduce { kernel })
    }
}

/// The extreme of one dimension and where it is: `torch.max(dim)`, `torch.min(dim)`. Buffers: input, values, indices.
#[derive(Debug)]
pub struct MinMaxDim {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(MinMaxDim);

impl MinMaxDim {
    /// The largest (`max`) or smallest elements of `input` along `dim` and their indices, all of any strides; the
    /// extent of `dim` is 1 in the results. The first of equals; the first NaN, if any.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] where `values` has another type than `input`, `indices` is not `i64`, or the layouts
    /// do not belong together.
    pub fn new(
        max: bool,
        input: &TensorType,
        dim: usize,
        values: &TensorType,
        indices: &TensorType,
    ) -> Result<MinMaxDim, KernelError> {
        if values.dtype != input.dtype || indices.dtype != DType::I64 {
            let what = format!("{input} to {values} and {indices}");
            return Err(KernelError::Unsupported { kernel: "min_max_dim", what });
        }
        let dims: &[i64] = if input.rank() == 0 && dim == 0 { &[] } else { &[dim as i64] };
        let plan = Plan::new("min_max_dim", input, dims, &[values, indices], true)?;
        Ok(MinMaxDim { kernel: position(max, plan, input.dtype, true)? })
    }
}

/// Variance and mean. Buffers: input, variance, mean.
#[derive(Debug)]
pub struct Variance {
    kernel: Box<dyn Kernel>,
}
delegate_kernel!(Variance);

impl Variance {
    /// Variance over `dims` of `input`, divided by the number of elements less `correction` or by 0 if that is
    /// negative, and the mean. All of any strides and floating-point; reduced extents are 1 in the results.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for integers, or layouts that do not belong together.
    pub fn new(
        input: &TensorType,
        dims: &[i64],
        correction: f64,
        var: &TensorType,
        mean: &TensorType,
    ) -> Result<Variance, KernelError> {
        for t in [input, var, mean] {
            if !t.dtype.is_float() {
                return Err(KernelError::dtype("variance", t.dtype));
            }
        }
        let plan = Plan::new("variance", input, dims, &[var, mean], false)?;
        let store = [store_float(var.dtype)?, store_float(mean.dtype)?];
        let out_item = [var.dtype.size(), mean.dtype.size()];
        let kernel: Box<dyn Kernel> = match input.dtype {
            DType::F32 => Box::new(Moments::<f32> { plan, correction, store, out_item, element: PhantomData }),
            DType::F64 => Box::new(Moments::<f64> { plan, correction, store, out_item, element: PhantomData }),
            DType::F16 => {
                Box::new(Moments::<element::Half> { plan, correction, store, out_item, element: PhantomData })
            }
            _ => Box::new(Moments::<BFloat16> { plan, correction, store, out_item, element: PhantomData }),
        };
        Ok(Variance { kernel })
    }
}

fn fold<C, T, O, const L: usize>(
    plan: Plan,
    native: bool,
    load: element::Load<C>,
    store: element::Store<C>,
    input: DType,
    output: DType,
) -> Box<dyn Kernel>
where
    C: element::Accumulator,
    T: element::Element,
    O: fold::Combine<C>,
{
    let (item, out_item) = (input.size(), output.size());
    Box::new(Fold::<C, T, O, L> { plan, native, load, store, item, out_item, types: PhantomData })
}

fn accumulate<O>(plan: Plan, input: DType, output: DType) -> Result<Box<dyn Kernel>, KernelError>
where
    O: fold::Combine<f32> + fold::Combine<f64> + fold::Combine<i64>,
{
    Ok(match input {
        DType::BF16 => {
            fold::<f32, BFloat16, O, 64>(plan, true, load_float(input)?, store_float(output)?, input, output)
        }
        DType::F32 | DType::F16 => {
            fold::<f32, f32, O, 64>(plan, input == DType::F32, load_float(input)?, store_float(output)?, input, output)
        }
        DType::F64 => fold::<f64, f64, O, 32>(plan, true, load_float(input)?, store_float(output)?, input, output),
        _ => {
            fold::<i64, i64, O, 32>(plan, input == DType::I64, load_integer(input)?, store_any(output)?, input, output)
        }
    })
}

/// Runs `$body` with `$C` the type extremes of `$dtype` are compared in, `$L` the lanes, `$native` true where they are
/// stored as such, `$load` and `$store` making readers and writers.
macro_rules! with_comparable {
    ($dtype:expr, |$C:ident, $L:ident, $native:ident, $load:ident, $store:ident| $body:expr) => {
        match $dtype {
            DType::F32 => {
                with_comparable!(f32, 64, true, load_float, store_float, $C, $L, $native, $load, $store, $body)
            }
            DType::F16 | DType::BF16 => {
                with_comparable!(f32, 64, false, load_float, store_float, $C, $L, $native, $load, $store, $body)
            }
            DType::F64 => {
                with_comparable!(f64, 32, true, load_float, store_float, $C, $L, $native, $load, $store, $body)
            }
            DType::I64 => {
                with_comparable!(i64, 32, true, load_integer, store_any, $C, $L, $native, $load, $store, $body)
            }
            d => {
                let native = d == DType::I32;
                with_comparable!(i32, 64, native, load_integer, store_integer, $C, $L, $native, $load, $store, $body)
            }
        }
    };
    ($t:ty, $lanes:expr, $is:expr, $l:ident, $s:ident, $C:ident, $L:ident, $native:ident, $load:ident, $store:ident,
        $body:expr) => {{
        type $C = $t;
        const $L: usize = $lanes;
        let $native: bool = $is;
        let ($load, $store) = ($l::<$t>, $s::<$t>);
        $body
    }};
}

fn extreme<O>(plan: Plan, input: DType, output: DType) -> Result<Box<dyn Kernel>, KernelError>
where
    O: fold::Combine<f32> + fold::Combine<f64> + fold::Combine<i64> + fold::Combine<i32>,
{
    if input == DType::BF16 {
        let (load, store) = (load_float(input)?, store_float(output)?);
        return Ok(fold::<f32, BFloat16, O, 64>(plan, true, load, store, input, output));
    }
    Ok(with_comparable!(input, |C, L, native, load, store| {
        fold::<C, C, O, L>(plan, native, load(input)?, store(output)?, input, output)
    }))
}

fn position(max: bool, plan: Plan, input: DType, values: bool) -> Result<Box<dyn Kernel>, KernelError> {
    if u32::try_from(plan.count).is_err() {
        let what = format!("positions among {} elements", plan.count);
        return Err(KernelError::Unsupported { kernel: "reduce", what });
    }
    Ok(with_comparable!(input, |C, L, native, load, store| {
        let (load, item) = (load(input)?, input.size());
        let values = if values { Some((store(input)?, item)) } else { None };
        if max {
            Box::new(Arg::<C, Max, L> { plan, native, load, item, values, op: PhantomData }) as Box<dyn Kernel>
        } else {
            Box::new(Arg::<C, Min, L> { plan, native, load, item, values, op: PhantomData })
        }
    }))
}
