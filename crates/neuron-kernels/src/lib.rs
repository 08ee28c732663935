//! SIMD kernels on host memory: what a software NeuronCore executes.

pub mod gemm;
pub mod kernel;
pub mod pool;
pub mod random;
pub mod simd;

pub use kernel::{Kernel, KernelError};
