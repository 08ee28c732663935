//! Random tensors: a counter-based generator, so that a value depends on seed, offset and position alone.

mod philox;

pub use philox::philox;

use neuron_ir::{DType, RandomOp};

/// 32-bit words of the generator that one element takes.
///
/// A tensor of `n` elements advances the generator's offset by `n` times this, rounded up to a multiple of 4.
pub fn values_per_element(op: RandomOp, dtype: DType) -> u64 {
    match (op, dtype) {
        (RandomOp::Bits, _) | (_, DType::F64) => 2,
        _ => 1,
    }
}
