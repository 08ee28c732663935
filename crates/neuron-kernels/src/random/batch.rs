//! Batches of random words and floats, one block of the generator per vector lane.

use super::normal::{normal_f32, uniform_f32};
use super::philox::philox;
use crate::simd::{Level, level};

/// Blocks of the generator made together.
pub(super) const BLOCKS: usize = 64;

/// Words of a batch: four per block.
pub(super) const WORDS: usize = 4 * BLOCKS;

/// What becomes of the words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Batch {
    /// They stay.
    Words,
    /// Bits of floats uniform in [0, 1).
    Uniform,
    /// Bits of standard normal floats, each pair from two words.
    Normal,
}

impl Batch {
    /// Fills `out` from its start with the blocks from `block` on; the rest of the last group of blocks may be filled
    /// as well.
    pub fn make(self, seed: u64, offset: u64, block: u64, blocks: usize, out: &mut [u32; WORDS]) {
        // Whole vectors, however few blocks are wanted.
        let blocks = blocks.next_multiple_of(16).min(BLOCKS);
        match level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the instructions of the level.
            Level::Avx512 => unsafe { make_avx512(self, seed, offset, block, blocks, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { make_avx2(self, seed, offset, block, blocks, out) },
            _ => make(self, seed, offset, block, blocks, out),
        }
    }
}

// Functions, not closures: the loops are too long for the inliner to copy a closure into each instruction set.

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn make_avx512(batch: Batch, seed: u64, offset: u64, block: u64, blocks: usize, out: &mut [u32; WORDS]) {
    make(batch, seed, offset, block, blocks, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn make_avx2(batch: Batch, seed: u64, offset: u64, block: u64, blocks: usize, out: &mut [u32; WORDS]) {
    make(batch, seed, offset, block, blocks, out);
}

/// Loops that run over blocks alone, which is what compilers turn into vectors.
#[inline(always)]
fn make(batch: Batch, seed: u64, offset: u64, block: u64, blocks: usize, out: &mut [u32; WORDS]) {
    let mut words = [[0u32; BLOCKS]; 4];
    for l in 0..blocks {
        let block = philox(seed, offset, block.wrapping_add(l as u64));
        for (word, lanes) in block.into_iter().zip(&mut words) {
            lanes[l] = word;
        }
    }
    match batch {
        Batch::Words => {}
        Batch::Uniform => {
            for word in words.as_flattened_mut() {
                *word = uniform_f32(*word).to_bits();
            }
        }
        Batch::Normal => {
            for pair in words.chunks_exact_mut(2) {
                let [radius, angle] = pair else { continue };
                for (radius, angle) in radius[..blocks].iter_mut().zip(&mut angle[..blocks]) {
                    let [first, second] = normal_f32(*radius, *angle);
                    (*radius, *angle) = (first.to_bits(), second.to_bits());
                }
            }
        }
    }
    for (l, out) in out.chunks_exact_mut(4).take(blocks).enumerate() {
        for (out, lanes) in out.iter_mut().zip(&words) {
            *out = lanes[l];
        }
    }
}
