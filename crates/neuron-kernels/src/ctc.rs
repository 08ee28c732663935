//! Connectionist temporal classification: the probability of a label sequence over all its alignments with the input.
//!
//! Alignments run through the labels with a blank before, between and after them: state `s` of `2 * labels + 1` is a blank
//! where `s` is even and label `s / 2` where it is odd. All probabilities are logarithms.

use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{DType, Scalar, TensorType};

/// What a loss is computed from, besides tensors.
#[derive(Clone, Debug)]
pub struct CtcLengths {
    /// Steps of each sample.
    pub input: Vec<i64>,
    /// Labels of each sample.
    pub target: Vec<i64>,
    /// Class of the blank.
    pub blank: i64,
}

/// Sizes shared by the loss and its gradient.
#[derive(Debug)]
struct Problem {
    dtype: DType,
    targets: DType,
    steps: usize,
    batch: usize,
    classes: usize,
    /// States of the longest label sequence.
    states: usize,
    lengths: Vec<[usize; 2]>,
    /// Where each sample's labels begin.
    offsets: Vec<usize>,
    blank: usize,
}

/// A float the loss is computed in.
trait Real: Copy + PartialOrd + Send + Sync {
    const NEVER: Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn add(self, x: Self) -> Self;
    fn sub(self, x: Self) -> Self;
    fn mul(self, x: Self) -> Self;
    fn zero() -> Self;

    /// Logarithm of a sum of exponentials.
    fn log_sum(terms: [Self; 3]) -> Self {
        let largest = terms.iter().fold(terms[0], |a, b| if *b > a { *b } else { a });
        let base = if largest == Self::NEVER { Self::zero() } else { largest };
        let sum = terms.iter().fold(Self::zero(), |sum, t| sum.add(t.sub(base).exp()));
        sum.ln().add(base)
    }
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const NEVER: $t = <$t>::NEG_INFINITY;
            fn exp(self) -> $t {
                <$t>::exp(self)
            }
            fn ln(self) -> $t {
                <$t>::ln(self)
            }
            fn add(self, x: $t) -> $t {
                self + x
            }
            fn sub(self, x: $t) -> $t {
                self - x
            }
            fn mul(self, x: $t) -> $t {
                self * x
            }
            fn zero() -> $t {
                0.0
            }
        }
    };
}
real!(f32);
real!(f64);

impl Problem {
    fn new(
        kernel: &'static str,
        log_probs: &TensorType,
        targets: &TensorType,
        lengths: &CtcLengths,
        alpha: &TensorType,
    ) -> Result<Problem, KernelError> {
        let unsupported = |what: String| Err(KernelError::Unsupported { kernel, what });
        let [steps, batch, classes] = log_probs.sizes[..] else { return unsupported(format!("{log_probs}")) };
        let labels = alpha.sizes.last().map_or(0, |s| (s - 1) / 2);
        let fits = matches!(log_probs.dtype, DType::F32 | DType::F64)
            && matches!(targets.dtype, DType::I32 | DType::I64)
            && [log_probs, targets, alpha].iter().all(|t| t.is_contiguous())
            && alpha.sizes[..] == [batch, steps, 2 * labels + 1]
            && alpha.dtype == log_probs.dtype
            && [&lengths.input, &lengths.target].iter().all(|l| l.len() == batch as usize)
            && lengths.input.iter().all(|n| (0..=steps).contains(n))
            && lengths.target.iter().all(|n| (0..=labels).contains(n))
            && (0..classes).contains(&lengths.blank);
        if !fits {
            return unsupported(format!("{log_probs} with targets {targets} and states {alpha}"));
        }
        let mut next = 0usize;
        let offsets: Vec<usize> = lengths
            .target
            .iter()
            .enumerate()
            .map(|(i, n)| match targets.rank() {
                1 => {
                    next += *n as usize;
                    next - *n as usize
                }
                _ => i * targets.sizes[1] as usize,
            })
            .collect();
        let ends = offsets.iter().zip(&lengths.target).map(|(o, n)| o + *n as usize);
        if targets.rank() > 2 || ends.max().unwrap_or(0) > targets.numel() as usize {
            return unsupported(format!("targets {targets}"));
        }
        let pairs = lengths.input.iter().zip(&lengths.target).map(|(i, t)| [*i as usize, *t as usize]).collect();
        Ok(Problem {
            dtype: log_probs.dtype,
            targets: targets.dtype,
            steps: steps as usize,
            batch: batch as usize,
            classes: classes as usize,
            states: alpha.sizes[2] as usize,
            lengths: pairs,
            offsets,
            blank: lengths.blank as usize,
        })
    }

    /// The class of each state of a sample; a label that is no class of the input is the blank's.
    ///
    /// # Safety
    /// `targets` is the tensor the problem was made for.
    unsafe fn states(&self, sample: usize, targets: *const u8) -> Vec<usize> {
        let [_, labels] = self.lengths[sample];
        (0..2 * labels + 1)
            .map(|s| {
                if s % 2 == 0 {
                    return self.blank;
                }
                let i = self.offsets[sample] + s / 2;
                // SAFETY: the labels lie in the tensor.
                let class = unsafe {
                    match self.targets {
                        DType::I32 => i64::from(*targets.cast::<i32>().add(i)),
                        _ => *targets.cast::<i64>().add(i),
                    }
                };
                usize::try_from(class).ok().filter(|c| *c < self.classes).unwrap_or(self.blank)
            })
            .collect()
    }

    fn cost(&self) -> u64 {
        500 + (self.batch * self.steps * (self.states * 30 + self.classes)) as u64
    }
}

/// Addresses that tasks share; each writes parts of its own sample.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);
// SAFETY: see the type.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// The loss. Buffers: `log_probs[t, n, c]`, targets, then the results: loss `[n]` and state probabilities `[n, t, s]`.
#[derive(Debug)]
pub struct CtcLoss(Problem);

impl CtcLoss {
    /// Contiguous `f32` or `f64` probabilities; `i32` or `i64` targets, padded `[n, s]` or joined in one dimension.
    ///
    /// # Errors
    /// Other types and layouts, lengths that do not fit.
    pub fn new(
        log_probs: &TensorType,
        targets: &TensorType,
        lengths: &CtcLengths,
        alpha: &TensorType,
    ) -> Result<Self, KernelError> {
        Problem::new("ctc_loss", log_probs, targets, lengths, alpha).map(CtcLoss)
    }

    unsafe fn run_as<T: Real>(&self, buffers: &[*mut u8]) {
        let p = &self.0;
        let (loss, alpha) = (Shared(buffers[2].cast::<T>()), Shared(buffers[3].cast::<T>()));
        let (log_probs, targets) = (Shared(buffers[0].cast::<T>()), Shared(buffers[1]));
        parallel_for(p.batch, |n| {
            let [steps, labels] = p.lengths[n];
            // SAFETY: parts of this sample.
            unsafe {
                let classes = p.states(n, targets.at(0));
                let alpha = std::slice::from_raw_parts_mut(alpha.at(n * p.steps * p.states), p.steps * p.states);
                let log_prob = |t: usize, s: usize| *log_probs.at((t * p.batch + n) * p.classes + classes[s]);
                alpha.fill(T::NEVER);
                if steps == 0 {
                    loss.at(n).write(if labels == 0 { T::zero() } else { T::zero().sub(T::NEVER) });
                    return;
                }
                alpha[0] = log_prob(0, 0);
                if labels > 0 {
                    alpha[1] = log_prob(0, 1);
                }
                for t in 1..steps {
                    let (before, now) = alpha[(t - 1) * p.states..].split_at_mut(p.states);
                    for s in 0..classes.len() {
                        let one = if s > 0 { before[s - 1] } else { T::NEVER };
                        let two = if s > 1 && classes[s - 2] != classes[s] { before[s - 2] } else { T::NEVER };
                        now[s] = T::log_sum([before[s], one, two]).add(log_prob(t, s));
                    }
                }
                let last = &alpha[(steps - 1) * p.states..];
                let label = if labels > 0 { last[2 * labels - 1] } else { T::NEVER };
                loss.at(n).write(T::zero().sub(T::log_sum([last[2 * labels], label, T::NEVER])));
            }
        });
    }
}

impl Kernel for CtcLoss {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.0.dtype {
                DType::F64 => self.run_as::<f64>(buffers),
                _ => self.run_as::<f32>(buffers),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.0.cost()
    }
}

/// Gradient of [`CtcLoss`]. Buffers: gradient `[n]`, `log_probs`, targets, loss, state probabilities, then the result
/// `[t, n, c]`.
#[derive(Debug)]
pub struct CtcLossBackward {
    problem: Problem,
    zero_infinity: bool,
}

impl CtcLossBackward {
    /// As [`CtcLoss::new`]; the result is contiguous. `zero_infinity`: an infinite loss has no gradient.
    ///
    /// # Errors
    /// As [`CtcLoss::new`].
    pub fn new(
        log_probs: &TensorType,
        targets: &TensorType,
        lengths: &CtcLengths,
        alpha: &TensorType,
        zero_infinity: bool,
    ) -> Result<Self, KernelError> {
        let problem = Problem::new("ctc_loss_backward", log_probs, targets, lengths, alpha)?;
        Ok(CtcLossBackward { problem, zero_infinity })
    }

    unsafe fn run_as<T: Real>(&self, buffers: &[*mut u8]) {
        let p = &self.problem;
        let [grad, log_probs, loss, alpha, out] = [0, 1, 3, 4, 5].map(|i: usize| Shared(buffers[i].cast::<T>()));
        let targets = Shared(buffers[2]);
        parallel_for(p.batch, |n| {
            let [steps, labels] = p.lengths[n];
            // SAFETY: parts of this sample.
            unsafe {
                let classes = p.states(n, targets.at(0));
                let row = |of: &Shared<T>, t: usize| {
                    std::slice::from_raw_parts_mut(of.at((t * p.batch + n) * p.classes), p.classes)
                };
                let (grad, loss) = (*grad.at(n), *loss.at(n));
                let infinite = self.zero_infinity && loss == T::zero().sub(T::NEVER);
                let mut after = vec![T::NEVER; classes.len()];
                let mut now = after.clone();
                for t in (0..p.steps).rev() {
                    let out = row(&out, t);
                    if t >= steps || infinite {
                        out.fill(T::zero());
                        continue;
                    }
                    let log_probs: &[T] = row(&log_probs, t);
                    let alpha = std::slice::from_raw_parts(alpha.at((n * p.steps + t) * p.states), classes.len());
                    out.fill(T::NEVER);
                    for s in 0..classes.len() {
                        let class = classes[s];
                        now[s] = if t + 1 == steps {
                            if s + 2 > 2 * labels { log_probs[class] } else { T::NEVER }
                        } else {
                            let one = if s < 2 * labels { after[s + 1] } else { T::NEVER };
                            let skips = s + 1 < 2 * labels && classes[s + 2] != class;
                            let two = if skips { after[s + 2] } else { T::NEVER };
                            T::log_sum([after[s], one, two]).add(log_probs[class])
                        };
                        out[class] = T::log_sum([out[class], alpha[s].add(now[s]), T::NEVER]);
                    }
                    std::mem::swap(&mut now, &mut after);
                    for (out, log_prob) in out.iter_mut().zip(log_probs) {
                        let posterior = out.add(loss).sub(*log_prob).exp();
                        *out = log_prob.exp().sub(posterior).mul(grad);
                    }
                }
            }
        });
    }
}

impl Kernel for CtcLossBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.problem.dtype {
                DType::F64 => self.run_as::<f64>(buffers),
                _ => self.run_as::<f32>(buffers),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        2 * self.problem.cost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps, classes blank, a, b; label a: alignments aa, -a, a-.
    #[test]
    fn all_alignments_count() {
        let probs: [f64; 6] = [0.5, 0.3, 0.2, 0.1, 0.6, 0.3];
        let mut log_probs = probs.map(f64::ln);
        let mut target = [1i64];
        let lengths = CtcLengths { input: vec![2], target: vec![1], blank: 0 };
        let t = |dtype, sizes: &[i64]| TensorType::contiguous(dtype, sizes);
        let (x, y, a) = (t(DType::F64, &[2, 1, 3]), t(DType::I64, &[1, 1]), t(DType::F64, &[1, 2, 3]));
        let (mut loss, mut alpha, mut grad, mut out) = ([0f64], [0f64; 6], [1f64], [0f64; 6]);
        let expected = 0.3 * 0.6 + 0.5 * 0.6 + 0.3 * 0.1;
        let buffers: [*mut u8; 4] = [
            log_probs.as_mut_ptr().cast(),
            target.as_mut_ptr().cast(),
            loss.as_mut_ptr().cast(),
            alpha.as_mut_ptr().cast(),
        ];
        let kernel = CtcLoss::new(&x, &y, &lengths, &a).unwrap();
        // SAFETY: buffers of the layouts above.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        assert!((loss[0] + f64::ln(expected)).abs() < 1e-12);
        let kernel = CtcLossBackward::new(&x, &y, &lengths, &a, false).unwrap();
        let buffers: [*mut u8; 6] = [
            grad.as_mut_ptr().cast(),
            log_probs.as_mut_ptr().cast(),
            target.as_mut_ptr().cast(),
            loss.as_mut_ptr().cast(),
            alpha.as_mut_ptr().cast(),
            out.as_mut_ptr().cast(),
        ];
        // SAFETY: as above.
        unsafe { kernel.run(&buffers, &[]).unwrap() };
        // The posterior of each class at each step, taken from its probability.
        let posterior = [0.5 * 0.6, 0.3 * 0.7, 0.0, 0.3 * 0.1, 0.8 * 0.6, 0.0].map(|p| p / expected);
        for (i, (p, q)) in probs.iter().zip(posterior).enumerate() {
            assert!((out[i] - (p - q)).abs() < 1e-12, "{i}: {out:?}");
        }
    }
}
