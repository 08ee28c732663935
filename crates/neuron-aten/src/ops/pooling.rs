//! Pooling and unpooling.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered};
use neuron_ir::{DType, Dims, Divisor, Op, Shape, SpatialOp, TensorType, Value, Window};

pub(super) const ROWS: &[Row] = &[
    (&["aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices.out"], |l| max_pool(l, 2)),
    (&["aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices.out"], |l| max_pool(l, 3)),
    (&["aten::max_pool2d_with_indices_backward", "aten::max_pool2d_with_indices_backward.grad_input"], |l| {
        max_backward(l, 2, 7)
    }),
    (&["aten::max_pool3d_with_indices_backward", "aten::max_pool3d_with_indices_backward.grad_input"], |l| {
        max_backward(l, 3, 7)
    }),
    (&["aten::adaptive_max_pool2d", "aten::adaptive_max_pool2d.out"], |l| adaptive_max_pool(l, 2)),
    (&["aten::adaptive_max_pool3d", "aten::adaptive_max_pool3d.out"], |l| adaptive_max_pool(l, 3)),
    (&["aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool2d_backward.grad_input"], |l| {
        max_backward(l, 2, 2)
    }),
    (&["aten::adaptive_max_pool3d_backward", "aten::adaptive_max_pool3d_backward.grad_input"], |l| {
        max_backward(l, 3, 2)
    }),
    (&["aten::fractional_max_pool2d", "aten::fractional_max_pool2d.output"], |l| fractional_max_pool(l, 2)),
    (&["aten::fractional_max_pool3d", "aten::fractional_max_pool3d.output"], |l| fractional_max_pool(l, 3)),
    (&["aten::fractional_max_pool2d_backward", "aten::fractional_max_pool2d_backward.grad_input"], |l| {
        max_backward(l, 2, 4)
    }),
    (&["aten::fractional_max_pool3d_backward", "aten::fractional_max_pool3d_backward.grad_input"], |l| {
        max_backward(l, 3, 4)
    }),
    (&["aten::max_unpool2d", "aten::max_unpool2d.out"], |l| max_unpool(l, 2)),
    (&["aten::max_unpool3d", "aten::max_unpool3d.out"], |l| max_unpool(l, 3)),
    (&["aten::avg_pool2d", "aten::avg_pool2d.out"], |l| avg_pool(l, 2)),
    (&["aten::avg_pool3d", "aten::avg_pool3d.out"], |l| avg_pool(l, 3)),
    (&["aten::avg_pool2d_backward", "aten::avg_pool2d_backward.grad_input"], |l| avg_pool_backward(l, 2)),
    (&["aten::avg_pool3d_backward", "aten::avg_pool3d_backward.grad_input"], |l| avg_pool_backward(l, 3)),
    (&["aten::_adaptive_avg_pool2d"], |l| adaptive_avg_pool(l, 2)),
    (&["aten::_adaptive_avg_pool3d"], |l| adaptive_avg_pool(l, 3)),
    (&["aten::_adaptive_avg_pool2d_backward"], |l| adaptive_avg_pool_backward(l, 2)),
    (&["aten::_adaptive_avg_pool3d_backward", "aten::adaptive_avg_pool3d_backward.grad_input"], |l| {
        adaptive_avg_pool_backward(l, 3)
    }),
];

/// The sizes as `[n, c, d, h, w]`, of which the operator has the last `dims`, `c`, and maybe `n`.
pub(super) fn frame(sizes: &[i64], dims: usize) -> Result<Dims, LowerError> {
    let (lead, spatial) = match sizes.len().checked_sub(dims) {
        Some(n @ (1 | 2)) => sizes.split_at(n),
        _ => return Err(LowerError::unsupported(format!("a tensor of {} dimensions", sizes.len()))),
    };
    let mut framed = Dims::from_elem(1, 2 - lead.len());
    framed.extend_from_slice(lead);
    framed.extend(std::iter::repeat_n(1, 3 - dims));
    framed.extend_from_slice(spatial);
    Ok(framed)
}

/// Tensor argument `i` as `[n, c, d, h, w]`.
pub(super) fn framed(l: &mut Lower, i: usize, dims: usize) -> Result<Value, LowerError> {
    let sizes = frame(&l.ty(i)?.sizes, dims)?;
    let value = l.tensor(i)?;
    Ok(l.g.reshape(value, &sizes))
}

/// The shape of output `k` as `[n, c, d, h, w]`.
pub(super) fn framed_output(ty: &TensorType, dtype: DType, dims: usize) -> Result<Shape, LowerError> {
    Ok(Shape { dtype, sizes: frame(&ty.sizes, dims)? })
}

/// The numbers of argument `i` for depth, height and width; `missing` for those the operator has not.
fn spread(l: &Lower, i: usize, dims: usize, missing: i64) -> Result<[i64; 3], LowerError> {
    let given = l.ints(i).unwrap_or_default();
    let mut all = [missing; 3];
    match given.len() {
        1 => all[3 - dims..].fill(given[0]),
        n if n == dims => all[3 - dims..].copy_from_slice(&given),
        n => return Err(LowerError::unsupported(format!("{n} numbers for {dims} dimensions"))),
    }
    Ok(all)
}

/// The windows of `(kernel, stride, padding, dilation)`, the first of them being argument `first`.
fn windows(l: &Lower, first: usize, dims: usize, dilated: bool) -> Result<[Window; 3], LowerError> {
    let kernel = spread(l, first, dims, 1)?;
    let strided = l.ints(first + 1).is_some_and(|s| !s.is_empty());
    let stride = if strided { spread(l, first + 1, dims, 1)? } else { kernel };
    let padding = spread(l, first + 2, dims, 0)?;
    let dilation = if dilated { spread(l, first + 3, dims, 1)? } else { [1; 3] };
    Ok(std::array::from_fn(|i| Window::Strided {
        kernel: kernel[i],
        stride: stride[i],
        padding: padding[i],
        dilation: dilation[i],
    }))
}

fn adaptive(dims: usize) -> [Window; 3] {
    let whole = Window::Strided { kernel: 1, stride: 1, padding: 0, dilation: 1 };
    std::array::from_fn(|i| if i < 3 - dims { whole } else { Window::Adaptive })
}

fn floats_only(dtype: DType) -> Lowered {
    if dtype.is_float() { Ok(()) } else { Err(LowerError::unsupported(format!("pooling of {dtype}"))) }
}

/// Values and positions are the two outputs.
fn store_max(l: &mut Lower, op: SpatialOp, operands: &[Value], dims: usize) -> Lowered {
    let dtype = l.g.dtype(operands[0]);
    let values = framed_output(l.out(0)?, dtype, dims)?;
    let positions = framed_output(l.out(1)?, DType::I64, dims)?;
    let first = l.g.push(Op::Spatial(op), operands, &[values, positions]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// `(self, kernel_size, stride, padding, dilation, ceil_mode)`
fn max_pool(l: &mut Lower, dims: usize) -> Lowered {
    let windows = windows(l, 1, dims, true)?;
    let x = framed(l, 0, dims)?;
    store_max(l, SpatialOp::MaxPool { windows }, &[x], dims)
}

/// `(self, output_size)`
fn adaptive_max_pool(l: &mut Lower, dims: usize) -> Lowered {
    floats_only(l.ty(0)?.dtype)?;
    let x = framed(l, 0, dims)?;
    store_max(l, SpatialOp::MaxPool { windows: adaptive(dims) }, &[x], dims)
}

/// `(self, kernel_size, output_size, random_samples)`
fn fractional_max_pool(l: &mut Lower, dims: usize) -> Lowered {
    let kernel = spread(l, 1, dims, 1)?;
    let planes = frame(&l.ty(0)?.sizes, dims)?;
    if l.ty(3)?.sizes[..] != [planes[0], planes[1], dims as i64] {
        return Err(LowerError::unsupported("random samples of another shape than the planes"));
    }
    let x = framed(l, 0, dims)?;
    let samples = l.tensor(3)?;
    store_max(l, SpatialOp::FractionalMaxPool { kernel }, &[x, samples], dims)
}

/// `(grad_output, self, .., indices)`, the indices being argument `indices`
fn max_backward(l: &mut Lower, dims: usize, indices: usize) -> Lowered {
    let ty = l.ty(1)?;
    let result = framed_output(ty, l.ty(0)?.dtype, dims)?;
    let operands = [framed(l, 0, dims)?, framed(l, indices, dims)?];
    let value = l.g.op(Op::Spatial(SpatialOp::ToPositions { accumulate: true }), &operands, result);
    l.store_value(value)
}

/// `(self, indices, output_size, ..)`
fn max_unpool(l: &mut Lower, dims: usize) -> Lowered {
    let result = framed_output(l.out(0)?, l.ty(0)?.dtype, dims)?;
    let operands = [framed(l, 0, dims)?, framed(l, 1, dims)?];
    let value = l.g.op(Op::Spatial(SpatialOp::ToPositions { accumulate: false }), &operands, result);
    l.store_value(value)
}

/// The divisor that `(count_include_pad, divisor_override)` mean, the first of them being argument `first`.
fn divisor(l: &Lower, first: usize) -> Result<Divisor, LowerError> {
    Ok(match l.arg(first + 1) {
        Arg::None if l.flag(first) => Divisor::Padded,
        Arg::None => Divisor::Existing,
        _ => Divisor::Fixed(l.int(first + 1)?),
    })
}

fn check_avg(dtype: DType, dims: usize) -> Lowered {
    // PyTorch refuses them, and says so.
    if dims == 3 && matches!(dtype, DType::F16 | DType::BF16) {
        return Err(LowerError::unsupported(format!("three-dimensional means of {dtype}")));
    }
    Ok(())
}

/// `(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)`
fn avg_pool(l: &mut Lower, dims: usize) -> Lowered {
    check_avg(l.ty(0)?.dtype, dims)?;
    let op = SpatialOp::AvgPool { windows: windows(l, 1, dims, false)?, divisor: divisor(l, 5)? };
    store_avg(l, op, dims)
}

/// `(self, output_size)`
fn adaptive_avg_pool(l: &mut Lower, dims: usize) -> Lowered {
    floats_only(l.ty(0)?.dtype)?;
    check_planes(l.ty(0)?)?;
    store_avg(l, SpatialOp::AvgPool { windows: adaptive(dims), divisor: Divisor::Extents }, dims)
}

/// Refuses an input that is empty in another dimension than that of the batch: PyTorch raises an error.
pub(super) fn check_planes(ty: &TensorType) -> Lowered {
    if ty.sizes.iter().skip(1).any(|n| *n == 0) {
        return Err(LowerError::unsupported("planes or channels of nothing"));
    }
    Ok(())
}

fn store_avg(l: &mut Lower, op: SpatialOp, dims: usize) -> Lowered {
    let result = framed_output(l.out(0)?, l.ty(0)?.dtype, dims)?;
    let x = framed(l, 0, dims)?;
    let value = l.g.op(Op::Spatial(op), &[x], result);
    l.store_value(value)
}

/// `(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)`
fn avg_pool_backward(l: &mut Lower, dims: usize) -> Lowered {
    check_avg(l.ty(0)?.dtype, dims)?;
    let op = SpatialOp::AvgPoolBackward { windows: windows(l, 2, dims, false)?, divisor: divisor(l, 6)? };
    store_avg(l, op, dims)
}

/// `(grad_output, self)`
fn adaptive_avg_pool_backward(l: &mut Lower, dims: usize) -> Lowered {
    floats_only(l.ty(0)?.dtype)?;
    store_avg(l, SpatialOp::AvgPoolBackward { windows: adaptive(dims), divisor: Divisor::Extents }, dims)
}
