//! The operator table: every ATen operator this project implements, lowered to Neuron IR in one place.
//!
//! [`table`] lists the operators; each entry names the ATen overloads it serves and the function that builds their
//! graph. Functional, in-place and `out=` overloads share one lowering: it computes values, and [`Lower::store`] puts
//! them where PyTorch wants them.
//!
//! Invariant: shapes, dtypes and strides of outputs come from PyTorch's meta kernels and are given to a lowering, never
//! decided by it. What a lowering does not cover it refuses with [`LowerError::Unsupported`], and the operator runs on
//! the CPU.

mod call;
mod declared;
mod lower;
mod ops;
mod page;
mod promote;
mod table;

pub use call::{Arg, Call, Known, ScalarArg, ScalarKind, Source, TensorArg};
pub use declared::{DECLARED, Declared};
pub use lower::{Lower, LowerError, Lowered, OutputType};
pub use page::page;
pub use promote::{Standing, promote, result_type};
pub use table::{Entry, lower, table};
