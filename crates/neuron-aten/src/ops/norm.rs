//! Normalisation over trailing dimensions.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{DType, Op, Scalar, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::native_layer_norm"], layer_norm),
    (&["aten::native_layer_norm_backward"], layer_norm_backward),
    (&["aten::_fused_rms_norm"], rms_norm),
    (&["aten::_fused_rms_norm_backward"], rms_norm_backward),
];

/// How many trailing dimensions `normalized_shape`, argument `i`, covers.
fn normalized(l: &Lower, i: usize) -> Result<usize, LowerError> {
    l.ints(i).map(|s| s.len()).ok_or_else(|| LowerError::unsupported("no normalized_shape"))
}

/// Refuses weights, or an input, that `normalized_shape`, argument `i`, is not the shape of: the kernels take it from that.
fn check_shapes(l: &Lower, input: usize, i: usize, weights: &[usize]) -> Lowered {
    let shape = l.ints(i).unwrap_or_default();
    let fits = |sizes: &[i64], whole: bool| if whole { *sizes == *shape } else { sizes.ends_with(&shape) };
    let weights_fit = weights.iter().all(|w| !l.has_tensor(*w) || l.ty(*w).is_ok_and(|t| fits(&t.sizes, true)));
    if weights_fit && fits(&l.ty(input)?.sizes, false) {
        Ok(())
    } else {
        Err(LowerError::unsupported("weights or an input of another shape than normalized_shape"))
    }
}

/// The shape of the statistics: extent 1 in the normalised dimensions.
fn statistics(sizes: &[i64], dims: usize, dtype: DType) -> Shape {
    let mut shape = Shape::new(dtype, sizes);
    let rank = sizes.len();
    shape.sizes[rank - dims..].fill(1);
    shape
}

/// Stores zeros, or nothing, where the input is empty: true if it was.
fn of_nothing(l: &mut Lower, i: usize, results: usize) -> Result<bool, LowerError> {
    // Statistics of nothing are not zero.
    if l.ty(i)?.numel() != 0 || (results == 3 && i == 0 && l.out(1)?.numel() != 0) {
        return Ok(false);
    }
    for k in 0..results {
        let zero = l.g.constant(DType::F32, Scalar::I64(0));
        let dtype = l.out(k).map_or(DType::F32, |t| t.dtype);
        l.store(Typed { value: zero, dtype })?;
    }
    Ok(true)
}

fn check_input(l: &Lower, i: usize) -> Result<(), LowerError> {
    let ty = l.ty(i)?;
    if ty.dtype.is_float() && ty.numel() > 0 {
        Ok(())
    } else {
        Err(LowerError::unsupported("normalisation of integers or of nothing"))
    }
}

/// `(input, normalized_shape, weight?, bias?, eps)`
fn layer_norm(l: &mut Lower) -> Lowered {
    if of_nothing(l, 0, 3)? {
        return Ok(());
    }
    check_input(l, 0)?;
    check_shapes(l, 0, 1, &[2, 3])?;
    let dims = normalized(l, 1)?;
    let mut operands = vec![l.tensor(0)?];
    for i in [2, 3] {
        if l.has_tensor(i) {
            operands.push(l.tensor(i)?);
        }
    }
    let shape = l.ty(0)?.shape();
    let stats = statistics(&shape.sizes, dims, l.out(1)?.dtype);
    let op = Op::LayerNorm { dims, eps: l.float_or(4, 1e-5), weight: l.has_tensor(2), bias: l.has_tensor(3) };
    let first = l.g.push(op, &operands, &[shape, stats.clone(), stats]);
    (0..3).try_for_each(|k| l.store_value(Value(first.0 + k)))
}

/// Gradients with respect to weight and bias have the normalised shape; those not wanted are not stored.
fn weight_gradient(l: &Lower, i: usize, dims: usize, k: usize, dtype: DType) -> Result<Shape, LowerError> {
    let sizes = &l.ty(i)?.sizes;
    let dtype = l.out(k).map_or(dtype, |t| t.dtype);
    Ok(Shape::new(dtype, &sizes[sizes.len() - dims..]))
}

/// `(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)`
fn layer_norm_backward(l: &mut Lower) -> Lowered {
    if of_nothing(l, 1, 3)? {
        return Ok(());
    }
    check_input(l, 1)?;
    check_shapes(l, 1, 2, &[5, 6])?;
    let dims = normalized(l, 2)?;
    let weight = l.has_tensor(5);
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(3)?, l.tensor(4)?];
    if weight {
        operands.push(l.tensor(5)?);
    }
    let shape = l.ty(1)?.shape();
    let (w, b) = (weight_gradient(l, 1, dims, 1, shape.dtype)?, weight_gradient(l, 1, dims, 2, shape.dtype)?);
    let first = l.g.push(Op::LayerNormBackward { dims, weight }, &operands, &[shape, w, b]);
    (0..3).try_for_each(|k| l.store_value(Value(first.0 + k)))
}

/// The default of `eps` is the machine epsilon of the type computed in.
fn rms_eps(l: &Lower, i: usize, dtype: DType) -> f64 {
    match l.arg(i) {
        Arg::Float(eps) => *eps,
        _ if dtype == DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// `(input, normalized_shape, weight?, eps?)`
fn rms_norm(l: &mut Lower) -> Lowered {
    if l.out(1)?.numel() == 0 && of_nothing(l, 0, 2)? {
        return Ok(());
    }
    check_input(l, 0)?;
    check_shapes(l, 0, 1, &[2])?;
    let dims = normalized(l, 1)?;
    let weight = l.has_tensor(2);
    let mut operands = vec![l.tensor(0)?];
    if weight {
        operands.push(l.tensor(2)?);
    }
    let shape = l.ty(0)?.shape();
    let stats = statistics(&shape.sizes, dims, l.out(1)?.dtype);
    let eps = rms_eps(l, 3, shape.dtype);
    let first = l.g.push(Op::RmsNorm { dims, eps, weight }, &operands, &[shape, stats]);
    (0..2).try_for_each(|k| l.store_value(Value(first.0 + k)))
}

/// `(grad_out, input, normalized_shape, rstd, weight?, output_mask)`
fn rms_norm_backward(l: &mut Lower) -> Lowered {
    // No CPU kernel to fall back to: the gradients of nothing are nothing, or zero.
    if of_nothing(l, 1, 2)? {
        return Ok(());
    }
    check_input(l, 1)?;
    check_shapes(l, 1, 2, &[4])?;
    let dims = normalized(l, 2)?;
    let weight = l.has_tensor(4);
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(3)?];
    if weight {
        operands.push(l.tensor(4)?);
    }
    let shape = l.ty(1)?.shape();
    let w = weight_gradient(l, 1, dims, 1, shape.dtype)?;
    let first = l.g.push(Op::RmsNormBackward { dims, weight }, &operands, &[shape, w]);
    (0..2).try_for_each(|k| l.store_value(Value(first.0 + k)))
}
