//! Reading through index tensors: `index_select`, `embedding`, `gather`, advanced indexing.
//!
//! Every index is checked before it is used; the error is that of the first failing task, so it does not depend on
//! the number of threads.

mod gather;
pub(crate) mod lookup;
pub(crate) mod nest;
mod select;

pub use gather::Gather;
pub(crate) use select::Indices;
pub use select::{Index, IndexSelect};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;
