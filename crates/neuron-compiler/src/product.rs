//! Matrix products with what follows them: scale, bias and rounding become the epilogue of one kernel.

use crate::layout;
use crate::plan::{Place, Planner};
use neuron_ir::{BinaryOp, Dims, Op, TensorType, Value};
use neuron_kernels::KernelError;
use neuron_kernels::gemm::{Epilogue, Gemm, ScaleFactor};

/// An output that is `beta * bias + alpha * dot`, rounded.
pub(crate) struct Match {
    pub(crate) dot: Value,
    alpha: ScaleFactor,
    bias: Option<(Value, ScaleFactor)>,
}

/// Recognises a product in output `k`.
pub(crate) fn match_output(p: &Planner, k: usize) -> Option<Match> {
    let single = |v: Value| p.uses[v.0 as usize] == 1;
    let mut value = p.graph.outputs[k].value;
    while matches!(p.graph.def(value).op, Op::Convert | Op::Reshape) && single(value) {
        value = p.graph.def(value).operands[0];
    }
    if let Some((dot, alpha)) = scaled_dot(p, value) {
        return Some(Match { dot, alpha, bias: None });
    }
    let node = p.graph.def(value);
    if node.op != Op::Binary(BinaryOp::Add) || !single(value) {
        return None;
    }
    let (dot, alpha) = scaled_dot(p, node.operands[0])?;
    let (bias, beta) = scaled(p, node.operands[1]).unwrap_or((node.operands[1], ScaleFactor::One));
    Some(Match { dot, alpha, bias: Some((bias, beta)) })
}

/// `v` as a value times a scalar argument of the launch.
fn scaled(p: &Planner, v: Value) -> Option<(Value, ScaleFactor)> {
    let node = p.graph.def(v);
    if node.op != Op::Binary(BinaryOp::Mul) || p.uses[v.0 as usize] != 1 {
        return None;
    }
    let mut factor = node.operands[1];
    while matches!(p.graph.def(factor).op, Op::Broadcast) {
        factor = p.graph.def(factor).operands[0];
    }
    match p.graph.def(factor).op {
        Op::ScalarParam { index } => Some((node.operands[0], ScaleFactor::Scalar(index))),
        _ => None,
    }
}

fn scaled_dot(p: &Planner, v: Value) -> Option<(Value, ScaleFactor)> {
    let (mut dot, alpha) = scaled(p, v).unwrap_or((v, ScaleFactor::One));
    while matches!(p.graph.def(dot).op, Op::Reshape) && p.uses[dot.0 as usize] == 1 {
        dot = p.graph.def(dot).operands[0];
    }
    (p.graph.def(dot).op == Op::Dot && p.uses[dot.0 as usize] == 1).then_some((dot, alpha))
}

/// Computes a matched output into `target`.
pub(crate) fn emit(p: &mut Planner, m: &Match, target: &Place) -> Result<(), KernelError> {
    let sizes = p.graph.shape(m.dot).sizes.clone();
    let layout = layout::reshape(&target.ty, &sizes);
    let Some(c) = layout else {
        return Err(KernelError::Unsupported { kernel: "gemm", what: format!("a result laid out as {}", target.ty) });
    };
    let bias = match m.bias {
        Some((value, beta)) => {
            let place = realize_bias(p, value)?;
            let shown = match layout::reshape(&place.ty, &sizes) {
                Some(ty) if place.ty.numel() == ty.numel() => ty,
                _ => layout::broadcast(&place.ty, &sizes),
            };
            Some((Place { ty: shown, ..place }, beta))
        }
        None => None,
    };
    product(p, m.dot, &Place { ty: c, ..target.clone() }, bias, m.alpha)
}

/// The bias in memory in its own type: the kernel widens it.
fn realize_bias(p: &mut Planner, value: Value) -> Result<Place, KernelError> {
    let node = p.graph.def(value);
    match node.op {
        Op::Convert if p.graph.shape(node.operands[0]).dtype.compute() == node.results[0].dtype => {
            p.realize(node.operands[0])
        }
        Op::Broadcast => {
            let inner = realize_bias(p, node.operands[0])?;
            Ok(Place { ty: layout::broadcast(&inner.ty, &node.results[0].sizes), ..inner })
        }
        _ => p.realize(value),
    }
}

/// One product kernel.
pub(crate) fn product(
    p: &mut Planner,
    dot: Value,
    c: &Place,
    bias: Option<(Place, ScaleFactor)>,
    alpha: ScaleFactor,
) -> Result<(), KernelError> {
    let node = p.graph.def(dot);
    let (a, b) = (p.realize(node.operands[0])?, p.realize(node.operands[1])?);
    let (a, b) = (batched(p, a)?, batched(p, b)?);
    let c = batched(p, c.clone())?;
    let mut buffers = vec![a.slot, b.slot];
    let epilogue = match bias {
        Some((place, beta)) => {
            let place = batched(p, place)?;
            buffers.push(place.slot);
            Epilogue { bias: Some(place.ty), alpha, beta }
        }
        None => Epilogue { bias: None, alpha, beta: ScaleFactor::One },
    };
    buffers.push(c.slot);
    let kernel = Gemm::new(&a.ty, &b.ty, &c.ty, epilogue)?;
    p.push(Box::new(kernel), &buffers);
    Ok(())
}

/// The matrix or batch of matrices with exactly one batch dimension.
fn batched(p: &mut Planner, place: Place) -> Result<Place, KernelError> {
    let rank = place.ty.rank();
    let sizes = &place.ty.sizes;
    let batch: i64 = sizes[..rank - 2].iter().product();
    let mut joined = Dims::from_slice(&[batch]);
    joined.extend_from_slice(&sizes[rank - 2..]);
    if rank == 3 {
        return Ok(place);
    }
    if rank == 2 {
        let mut strides = Dims::from_slice(&[0]);
        strides.extend_from_slice(&place.ty.strides);
        return Ok(Place { ty: TensorType::strided(place.ty.dtype, &joined, &strides), ..place });
    }
    match layout::reshape(&place.ty, &joined) {
        Some(ty) => Ok(Place { ty, ..place }),
        None => {
            let packed = p.temporary(place.ty.dtype, &place.ty.sizes.clone());
            crate::pointwise::copy(p, &place, &packed)?;
            Ok(Place { ty: TensorType::contiguous(place.ty.dtype, &joined), ..packed })
        }
    }
}
