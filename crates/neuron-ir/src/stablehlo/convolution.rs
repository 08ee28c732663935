//! Convolutions.

use super::text::{Text, V, WindowDim};
use super::{Call, Written};
use crate::{ConvolutionOp, ConvolutionWindows};

fn spatial(rank: usize) -> String {
    (0..rank - 2).map(|i| format!(", {i}")).collect()
}

/// `f32` for half floats; integers as they are in `i64`.
fn operands(t: &mut Text, c: &Call) -> (V, V) {
    (c.wide(t, 0), c.wide(t, 1))
}

pub(super) fn write(t: &mut Text, c: &Call, op: &ConvolutionOp) -> Written {
    let (x, other) = operands(t, c);
    let to = &c.result().sizes;
    let s = spatial(x.rank());
    let out = match op {
        ConvolutionOp::Forward { windows: w, transposed, .. } if c.result().numel() == 0 || x.numel() == 0 => {
            let _ = (w, transposed);
            t.splat(x.el, to, crate::Scalar::I64(0))
        }
        ConvolutionOp::Forward { windows: w, transposed: false, .. } => {
            let windows: Vec<WindowDim> = (0..x.rank() - 2)
                .map(|i| WindowDim {
                    size: other.dims[i + 2],
                    stride: w.stride[i],
                    dilation: w.dilation[i],
                    base_dilation: 1,
                    low: w.padding[i],
                    high: w.padding[i],
                })
                .collect();
            let numbers = format!("[b, f{s}]x[o, i{s}]->[b, f{s}]");
            t.convolution(&x, &other, &numbers, &windows, [w.groups, 1], to)
        }
        ConvolutionOp::Forward { windows: w, .. } => transposed(t, &x, &other, w, to),
        ConvolutionOp::WeightGradient { windows: w } => weight_gradient(t, &x, &other, w, to),
    };
    let ConvolutionOp::Forward { bias: true, .. } = op else { return Ok(vec![out]) };
    let bias = c.wide(t, 2);
    let bias = t.broadcast_in(&bias, &[1], &out.dims);
    Ok(vec![t.add(&out, &bias)])
}

/// The input is spread by the strides and convolved with the weight reversed.
fn transposed(t: &mut Text, x: &V, weight: &V, w: &ConvolutionWindows, to: &[i64]) -> V {
    let n = x.rank() - 2;
    let (inputs, outputs) = (weight.dims[0], weight.dims[1]);
    let groups = w.groups;
    // [c, o / groups, ..] as [o, c / groups, ..].
    let mut split = vec![groups, inputs / groups, outputs];
    split.extend(&weight.dims[2..]);
    let grouped = t.reshape(weight, &split);
    let mut order = vec![0, 2, 1];
    order.extend(3..3 + n as i64);
    let swapped = t.transpose(&grouped, &order);
    let mut merged = vec![groups * outputs, inputs / groups];
    merged.extend(&weight.dims[2..]);
    let weight = t.reshape(&swapped, &merged);
    let dims: Vec<i64> = (2..2 + n as i64).collect();
    let weight = t.reverse(&weight, &dims);
    let windows: Vec<WindowDim> = (0..n)
        .map(|i| {
            let reach = (weight.dims[i + 2] - 1) * w.dilation[i];
            let spread = (x.dims[i + 2] - 1) * w.stride[i] + 1;
            let low = reach - w.padding[i];
            // As much as the result needs: output padding is in its size.
            let high = to[i + 2] + reach - spread - low;
            WindowDim {
                size: weight.dims[i + 2],
                stride: 1,
                dilation: w.dilation[i],
                base_dilation: w.stride[i],
                low,
                high,
            }
        })
        .collect();
    let s = spatial(x.rank());
    t.convolution(x, &weight, &format!("[b, f{s}]x[o, i{s}]->[b, f{s}]"), &windows, [groups, 1], to)
}

/// Samples are what is summed over: they take the place of the channels, and the channels that of the samples.
fn weight_gradient(t: &mut Text, x: &V, grad: &V, w: &ConvolutionWindows, to: &[i64]) -> V {
    if x.numel() == 0 || grad.numel() == 0 {
        return t.splat(x.el, to, crate::Scalar::I64(0));
    }
    let n = x.rank() - 2;
    let windows: Vec<WindowDim> = (0..n)
        .map(|i| {
            let reach = (grad.dims[i + 2] - 1) * w.stride[i] + 1;
            let wanted = (to[i + 2] - 1) * w.dilation[i] + reach;
            WindowDim {
                size: grad.dims[i + 2],
                stride: w.dilation[i],
                dilation: w.stride[i],
                base_dilation: 1,
                low: w.padding[i],
                high: wanted - x.dims[i + 2] - w.padding[i],
            }
        })
        .collect();
    let s = spatial(x.rank());
    let numbers = format!("[f, b{s}]x[i, o{s}]->[f, b{s}]");
    // The result of the convolution is [o, c / groups, ..]: features first.
    t.convolution(x, grad, &numbers, &windows, [1, w.groups], to)
}
