//! Packing to `f32` in AVX-512: 16 x 16 blocks are transposed in registers.

use super::element::{Accumulator, Element};
use super::load16::{Bf16, F16, F32, Load16, mask};
use super::pack::Strip;
use neuron_ir::DType;
use std::arch::x86_64::*;

/// Bytes along a row to prefetch ahead of a transposition.
const AHEAD: usize = 256;

/// Packs as [`pack`](super::pack::pack) does; false, with nothing written, for what it has no vectors for.
///
/// # Safety
/// As [`pack`](super::pack::pack), and the processor has AVX-512 F, BW and VL.
pub(super) unsafe fn pack<A: Accumulator, S: Element<A>>(strip: &Strip<S>, padded: usize, packed: *mut A) -> bool {
    if A::DTYPE != DType::F32 || (strip.across != 1 && strip.along != 1) || padded > 32 {
        return false;
    }
    let bytes = Strip {
        start: strip.start.cast::<u8>(),
        across: strip.across,
        along: strip.along,
        width: strip.width,
        depth: strip.depth,
    };
    let packed = packed.cast::<f32>();
    // SAFETY: `A` is `f32`, and `S` is the type its dtype names.
    unsafe {
        match S::DTYPE {
            DType::F32 => pack_as::<F32>(&bytes, padded, packed),
            DType::BF16 => pack_as::<Bf16>(&bytes, padded, packed),
            DType::F16 => pack_as::<F16>(&bytes, padded, packed),
            _ => return false,
        }
    }
    true
}

/// # Safety
/// As [`pack`], of a strip of `L`'s type with strides in elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_as<L: Load16>(strip: &Strip<u8>, padded: usize, packed: *mut f32) {
    // SAFETY: as the caller promises.
    unsafe {
        if strip.across == 1 {
            copy::<L>(strip, padded, packed);
        } else {
            transpose::<L>(strip, padded, packed);
        }
    }
}

/// # Safety
/// As [`pack_as`], with neighbours across the strip side by side.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy<L: Load16>(strip: &Strip<u8>, padded: usize, packed: *mut f32) {
    let low = mask(strip.width.min(16));
    let high = mask(strip.width.saturating_sub(16));
    let step = strip.along * L::SIZE as isize;
    let (low_room, high_room) = (mask(padded.min(16)) as __mmask16, mask(padded.saturating_sub(16)) as __mmask16);
    let mut from = strip.start;
    let mut to = packed;
    for _ in 0..strip.depth {
        // SAFETY: the masks keep the loads in the strip and the stores in the packed room.
        unsafe {
            _mm512_mask_storeu_ps(to, low_room, L::load(from, low));
            if padded > 16 {
                _mm512_mask_storeu_ps(to.add(16), high_room, L::load(from.wrapping_add(16 * L::SIZE), high));
            }
            from = from.wrapping_offset(step);
            to = to.add(padded);
        }
    }
}

/// # Safety
/// As [`pack_as`], with neighbours along the strip side by side.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn transpose<L: Load16>(strip: &Strip<u8>, padded: usize, packed: *mut f32) {
    let row = strip.across * L::SIZE as isize;
    for p in (0..strip.depth).step_by(16) {
        let steps = (strip.depth - p).min(16);
        for i in (0..padded).step_by(16) {
            let rows = strip.width.saturating_sub(i).min(16);
            let mut block = [_mm512_setzero_ps(); 16];
            let from = strip.start.wrapping_offset(i as isize * row).wrapping_add(p * L::SIZE);
            // SAFETY: rows and steps are cut to the strip, lanes to the packed room.
            unsafe {
                for (r, v) in block.iter_mut().enumerate() {
                    if r < rows {
                        let from = from.wrapping_offset(r as isize * row);
                        // Rows far apart are more streams than the hardware follows.
                        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(AHEAD).cast());
                        *v = L::load(from, mask(steps));
                    }
                }
                let block = transposed(block);
                let to = packed.add(p * padded + i);
                let lanes = mask((padded - i).min(16)) as __mmask16;
                for (s, v) in block.iter().enumerate() {
                    if s < steps {
                        _mm512_mask_storeu_ps(to.add(s * padded), lanes, *v);
                    }
                }
            }
        }
    }
}

/// The transpose of a 16 x 16 block.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(r: [__m512; 16]) -> [__m512; 16] {
    let mut t = [_mm512_setzero_ps(); 16];
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    // `u[4 * q + c]`: rows 4q to 4q+3 of column c, c + 4, c + 8 and c + 12, one in each 128-bit lane.
    let mut u = [_mm512_setzero_ps(); 16];
    for q in 0..4 {
        let d = |i: usize| _mm512_castps_pd(t[4 * q + i]);
        u[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(d(0), d(2)));
        u[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(d(0), d(2)));
        u[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(d(1), d(3)));
        u[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(d(1), d(3)));
    }
    let mut out = [_mm512_setzero_ps(); 16];
    for c in 0..4 {
        let low = _mm512_shuffle_f32x4::<0x88>(u[c], u[4 + c]);
        let high = _mm512_shuffle_f32x4::<0x88>(u[8 + c], u[12 + c]);
        let odd_low = _mm512_shuffle_f32x4::<0xdd>(u[c], u[4 + c]);
        let odd_high = _mm512_shuffle_f32x4::<0xdd>(u[8 + c], u[12 + c]);
        out[c] = _mm512_shuffle_f32x4::<0x88>(low, high);
        out[8 + c] = _mm512_shuffle_f32x4::<0xdd>(low, high);
        out[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high);
        out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high);
    }
    out
}
