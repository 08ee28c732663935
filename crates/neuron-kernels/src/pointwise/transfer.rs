//! Between tiles and memory that is not contiguous.

use crate::simd::{Level, level};

/// The memory side of a transfer: `rows` by `cols` elements at byte strides.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Bytes from row to row.
    pub row_stride: isize,
    /// Bytes from column to column.
    pub col_stride: isize,
}

/// Reads a grid into a row-major tile of elements of `size` bytes.
///
/// # Safety
/// The grid at `src` is readable, the tile at `dst` writable, and they do not overlap.
pub unsafe fn gather(size: usize, dst: *mut u8, src: *const u8, grid: Grid) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => gather_of::<u8>(dst.cast(), src, grid),
            2 => gather_of::<u16>(dst.cast(), src, grid),
            4 => gather_of::<u32>(dst.cast(), src, grid),
            _ => gather_of::<u64>(dst.cast(), src, grid),
        }
    }
}

/// Writes a row-major tile of elements of `size` bytes to a grid.
///
/// # Safety
/// The tile at `src` is readable, the grid at `dst` writable, and they do not overlap.
pub unsafe fn scatter(size: usize, dst: *mut u8, src: *const u8, grid: Grid) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => scatter_of::<u8>(dst, src.cast(), grid),
            2 => scatter_of::<u16>(dst, src.cast(), grid),
            4 => scatter_of::<u32>(dst, src.cast(), grid),
            _ => scatter_of::<u64>(dst, src.cast(), grid),
        }
    }
}

/// Copies a few elements without a call.
///
/// # Safety
/// As `ptr::copy_nonoverlapping`; `n <= 16`.
#[inline(always)]
unsafe fn copy_short<T: Copy>(src: *const T, dst: *mut T, n: usize) {
    // SAFETY: the caller's promise; the fixed lengths are below `n`.
    unsafe {
        let mut i = 0;
        if n >= 8 {
            dst.cast::<[T; 8]>().write_unaligned(src.cast::<[T; 8]>().read_unaligned());
            i = 8;
        }
        if n - i >= 4 {
            dst.add(i).cast::<[T; 4]>().write_unaligned(src.add(i).cast::<[T; 4]>().read_unaligned());
            i += 4;
        }
        while i < n {
            dst.add(i).write(src.add(i).read());
            i += 1;
        }
    }
}

unsafe fn gather_of<T: Copy>(dst: *mut T, src: *const u8, g: Grid) {
    let size = size_of::<T>() as isize;
    // SAFETY: every access is to an element of the grid or of the tile.
    unsafe {
        let row = |r: usize| src.offset(r as isize * g.row_stride);
        if g.col_stride == size {
            for r in 0..g.rows {
                let (from, to) = (row(r).cast::<T>(), dst.add(r * g.cols));
                if g.cols < 16 {
                    copy_short(from, to, g.cols);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, g.cols);
                }
            }
        } else if g.col_stride == 0 {
            for r in 0..g.rows {
                let value = row(r).cast::<T>().read();
                for c in 0..g.cols {
                    dst.add(r * g.cols + c).write(value);
                }
            }
        } else if g.row_stride == size && g.rows >= 8 && g.cols >= 8 {
            transpose::<T>(src, g.col_stride, dst.cast(), g.cols as isize * size, g.cols, g.rows);
        } else {
            for r in 0..g.rows {
                let mut from = row(r);
                for c in 0..g.cols {
                    dst.add(r * g.cols + c).write(from.cast::<T>().read());
                    from = from.wrapping_offset(g.col_stride);
                }
            }
        }
    }
}

unsafe fn scatter_of<T: Copy>(dst: *mut u8, src: *const T, g: Grid) {
    let size = size_of::<T>() as isize;
    // SAFETY: every access is to an element of the grid or of the tile.
    unsafe {
        let row = |r: usize| dst.offset(r as isize * g.row_stride);
        if g.col_stride == size {
            for r in 0..g.rows {
                let (from, to) = (src.add(r * g.cols), row(r).cast::<T>());
                if g.cols < 16 {
                    copy_short(from, to, g.cols);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, g.cols);
                }
            }
        } else if g.row_stride == size && g.rows >= 8 && g.cols >= 8 {
            transpose::<T>(src.cast(), g.cols as isize * size, dst, g.col_stride, g.rows, g.cols);
        } else {
            for r in 0..g.rows {
                let mut to = row(r);
                for c in 0..g.cols {
                    to.cast::<T>().write(src.add(r * g.cols + c).read());
                    to = to.wrapping_offset(g.col_stride);
                }
            }
        }
    }
}

/// `dst[x][y] = src[y][x]` for `height` rows of `width` contiguous source elements; strides in bytes.
///
/// # Safety
/// Both sides are valid and do not overlap.
unsafe fn transpose<T: Copy>(
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
    for y in (0..h).step_by(8) {
        for x in (0..w).step_by(8) {
            // SAFETY: the block lies within both sides; the level is that of the processor.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                if size == 4 && level() >= Level::Avx2 {
                    block_f32x8(at(y, x), src_stride, to(x, y), dst_stride);
                    continue;
                }
                block::<T>(at(y, x), src_stride, to(x, y), dst_stride);
            }
        }
    }
    for y in 0..height {
        for x in if y < h { w } else { 0 }..width {
            // SAFETY: an element of both sides.
            unsafe { to(x, y).cast::<T>().write(at(y, x).cast::<T>().read()) };
        }
    }
}

/// Transposes 8 by 8 elements.
///
/// # Safety
/// As for [`transpose`].
unsafe fn block<T: Copy>(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [src.cast::<[T; 8]>().read_unaligned(); 8];
        for (y, row) in rows.iter_mut().enumerate() {
            *row = src.offset(y as isize * src_stride).cast::<[T; 8]>().read_unaligned();
        }
        let columns: [[T; 8]; 8] = std::array::from_fn(|x| std::array::from_fn(|y| rows[y][x]));
        for (x, column) in columns.into_iter().enumerate() {
            dst.offset(x as isize * dst_stride).cast::<[T; 8]>().write_unaligned(column);
        }
    }
}

/// Transposes 8 by 8 elements of 4 bytes.
///
/// # Safety
/// As for [`transpose`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn block_f32x8(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
    use std::arch::x86_64::*;
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
