//! Arithmetic of the accumulators: what a tile is computed in, and the block operations on it.

use super::portable;
use neuron_ir::DType;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub};

/// Columns of a tile come in groups of this many.
pub(super) const LANES: usize = 16;

/// A matrix at any distance between its rows and columns, in elements.
#[derive(Clone, Copy)]
pub(super) struct Strided<T> {
    pub ptr: *const T,
    pub row: isize,
    pub col: isize,
}

impl<T> Strided<T> {
    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Strided { ptr: self.ptr, row: self.col, col: self.row }
    }
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(super) enum Init<T> {
    /// Nothing: the destination is overwritten.
    Zero,
    /// What the destination holds.
    Keep,
    /// What the destination holds, times a factor per column.
    Scaled(*const T),
}

/// What a transposition multiplies with.
#[derive(Clone, Copy)]
pub(super) enum Scale<T> {
    /// One factor for all.
    Uniform(T),
    /// A factor per column of the source.
    Columns(*const T),
}

/// Rows of neighbouring elements, in a type the accumulators' type can read.
#[derive(Clone, Copy)]
pub(super) struct DenseRows {
    pub dtype: DType,
    pub ptr: *const u8,
    /// Elements from a row to the next.
    pub ld: usize,
}

/// The running softmax of a tile's columns; each pointer to one value per column.
#[derive(Clone, Copy)]
pub(super) struct Running<T> {
    /// Largest score so far.
    pub max: *mut T,
    /// Sum of `exp(score - max)` so far.
    pub sum: *mut T,
    /// Receives what earlier sums and outputs are to be multiplied with.
    pub rescale: *mut T,
}

impl<T> Running<T> {
    /// The state of the columns from `skipped` on.
    ///
    /// # Safety
    /// There are that many columns.
    pub unsafe fn tail(self, skipped: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            Running { max: self.max.add(skipped), sum: self.sum.add(skipped), rescale: self.rescale.add(skipped) }
        }
    }
}

/// `f32` or `f64`.
///
/// A tile is row-major `[keys, width]`: one row per key, one column per query, `width` a multiple of [`LANES`]. With the
/// queries in the lanes, the softmax over the keys needs no operation across lanes, and neither keys nor values need
/// repacking for the products.
///
/// # Safety
/// Of all methods: the pointers are valid for the extents given, and what is written overlaps nothing that is read,
/// except where it is the same tile.
pub(super) trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + MulAssign
    + 'static
{
    const DTYPE: DType;
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;

    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn ln(self) -> Self;

    /// `exp`, at most 2 ulp off; NaN gives NaN.
    fn exp(self) -> Self;

    /// `c[m, n] = init + a[m, k] * b[k, n]`, `b` and `c` row-major with distances `ldb` and `ldc`.
    #[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
    unsafe fn gemm(
        m: usize,
        n: usize,
        k: usize,
        a: Strided<Self>,
        b: *const Self,
        ldb: usize,
        c: *mut Self,
        ldc: usize,
        init: Init<Self>,
    ) {
        // SAFETY: the caller's contract.
        unsafe { portable::gemm(m, n, k, a, b, ldb, c, ldc, init) }
    }

    /// Replaces scores by `exp(score - max)` and brings the running softmax up to date.
    unsafe fn softmax(tile: *mut Self, keys: usize, width: usize, running: Running<Self>) {
        // SAFETY: the caller's contract.
        unsafe { portable::softmax(tile, keys, width, running) }
    }

    /// From scores and the gradients of dropped probabilities to the two factors of the backward products.
    ///
    /// With `p = exp(scores - lse)`: `scores` becomes `p * keep`, `grads` becomes `p * (grads * keep - delta)`. `lse` and
    /// `delta` hold a value per column; `keep`, shaped as the tile, is 1 where it is `None`.
    unsafe fn softmax_backward(
        scores: *mut Self,
        grads: *mut Self,
        keys: usize,
        width: usize,
        lse: *const Self,
        delta: *const Self,
        keep: Option<*const Self>,
    ) {
        // SAFETY: the caller's contract.
        unsafe { portable::softmax_backward(scores, grads, keys, width, lse, delta, keep) }
    }

    /// `dst(c)[r] = src(r)[c]` times the scale, for `r < rows`, zero for `rows <= r < padded`.
    unsafe fn transpose(
        src: impl Fn(usize) -> *const Self,
        rows: usize,
        padded: usize,
        cols: usize,
        dst: impl Fn(usize) -> *mut Self,
        scale: Scale<Self>,
    ) {
        // SAFETY: the caller's contract.
        unsafe { portable::transpose(src, rows, padded, cols, dst, scale) }
    }

    /// True if [`dots`](Self::dots) and [`weigh`](Self::weigh) take rows of this type.
    fn reads(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }

    /// `dst[j] = a[0..len] . b[j]` for `j < rows`.
    unsafe fn dots(a: *const Self, len: usize, b: DenseRows, rows: usize, dst: *mut Self) {
        // SAFETY: the caller's contract.
        unsafe { portable::dots(a, len, b, rows, dst) }
    }

    /// `dst[0..len] += sum of weights[j] * b[j]` over `j < rows`, for `count` rows of weights at distance `ldw` into as
    /// many of `dst`, which lie without gaps.
    unsafe fn weigh(
        weights: *const Self,
        ldw: usize,
        count: usize,
        b: DenseRows,
        rows: usize,
        len: usize,
        dst: *mut Self,
    ) {
        // SAFETY: the caller's contract.
        unsafe { portable::weigh(weights, ldw, count, b, rows, len, dst) }
    }

    /// Replaces `len` scores of one query by `exp(score - max)`; returns their sum.
    unsafe fn exp_sum(scores: *mut Self, len: usize, max: Self) -> Self {
        // SAFETY: the caller's contract.
        unsafe { portable::exp_sum(scores, len, max) }
    }
}

impl Real for f64 {
    const DTYPE: DType = DType::F64;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f64::INFINITY;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    fn from_f64(x: f64) -> Self {
        x
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn ln(self) -> Self {
        f64::ln(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }
}

/// Runs the AVX-512 form of a block operation where the processor has it.
macro_rules! widest {
    ($function:ident($($arg:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        if super::avx512::available() {
            // SAFETY: the processor has the instructions; the rest is the caller's contract.
            return unsafe { super::avx512::$function($($arg),*) };
        }
        // SAFETY: the caller's contract.
        unsafe { portable::$function($($arg),*) }
    }};
}

impl Real for f32 {
    const DTYPE: DType = DType::F32;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f32::INFINITY;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;

    fn from_f64(x: f64) -> Self {
        x as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn ln(self) -> Self {
        f32::ln(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        portable::exp(self)
    }

    unsafe fn gemm(
        m: usize,
        n: usize,
        k: usize,
        a: Strided<Self>,
        b: *const Self,
        ldb: usize,
        c: *mut Self,
        ldc: usize,
        init: Init<Self>,
    ) {
        widest!(gemm(m, n, k, a, b, ldb, c, ldc, init))
    }

    unsafe fn softmax(tile: *mut Self, keys: usize, width: usize, running: Running<Self>) {
        widest!(softmax(tile, keys, width, running))
    }

    unsafe fn softmax_backward(
        scores: *mut Self,
        grads: *mut Self,
        keys: usize,
        width: usize,
        lse: *const Self,
        delta: *const Self,
        keep: Option<*const Self>,
    ) {
        widest!(softmax_backward(scores, grads, keys, width, lse, delta, keep))
    }

    unsafe fn transpose(
        src: impl Fn(usize) -> *const Self,
        rows: usize,
        padded: usize,
        cols: usize,
        dst: impl Fn(usize) -> *mut Self,
        scale: Scale<Self>,
    ) {
        widest!(transpose(src, rows, padded, cols, dst, scale))
    }

    fn reads(dtype: DType) -> bool {
        #[cfg(target_arch = "x86_64")]
        if super::avx512::available() {
            return matches!(dtype, DType::F32 | DType::BF16 | DType::F16);
        }
        dtype == DType::F32
    }

    unsafe fn dots(a: *const Self, len: usize, b: DenseRows, rows: usize, dst: *mut Self) {
        widest!(dots(a, len, b, rows, dst))
    }

    unsafe fn weigh(
        weights: *const Self,
        ldw: usize,
        count: usize,
        b: DenseRows,
        rows: usize,
        len: usize,
        dst: *mut Self,
    ) {
        widest!(weigh(weights, ldw, count, b, rows, len, dst))
    }

    unsafe fn exp_sum(scores: *mut Self, len: usize, max: Self) -> Self {
        widest!(exp_sum(scores, len, max))
    }
}
