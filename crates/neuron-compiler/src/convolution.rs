//! Convolutions: layouts the kernels like, and products where a convolution is one.

use crate::kernels::{Emitted, contiguous_result, push};
use crate::layout;
use crate::plan::{Place, Planner};
use neuron_ir::{ConvolutionOp, ConvolutionWindows, Dims, Node, TensorType};
use neuron_kernels::KernelError;
use neuron_kernels::convolution::{Convolution, ConvolutionWeightGradient, Windows};
use neuron_kernels::gemm::{Epilogue, Gemm, ScaleFactor};

/// Weights of fewer elements are read as they are.
const LARGE_WEIGHT: i64 = 4096;

fn windows(w: &ConvolutionWindows) -> Windows<'_> {
    Windows { stride: &w.stride, padding: &w.padding, dilation: &w.dilation, groups: w.groups }
}

/// Emits the kernel of a convolution.
pub(crate) fn emit(p: &mut Planner, node: &Node, op: &ConvolutionOp) -> Emitted {
    let x = p.realize(node.operands[0])?;
    match op {
        ConvolutionOp::Forward { windows: w, transposed, bias } => {
            let weight = p.realize(node.operands[1])?;
            let bias = match bias {
                true => Some(p.realize_contiguous(node.operands[2])?),
                false => None,
            };
            let out = p.result(node.first);
            if !transposed && is_product(w, &weight.ty) && product(p, &x, &weight, bias.as_ref(), &out)? {
                return Ok(());
            }
            let x = lines(p, x)?;
            let weight = if *transposed { channels_last(p, weight)? } else { weight };
            let bias_type = bias.as_ref().map(|b| b.ty.dtype);
            let kernel = Convolution::new(&x.ty, &weight.ty, bias_type, windows(w), *transposed, &out.ty)?;
            let mut places = vec![&x, &weight];
            places.extend(&bias);
            places.push(&out);
            push(p, kernel, &places)
        }
        ConvolutionOp::WeightGradient { windows: w } => {
            let x = lines(p, x)?;
            let grad = p.realize_contiguous(node.operands[1])?;
            let out = contiguous_result(p, node.first);
            let kernel = ConvolutionWeightGradient::new(&x.ty, &grad.ty, windows(w), &out.ty)?;
            push(p, kernel, &[&x, &grad, &out])
        }
    }
}

/// The input with neighbours of the last dimension side by side: what is gathered in vectors.
fn lines(p: &mut Planner, x: Place) -> Result<Place, KernelError> {
    let last = x.ty.rank() - 1;
    if x.ty.strides[last] == 1 && x.ty.sizes[last] > 1 || x.ty.is_contiguous() {
        return Ok(x);
    }
    let packed = p.temporary(x.ty.dtype, &x.ty.sizes.clone());
    crate::pointwise::copy(p, &x, &packed)?;
    Ok(packed)
}

/// The weight of a transposed convolution with its output channels side by side: they are the rows of the product.
fn channels_last(p: &mut Planner, weight: Place) -> Result<Place, KernelError> {
    let rank = weight.ty.rank() as i64;
    if weight.ty.strides[1] == 1 || weight.ty.numel() < LARGE_WEIGHT {
        return Ok(weight);
    }
    let order: Dims = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Dims = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let shown = Place { ty: layout::transpose(&weight.ty, &order), ..weight };
    let packed = p.temporary(shown.ty.dtype, &shown.ty.sizes.clone());
    crate::pointwise::copy(p, &shown, &packed)?;
    Ok(Place { ty: layout::transpose(&packed.ty, &back), ..packed })
}

/// True if each output position is a product of the weight with one input position.
fn is_product(w: &ConvolutionWindows, weight: &TensorType) -> bool {
    w.groups == 1
        && weight.sizes[2..].iter().all(|k| *k == 1)
        && w.stride.iter().all(|s| *s == 1)
        && w.padding.iter().all(|s| *s == 0)
}

/// The positions of `[n, c, ..]` as rows of a matrix, if its channels are side by side.
fn rows(ty: &TensorType) -> Option<TensorType> {
    let rank = ty.rank() as i64;
    let order: Dims = [0].into_iter().chain(2..rank).chain([1]).collect();
    let last = layout::transpose(ty, &order);
    if ty.strides[1] != 1 && ty.sizes[1] != 1 {
        return None;
    }
    let channels = ty.sizes[1];
    layout::reshape(&last, &[1, ty.numel() / channels.max(1), channels])
}

/// One product of the weight with all positions, where the channels of input and result are side by side.
fn product(p: &mut Planner, x: &Place, weight: &Place, bias: Option<&Place>, out: &Place) -> Result<bool, KernelError> {
    let (Some(a), Some(c)) = (rows(&x.ty), rows(&out.ty)) else { return Ok(false) };
    let w = &weight.ty;
    let b = TensorType::strided(w.dtype, &[1, w.sizes[1], w.sizes[0]], &[0, w.strides[1], w.strides[0]]);
    let epilogue = match bias {
        Some(bias) => Epilogue {
            bias: Some(TensorType::strided(bias.ty.dtype, &[1, 1, w.sizes[0]], &[0, 0, 1])),
            alpha: ScaleFactor::One,
            beta: ScaleFactor::One,
        },
        None => Epilogue::NONE,
    };
    let kernel = Gemm::new(&a, &b, &c, epilogue)?;
    let mut places = vec![x, weight];
    places.extend(bias);
    places.push(out);
    push(p, kernel, &places)?;
    Ok(true)
}
