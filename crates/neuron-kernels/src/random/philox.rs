//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four 32-bit words of the generator `seed` at position `offset + 4 * block`.
///
/// `offset` is the generator's offset as PyTorch keeps it: a multiple of 4, in words.
#[inline(always)]
pub fn philox(seed: u64, offset: u64, block: u64) -> [u32; 4] {
    let counter = (offset / 4).wrapping_add(block);
    permute([counter as u32, (counter >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// Block `block` of the stream that belongs to one element of a launch: apart from the words of [`philox`], whose
/// counters leave the upper half 0.
pub(super) fn stream(seed: u64, offset: u64, element: u64, block: u32) -> [u32; 4] {
    let counter = (offset / 4).wrapping_add(element);
    permute([counter as u32, (counter >> 32) as u32, block, 1], [seed as u32, (seed >> 32) as u32])
}

/// The bijection itself: `counter` under `key`.
#[inline(always)]
fn permute(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let even = u64::from(counter[0]) * u64::from(MULTIPLIER[0]);
        let odd = u64::from(counter[2]) * u64::from(MULTIPLIER[1]);
        counter = [
            (odd >> 32) as u32 ^ counter[1] ^ key[0],
            odd as u32,
            (even >> 32) as u32 ^ counter[3] ^ key[1],
            even as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        assert_eq!(permute([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(permute([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            permute([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn offset_counts_words() {
        assert_eq!(philox(7, 8, 1), philox(7, 0, 3));
        assert_eq!(philox(7, u64::MAX - 3, 0), philox(7, 0, u64::MAX / 4));
    }
}
