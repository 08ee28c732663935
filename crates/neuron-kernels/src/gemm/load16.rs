//! AVX-512 loads of 16 values as `f32`.

use std::arch::x86_64::*;

/// Loads up to 16 values as `f32`.
pub(crate) trait Load16 {
    /// Bytes of one value.
    const SIZE: usize;
    /// # Safety
    /// The values that `mask` selects are readable.
    unsafe fn load(from: *const u8, mask: u32) -> __m512;
}

/// `float32`.
pub(crate) struct F32;
/// `bfloat16`.
pub(crate) struct Bf16;
/// `float16`.
pub(crate) struct F16;

impl Load16 for F32 {
    const SIZE: usize = 4;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const u8, mask: u32) -> __m512 {
        // SAFETY: as the caller promises.
        unsafe { _mm512_maskz_loadu_ps(mask as __mmask16, from.cast()) }
    }
}

impl Load16 for Bf16 {
    const SIZE: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const u8, mask: u32) -> __m512 {
        // SAFETY: as the caller promises.
        let half = unsafe { _mm256_maskz_loadu_epi16(mask as __mmask16, from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
    }
}

impl Load16 for F16 {
    const SIZE: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(from: *const u8, mask: u32) -> __m512 {
        // SAFETY: as the caller promises.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask as __mmask16, from.cast()) })
    }
}

/// The lowest `n` of 16 bits.
#[inline(always)]
pub(crate) fn mask(n: usize) -> u32 {
    (1u32 << n) - 1
}
