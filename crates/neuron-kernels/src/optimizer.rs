//! Fused optimizer steps: one pass over a parameter, its gradient and its state.
//!
//! Semantics are those of `torch._fused_adam_`, `torch._fused_adamw_` and `torch._fused_sgd_` on the CPU: half floats are
//! computed in `f32`, the bias corrections in `f64`; a gradient scale divides the gradient in place; a launch that finds
//! `found_inf` set changes nothing.

use crate::reduce::element::{BFloat16, Element, Float, Half};
use crate::simd::vectorized;
use crate::{Kernel, KernelError, pool};
use neuron_ir::{DType, Scalar};

/// Elements per task.
const CHUNK: usize = 1 << 14;

/// Where a launch finds a number of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Among the scalars.
    Scalar(usize),
    /// Known beforehand.
    Constant(f64),
    /// In memory: an `f64` at this position among the buffers.
    Buffer(usize),
}

impl Number {
    /// # Safety
    /// A buffer is valid for reading one `f64`.
    unsafe fn read(self, buffers: &[*mut u8], scalars: &[Scalar]) -> f64 {
        match self {
            Number::Scalar(i) => scalars[i].to_f64(),
            Number::Constant(v) => v,
            // SAFETY: the caller's contract.
            Number::Buffer(i) => unsafe { buffers[i].cast::<f64>().read() },
        }
    }
}

/// What fixes the form of an Adam step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdamOptions {
    /// Weight decay shrinks the parameter itself (AdamW), rather than being part of the gradient.
    pub adamw: bool,
    /// The denominator takes the largest second moment so far.
    pub amsgrad: bool,
    /// Ascends.
    pub maximize: bool,
    /// A gradient scale is among the buffers.
    pub grad_scale: bool,
    /// A flag that overflow was found is among the buffers.
    pub found_inf: bool,
}

/// One step of Adam or AdamW.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    numbers: [Number; 5],
    numel: usize,
    dtype: DType,
}

/// What fixes the form of an SGD step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SgdOptions {
    /// A momentum buffer is among the buffers; without one the launch's momentum is 0.
    pub momentum: bool,
    /// The momentum buffer is not yet filled: it becomes the gradient.
    pub first_step: bool,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// Ascends.
    pub maximize: bool,
    /// A gradient scale is among the buffers.
    pub grad_scale: bool,
    /// A flag that overflow was found is among the buffers.
    pub found_inf: bool,
}

/// One step of stochastic gradient descent.
#[derive(Debug)]
pub struct Sgd {
    options: SgdOptions,
    numbers: [Number; 4],
    numel: usize,
    dtype: DType,
}

fn same_dtype(kernel: &'static str, param: DType, grad: DType, state: DType) -> Result<DType, KernelError> {
    if !param.is_float() || grad != param || state != param {
        let what = format!("a parameter of {param} with a gradient of {grad} and a state of {state}");
        return Err(KernelError::Unsupported { kernel, what });
    }
    Ok(param)
}

impl Adam {
    /// A step over `numel` elements, all tensors contiguous and of one float type.
    ///
    /// Buffers, each read and written in place where it changes: `param`, `grad`, `exp_avg`, `exp_avg_sq`,
    /// `max_exp_avg_sq` with `amsgrad`, `step` (one `f32`, already counting this step), and one `f32` each of `grad_scale`
    /// and `found_inf` where the options have them. Numbers: learning rate, beta 1, beta 2, weight decay, epsilon.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for types other than floats, or mixed ones.
    pub fn new(
        options: AdamOptions,
        numbers: [Number; 5],
        numel: usize,
        param: DType,
        grad: DType,
        state: DType,
    ) -> Result<Adam, KernelError> {
        Ok(Adam { options, numbers, numel, dtype: same_dtype("fused_adam", param, grad, state)? })
    }
}

impl Sgd {
    /// A step over `numel` elements, all tensors contiguous and of one float type.
    ///
    /// Buffers, each read and written in place where it changes: `param`, `grad`, `momentum_buffer` with `momentum`, and
    /// one `f32` each of `grad_scale` and `found_inf` where the options have them. Numbers: weight decay, momentum,
    /// learning rate, dampening.
    ///
    /// # Errors
    /// As [`Adam::new`].
    pub fn new(
        options: SgdOptions,
        numbers: [Number; 4],
        numel: usize,
        param: DType,
        grad: DType,
        state: DType,
    ) -> Result<Sgd, KernelError> {
        Ok(Sgd { options, numbers, numel, dtype: same_dtype("fused_sgd", param, grad, state)? })
    }
}

/// The `f32` of an optional buffer, if it is there.
///
/// # Safety
/// The next buffer, if `present`, is valid for one `f32`.
unsafe fn value(present: bool, buffers: &mut impl Iterator<Item = *mut u8>) -> Option<f32> {
    // SAFETY: the caller's contract.
    present.then(|| buffers.next().map(|at| unsafe { at.cast::<f32>().read() })).flatten()
}

/// An address that tasks may take parts of.
#[derive(Clone, Copy)]
struct Array<E>(*mut E);

// SAFETY: tasks take disjoint parts.
unsafe impl<E> Sync for Array<E> {}

impl<E> Array<E> {
    /// # Safety
    /// The array is valid for `at + len` elements, and no one else uses these.
    unsafe fn part<'a>(&self, at: usize, len: usize) -> &'a mut [E] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// The numbers of an Adam step.
#[derive(Clone, Copy)]
struct AdamStep<C> {
    grad_scale: C,
    sign: C,
    /// What weight decay adds to the gradient per unit of the parameter, and what it multiplies the parameter with.
    decay: C,
    shrink: C,
    /// Weight of the gradient in the first moment, and whether it is under one half.
    first: C,
    first_is_small: bool,
    beta2: C,
    second: C,
    correction2_sqrt: C,
    eps: C,
    step_size: C,
}

impl<C: Float> AdamStep<C> {
    fn new(options: &AdamOptions, step: f32, grad_scale: Option<f32>, numbers: [f64; 5]) -> Self {
        let [lr, beta1, beta2, weight_decay, eps] = numbers;
        let correction = |beta: f64| 1.0 - beta.powf(f64::from(step));
        AdamStep {
            grad_scale: C::of(f64::from(grad_scale.unwrap_or(1.0))),
            sign: C::of(if options.maximize { -1.0 } else { 1.0 }),
            decay: C::of(weight_decay),
            shrink: C::of(if options.adamw { 1.0 - lr * weight_decay } else { 1.0 }),
            first: C::of(1.0 - beta1),
            first_is_small: (1.0 - beta1).abs() < 0.5,
            beta2: C::of(beta2),
            second: C::of(1.0 - beta2),
            correction2_sqrt: C::of(correction(beta2).sqrt()),
            eps: C::of(eps),
            step_size: C::of(lr / correction(beta1)),
        }
    }

    /// One chunk. The flags: a gradient scale, weight decay in the gradient, and the largest second moment.
    #[inline(always)]
    fn run<E: Element, const SCALED: bool, const DECAYED: bool, const AMSGRAD: bool>(
        self,
        [param, grad, exp_avg, exp_avg_sq, largest]: [&mut [E]; 5],
    ) {
        let len = param.len();
        let (grad, exp_avg, exp_avg_sq) = (&mut grad[..len], &mut exp_avg[..len], &mut exp_avg_sq[..len]);
        for i in 0..len {
            let mut p = C::load(param[i]);
            let mut g = C::load(grad[i]);
            if SCALED {
                g = g / self.grad_scale;
                grad[i] = g.store();
            }
            g = g * self.sign;
            if DECAYED {
                g += p * self.decay;
            }
            p = p * self.shrink;
            let old = C::load(exp_avg[i]);
            // `lerp`, from the nearer end.
            let m = if self.first_is_small {
                old + (g - old) * self.first
            } else {
                g - (g - old) * (C::of(1.0) - self.first)
            };
            let v = C::load(exp_avg_sq[i]) * self.beta2 + g * g * self.second;
            exp_avg[i] = m.store();
            exp_avg_sq[i] = v.store();
            let v = if AMSGRAD {
                let old = C::load(largest[i]);
                let max = if old > v || old.is_nan() { old } else { v };
                largest[i] = max.store();
                max
            } else {
                v
            };
            let denominator = v.sqrt() / self.correction2_sqrt + self.eps;
            param[i] = (p - self.step_size * m / denominator).store();
        }
    }
}

/// Runs a chunk compiled for these three flags, so that no element asks for them.
macro_rules! run_flagged {
    (@ $numbers:ident, $e:ty, $parts:ident, [] [$($flag:literal),*]) => { $numbers.run::<$e, $($flag),*>($parts) };
    (@ $numbers:ident, $e:ty, $parts:ident, [$first:expr $(, $rest:expr)*] [$($flag:literal),*]) => {
        if $first {
            run_flagged!(@ $numbers, $e, $parts, [$($rest),*] [$($flag,)* true])
        } else {
            run_flagged!(@ $numbers, $e, $parts, [$($rest),*] [$($flag,)* false])
        }
    };
    ($numbers:ident, $e:ty, $parts:ident, [$($flag:expr),*]) => {
        run_flagged!(@ $numbers, $e, $parts, [$($flag),*] [])
    };
}

impl Adam {
    unsafe fn launch<E: Element, C: Float>(&self, buffers: &[*mut u8], scalars: &[Scalar]) {
        let AdamOptions { adamw, amsgrad, .. } = self.options;
        let mut rest = buffers[4 + usize::from(amsgrad)..].iter().copied();
        // SAFETY: the caller's buffers.
        let (step, grad_scale, found_inf) = unsafe {
            let step = value(true, &mut rest).unwrap_or(1.0);
            let grad_scale = value(self.options.grad_scale, &mut rest);
            (step, grad_scale, value(self.options.found_inf, &mut rest))
        };
        if found_inf == Some(1.0) {
            return;
        }
        // SAFETY: the caller's buffers.
        let numbers = self.numbers.map(|n| unsafe { n.read(buffers, scalars) });
        let decayed = !adamw && numbers[3] != 0.0;
        let numbers = AdamStep::<C>::new(&self.options, step, grad_scale, numbers);
        let arrays: [Array<E>; 5] =
            std::array::from_fn(|i| Array(buffers[if i < 4 || amsgrad { i } else { 0 }].cast()));
        pool::parallel_for(self.numel.div_ceil(CHUNK), |task| {
            let at = task * CHUNK;
            let len = CHUNK.min(self.numel - at);
            let used = if amsgrad { 5 } else { 4 };
            // SAFETY: chunks are disjoint; without `amsgrad` the last part is empty.
            let parts = std::array::from_fn(|i| unsafe { arrays[i].part(at, if i < used { len } else { 0 }) });
            vectorized(
                #[inline(always)]
                || run_flagged!(numbers, E, parts, [grad_scale.is_some(), decayed, amsgrad]),
            );
        });
    }
}

/// The numbers of an SGD step.
#[derive(Clone, Copy)]
struct SgdStep<C> {
    grad_scale: C,
    sign: C,
    decay: C,
    momentum: C,
    undamped: C,
    lr: C,
    first_step: bool,
    nesterov: bool,
}

impl<C: Float> SgdStep<C> {
    /// One chunk. The flags: a gradient scale, weight decay, and momentum.
    #[inline(always)]
    fn run<E: Element, const SCALED: bool, const DECAYED: bool, const MOMENTUM: bool>(
        self,
        [param, grad, buffer]: [&mut [E]; 3],
    ) {
        let len = param.len();
        let grad = &mut grad[..len];
        for i in 0..len {
            let p = C::load(param[i]);
            let mut g = C::load(grad[i]);
            if SCALED {
                g = g / self.grad_scale;
                grad[i] = g.store();
            }
            g = g * self.sign;
            if DECAYED {
                g += p * self.decay;
            }
            if MOMENTUM {
                let old = C::load(buffer[i]);
                let m = if self.first_step { g } else { old * self.momentum + g * self.undamped };
                buffer[i] = m.store();
                g = if self.nesterov { g + m * self.momentum } else { m };
            }
            param[i] = (p - g * self.lr).store();
        }
    }
}

impl Sgd {
    unsafe fn launch<E: Element, C: Float>(&self, buffers: &[*mut u8], scalars: &[Scalar]) {
        let SgdOptions { momentum, first_step, nesterov, maximize, .. } = self.options;
        let mut rest = buffers[2 + usize::from(momentum)..].iter().copied();
        // SAFETY: the caller's buffers.
        let (grad_scale, found_inf) = unsafe {
            let grad_scale = value(self.options.grad_scale, &mut rest);
            (grad_scale, value(self.options.found_inf, &mut rest))
        };
        if found_inf == Some(1.0) {
            return;
        }
        // SAFETY: the caller's buffers.
        let [weight_decay, factor, lr, dampening] = self.numbers.map(|n| unsafe { n.read(buffers, scalars) });
        let numbers = SgdStep {
            grad_scale: C::of(f64::from(grad_scale.unwrap_or(1.0))),
            sign: C::of(if maximize { -1.0 } else { 1.0 }),
            decay: C::of(weight_decay),
            momentum: C::of(factor),
            undamped: C::of(1.0 - dampening),
            lr: C::of(lr),
            first_step,
            nesterov,
        };
        let arrays: [Array<E>; 3] =
            std::array::from_fn(|i| Array(buffers[if i < 2 || momentum { i } else { 0 }].cast()));
        pool::parallel_for(self.numel.div_ceil(CHUNK), |task| {
            let at = task * CHUNK;
            let len = CHUNK.min(self.numel - at);
            let used = if momentum { 3 } else { 2 };
            // SAFETY: chunks are disjoint; without momentum the last part is empty.
            let parts = std::array::from_fn(|i| unsafe { arrays[i].part(at, if i < used { len } else { 0 }) });
            vectorized(
                #[inline(always)]
                || run_flagged!(numbers, E, parts, [grad_scale.is_some(), weight_decay != 0.0, momentum]),
            );
        });
    }
}

/// What fixes the form of an Adagrad step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdagradOptions {
    /// Ascends.
    pub maximize: bool,
    /// A gradient scale is among the buffers.
    pub grad_scale: bool,
    /// A flag that overflow was found is among the buffers.
    pub found_inf: bool,
}

/// One step of Adagrad.
#[derive(Debug)]
pub struct Adagrad {
    options: AdagradOptions,
    numbers: [Number; 4],
    numel: usize,
    dtype: DType,
}

impl Adagrad {
    /// A step over `numel` elements, all tensors contiguous and of one float type.
    ///
    /// Buffers, each read and written in place where it changes: `param`, `grad`, `state_sum`, `step` (one `f32`, already
    /// counting this step), and one `f32` each of `grad_scale` and `found_inf` where the options have them. Numbers:
    /// learning rate, its decay, weight decay, epsilon.
    ///
    /// # Errors
    /// As [`Adam::new`].
    pub fn new(
        options: AdagradOptions,
        numbers: [Number; 4],
        numel: usize,
        param: DType,
        grad: DType,
        state: DType,
    ) -> Result<Adagrad, KernelError> {
        Ok(Adagrad { options, numbers, numel, dtype: same_dtype("fused_adagrad", param, grad, state)? })
    }

    unsafe fn launch<E: Element, C: Float>(&self, buffers: &[*mut u8], scalars: &[Scalar]) {
        let mut rest = buffers[3..].iter().copied();
        // SAFETY: the caller's buffers.
        let (step, grad_scale, found_inf) = unsafe {
            let step = value(true, &mut rest).unwrap_or(1.0);
            let grad_scale = value(self.options.grad_scale, &mut rest);
            (step, grad_scale, value(self.options.found_inf, &mut rest))
        };
        if found_inf == Some(1.0) {
            return;
        }
        // SAFETY: the caller's buffers.
        let [lr, lr_decay, weight_decay, eps] = self.numbers.map(|n| unsafe { n.read(buffers, scalars) });
        let rate = C::of(lr / (1.0 + (f64::from(step) - 1.0) * lr_decay));
        let (decay, eps) = (C::of(weight_decay), C::of(eps));
        let sign = C::of(if self.options.maximize { -1.0 } else { 1.0 });
        let scale = grad_scale.map(|s| C::of(f64::from(s)));
        let arrays: [Array<E>; 3] = std::array::from_fn(|i| Array(buffers[i].cast()));
        pool::parallel_for(self.numel.div_ceil(CHUNK), |task| {
            let at = task * CHUNK;
            let len = CHUNK.min(self.numel - at);
            // SAFETY: chunks are disjoint.
            let [param, grad, sums] = std::array::from_fn(|i| unsafe { arrays[i].part(at, len) });
            vectorized(
                #[inline(always)]
                || {
                    for ((param, grad), sum) in param.iter_mut().zip(grad).zip(sums) {
                        let p = C::load(*param);
                        let mut g = C::load(*grad);
                        if let Some(scale) = scale {
                            g = g / scale;
                            *grad = g.store();
                        }
                        g = g * sign + p * decay;
                        let s = C::load(*sum) + g * g;
                        *sum = s.store();
                        *param = (p - rate * g / (s.sqrt() + eps)).store();
                    }
                },
            );
        });
    }
}

/// The launch compiled for the kernel's element type.
macro_rules! kernel {
    ($kernel:ty, $cost:expr) => {
        impl Kernel for $kernel {
            unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
                // SAFETY: the caller's contract.
                unsafe {
                    match self.dtype {
                        DType::F64 => self.launch::<f64, f64>(buffers, scalars),
                        DType::BF16 => self.launch::<BFloat16, f32>(buffers, scalars),
                        DType::F16 => self.launch::<Half, f32>(buffers, scalars),
                        _ => self.launch::<f32, f32>(buffers, scalars),
                    }
                }
                Ok(())
            }

            fn cost(&self) -> u64 {
                self.numel as u64 * $cost / 4
            }
        }
    };
}
kernel!(Adam, 7);
kernel!(Sgd, 3);
kernel!(Adagrad, 5);

#[cfg(test)]
mod tests;
