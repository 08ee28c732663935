//! The C interface of `csrc/neuron.h`, one file per section.
//!
//! Every function catches panics: none crosses into C++. A failure's message stays with the thread that called.

pub mod device;
pub mod event;
pub mod graph;
pub mod host;
pub mod memory;
pub mod plan;
pub(crate) mod stablehlo;
pub mod status;
pub mod stream;
pub mod tracking;
