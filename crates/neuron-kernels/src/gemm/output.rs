//! What becomes of finished sums: scaling, bias, rounding to the output type.

use super::element::{Accumulator, Element};

/// The output of one matrix product, or a part of it.
#[derive(Clone, Copy)]
pub(super) struct Output<A, D> {
    /// First element.
    pub c: *mut D,
    /// Distance between rows.
    pub row_stride: isize,
    /// Distance between columns.
    pub col_stride: isize,
    /// Factor of the sums, if it is not one.
    pub alpha: Option<A>,
    /// What is added to the sums.
    pub bias: Option<Bias<A>>,
}

/// A matrix that is added to the scaled sums.
#[derive(Clone, Copy)]
pub(super) struct Bias<A> {
    /// First element.
    pub start: *const u8,
    /// Distance between rows, in bytes.
    pub row_stride: isize,
    /// Distance between columns, in bytes.
    pub col_stride: isize,
    /// Reads a row.
    pub read: ReadRow<A>,
    /// Factor, if it is not one; never zero.
    pub beta: Option<A>,
}

/// Reads `out.len()` elements at a stride in bytes as `A`.
///
/// # Safety
/// The elements are readable.
pub(super) type ReadRow<A> = unsafe fn(from: *const u8, stride: isize, out: &mut [A]);

/// The [`ReadRow`] of element type `S`.
///
/// # Safety
/// The elements are readable and of type `S`.
pub(super) unsafe fn read_row<A: Accumulator, S: Element<A>>(from: *const u8, stride: isize, out: &mut [A]) {
    // SAFETY: as the caller promises.
    unsafe {
        if stride == 0 {
            out.fill((*from.cast::<S>()).widen());
        } else if stride == size_of::<S>() as isize {
            let from = from.cast::<S>();
            out.iter_mut().enumerate().for_each(|(j, o)| *o = (*from.add(j)).widen());
        } else {
            out.iter_mut().enumerate().for_each(|(j, o)| *o = (*from.offset(j as isize * stride).cast::<S>()).widen());
        }
    }
}

// SAFETY: tasks on several threads write disjoint parts of the output.
unsafe impl<A, D> Sync for Output<A, D> {}
// SAFETY: as above.
unsafe impl<A, D> Send for Output<A, D> {}

/// Columns finished at a time.
const RUN: usize = 64;

impl<A: Accumulator, D: Element<A>> Output<A, D> {
    /// The part from this row and column on.
    pub fn at(&self, row: usize, col: usize) -> Self {
        let (row, col) = (row as isize, col as isize);
        Output {
            c: self.c.wrapping_offset(row * self.row_stride + col * self.col_stride),
            bias: self
                .bias
                .map(|b| Bias { start: b.start.wrapping_offset(row * b.row_stride + col * b.col_stride), ..b }),
            ..*self
        }
    }

    /// True if the sums are the output: they may then be kept in place.
    pub fn is_sums(&self) -> bool {
        self.in_place() && self.alpha.is_none() && self.bias.is_none()
    }

    /// True if the output can hold the sums until they are finished; not if it is the bias, which is read then.
    pub fn in_place(&self) -> bool {
        let over_bias = self.bias.is_some_and(|b| b.start == self.c.cast_const().cast());
        D::DTYPE == A::DTYPE && self.col_stride == 1 && !over_bias
    }

    /// Writes `rows` by `cols` outputs from the sums, which may be the output itself.
    ///
    /// # Safety
    /// Sums, bias and output have that many rows and columns.
    pub unsafe fn finish(&self, sums: *const A, sums_stride: isize, rows: usize, cols: usize) {
        // SAFETY: as the caller promises.
        crate::simd::vectorized(
            #[inline(always)]
            || unsafe { self.finish_rows(sums, sums_stride, rows, cols) },
        );
    }

    /// # Safety
    /// As [`finish`](Self::finish).
    #[inline(always)]
    unsafe fn finish_rows(&self, sums: *const A, sums_stride: isize, rows: usize, cols: usize) {
        let mut run = [A::default(); RUN];
        let mut bias = [A::default(); RUN];
        for i in 0..rows as isize {
            for j in (0..cols).step_by(RUN) {
                let n = (cols - j).min(RUN);
                // SAFETY: row `i` and columns `j` to `j + n` exist in sums, bias and output.
                unsafe {
                    std::ptr::copy_nonoverlapping(sums.offset(i * sums_stride).add(j), run.as_mut_ptr(), n);
                    if let Some(alpha) = self.alpha {
                        run.iter_mut().for_each(|v| *v = v.times(alpha));
                    }
                    if let Some(b) = &self.bias {
                        let at = b.start.offset(i * b.row_stride + j as isize * b.col_stride);
                        (b.read)(at, b.col_stride, &mut bias[..n]);
                        match b.beta {
                            None => run.iter_mut().zip(&bias).for_each(|(v, &x)| *v = v.plus(x)),
                            Some(beta) => run.iter_mut().zip(&bias).for_each(|(v, &x)| *v = v.multiply_add(x, beta)),
                        }
                    }
                    let to = self.c.offset(i * self.row_stride + j as isize * self.col_stride);
                    if self.col_stride == 1 {
                        D::narrow_run(&run[..n], to);
                    } else {
                        for (j, &v) in run[..n].iter().enumerate() {
                            *to.offset(j as isize * self.col_stride) = D::narrow(v);
                        }
                    }
                }
            }
        }
    }
}
