//! Writing through index tensors: `scatter`, `index_add`, `index_put`.
//!
//! Updates of one element combine in index order, whatever the number of threads. An index out of range stops the task
//! that meets it before anything is written there; other elements may then be updated already.

pub(crate) mod combine;
pub(crate) mod float;
mod lines;
mod put;

pub use lines::Scatter;
pub use put::{IndexAdd, IndexCopy, IndexPut};

#[cfg(test)]
mod tests;
