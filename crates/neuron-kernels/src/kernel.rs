//! What every kernel is: prepared once, run on addresses.

use neuron_ir::{DType, Scalar};
use std::fmt::Debug;
use thiserror::Error;

/// A kernel with everything fixed but addresses and scalar values.
///
/// A constructor takes the layouts of the operands and says in its documentation which layouts it accepts; its buffers
/// are the inputs, then the outputs, in the order of the constructor's arguments.
pub trait Kernel: Send + Sync + Debug {
    /// Computes the outputs from the inputs, on the calling thread and the [pool](crate::pool).
    ///
    /// The result does not depend on the number of threads.
    ///
    /// # Errors
    /// Only what depends on values: an index out of range, an integer division by zero.
    ///
    /// # Safety
    /// Every buffer is valid for the layout the kernel was made for; outputs do not overlap inputs or each other,
    /// except where the constructor allows it.
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError>;

    /// Rough duration in nanoseconds on one thread: decides whether a launch is worth a hand-over to another thread.
    fn cost(&self) -> u64;
}

/// Why a kernel could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// No kernel for this combination; the caller falls back.
    #[error("{kernel}: no kernel for {what}")]
    Unsupported {
        /// Kernel name.
        kernel: &'static str,
        /// Dtype, layout or attribute that is not covered.
        what: String,
    },
    /// An index lies outside its dimension. PyTorch raises `IndexError` on the CPU.
    #[error("index {index} is out of bounds for dimension {dim} with size {size}")]
    IndexOutOfRange {
        /// The index as given.
        index: i64,
        /// Dimension indexed.
        dim: usize,
        /// Its extent.
        size: i64,
    },
    /// A class target lies outside the classes. PyTorch raises `IndexError` on the CPU.
    #[error("Target {target} is out of bounds.")]
    TargetOutOfRange {
        /// The target as given.
        target: i64,
    },
    /// An element that an operator does not take, in PyTorch's words. PyTorch raises `RuntimeError` on the CPU.
    #[error("{0}")]
    InvalidElement(&'static str),
    /// As [`KernelError::InvalidElement`], with the values that do not fit.
    #[error("{0}")]
    InvalidValue(String),
    /// An integer division by zero. PyTorch raises `RuntimeError("ZeroDivisionError")`.
    #[error("ZeroDivisionError")]
    ZeroDivision,
}

impl KernelError {
    /// No kernel for this element type.
    pub fn dtype(kernel: &'static str, dtype: DType) -> Self {
        KernelError::Unsupported { kernel, what: dtype.to_string() }
    }
}
