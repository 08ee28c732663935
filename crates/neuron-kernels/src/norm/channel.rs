//! The two sums that the gradients of normalised channels need, in one pass.

use crate::gemm::element::{Accumulator, Element};
use crate::kernel::{Kernel, KernelError};
use crate::pool::parallel_for;
use crate::simd::vectorized;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, TensorType};

/// Elements summed in lanes before they are added up.
const BLOCK: usize = 2048;
/// Lanes of a sum.
const LANES: usize = 32;
/// Elements of a task.
const TASK: usize = 64 << 10;

/// Per channel of `[outer, channels, inner]`: `total = sum of grad`, `dot = sum of grad * (x - mean)`.
///
/// Buffers: `grad`, `x`, `mean[channels]` if there is one, then the results `total[channels]` and `dot[channels]`. Sums are
/// in the compute type, which is also that of the mean and the results.
#[derive(Debug)]
pub struct ChannelSums {
    outer: usize,
    channels: usize,
    inner: usize,
    mean: bool,
    run: unsafe fn(&ChannelSums, &[*mut u8]),
}

struct Addresses<A, S> {
    grad: *const S,
    x: *const S,
    /// Null if there is none.
    mean: *const A,
    total: *mut A,
    dot: *mut A,
}
// SAFETY: tasks read the inputs and write the results of their own channels.
unsafe impl<A, S> Sync for Addresses<A, S> {}

impl ChannelSums {
    /// Contiguous `grad` and `x` of one float type.
    ///
    /// # Errors
    /// Other types, layouts and shapes.
    pub fn new(grad: &TensorType, x: &TensorType, mean: bool) -> Result<ChannelSums, KernelError> {
        let kernel = "channel_sums";
        let [outer, channels, inner] = x.sizes[..] else {
            return Err(KernelError::Unsupported { kernel, what: x.to_string() });
        };
        if grad.shape() != x.shape() || !grad.is_contiguous() || !x.is_contiguous() {
            return Err(KernelError::Unsupported { kernel, what: format!("{grad} and {x}") });
        }
        let run: unsafe fn(&ChannelSums, &[*mut u8]) = match x.dtype {
            DType::F32 => Self::run_as::<f32, f32>,
            DType::F64 => Self::run_as::<f64, f64>,
            DType::BF16 => Self::run_as::<f32, bf16>,
            DType::F16 => Self::run_as::<f32, f16>,
            other => return Err(KernelError::dtype(kernel, other)),
        };
        Ok(ChannelSums { outer: outer as usize, channels: channels as usize, inner: inner as usize, mean, run })
    }

    /// # Safety
    /// As [`Kernel::run`]; `S` is the element type.
    unsafe fn run_as<A: Accumulator, S: Element<A>>(&self, buffers: &[*mut u8]) {
        let results = 2 + usize::from(self.mean);
        let at = Addresses {
            grad: buffers[0].cast_const().cast::<S>(),
            x: buffers[1].cast_const().cast::<S>(),
            mean: if self.mean { buffers[2].cast_const().cast::<A>() } else { std::ptr::null() },
            total: buffers[results].cast(),
            dot: buffers[results + 1].cast(),
        };
        let share = (TASK / (self.outer * self.inner).max(1)).clamp(1, self.channels.max(1));
        parallel_for(self.channels.div_ceil(share), |task| {
            let at: &Addresses<A, S> = &at;
            vectorized(
                #[inline(always)]
                || {
                    for channel in task * share..((task + 1) * share).min(self.channels) {
                        // SAFETY: one channel, under the caller's contract.
                        unsafe { self.channel(at, channel) };
                    }
                },
            );
        });
    }

    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn channel<A: Accumulator, S: Element<A>>(&self, at: &Addresses<A, S>, channel: usize) {
        // SAFETY: the channel's elements.
        unsafe {
            let minus_mean = if self.mean { minus(*at.mean.add(channel)) } else { A::default() };
            let (mut total, mut dot) = (A::default(), A::default());
            for outer in 0..self.outer {
                let first = (outer * self.channels + channel) * self.inner;
                let grad = std::slice::from_raw_parts(at.grad.add(first), self.inner);
                let x = std::slice::from_raw_parts(at.x.add(first), self.inner);
                for (grad, x) in grad.chunks(BLOCK).zip(x.chunks(BLOCK)) {
                    let (mut totals, mut dots) = ([A::default(); LANES], [A::default(); LANES]);
                    let (grads, xs) = (grad.chunks_exact(LANES), x.chunks_exact(LANES));
                    let rest = grads.remainder().iter().zip(xs.remainder());
                    for (grad, x) in grads.zip(xs) {
                        for i in 0..LANES {
                            let g = grad[i].widen();
                            totals[i] = totals[i].plus(g);
                            dots[i] = dots[i].multiply_add(x[i].widen().plus(minus_mean), g);
                        }
                    }
                    for (i, (grad, x)) in rest.enumerate() {
                        let g = grad.widen();
                        totals[i] = totals[i].plus(g);
                        dots[i] = dots[i].multiply_add(x.widen().plus(minus_mean), g);
                    }
                    total = total.plus(sum(totals));
                    dot = dot.plus(sum(dots));
                }
            }
            at.total.add(channel).write(total);
            at.dot.add(channel).write(dot);
        }
    }
}

#[inline(always)]
fn minus<A: Accumulator>(x: A) -> A {
    x.times(A::from_scalar(Scalar::I64(-1)))
}

/// The sum of the lanes, halved and halved.
#[inline(always)]
fn sum<A: Accumulator>(mut lanes: [A; LANES]) -> A {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = lanes[i].plus(lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

impl Kernel for ChannelSums {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: as the caller promises; `run` was chosen by the type.
        unsafe { (self.run)(self, buffers) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        100 + (self.outer * self.channels * self.inner) as u64 / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_their_definition() {
        for (outer, channels, inner) in [(1, 1, 1), (3, 5, 7), (2, 3, 5000), (2, 40, 64), (0, 3, 4), (2, 3, 0)] {
            let ty = TensorType::contiguous(DType::F64, &[outer, channels, inner]);
            let n = ty.numel() as usize;
            let mut grad: Vec<f64> = (0..n).map(|i| (i % 7) as f64 - 3.0).collect();
            let mut x: Vec<f64> = (0..n).map(|i| (i % 11) as f64).collect();
            let mut mean: Vec<f64> = (0..channels).map(|c| c as f64).collect();
            let (mut total, mut dot) = (vec![9.0; channels as usize], vec![9.0; channels as usize]);
            let kernel = ChannelSums::new(&ty, &ty, true).unwrap();
            let buffers =
                [&mut grad, &mut x, &mut mean, &mut total, &mut dot].map(|b: &mut Vec<f64>| b.as_mut_ptr().cast());
            // SAFETY: buffers of these extents.
            unsafe { kernel.run(&buffers, &[]).unwrap() };
            for c in 0..channels as usize {
                let at = (0..n).filter(|i| i / (inner as usize).max(1) % channels as usize == c);
                assert_eq!(total[c], at.clone().map(|i| grad[i]).sum::<f64>());
                assert_eq!(dot[c], at.map(|i| grad[i] * (x[i] - mean[c])).sum::<f64>());
            }
        }
    }
}
