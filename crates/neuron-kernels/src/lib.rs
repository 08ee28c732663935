//! SIMD kernels on host memory: what a software NeuronCore executes.

pub mod attention;
pub mod check;
pub mod concat;
pub mod convolution;
pub mod ctc;
pub mod cumulative;
pub mod distance;
pub mod embedding;
pub mod gemm;
pub mod index;
pub mod kernel;
pub mod loss;
pub mod movement;
pub mod nonzero;
pub mod norm;
pub mod optimizer;
pub mod pointwise;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod scatter;
pub mod search;
pub mod segment;
pub mod simd;
pub mod softmax;
pub mod sort;
pub mod spatial;

pub use kernel::{Kernel, KernelError};
