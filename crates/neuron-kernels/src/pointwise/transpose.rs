//! Transposing blocks of eight by eight elements in registers.

use crate::simd::{Level, level};

/// `dst[x][y] = src[y][x]` for `height` rows of `width` contiguous source elements; strides in bytes.
///
/// # Safety
/// Both sides are valid and do not overlap.
pub unsafe fn transpose<T: Copy>(
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
    height: usize,
    width: usize,
) {
    let size = size_of::<T>() as isize;
    let at = |y: usize, x: usize| src.wrapping_offset(y as isize * src_stride + x as isize * size);
    let to = |x: usize, y: usize| dst.wrapping_offset(x as isize * dst_stride + y as isize * size);
    let (h, w) = (height & !7, width & !7);
    let block = block_of::<T>();
    for y in (0..h).step_by(8) {
        for x in (0..w).step_by(8) {
            // SAFETY: the block lies within both sides.
            unsafe { block(at(y, x), src_stride, to(x, y), dst_stride) };
        }
    }
    for y in 0..height {
        for x in if y < h { w } else { 0 }..width {
            // SAFETY: an element of both sides.
            unsafe { to(x, y).cast::<T>().write(at(y, x).cast::<T>().read()) };
        }
    }
}

/// Transposes one block: source, its stride, destination, its stride.
type Block = unsafe fn(*const u8, isize, *mut u8, isize);

fn block_of<T: Copy>() -> Block {
    #[cfg(target_arch = "x86_64")]
    match size_of::<T>() {
        1 => return x86::bytes,
        2 => return x86::words,
        4 if level() >= Level::Avx2 => return x86::doublewords,
        8 if level() >= Level::Avx2 => return x86::quadwords,
        _ => {}
    }
    elements::<T>
}

/// # Safety
/// As for [`transpose`].
unsafe fn elements<T: Copy>(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        let rows: [[T; 8]; 8] =
            std::array::from_fn(|y| src.offset(y as isize * src_stride).cast::<[T; 8]>().read_unaligned());
        let columns: [[T; 8]; 8] = std::array::from_fn(|x| std::array::from_fn(|y| rows[y][x]));
        for (x, column) in columns.into_iter().enumerate() {
            dst.offset(x as isize * dst_stride).cast::<[T; 8]>().write_unaligned(column);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// As for [`super::transpose`].
    #[target_feature(enable = "sse2")]
    pub unsafe fn bytes(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // SAFETY: the caller's promise.
        let r: [__m128i; 8] =
            std::array::from_fn(|y| unsafe { _mm_loadl_epi64(src.offset(y as isize * src_stride).cast()) });
        // Pairs of rows, then fours, then columns.
        let a: [__m128i; 4] = std::array::from_fn(|i| _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]));
        let low = [_mm_unpacklo_epi16(a[0], a[1]), _mm_unpackhi_epi16(a[0], a[1])];
        let high = [_mm_unpacklo_epi16(a[2], a[3]), _mm_unpackhi_epi16(a[2], a[3])];
        for i in 0..2 {
            let columns = [_mm_unpacklo_epi32(low[i], high[i]), _mm_unpackhi_epi32(low[i], high[i])];
            for (k, pair) in columns.into_iter().enumerate() {
                let x = (4 * i + 2 * k) as isize;
                // SAFETY: the caller's promise.
                unsafe {
                    _mm_storel_epi64(dst.offset(x * dst_stride).cast(), pair);
                    _mm_storel_epi64(dst.offset((x + 1) * dst_stride).cast(), _mm_unpackhi_epi64(pair, pair));
                }
            }
        }
    }

    /// # Safety
    /// As for [`super::transpose`].
    #[target_feature(enable = "sse2")]
    pub unsafe fn words(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // SAFETY: the caller's promise.
        let r: [__m128i; 8] =
            std::array::from_fn(|y| unsafe { _mm_loadu_si128(src.offset(y as isize * src_stride).cast()) });
        // Columns 0 to 3 and 4 to 7 of pairs of rows, then pairs of columns of four rows, then columns.
        let lo: [__m128i; 4] = std::array::from_fn(|i| _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]));
        let hi: [__m128i; 4] = std::array::from_fn(|i| _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]));
        for (half, a) in [lo, hi].into_iter().enumerate() {
            let upper = [_mm_unpacklo_epi32(a[0], a[1]), _mm_unpackhi_epi32(a[0], a[1])];
            let lower = [_mm_unpacklo_epi32(a[2], a[3]), _mm_unpackhi_epi32(a[2], a[3])];
            for k in 0..2 {
                let x = (4 * half + 2 * k) as isize;
                // SAFETY: the caller's promise.
                unsafe {
                    _mm_storeu_si128(dst.offset(x * dst_stride).cast(), _mm_unpacklo_epi64(upper[k], lower[k]));
                    _mm_storeu_si128(dst.offset((x + 1) * dst_stride).cast(), _mm_unpackhi_epi64(upper[k], lower[k]));
                }
            }
        }
    }

    /// # Safety
    /// As for [`super::transpose`], on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn doublewords(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // SAFETY: the caller's promise.
        let r: [__m256; 8] =
            std::array::from_fn(|y| unsafe { _mm256_loadu_ps(src.offset(y as isize * src_stride).cast()) });
        let lo = |i: usize| _mm256_unpacklo_ps(r[i], r[i + 1]);
        let hi = |i: usize| _mm256_unpackhi_ps(r[i], r[i + 1]);
        let t = [lo(0), hi(0), lo(2), hi(2), lo(4), hi(4), lo(6), hi(6)];
        let s = [
            _mm256_shuffle_ps::<0x44>(t[0], t[2]),
            _mm256_shuffle_ps::<0xee>(t[0], t[2]),
            _mm256_shuffle_ps::<0x44>(t[1], t[3]),
            _mm256_shuffle_ps::<0xee>(t[1], t[3]),
            _mm256_shuffle_ps::<0x44>(t[4], t[6]),
            _mm256_shuffle_ps::<0xee>(t[4], t[6]),
            _mm256_shuffle_ps::<0x44>(t[5], t[7]),
            _mm256_shuffle_ps::<0xee>(t[5], t[7]),
        ];
        for x in 0..4 {
            let low = _mm256_permute2f128_ps::<0x20>(s[x], s[x + 4]);
            let high = _mm256_permute2f128_ps::<0x31>(s[x], s[x + 4]);
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(dst.offset(x as isize * dst_stride).cast(), low);
                _mm256_storeu_ps(dst.offset((x as isize + 4) * dst_stride).cast(), high);
            }
        }
    }

    /// # Safety
    /// As for [`super::transpose`], on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn quadwords(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        for (y, x) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
            // SAFETY: a quarter of the block.
            unsafe {
                let at = |k: isize| src.offset((y + k) * src_stride + x * 8).cast::<f64>();
                let to = |k: isize| dst.offset((x + k) * dst_stride + y * 8).cast::<f64>();
                let r: [__m256d; 4] = std::array::from_fn(|k| _mm256_loadu_pd(at(k as isize)));
                let even = [_mm256_unpacklo_pd(r[0], r[1]), _mm256_unpacklo_pd(r[2], r[3])];
                let odd = [_mm256_unpackhi_pd(r[0], r[1]), _mm256_unpackhi_pd(r[2], r[3])];
                _mm256_storeu_pd(to(0), _mm256_permute2f128_pd::<0x20>(even[0], even[1]));
                _mm256_storeu_pd(to(1), _mm256_permute2f128_pd::<0x20>(odd[0], odd[1]));
                _mm256_storeu_pd(to(2), _mm256_permute2f128_pd::<0x31>(even[0], even[1]));
                _mm256_storeu_pd(to(3), _mm256_permute2f128_pd::<0x31>(odd[0], odd[1]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> T) {
        for (height, width) in [(8, 8), (16, 24), (13, 9), (3, 40)] {
            let src: Vec<T> = (0..height * width).map(&make).collect();
            let mut dst = vec![make(0); height * width];
            let size = size_of::<T>();
            let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
            // SAFETY: both hold `height * width` elements.
            unsafe { transpose::<T>(from, (width * size) as isize, to, (height * size) as isize, height, width) };
            for y in 0..height {
                for x in 0..width {
                    assert_eq!(dst[x * height + y], src[y * width + x], "{size} bytes, row {y}, column {x}");
                }
            }
        }
    }

    #[test]
    fn every_size() {
        check(|i| i as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }
}
