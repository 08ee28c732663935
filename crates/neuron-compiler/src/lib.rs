//! From a Neuron IR graph to a runnable program.

mod program;

pub use program::{Program, Slot, Step};
