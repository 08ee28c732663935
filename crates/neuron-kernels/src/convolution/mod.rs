//! `torch.conv1d` to `conv3d`, transposed or not, and their gradients.
//!
//! A convolution is a product of the weight with the patch matrix, which is never in memory as a whole: panels of it are
//! gathered from the input while they are multiplied. The gradient of the input is the transposed convolution, which is a
//! set of convolutions of stride 1, one for each residue of the output position by the stride.

mod correlation;
mod direct;
mod gather;
mod geometry;
#[cfg(test)]
mod tests;
mod weight;

use crate::gemm::element::{Accumulator, Element};
use crate::kernel::{Kernel, KernelError};
use correlation::Correlation;
use geometry::{Axis, Positions, spatial, three};
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, TensorType};
use smallvec::SmallVec;
pub use weight::ConvolutionWeightGradient;

/// How a window moves over the input; an entry per spatial dimension.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// Steps between output positions.
    pub stride: &'a [i64],
    /// Zeros before and after the input.
    pub padding: &'a [i64],
    /// Steps between kernel positions.
    pub dilation: &'a [i64],
    /// Groups of channels that see each other.
    pub groups: i64,
}

/// A convolution of one to three spatial dimensions. Buffers: input, weight, bias if present, out.
///
/// Half floats are summed in `f32` and rounded once; sums of integers wrap.
#[derive(Debug)]
pub struct Convolution {
    bias: bool,
    parts: Vec<Correlation>,
    run: Run,
    cost: u64,
}

type Run = unsafe fn(&Convolution, &[*mut u8]);

impl Convolution {
    /// `input[n, c, ..]`, `weight[o, c / groups, ..]` (transposed: `weight[c, o / groups, ..]`), `out[n, o, ..]` of one type,
    /// a float or `i64`, any strides; a contiguous `bias[o]` of that type. The fastest inputs are contiguous.
    ///
    /// # Errors
    /// Other types, other than one to three spatial dimensions, shapes that do not belong together.
    pub fn new(
        input: &TensorType,
        weight: &TensorType,
        bias: Option<DType>,
        windows: Windows,
        transposed: bool,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let kernel = "convolution";
        let dtype = input.dtype;
        let run = runner(dtype).ok_or_else(|| KernelError::dtype(kernel, dtype))?;
        let one_type = weight.dtype == dtype && out.dtype == dtype && bias.is_none_or(|b| b == dtype);
        if !one_type || !belong_together(input, weight, windows, transposed, out) {
            return Err(KernelError::Unsupported { kernel, what: format!("{input} by {weight} to {out}") });
        }
        let groups = windows.groups;
        let (rows, channels) = (out.sizes[1] / groups, input.sizes[1] / groups);
        let parts = phases(input, weight, windows, transposed, out)
            .into_iter()
            .map(|(positions, taps)| Correlation {
                positions,
                groups: groups as usize,
                rows: rows as usize,
                channels: channels as usize,
                input_channel: input.strides[1] as isize,
                out_channel: out.strides[1] as isize,
                weight_group: (weight.strides[0] * if transposed { channels } else { rows }) as isize,
                weight_row: weight.strides[usize::from(transposed)] as isize,
                weight_channel: weight.strides[usize::from(!transposed)] as isize,
                taps,
            })
            .filter(|p: &Correlation| p.positions.columns() > 0)
            .collect::<Vec<_>>();
        let per_nanosecond = if matches!(dtype, DType::I64 | DType::F64) { 4 } else { 16 };
        let cost = parts.iter().map(Correlation::multiplications).sum::<usize>() / per_nanosecond;
        Ok(Convolution { bias: bias.is_some(), parts, run, cost: 200 + cost as u64 })
    }

    /// # Safety
    /// As [`Kernel::run`]; `S` is the element type.
    unsafe fn run_as<A: Accumulator, S: Element<A>>(&self, buffers: &[*mut u8]) {
        let bias = if self.bias { buffers[2].cast_const() } else { std::ptr::null() };
        let out = buffers[2 + usize::from(self.bias)];
        for part in &self.parts {
            // SAFETY: as the caller promises.
            unsafe {
                part.run::<A, S>(
                    buffers[0].cast_const().cast(),
                    buffers[1].cast_const().cast(),
                    bias.cast(),
                    out.cast(),
                );
            }
        }
    }
}

impl Kernel for Convolution {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        // SAFETY: as the caller promises; `run` was chosen by the type.
        unsafe { (self.run)(self, buffers) };
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.cost
    }
}

/// Expands to `$body` with `$a` the accumulator and `$s` the element of a type, or to `$otherwise`.
macro_rules! by_element {
    ($dtype:expr, $a:ident, $s:ident => $body:expr, _ => $otherwise:expr) => {
        by_element!(@ $dtype, $a, $s, $body, $otherwise,
            F32: f32 f32, F64: f64 f64, BF16: f32 bf16, F16: f32 f16, I64: i64 i64)
    };
    (@ $dtype:expr, $a:ident, $s:ident, $body:expr, $otherwise:expr, $($d:ident: $at:ident $st:ident),*) => {
        match $dtype {
            $(DType::$d => { type $a = $at; type $s = $st; $body })*
            _ => $otherwise,
        }
    };
}
use by_element;

fn runner(dtype: DType) -> Option<Run> {
    by_element!(dtype, A, S => Some(Convolution::run_as::<A, S>), _ => None)
}

/// Whether ranks, channels and arguments fit.
fn belong_together(x: &TensorType, weight: &TensorType, w: Windows, transposed: bool, out: &TensorType) -> bool {
    let rank = x.rank();
    if !(3..=5).contains(&rank) || weight.rank() != rank || out.rank() != rank || w.groups < 1 {
        return false;
    }
    let arguments = [w.stride, w.padding, w.dilation].iter().all(|a| a.len() == rank - 2);
    let positive = w.stride.iter().chain(w.dilation).all(|s| *s > 0);
    let (of_input, of_out) = if transposed { (0, 1) } else { (1, 0) };
    let factor = |d: usize| if d == 1 { w.groups } else { 1 };
    let channels = x.sizes[1] == weight.sizes[of_input] * factor(of_input)
        && out.sizes[1] == weight.sizes[of_out] * factor(of_out)
        && x.sizes[1] % w.groups == 0
        && out.sizes[1] % w.groups == 0;
    arguments && positive && channels && x.sizes[0] == out.sizes[0]
}

/// A kernel position of one dimension: its number, and where it reads for output position 0.
type Tap = (i64, i64);

/// The taps and output positions of one residue of a dimension: first position, step between positions, taps.
struct Residue {
    first: i64,
    step: i64,
    stride: i64,
    taps: SmallVec<[Tap; 8]>,
}

/// The convolutions that make up one, each with the offsets of its kernel positions in the weight.
fn phases(
    input: &TensorType,
    weight: &TensorType,
    w: Windows,
    transposed: bool,
    out: &TensorType,
) -> Vec<(Positions, Vec<isize>)> {
    let (stride, padding, dilation) = (three(w.stride, 1), three(w.padding, 0), three(w.dilation, 1));
    let (from, kernel, to) = (spatial(input), spatial(weight), spatial(out));
    let residues = |d: usize| -> Vec<Residue> {
        let shift = |k: i64| k * dilation[d] - padding[d];
        if !transposed {
            let taps = (0..kernel[d].0).map(|k| (k, shift(k))).collect();
            return vec![Residue { first: 0, step: 1, stride: stride[d], taps }];
        }
        // Output position `r + stride * q` gets from input position `(r + stride * q - shift(k)) / stride`.
        (0..stride[d])
            .map(|r| {
                let reached = (0..kernel[d].0).filter(|k| (r - shift(*k)).rem_euclid(stride[d]) == 0);
                let taps = reached.map(|k| (k, (r - shift(k)).div_euclid(stride[d]))).collect();
                Residue { first: r, step: stride[d], stride: 1, taps }
            })
            .collect()
    };
    let all = [residues(0), residues(1), residues(2)];
    let mut phases = Vec::new();
    for z in &all[0] {
        for y in &all[1] {
            for x in &all[2] {
                let chosen = [z, y, x];
                let axis = |d: usize| Axis {
                    input: from[d].0,
                    out: (to[d].0 - chosen[d].first + chosen[d].step - 1).max(0) / chosen[d].step,
                    stride: chosen[d].stride,
                    shifts: chosen[d].taps.iter().map(|t| t.1).collect(),
                    input_step: from[d].1,
                    out_step: to[d].1 * chosen[d].step,
                };
                let positions = Positions {
                    batch: input.sizes[0] as usize,
                    axes: [axis(0), axis(1), axis(2)],
                    input_batch: input.strides[0] as isize,
                    out_batch: out.strides[0] as isize,
                    out_first: (0..3).map(|d| chosen[d].first * to[d].1).sum::<i64>() as isize,
                };
                let mut taps = Vec::new();
                for (kz, _) in &z.taps {
                    for (ky, _) in &y.taps {
                        taps.extend(
                            x.taps
                                .iter()
                                .map(|(kx, _)| (kz * kernel[0].1 + ky * kernel[1].1 + kx * kernel[2].1) as isize),
                        );
                    }
                }
                phases.push((positions, taps));
            }
        }
    }
    phases
}
