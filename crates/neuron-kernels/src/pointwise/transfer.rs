//! Between tiles and memory that is not contiguous.

use super::transpose::transpose;

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
        } else if g.cols <= 4 {
            match g.cols {
                1 => gather_narrow::<T, 1>(dst, src, g),
                2 => gather_narrow::<T, 2>(dst, src, g),
                3 => gather_narrow::<T, 3>(dst, src, g),
                _ => gather_narrow::<T, 4>(dst, src, g),
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

/// Rows of few elements: a known number of them is a loop less.
///
/// # Safety
/// As for [`gather`]; `COLS == g.cols`.
unsafe fn gather_narrow<T: Copy, const COLS: usize>(dst: *mut T, src: *const u8, g: Grid) {
    for r in 0..g.rows {
        let at = |c: usize| src.wrapping_offset(r as isize * g.row_stride + c as isize * g.col_stride);
        // SAFETY: an element of the grid; a row of the tile.
        unsafe {
            let row: [T; COLS] = std::array::from_fn(|c| at(c).cast::<T>().read());
            dst.add(r * COLS).cast::<[T; COLS]>().write(row);
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
