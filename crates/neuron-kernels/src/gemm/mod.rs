//! Matrix products, batched, with scaling and bias: `mm`, `bmm`, `addmm`, `baddbmm`, `linear`.
//!
//! Sums of half floats are kept in `f32` and rounded once; sums of integers wrap. A result does not depend on the number
//! of threads: work is split by output blocks, and the summed dimension in blocks of a length that the sizes fix.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod blocked;
pub(crate) mod element;
#[cfg(target_arch = "x86_64")]
pub(crate) mod load16;
pub(crate) mod micro;
mod output;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;
pub(crate) mod scratch;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vector_avx512;

use crate::pool::parallel_for;
use crate::{Kernel, KernelError};
pub use block::f32_block;
use blocked::Product;
pub(crate) use blocked::Split;
use element::{Accumulator, Element};
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, TensorType};
use output::{Bias, Output, ReadRow, read_row};

const NAME: &str = "gemm";

/// What is done to the sums before they are written: `c = beta * bias + alpha * (a @ b)`.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// Rank 3, broadcast to `c` by extents of 1 or strides of 0; its dtype is that of `c` or of `a`.
    pub bias: Option<TensorType>,
    /// Factor of the product.
    pub alpha: ScaleFactor,
    /// Factor of the bias. Where it is zero the bias is not read, as in `torch.addmm`.
    pub beta: ScaleFactor,
}

impl Epilogue {
    /// The product as it is.
    pub const NONE: Epilogue = Epilogue { bias: None, alpha: ScaleFactor::One, beta: ScaleFactor::One };
}

/// A factor known when the kernel is made, or at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFactor {
    /// One.
    One,
    /// The launch scalar of this index.
    Scalar(usize),
}

impl ScaleFactor {
    fn value<A: Accumulator>(self, scalars: &[Scalar]) -> Option<A> {
        match self {
            ScaleFactor::One => None,
            ScaleFactor::Scalar(i) if matches!(scalars[i], Scalar::I64(1)) => None,
            ScaleFactor::Scalar(i) => Some(A::from_scalar(scalars[i])),
        }
    }
}

/// `c[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]`, then the [`Epilogue`].
///
/// Buffers: `a`, `b`, the bias if there is one, `c`.
#[derive(Debug)]
pub struct Gemm {
    batch: usize,
    product: Product,
    /// The transposed product is made: `a` and `b` have exchanged roles.
    swapped: bool,
    /// Batch strides of `a`, `b`, `bias` and `c`.
    batch_strides: [isize; 4],
    /// Row and column strides of the bias.
    bias_strides: Option<[isize; 2]>,
    bias_dtype: DType,
    c_strides: [isize; 2],
    alpha: ScaleFactor,
    beta: ScaleFactor,
    /// Matrices per task where each is too small to be split; 0 where each is split by itself.
    group: usize,
    run: Run,
    cost: u64,
}

type Run = unsafe fn(&Gemm, &[*mut u8], &[Scalar]);

/// Fewer operations than this are done where they are.
const SPLIT_OPERATIONS: usize = 2 << 20;

/// Products of at most this many multiplications need no packing.
const SMALL: usize = 32 * 32 * 64;

impl Gemm {
    /// A product of tensors of rank 3, `[batch, m, k] @ [batch, k, n]`, of any strides.
    ///
    /// `a` and `b` share a dtype, any but `bool`; `c` has it too, or is `f32` where they are half floats. A batch stride
    /// of 0, or a batch extent of 1, on `a` or `b` repeats one matrix. `c` must not overlap an input, except that it may
    /// be the bias at the same strides.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other dtypes, ranks or extents.
    pub fn new(a: &TensorType, b: &TensorType, c: &TensorType, epilogue: Epilogue) -> Result<Gemm, KernelError> {
        let unsupported = || KernelError::Unsupported { kernel: NAME, what: format!("{a} @ {b} -> {c}") };
        if [a, b, c].iter().any(|t| t.rank() != 3 || t.sizes.iter().any(|&s| s < 0)) || a.dtype != b.dtype {
            return Err(unsupported());
        }
        let (batch, m, n, k) = (c.sizes[0], c.sizes[1], c.sizes[2], a.sizes[2]);
        let repeats = |t: &TensorType| t.sizes[0] == batch || t.sizes[0] == 1;
        if a.sizes[1..] != [m, k] || b.sizes[1..] != [k, n] || !repeats(a) || !repeats(b) {
            return Err(unsupported());
        }
        let run = runner(a.dtype, c.dtype).ok_or_else(unsupported)?;

        // An extent of 1 is repeated, or never stepped over: either way its stride is none.
        let stride = |t: &TensorType, d: usize| if t.sizes[d] == 1 { 0 } else { t.strides[d] as isize };
        let mut strides = [[0isize; 3]; 4];
        for (to, t) in strides.iter_mut().zip([Some(a), Some(b), epilogue.bias.as_ref(), Some(c)]) {
            if let Some(t) = t {
                if t.rank() != 3 {
                    return Err(unsupported());
                }
                *to = [stride(t, 0), stride(t, 1), stride(t, 2)];
            }
        }
        let mut bias_dtype = c.dtype;
        if let Some(bias) = &epilogue.bias {
            bias_dtype = bias.dtype;
            let fits = bias.sizes.iter().zip(&c.sizes).all(|(&x, &y)| x == y || x == 1);
            if !fits || (bias.dtype != c.dtype && bias.dtype != a.dtype) {
                return Err(KernelError::Unsupported { kernel: NAME, what: format!("bias {bias} for {c}") });
            }
        }
        let mut gemm = Gemm {
            batch: batch as usize,
            product: Product {
                m: m as usize,
                n: n as usize,
                k: k as usize,
                a: [strides[0][1], strides[0][2]],
                b: [strides[1][1], strides[1][2]],
            },
            swapped: false,
            batch_strides: strides.map(|s| s[0]),
            bias_strides: epilogue.bias.as_ref().map(|_| [strides[2][1], strides[2][2]]),
            bias_dtype,
            c_strides: [strides[3][1], strides[3][2]],
            alpha: epilogue.alpha,
            beta: epilogue.beta,
            group: 0,
            run,
            cost: 0,
        };
        gemm.plan(a.dtype);
        Ok(gemm)
    }

    /// Brings the product to the form the kernels are written for, and decides how the batch is shared.
    fn plan(&mut self, dtype: DType) {
        self.fold_batch();
        self.orient();
        let p = &self.product;
        let operations = 2 * p.m * p.n * p.k;
        if self.batch > 1 && operations < 16 * SPLIT_OPERATIONS {
            self.group = (SPLIT_OPERATIONS / operations.max(1)).clamp(1, self.batch);
        }
        let per_nanosecond = if dtype == DType::I64 { 2 } else { 64 };
        let bytes = (p.m * p.k + p.k * p.n + p.m * p.n) * dtype.size();
        self.cost = (self.batch * (operations / per_nanosecond + bytes / 16)) as u64 + 100;
    }

    /// A batch of row blocks of one tall matrix, all multiplied by one `b`, is one product.
    fn fold_batch(&mut self) {
        let p = &mut self.product;
        let [a, b, bias, c] = self.batch_strides;
        let continues = |batch: isize, row: isize, m: usize| batch == row * m as isize;
        let bias_folds = self.bias_strides.is_none_or(|s| p.m == 1 || continues(bias, s[0], p.m));
        if self.batch <= 1 || b != 0 || !bias_folds {
            return;
        }
        if p.m == 1 {
            // Rows that are alone in their matrix step by the batch stride.
            p.a[0] = a;
            self.c_strides[0] = c;
            if let Some(s) = &mut self.bias_strides {
                s[0] = bias;
            }
        } else if !continues(a, p.a[0], p.m) || !continues(c, self.c_strides[0], p.m) {
            return;
        }
        p.m *= self.batch;
        self.batch = 1;
        self.batch_strides = [0; 4];
    }

    /// Outputs are written along columns: where those are far apart and rows are not, the transposed product is made.
    fn orient(&mut self) {
        let p = &mut self.product;
        // A stride of 0 belongs to an extent of 1.
        if p.n == 1 {
            self.c_strides[1] = 1;
        }
        let columns_apart = self.c_strides[1] != 1 && self.c_strides[0] == 1 && p.m > 1;
        if columns_apart || (p.n == 1 && p.m > 1) {
            *p = Product { m: p.n, n: p.m, k: p.k, a: [p.b[1], p.b[0]], b: [p.a[1], p.a[0]] };
            self.swapped = true;
            self.batch_strides.swap(0, 1);
            self.c_strides.swap(0, 1);
            if let Some(s) = &mut self.bias_strides {
                s.swap(0, 1);
            }
        }
        if self.product.n == 1 {
            self.c_strides[1] = 1;
        }
    }

    /// One matrix of the batch.
    ///
    /// # Safety
    /// The operands are valid.
    unsafe fn multiply<A: Accumulator, S: Element<A>, D: Element<A>>(
        &self,
        a: *const S,
        b: *const S,
        out: &Output<A, D>,
    ) {
        let p = &self.product;
        let is_f32 = [A::DTYPE, S::DTYPE, D::DTYPE] == [DType::F32; 3];
        // SAFETY: as the caller promises.
        unsafe {
            if vector::covers(p) {
                vector::multiply(p, a, b, out);
            } else if is_f32 && out.bias.is_none() && out.alpha.is_none() && p.m * p.n * p.k <= SMALL {
                let (a, b, c) = (a.cast(), b.cast(), out.c.cast());
                let ([rsa, csa], [rsb, csb], rsc, csc) = (p.a, p.b, out.row_stride, out.col_stride);
                f32_block(p.m, p.n, p.k, a, rsa, csa, b, rsb, csb, c, rsc, csc, 1.0, false);
            } else {
                blocked::multiply(p, a, b, out);
            }
        }
    }

    /// # Safety
    /// As [`Kernel::run`], the element types being those of the kernel.
    unsafe fn run_as<A: Accumulator, S: Element<A>, D: Element<A>>(&self, buffers: &[*mut u8], scalars: &[Scalar]) {
        let [first, second] = if self.swapped { [buffers[1], buffers[0]] } else { [buffers[0], buffers[1]] };
        let (a, b) = (first.cast::<S>().cast_const(), second.cast::<S>().cast_const());
        let bias = self.bias_strides.and_then(|strides| {
            let beta = self.beta.value::<A>(scalars);
            if beta.is_some_and(A::is_zero) {
                return None;
            }
            let (size, read): (usize, ReadRow<A>) = if self.bias_dtype == D::DTYPE {
                (size_of::<D>(), read_row::<A, D>)
            } else {
                (size_of::<S>(), read_row::<A, S>)
            };
            let [row_stride, col_stride] = strides.map(|s| s * size as isize);
            let batch_stride = self.batch_strides[2] * size as isize;
            Some((Bias { start: buffers[2].cast_const(), row_stride, col_stride, read, beta }, batch_stride))
        });
        let last = 2 + usize::from(self.bias_strides.is_some());
        let whole = Output {
            c: buffers[last].cast::<D>(),
            row_stride: self.c_strides[0],
            col_stride: self.c_strides[1],
            alpha: self.alpha.value(scalars),
            bias: bias.map(|b| b.0),
        };
        let bias_stride = bias.map_or(0, |b| b.1);
        let operands = Operands { a, b, out: whole };
        let one = |i: usize| {
            let i = i as isize;
            let Operands { a, b, out } = &operands;
            // SAFETY: matrix `i` lies in each buffer.
            unsafe {
                let out = Output {
                    c: out.c.offset(i * self.batch_strides[3]),
                    bias: out.bias.map(|bias| Bias { start: bias.start.offset(i * bias_stride), ..bias }),
                    ..*out
                };
                let (a, b) = (a.offset(i * self.batch_strides[0]), b.offset(i * self.batch_strides[1]));
                self.multiply(a, b, &out);
            }
        };
        if self.group == 0 {
            (0..self.batch).for_each(one);
        } else {
            parallel_for(self.batch.div_ceil(self.group), |g| {
                (g * self.group..((g + 1) * self.group).min(self.batch)).for_each(one);
            });
        }
    }
}

/// The addresses of a launch.
struct Operands<A, S, D> {
    a: *const S,
    b: *const S,
    out: Output<A, D>,
}
// SAFETY: tasks read the inputs and write disjoint parts of the output.
unsafe impl<A, S, D> Sync for Operands<A, S, D> {}

impl Kernel for Gemm {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        if self.batch > 0 && self.product.m > 0 && self.product.n > 0 {
            // SAFETY: as the caller promises; `run` was chosen by the dtypes.
            unsafe { (self.run)(self, buffers, scalars) };
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.cost
    }
}

/// The instance for these input and output dtypes.
fn runner(input: DType, output: DType) -> Option<Run> {
    Some(match (input, output) {
        (DType::F32, DType::F32) => Gemm::run_as::<f32, f32, f32>,
        (DType::F64, DType::F64) => Gemm::run_as::<f64, f64, f64>,
        (DType::BF16, DType::BF16) => Gemm::run_as::<f32, bf16, bf16>,
        (DType::BF16, DType::F32) => Gemm::run_as::<f32, bf16, f32>,
        (DType::F16, DType::F16) => Gemm::run_as::<f32, f16, f16>,
        (DType::F16, DType::F32) => Gemm::run_as::<f32, f16, f32>,
        (DType::U8, DType::U8) => Gemm::run_as::<i32, u8, u8>,
        (DType::I8, DType::I8) => Gemm::run_as::<i32, i8, i8>,
        (DType::I16, DType::I16) => Gemm::run_as::<i32, i16, i16>,
        (DType::I32, DType::I32) => Gemm::run_as::<i32, i32, i32>,
        (DType::I64, DType::I64) => Gemm::run_as::<i64, i64, i64>,
        _ => return None,
    })
}
