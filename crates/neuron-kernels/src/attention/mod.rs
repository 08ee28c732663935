//! `scaled_dot_product_attention` in one pass, and its gradient.
//!
//! Scores never exist as a whole: blocks of queries meet blocks of keys, and a running softmax (its largest score and
//! sum per query) corrects what came before. Half floats multiply as `f32`; softmax and sums are in `f32`.
//!
//! Semantics are those of PyTorch's math path: causality aligns the first query with the first key, a mask counts as a
//! bias of 0 or `-inf`, and a query that sees no key yields zeros, with `-inf` as its log-sum-exp.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod backward;
mod bias_gradient;
mod convert;
mod few_queries;
mod forward;
mod gradient_tile;
mod portable;
mod problem;
mod real;
#[cfg(test)]
mod reference;
mod scores;
mod scratch;
#[cfg(test)]
mod tests;

pub use backward::AttentionBackward;
pub use forward::Attention;

/// What a call fixes besides its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Query `i` sees keys up to `i` only.
    pub causal: bool,
    /// Multiplies the scores, before the bias.
    pub scale: f64,
    /// Probability that a softmax weight is dropped; the others grow by `1 / (1 - dropout)`. Above 0 the last two
    /// scalars of a launch are the seed and offset of the Philox generator.
    pub dropout: f64,
}
