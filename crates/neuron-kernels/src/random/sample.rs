//! Distributions whose parameters are tensors: rejection takes as many words as it takes, so each element has a stream.

use super::normal::{normal_f64, uniform_f64};
use super::philox::stream;
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use neuron_ir::{CheckOp, DType, SampleOp, Scalar, TensorType};

const NAME: &str = "sample";

/// Elements of one task.
const PIECE: usize = 1 << 10;

unsafe extern "C" {
    #[link_name = "lgamma_r"]
    fn c_lgamma_r(x: f64, sign: *mut i32) -> f64;
}

fn ln_factorial(k: f64) -> f64 {
    let mut sign = 0;
    // SAFETY: `sign` outlives the call.
    unsafe { c_lgamma_r(k + 1.0, &mut sign) }
}

/// The random numbers of one element.
struct Stream {
    seed: u64,
    offset: u64,
    element: u64,
    block: u32,
    words: [u64; 2],
    left: usize,
}

impl Stream {
    fn new(seed: u64, offset: u64, element: usize) -> Stream {
        Stream { seed, offset, element: element as u64, block: 0, words: [0; 2], left: 0 }
    }

    fn bits(&mut self) -> u64 {
        if self.left == 0 {
            let [a, b, c, d] = stream(self.seed, self.offset, self.element, self.block);
            self.words = [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32];
            self.block += 1;
            self.left = 2;
        }
        self.left -= 1;
        self.words[self.left]
    }

    /// In (0, 1).
    fn uniform(&mut self) -> f64 {
        uniform_f64(self.bits()) + 0.5 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.bits(), self.bits());
        normal_f64(radius, angle)[0]
    }

    /// Poisson: a product of uniforms for small rates, for others the transformed rejection of Hoermann (1993).
    fn poisson(&mut self, rate: f64) -> f64 {
        if !(0.0..f64::INFINITY).contains(&rate) {
            return f64::NAN;
        }
        if rate == 0.0 {
            return 0.0;
        }
        if rate < 10.0 {
            let limit = (-rate).exp();
            let (mut k, mut product) = (0.0, self.uniform());
            while product > limit {
                k += 1.0;
                product *= self.uniform();
            }
            return k;
        }
        let log_rate = rate.ln();
        let b = 0.931 + 2.53 * rate.sqrt();
        let a = -0.059 + 0.02483 * b;
        let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
        let v_r = 0.9277 - 3.6224 / (b - 2.0);
        loop {
            let u = self.uniform() - 0.5;
            let v = self.uniform();
            let s = 0.5 - u.abs();
            let k = ((2.0 * a / s + b) * u + rate + 0.43).floor();
            if s >= 0.07 && v <= v_r {
                return k;
            }
            if k < 0.0 || (s < 0.013 && v > s) {
                continue;
            }
            if (v * inverse_alpha / (a / (s * s) + b)).ln() <= k * log_rate - rate - ln_factorial(k) {
                return k;
            }
        }
    }

    /// Gamma, by Marsaglia and Tsang (2000).
    fn gamma(&mut self, alpha: f64) -> f64 {
        if alpha <= 0.0 || alpha.is_nan() {
            return if alpha == 0.0 { 0.0 } else { f64::NAN };
        }
        let (scale, alpha) = if alpha < 1.0 { (self.uniform().powf(1.0 / alpha), alpha + 1.0) } else { (1.0, alpha) };
        let d = alpha - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let y = 1.0 + c * x;
            if y <= 0.0 {
                continue;
            }
            let v = y * y * y;
            let u = self.uniform();
            if u < 1.0 - 0.0331 * x * x * x * x || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return scale * d * v;
            }
        }
    }
}

/// A sample of a distribution. Buffers: the parameter, out; the last two launch scalars are the seed and the offset of
/// the generator, which moves on by 4 for each element.
#[derive(Debug)]
pub struct Sample {
    op: SampleOp,
    dtype: DType,
    /// Weights of a row, for multinomial.
    categories: usize,
    /// Elements of `out` per row.
    samples: usize,
    numel: usize,
}

impl Sample {
    /// Both tensors row-major; the parameter `f32` or `f64`, `out` of its type, or `i64` for [`SampleOp::Multinomial`].
    ///
    /// # Errors
    /// Other types or layouts.
    pub fn new(op: SampleOp, parameter: &TensorType, out: &TensorType) -> Result<Sample, KernelError> {
        let result = if op == SampleOp::Multinomial { DType::I64 } else { parameter.dtype };
        if !matches!(parameter.dtype, DType::F32 | DType::F64) || out.dtype != result {
            return Err(KernelError::dtype(NAME, parameter.dtype));
        }
        if !parameter.is_contiguous() || !out.is_contiguous() {
            return Err(KernelError::Unsupported { kernel: NAME, what: "a layout that is not row-major".into() });
        }
        let last = |t: &TensorType| t.sizes.last().map_or(1, |n| *n as usize);
        Ok(Sample {
            op,
            dtype: parameter.dtype,
            categories: last(parameter),
            samples: last(out),
            numel: out.numel() as usize,
        })
    }

    /// # Safety
    /// The buffers are those of the constructor.
    unsafe fn parameter(&self, from: *const u8, i: usize) -> f64 {
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F64 => from.cast::<f64>().add(i).read(),
                _ => f64::from(from.cast::<f32>().add(i).read()),
            }
        }
    }

    /// # Safety
    /// The buffers are those of the constructor.
    unsafe fn elements(&self, from: *const u8, to: *mut u8, task: usize, [seed, offset]: [u64; 2]) {
        for i in task * PIECE..self.numel.min((task + 1) * PIECE) {
            let mut stream = Stream::new(seed, offset, i);
            // SAFETY: element `i` of both tensors.
            unsafe {
                let parameter = self.parameter(from, i);
                let value = match self.op {
                    SampleOp::Poisson => stream.poisson(parameter),
                    _ => stream.gamma(parameter),
                };
                match self.dtype {
                    DType::F64 if self.op == SampleOp::Gamma => {
                        to.cast::<f64>().add(i).write(if value < f64::MIN_POSITIVE {
                            f64::MIN_POSITIVE
                        } else {
                            value
                        });
                    }
                    DType::F64 => to.cast::<f64>().add(i).write(value),
                    _ if self.op == SampleOp::Gamma => {
                        let value = value as f32;
                        to.cast::<f32>().add(i).write(if value < f32::MIN_POSITIVE {
                            f32::MIN_POSITIVE
                        } else {
                            value
                        });
                    }
                    _ => to.cast::<f32>().add(i).write(value as f32),
                }
            }
        }
    }

    /// One row: sums of the weights up to each, and for each sample the first that exceeds a share of the total.
    ///
    /// # Safety
    /// The buffers are those of the constructor.
    unsafe fn row(
        &self,
        from: *const u8,
        to: *mut u8,
        row: usize,
        [seed, offset]: [u64; 2],
    ) -> Result<(), KernelError> {
        let mut sums = Vec::with_capacity(self.categories);
        let mut sum = 0.0;
        for i in 0..self.categories {
            // SAFETY: a weight of the row.
            let weight = unsafe { self.parameter(from, row * self.categories + i) };
            if !(0.0..f64::INFINITY).contains(&weight) {
                return Err(KernelError::InvalidElement(crate::check::message(CheckOp::Weight)));
            }
            sum += weight;
            sums.push(sum);
        }
        // The last category of positive weight: rounding must not lead beyond it.
        let last = sums.partition_point(|s| *s < sum);
        for k in 0..self.samples {
            let at = row * self.samples + k;
            let share = Stream::new(seed, offset, at).uniform() * sum;
            let drawn = sums.partition_point(|s| *s <= share).min(last);
            // SAFETY: an element of the row.
            unsafe { to.cast::<i64>().add(at).write(drawn as i64) };
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Buffers(*const u8, *mut u8);

// SAFETY: tasks write disjoint elements.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Kernel for Sample {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let [.., seed, offset] = scalars else {
            return Err(KernelError::Unsupported { kernel: NAME, what: "a launch without seed and offset".into() });
        };
        let state = [seed.to_i64() as u64, offset.to_i64() as u64];
        let buffers = Buffers(buffers[0], buffers[1]);
        if self.op != SampleOp::Multinomial {
            parallel_for(self.numel.div_ceil(PIECE), |task| {
                let buffers: Buffers = buffers;
                // SAFETY: the caller's buffers.
                unsafe { self.elements(buffers.0, buffers.1, task, state) };
            });
            return Ok(());
        }
        let failed = std::sync::atomic::AtomicBool::new(false);
        parallel_for(self.numel / self.samples.max(1), |row| {
            let buffers: Buffers = buffers;
            // SAFETY: the caller's buffers.
            if unsafe { self.row(buffers.0, buffers.1, row, state) }.is_err() {
                failed.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        if failed.into_inner() {
            Err(KernelError::InvalidElement(crate::check::message(CheckOp::Weight)))
        } else {
            Ok(())
        }
    }

    fn cost(&self) -> u64 {
        let weights =
            if self.op == SampleOp::Multinomial { self.numel / self.samples.max(1) * self.categories } else { 0 };
        100 + 60 * self.numel as u64 + 2 * weights as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(n: usize, draw: impl Fn(&mut Stream) -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..n).map(|i| draw(&mut Stream::new(7, 0, i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64)
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        for rate in [0.3, 4.0, 12.0, 300.0] {
            let (mean, variance) = moments(40_000, |s| s.poisson(rate));
            assert!(
                (mean / rate - 1.0).abs() < 0.03 && (variance / rate - 1.0).abs() < 0.05,
                "{rate}: {mean} {variance}"
            );
        }
        for alpha in [0.2, 1.0, 7.5] {
            let (mean, variance) = moments(40_000, |s| s.gamma(alpha));
            assert!(
                (mean / alpha - 1.0).abs() < 0.04 && (variance / alpha - 1.0).abs() < 0.08,
                "{alpha}: {mean} {variance}"
            );
        }
    }

    #[test]
    fn multinomial_follows_the_weights_and_skips_zeros() {
        let weights = [0.0f32, 1.0, 0.0, 3.0, 0.0];
        let (from, to) =
            (TensorType::contiguous(DType::F32, &[1, 5]), TensorType::contiguous(DType::I64, &[1, 20_000]));
        let kernel = Sample::new(SampleOp::Multinomial, &from, &to).unwrap();
        let mut out = vec![0i64; 20_000];
        let buffers = [weights.as_ptr() as *mut u8, out.as_mut_ptr().cast()];
        // SAFETY: both buffers have the sizes of their types.
        unsafe { kernel.run(&buffers, &[Scalar::I64(3), Scalar::I64(0)]).unwrap() };
        let ones = out.iter().filter(|v| **v == 1).count();
        assert!(out.iter().all(|v| *v == 1 || *v == 3) && (4700..5300).contains(&ones), "{ones}");
    }
}
