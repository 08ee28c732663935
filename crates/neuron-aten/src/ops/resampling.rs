//! Interpolation, padding by reflection and replication, sampling at a grid.

use super::Row;
use super::pooling::{check_planes, framed, framed_output};
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered};
use neuron_ir::{DType, Filter, Op, Outside, Sampling, Shape, SpatialOp, Taps, TensorType, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::upsample_nearest1d", "aten::upsample_nearest1d.out"], |l| nearest(l, 1, false)),
    (&["aten::upsample_nearest2d", "aten::upsample_nearest2d.out"], |l| nearest(l, 2, false)),
    (&["aten::upsample_nearest3d", "aten::upsample_nearest3d.out"], |l| nearest(l, 3, false)),
    (&["aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact1d.out"], |l| nearest(l, 1, true)),
    (&["aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact2d.out"], |l| nearest(l, 2, true)),
    (&["aten::_upsample_nearest_exact3d", "aten::_upsample_nearest_exact3d.out"], |l| nearest(l, 3, true)),
    (&["aten::upsample_nearest1d_backward", "aten::upsample_nearest1d_backward.grad_input"], |l| {
        nearest_backward(l, 1, false)
    }),
    (&["aten::upsample_nearest2d_backward", "aten::upsample_nearest2d_backward.grad_input"], |l| {
        nearest_backward(l, 2, false)
    }),
    (&["aten::upsample_nearest3d_backward", "aten::upsample_nearest3d_backward.grad_input"], |l| {
        nearest_backward(l, 3, false)
    }),
    (&["aten::_upsample_nearest_exact1d_backward", "aten::_upsample_nearest_exact1d_backward.grad_input"], |l| {
        nearest_backward(l, 1, true)
    }),
    (&["aten::_upsample_nearest_exact2d_backward", "aten::_upsample_nearest_exact2d_backward.grad_input"], |l| {
        nearest_backward(l, 2, true)
    }),
    (&["aten::_upsample_nearest_exact3d_backward", "aten::_upsample_nearest_exact3d_backward.grad_input"], |l| {
        nearest_backward(l, 3, true)
    }),
    (&["aten::upsample_linear1d", "aten::upsample_linear1d.out"], |l| filtered(l, 1, Filter::Linear, false)),
    (&["aten::upsample_bilinear2d", "aten::upsample_bilinear2d.out"], |l| filtered(l, 2, Filter::Linear, false)),
    (&["aten::upsample_trilinear3d", "aten::upsample_trilinear3d.out"], |l| filtered(l, 3, Filter::Linear, false)),
    (&["aten::upsample_bicubic2d", "aten::upsample_bicubic2d.out"], |l| filtered(l, 2, Filter::Cubic, false)),
    (&["aten::_upsample_bilinear2d_aa", "aten::_upsample_bilinear2d_aa.out"], |l| filtered(l, 2, Filter::Linear, true)),
    (&["aten::_upsample_bicubic2d_aa", "aten::_upsample_bicubic2d_aa.out"], |l| filtered(l, 2, Filter::Cubic, true)),
    (&["aten::_upsample_lanczos2d_aa", "aten::_upsample_lanczos2d_aa.out"], |l| filtered(l, 2, Filter::Lanczos, true)),
    (&["aten::upsample_linear1d_backward", "aten::upsample_linear1d_backward.grad_input"], |l| {
        filtered_backward(l, 1, Filter::Linear, false)
    }),
    (&["aten::upsample_bilinear2d_backward", "aten::upsample_bilinear2d_backward.grad_input"], |l| {
        filtered_backward(l, 2, Filter::Linear, false)
    }),
    (&["aten::upsample_trilinear3d_backward", "aten::upsample_trilinear3d_backward.grad_input"], |l| {
        filtered_backward(l, 3, Filter::Linear, false)
    }),
    (&["aten::upsample_bicubic2d_backward", "aten::upsample_bicubic2d_backward.grad_input"], |l| {
        filtered_backward(l, 2, Filter::Cubic, false)
    }),
    (&["aten::_upsample_bilinear2d_aa_backward", "aten::_upsample_bilinear2d_aa_backward.grad_input"], |l| {
        filtered_backward(l, 2, Filter::Linear, true)
    }),
    (&["aten::_upsample_bicubic2d_aa_backward", "aten::_upsample_bicubic2d_aa_backward.grad_input"], |l| {
        filtered_backward(l, 2, Filter::Cubic, true)
    }),
    (&["aten::_upsample_lanczos2d_aa_backward", "aten::_upsample_lanczos2d_aa_backward.grad_input"], |l| {
        filtered_backward(l, 2, Filter::Lanczos, true)
    }),
    (&["aten::reflection_pad1d", "aten::reflection_pad1d.out"], |l| pad(l, 1, true)),
    (&["aten::reflection_pad2d", "aten::reflection_pad2d.out"], |l| pad(l, 2, true)),
    (&["aten::reflection_pad3d", "aten::reflection_pad3d.out"], |l| pad(l, 3, true)),
    (&["aten::replication_pad1d", "aten::replication_pad1d.out"], |l| pad(l, 1, false)),
    (&["aten::replication_pad2d", "aten::replication_pad2d.out"], |l| pad(l, 2, false)),
    (&["aten::replication_pad3d", "aten::replication_pad3d.out"], |l| pad(l, 3, false)),
    (&["aten::reflection_pad1d_backward", "aten::reflection_pad1d_backward.grad_input"], |l| pad_backward(l, 1, true)),
    (&["aten::reflection_pad2d_backward", "aten::reflection_pad2d_backward.grad_input"], |l| pad_backward(l, 2, true)),
    (&["aten::reflection_pad3d_backward", "aten::reflection_pad3d_backward.grad_input"], |l| pad_backward(l, 3, true)),
    (&["aten::replication_pad1d_backward", "aten::replication_pad1d_backward.grad_input"], |l| {
        pad_backward(l, 1, false)
    }),
    (&["aten::replication_pad2d_backward", "aten::replication_pad2d_backward.grad_input"], |l| {
        pad_backward(l, 2, false)
    }),
    (&["aten::replication_pad3d_backward", "aten::replication_pad3d_backward.grad_input"], |l| {
        pad_backward(l, 3, false)
    }),
    (&["aten::grid_sampler_2d"], |l| grid_sampler(l, 2)),
    (&["aten::grid_sampler_3d"], |l| grid_sampler(l, 3)),
    (&["aten::grid_sampler_2d_backward"], |l| grid_sampler_backward(l, 2)),
    (&["aten::grid_sampler_3d_backward"], |l| grid_sampler_backward(l, 3)),
];

/// The taps of the last `dims` dimensions, from what dimension number `i` of these has.
fn taps(dims: usize, of: impl Fn(usize) -> Taps) -> [Taps; 3] {
    std::array::from_fn(|i| (i + dims).checked_sub(3).map_or(Taps::Same, &of))
}

fn factor(l: &Lower, i: usize) -> Option<f64> {
    match l.arg(i) {
        Arg::Float(v) => Some(*v),
        Arg::Int(v) => Some(*v as f64),
        _ => None,
    }
}

fn store(l: &mut Lower, op: SpatialOp, dims: usize) -> Lowered {
    let result = framed_output(l.out(0)?, l.ty(0)?.dtype, dims)?;
    let x = framed(l, 0, dims)?;
    let value = l.g.op(Op::Spatial(op), &[x], result);
    l.store_value(value)
}

/// The taps whose user's factors are arguments `first` and on.
fn nearest_taps(l: &Lower, dims: usize, exact: bool, shortcuts: bool, first: usize) -> [Taps; 3] {
    taps(dims, |i| {
        let factor = factor(l, first + i);
        if exact { Taps::NearestExact { factor } } else { Taps::Nearest { factor, shortcuts } }
    })
}

/// True of a volume whose channels lie side by side.
fn channels_last(ty: &TensorType) -> bool {
    let pick = |v: &[i64]| [v[0], v[2], v[3], v[4], v[1]];
    ty.rank() == 5 && TensorType::strided(ty.dtype, &pick(&ty.sizes), &pick(&ty.strides)).is_contiguous()
}

/// `(self, output_size, scales..)`
fn nearest(l: &mut Lower, dims: usize, exact: bool) -> Lowered {
    check_planes(l.ty(0)?)?;
    let dtype = l.ty(0)?.dtype;
    if !dtype.is_float() && dtype != DType::U8 {
        return Err(LowerError::unsupported(format!("interpolation of {dtype}")));
    }
    // PyTorch's kernels for planes, and for more than 3 channels of volumes that lie last.
    let shortcuts = dims == 2 || dims == 3 && channels_last(l.ty(0)?) && l.ty(0)?.sizes[1] > 3;
    let taps = nearest_taps(l, dims, exact, shortcuts, 2);
    store(l, SpatialOp::Resample { taps }, dims)
}

/// `(grad_output, output_size, input_size, scales..)`
fn nearest_backward(l: &mut Lower, dims: usize, exact: bool) -> Lowered {
    let taps = nearest_taps(l, dims, exact, true, 3);
    store(l, SpatialOp::ResampleBackward { taps }, dims)
}

/// The taps of `(align_corners, scales..)`, the first being argument `first`.
fn filter_taps(l: &Lower, dims: usize, filter: Filter, antialias: bool, first: usize) -> Result<[Taps; 3], LowerError> {
    let dtype = l.ty(0)?.dtype;
    // The CPU's u8 images are weighted in 16-bit fixed point; antialiasing knows no half floats.
    if !dtype.is_float() || antialias && matches!(dtype, DType::F16 | DType::BF16) {
        return Err(LowerError::unsupported(format!("interpolation of {dtype}")));
    }
    let align_corners = l.flag(first);
    Ok(taps(dims, |i| Taps::Filter { filter, align_corners, factor: factor(l, first + 1 + i), antialias }))
}

/// `(self, output_size, align_corners, scales..)`
fn filtered(l: &mut Lower, dims: usize, filter: Filter, antialias: bool) -> Lowered {
    check_planes(l.ty(0)?)?;
    let mut taps = filter_taps(l, dims, filter, antialias, 2)?;
    if antialias {
        // A dimension that keeps its extent is left alone.
        let (x, out) = (l.ty(0)?, l.out(0)?);
        for d in 1..=dims {
            if x.sizes[x.rank() - d] == out.sizes[out.rank() - d] {
                taps[3 - d] = Taps::Same;
            }
        }
    }
    store(l, SpatialOp::Resample { taps }, dims)
}

/// `(grad_output, output_size, input_size, align_corners, scales..)`
fn filtered_backward(l: &mut Lower, dims: usize, filter: Filter, antialias: bool) -> Lowered {
    let mut taps = filter_taps(l, dims, filter, antialias, 3)?;
    if filter == Filter::Cubic && !antialias && l.ty(0)?.sizes == l.out(0)?.sizes {
        taps = [Taps::Same; 3]; // a copy, whatever the factors
    }
    store(l, SpatialOp::ResampleBackward { taps }, dims)
}

/// The taps of `padding`, argument `i`: pairs for the last dimension first.
fn pad_taps(l: &Lower, i: usize, dims: usize, reflect: bool) -> Result<[Taps; 3], LowerError> {
    let padding = l.ints(i).filter(|p| p.len() == 2 * dims);
    let padding = padding.ok_or_else(|| LowerError::unsupported("a padding of other dimensions"))?;
    Ok(taps(dims, |i| {
        let before = padding[2 * (dims - 1 - i)];
        if reflect { Taps::Reflect { before } } else { Taps::Replicate { before } }
    }))
}

/// `(self, padding)`
fn pad(l: &mut Lower, dims: usize, reflect: bool) -> Lowered {
    if l.ty(0)?.dtype == DType::Bool {
        return Err(LowerError::unsupported("padding of bool"));
    }
    let taps = pad_taps(l, 1, dims, reflect)?;
    store(l, SpatialOp::Resample { taps }, dims)
}

/// `(grad_output, self, padding)`
fn pad_backward(l: &mut Lower, dims: usize, reflect: bool) -> Lowered {
    if !l.ty(0)?.dtype.is_float() {
        return Err(LowerError::unsupported("a gradient of integers"));
    }
    let taps = pad_taps(l, 2, dims, reflect)?;
    store(l, SpatialOp::ResampleBackward { taps }, dims)
}

/// `(interpolation_mode, padding_mode, align_corners)`, the first being argument `first`
fn grid_options(l: &Lower, first: usize) -> Result<(Sampling, Outside, bool), LowerError> {
    let sampling = match l.int(first)? {
        0 => Sampling::Linear,
        1 => Sampling::Nearest,
        2 => Sampling::Cubic,
        other => return Err(LowerError::unsupported(format!("interpolation mode {other}"))),
    };
    let outside = match l.int(first + 1)? {
        0 => Outside::Zeros,
        1 => Outside::Border,
        2 => Outside::Reflection,
        other => return Err(LowerError::unsupported(format!("padding mode {other}"))),
    };
    Ok((sampling, outside, l.flag(first + 2)))
}

/// Grid argument `i` as `[n, d, h, w, dims]`.
fn grid(l: &mut Lower, i: usize, dtype: DType, dims: usize) -> Result<Value, LowerError> {
    let ty = l.ty(i)?;
    if ty.rank() != dims + 2 || ty.dtype != dtype {
        return Err(LowerError::unsupported(format!("a grid of {ty}")));
    }
    let mut sizes = ty.sizes.clone();
    if dims == 2 {
        sizes.insert(1, 1);
    }
    let value = l.tensor(i)?;
    Ok(l.g.reshape(value, &sizes))
}

/// `(input, grid, interpolation_mode, padding_mode, align_corners)`
fn grid_sampler(l: &mut Lower, dims: usize) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    if l.ty(0)?.sizes.iter().skip(2).any(|n| *n == 0) {
        return Err(LowerError::unsupported("planes of nothing"));
    }
    let (sampling, outside, align_corners) = grid_options(l, 2)?;
    let result = framed_output(l.out(0)?, dtype, dims)?;
    let operands = [framed(l, 0, dims)?, grid(l, 1, dtype, dims)?];
    let op = SpatialOp::GridSample { sampling, outside, align_corners };
    let value = l.g.op(Op::Spatial(op), &operands, result);
    l.store_value(value)
}

/// `(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)`
fn grid_sampler_backward(l: &mut Lower, dims: usize) -> Lowered {
    let dtype = l.ty(1)?.dtype;
    let (sampling, outside, align_corners) = grid_options(l, 3)?;
    let operands = [framed(l, 0, dims)?, framed(l, 1, dims)?, grid(l, 2, dtype, dims)?];
    let results: [Shape; 2] = [1, 2].map(|i: usize| l.g.shape(operands[i]).clone());
    let op = SpatialOp::GridSampleBackward { sampling, outside, align_corners };
    let first = l.g.push(Op::Spatial(op), &operands, &results);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}
