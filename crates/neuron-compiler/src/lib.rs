//! From a Neuron IR graph to a runnable program.
//!
//! [`compile`] walks a graph once. Pointwise operators, broadcasts and transposes are not executed where they stand:
//! they are folded into the kernel that stores their result, or into a temporary where a kernel needs them in memory.
//! Other operators become one kernel each, writing straight into an output where that is safe.
//!
//! Invariants: a program computes what the graph says whatever memory arguments share; a kernel that does not support
//! an operator's types is an error of compilation, not of execution.

mod analysis;
mod arena;
mod convolution;
mod ctc;
mod fusible;
mod kernels;
mod layout;
mod optimizer;
mod ordering;
mod plan;
mod pointwise;
mod product;
mod program;
mod spatial;
mod strips;
mod tape;
mod views;

pub use plan::compile;
pub use program::{Program, ScalarSource, Slot, Step};
pub use tape::{Joined, Origin, Tape};
