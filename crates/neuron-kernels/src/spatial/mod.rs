//! Kernels over windows and planes: pooling, resampling, padding, unfolding, sampling at a grid, bags of embeddings.
//!
//! Tensors are `[n, c, d, h, w]`, row-major or with the channels last; [`Planes`] makes one loop of the two.

mod avg_pool;
mod bag;
mod element;
mod fold;
mod grid;
mod grid_backward;
mod max_pool;
mod pick;
mod planes;
mod positions;
mod resample;
mod taps;
#[cfg(test)]
mod tests;
mod windows;

pub use avg_pool::{AvgPool, AvgPoolBackward};
pub use bag::EmbeddingBag;
pub use fold::{Fold, Unfold};
pub use grid::GridSample;
pub use grid_backward::GridSampleBackward;
pub use max_pool::{FractionalMaxPool, MaxPool};
pub use pick::{Pick, PickBackward};
pub use planes::{channels_last, is_channels_last};
pub use positions::ToPositions;
pub use resample::Resample;
