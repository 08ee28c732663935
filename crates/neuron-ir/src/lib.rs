//! Neuron IR: what every part of the stack agrees a computation is.
//!
//! An ATen operator is lowered to a [`Graph`] once; eager execution, fusion, `torch.compile` and both targets take it
//! from there. Values are logical tensors ([`Shape`]); memory layout ([`TensorType`]) is a property of the arguments
//! and of the stores at the end, so a transposed argument costs no operator.
//!
//! Invariants: this crate knows nothing of PyTorch beyond its dtype numbers, of kernels, or of devices. Arithmetic is
//! on compute types only ([`DType::compute`]); rounding to a storage type is an explicit [`Op::Convert`].

mod dtype;
mod graph;
mod op;
mod optimizer;
mod ordering;
mod pointwise;
pub mod series;
mod spatial;
pub mod stablehlo;
mod text;
mod types;
mod verify;

pub use dtype::DType;
pub use graph::{Destination, Graph, GraphBuilder, Node, Output, Value};
pub use op::{CheckOp, ConvolutionOp, ConvolutionWindows, CtcOp, Op, RandomOp, ReduceOp, SampleOp, Scalar, ScatterOp};
pub use optimizer::OptimizerOp;
pub use ordering::{OrderingOp, SegmentOp, Selection};
pub use pointwise::{BinaryOp, UnaryOp};
pub use spatial::{BagMode, Blocks, Divisor, Filter, Outside, Sampling, SpatialOp, Taps, Window};
pub use types::{Dims, Shape, TensorType, broadcast_sizes, contiguous_strides};
pub use verify::{VerifyError, verify};
