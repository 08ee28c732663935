//! Negative log likelihood.

use crate::index::nest::{FirstError, TASK_BYTES, piece};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::scatter::float::{Float, Wide, by_float};
use neuron_ir::{DType, Scalar, TensorType};

/// Rows summed by one task.
const ROWS: usize = 512;

/// `at::Reduction::None`
const NONE: i64 = 0;
/// `at::Reduction::Mean`
const MEAN: i64 = 1;

/// What forward and backward share: where a row's classes and target are.
#[derive(Clone, Copy, Debug)]
struct Rows {
    dtype: DType,
    rows: usize,
    classes: usize,
    /// Bytes between rows and classes of the two-dimensional operand.
    steps: [isize; 2],
    target: DType,
    target_step: isize,
    /// Bytes between the rows of the per-row operand, 0 if there is one for all.
    row_step: isize,
    weight: bool,
    reduction: i64,
    ignore_index: i64,
}

impl Rows {
    #[expect(clippy::too_many_arguments, reason = "one check for what two constructors take")]
    fn new(
        kernel: &'static str,
        matrix: &TensorType,
        target: &TensorType,
        weight: Option<DType>,
        reduction: i64,
        ignore_index: i64,
        per_row: &TensorType,
        total_weight: DType,
    ) -> Result<Self, KernelError> {
        let unsupported = |what: String| KernelError::Unsupported { kernel, what };
        let dtype = matrix.dtype;
        if !dtype.is_float() {
            return Err(KernelError::dtype(kernel, dtype));
        }
        let same = per_row.dtype == dtype && total_weight == dtype && weight.is_none_or(|w| w == dtype);
        if !same || !matches!(target.dtype, DType::I64 | DType::I32 | DType::U8) {
            return Err(unsupported(format!("mixed types with {dtype}, target {target}")));
        }
        let size = dtype.size() as i64;
        let (rows, classes, steps) = match *matrix.sizes {
            [classes] => (1, classes, [0, matrix.strides[0] * size]),
            [rows, classes] => (rows, classes, [matrix.strides[0] * size, matrix.strides[1] * size]),
            _ => return Err(unsupported(format!("an input of {matrix}"))),
        };
        let each = reduction == NONE && matrix.rank() == 2;
        if target.numel() != rows || target.rank() > 1 || per_row.numel() != if each { rows } else { 1 } {
            return Err(unsupported(format!("{matrix} with targets {target} and {per_row}")));
        }
        let step = |t: &TensorType| (t.strides.first().map_or(0, |s| s * t.dtype.size() as i64)) as isize;
        Ok(Rows {
            dtype,
            rows: rows as usize,
            classes: classes as usize,
            steps: steps.map(|s| s as isize),
            target: target.dtype,
            target_step: step(target),
            row_step: if each { step(per_row) } else { 0 },
            weight: weight.is_some(),
            reduction,
            ignore_index,
        })
    }

    /// True if every row has a loss of its own.
    fn each(&self, rank: usize) -> bool {
        self.reduction == NONE && rank == 2
    }

    /// The class of a row, or `None` if it is ignored.
    ///
    /// # Safety
    /// `target` is the target tensor and `row` one of its elements.
    #[inline(always)]
    unsafe fn class(&self, target: *const u8, row: usize) -> Result<Option<isize>, KernelError> {
        // SAFETY: the caller's contract.
        let class = unsafe {
            let at = target.offset(row as isize * self.target_step);
            match self.target {
                DType::I32 => i64::from(*at.cast::<i32>()),
                DType::U8 => i64::from(*at),
                _ => *at.cast::<i64>(),
            }
        };
        if class == self.ignore_index {
            Ok(None)
        } else if (class as u64) < self.classes as u64 {
            Ok(Some(class as isize))
        } else {
            Err(KernelError::TargetOutOfRange { target: class })
        }
    }

    /// The weight of a class.
    ///
    /// # Safety
    /// `weight` is null or the contiguous weights, of type `T`, and `class` one of them.
    #[inline(always)]
    unsafe fn weight_of<T: Float>(weight: *const u8, class: isize) -> T::Wide {
        if weight.is_null() {
            T::Wide::ONE
        } else {
            // SAFETY: the caller's contract.
            unsafe { *weight.cast::<T>().offset(class) }.widen()
        }
    }
}

/// Addresses that tasks share; the meaning is the kernel's.
#[derive(Clone, Copy)]
struct Addresses {
    matrix: *mut u8,
    target: *const u8,
    weight: *const u8,
    per_row: *mut u8,
}

// SAFETY: tasks write rows, or elements of rows, of their own.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

/// `torch.nll_loss` forward. Buffers: log_prob, target, weight if present, loss, total_weight.
///
/// Sums run over blocks of fixed size in the wide type. The mean over rows of total weight zero is NaN.
#[derive(Debug)]
pub struct NllLoss {
    rows: Rows,
    each: bool,
}

impl NllLoss {
    /// `log_prob[n, c]` or `[c]` of floats and of any strides, `target[n]` or `[]` of `i64` (or `i32`, `u8`), contiguous
    /// `weight[c]`; `loss[n]` for reduction 0 of a matrix, else a scalar. Weights and results have the type of
    /// `log_prob`. `reduction` is 0 for none, 1 for mean, 2 for sum.
    ///
    /// # Errors
    /// Other ranks or types. At run: a target that is no class, unless it is `ignore_index`.
    pub fn new(
        log_prob: &TensorType,
        target: &TensorType,
        weight: Option<DType>,
        reduction: i64,
        ignore_index: i64,
        loss: &TensorType,
        total_weight: DType,
    ) -> Result<Self, KernelError> {
        let rows = Rows::new("nll_loss", log_prob, target, weight, reduction, ignore_index, loss, total_weight)?;
        Ok(NllLoss { rows, each: rows.each(log_prob.rank()) })
    }

    /// Losses of the rows of one task: written if each row has its own, and summed along with their weights.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the type of `log_prob`.
    unsafe fn task<T: Float>(&self, at: Addresses, task: usize) -> Result<[T::Wide; 2], KernelError> {
        let rows = &self.rows;
        let mut sums = [T::Wide::ZERO; 2];
        for row in piece(rows.rows, ROWS, task) {
            // SAFETY: a row of the operands; the class was checked.
            unsafe {
                let mut loss = T::Wide::ZERO;
                if let Some(class) = rows.class(at.target, row)? {
                    let weight = Rows::weight_of::<T>(at.weight, class);
                    let log_prob = at.matrix.offset(row as isize * rows.steps[0] + class * rows.steps[1]);
                    loss = -(weight * (*log_prob.cast::<T>()).widen());
                    sums = [sums[0] + loss, sums[1] + weight];
                }
                if self.each {
                    *at.per_row.offset(row as isize * rows.row_step).cast::<T>() = T::narrow(loss);
                }
            }
        }
        Ok(sums)
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the type of `log_prob`.
    unsafe fn forward<T: Float>(&self, at: Addresses, total_weight: *mut u8) -> Result<(), KernelError> {
        struct Partial<W>(*mut [W; 2]);
        impl<W> Clone for Partial<W> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<W> Copy for Partial<W> {}
        // SAFETY: tasks write elements of their own.
        unsafe impl<W> Sync for Partial<W> {}

        let tasks = self.rows.rows.div_ceil(ROWS);
        let mut partial = smallvec::SmallVec::<[[T::Wide; 2]; 4]>::from_elem([T::Wide::ZERO; 2], tasks);
        let out = Partial(partial.as_mut_ptr());
        let errors = FirstError::default();
        parallel_for(tasks, |t| {
            let (at, out): (Addresses, &Partial<_>) = (at, &out);
            // SAFETY: rows of this task, under the caller's contract; element `t` of the partial sums.
            unsafe { errors.note(t, self.task::<T>(at, t).map(|sums| *out.0.add(t) = sums)) };
        });
        errors.finish()?;
        let [sum, weight] = partial.iter().fold([T::Wide::ZERO; 2], |[s, w], [sum, weight]| [s + *sum, w + *weight]);
        // SAFETY: two scalars of type `T`.
        unsafe {
            if self.each {
                *total_weight.cast::<T>() = T::narrow(T::Wide::ZERO);
            } else {
                let loss = if self.rows.reduction == MEAN { sum / weight } else { sum };
                *at.per_row.cast::<T>() = T::narrow(loss);
                *total_weight.cast::<T>() = T::narrow(weight);
            }
        }
        Ok(())
    }
}

impl Kernel for NllLoss {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let weight = usize::from(self.rows.weight);
        let at = Addresses {
            matrix: buffers[0],
            target: buffers[1],
            weight: if self.rows.weight { buffers[2] } else { std::ptr::null() },
            per_row: buffers[2 + weight],
        };
        // SAFETY: the caller's contract.
        by_float!(self.rows.dtype, T => unsafe { self.forward::<T>(at, buffers[3 + weight]) }, _ => Ok(()))
    }

    fn cost(&self) -> u64 {
        50 + 10 * self.rows.rows as u64
    }
}

/// Gradient of [`NllLoss`]. Buffers: grad, target, total_weight, weight if present, out.
#[derive(Debug)]
pub struct NllLossBackward(Rows);

impl NllLossBackward {
    /// `grad[n]` for reduction 0 of a matrix, else a scalar; `out[n, c]` or `[c]`, which need not hold anything. The
    /// rest as in [`NllLoss::new`].
    ///
    /// # Errors
    /// As [`NllLoss::new`].
    pub fn new(
        grad: &TensorType,
        target: &TensorType,
        weight: Option<DType>,
        reduction: i64,
        ignore_index: i64,
        total_weight: DType,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        Rows::new("nll_loss_backward", out, target, weight, reduction, ignore_index, grad, total_weight)
            .map(NllLossBackward)
    }

    /// # Safety
    /// As [`Kernel::run`]; `T` is the type of the gradient.
    unsafe fn task<T: Float>(
        &self,
        at: Addresses,
        total_weight: *const u8,
        range: std::ops::Range<usize>,
    ) -> Result<(), KernelError> {
        let rows = &self.0;
        for row in range {
            // SAFETY: a row of the operands; the class is checked before its element is written.
            unsafe {
                let out = at.matrix.offset(row as isize * rows.steps[0]);
                if rows.steps[1] == size_of::<T>() as isize {
                    out.write_bytes(0, rows.classes * size_of::<T>());
                } else {
                    for class in 0..rows.classes as isize {
                        *out.offset(class * rows.steps[1]).cast::<T>() = T::narrow(T::Wide::ZERO);
                    }
                }
                if let Some(class) = rows.class(at.target, row)? {
                    let mut grad = (*at.per_row.offset(row as isize * rows.row_step).cast::<T>()).widen();
                    if rows.reduction == MEAN {
                        grad = grad / (*total_weight.cast::<T>()).widen();
                    }
                    let weight = Rows::weight_of::<T>(at.weight, class);
                    *out.offset(class * rows.steps[1]).cast::<T>() = T::narrow(-grad * weight);
                }
            }
        }
        Ok(())
    }
}

impl Kernel for NllLossBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        struct Total(*const u8);
        // SAFETY: a scalar that tasks read.
        unsafe impl Sync for Total {}

        let rows = &self.0;
        let weight = usize::from(rows.weight);
        let at = Addresses {
            matrix: buffers[3 + weight],
            target: buffers[1],
            weight: if rows.weight { buffers[3] } else { std::ptr::null() },
            per_row: buffers[0],
        };
        let total = Total(buffers[2]);
        let rows_piece = (TASK_BYTES / (rows.classes * rows.dtype.size()).max(1)).max(1);
        let errors = FirstError::default();
        parallel_for(rows.rows.div_ceil(rows_piece), |t| {
            let (at, total): (Addresses, &Total) = (at, &total);
            let range = piece(rows.rows, rows_piece, t);
            // SAFETY: rows of this task, under the caller's contract.
            let result = by_float!(rows.dtype, T => unsafe { self.task::<T>(at, total.0, range) }, _ => Ok(()));
            errors.note(t, result);
        });
        errors.finish()
    }

    fn cost(&self) -> u64 {
        let rows = &self.0;
        50 + rows.rows as u64 * (10 + (rows.classes * rows.dtype.size()) as u64 / 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const I64: DType = DType::I64;
    const F32: DType = DType::F32;

    fn forward(
        log_prob: &[f32],
        sizes: &[i64],
        target: &[i64],
        weight: Option<&[f32]>,
        reduction: i64,
    ) -> Result<(Vec<f32>, f32), KernelError> {
        let each = reduction == NONE && sizes.len() == 2;
        let target_sizes = &sizes[..sizes.len() - 1];
        let loss_type = TensorType::contiguous(F32, if each { target_sizes } else { &[] });
        let kernel = NllLoss::new(
            &TensorType::contiguous(F32, sizes),
            &TensorType::contiguous(I64, target_sizes),
            weight.map(|_| F32),
            reduction,
            -100,
            &loss_type,
            F32,
        )?;
        let mut loss = vec![9f32; loss_type.numel() as usize];
        let mut total = 9f32;
        let mut buffers = vec![log_prob.as_ptr() as *mut u8, target.as_ptr() as *mut u8];
        buffers.extend(weight.map(|w| w.as_ptr() as *mut u8));
        buffers.extend([loss.as_mut_ptr().cast(), (&raw mut total).cast()]);
        // SAFETY: buffers of the declared layouts.
        unsafe { kernel.run(&buffers, &[])? };
        Ok((loss, total))
    }

    #[test]
    fn reductions_weights_and_ignored_rows() {
        let log_prob = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0];
        let (target, weight) = ([2, -100, 0], [1.0, 2.0, 4.0]);
        let run = |reduction, weight| forward(&log_prob, &[3, 3], &target, weight, reduction).unwrap();
        assert_eq!(run(0, None), (vec![3.0, 0.0, 7.0], 0.0));
        assert_eq!(run(1, None), (vec![5.0], 2.0));
        assert_eq!(run(2, None), (vec![10.0], 2.0));
        assert_eq!(run(0, Some(&weight[..])), (vec![12.0, 0.0, 7.0], 0.0));
        assert_eq!(run(1, Some(&weight[..])), (vec![19.0 / 5.0], 5.0));
        assert_eq!(forward(&log_prob[..3], &[3], &[1], None, 1).unwrap(), (vec![2.0], 1.0));
        assert_eq!(forward(&log_prob[..3], &[3], &[1], None, 0).unwrap(), (vec![2.0], 1.0));
    }

    #[test]
    fn mean_of_nothing_is_nan() {
        assert!(forward(&[-1.0, -2.0], &[1, 2], &[-100], None, 1).unwrap().0[0].is_nan());
        assert!(forward(&[], &[0, 2], &[], None, 1).unwrap().0[0].is_nan());
        assert_eq!(forward(&[], &[0, 2], &[], None, 2).unwrap().0, [0.0]);
        assert_eq!(forward(&[], &[0, 2], &[], None, 0).unwrap(), (vec![], 0.0));
    }

    #[test]
    fn the_first_bad_target_is_reported() {
        let n = 5000;
        let mut target = vec![0; n];
        (target[4000], target[700]) = (3, -1);
        let error = forward(&vec![0.0; 2 * n], &[n as i64, 2], &target, None, 2).unwrap_err();
        assert_eq!(error, KernelError::TargetOutOfRange { target: -1 });
    }

    #[test]
    fn gradient_is_written_where_the_target_points() {
        let (target, weight, grad, total) = ([1i64, -100], [2f32, 3.0], [10f32], [4f32]);
        // A transposed result.
        let out_type = TensorType::strided(F32, &[2, 2], &[1, 2]);
        let kernel = NllLossBackward::new(
            &TensorType::contiguous(F32, &[]),
            &TensorType::contiguous(I64, &[2]),
            Some(F32),
            1,
            -100,
            F32,
            &out_type,
        )
        .unwrap();
        let mut out = [9f32; 4];
        let buffers = [
            grad.as_ptr() as *mut u8,
            target.as_ptr() as *mut u8,
            total.as_ptr() as *mut u8,
            weight.as_ptr() as *mut u8,
            out.as_mut_ptr().cast(),
        ];
        // SAFETY: buffers of the declared layouts.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        assert_eq!(out, [0.0, 0.0, -7.5, 0.0]);
    }

    #[test]
    fn many_rows_agree_with_a_plain_sum() {
        let n = 3000;
        let log_prob: Vec<f32> = (0..2 * n).map(|i| -((i % 17) as f32)).collect();
        let target: Vec<i64> = (0..n as i64).map(|i| i % 2).collect();
        let expected: f32 = (0..n).map(|i| -log_prob[2 * i + i % 2]).sum();
        let (loss, total) = forward(&log_prob, &[n as i64, 2], &target, None, 2).unwrap();
        assert_eq!((loss[0], total), (expected, n as f32));
    }
}
