//! Matrix products with what follows them: scale, bias and rounding become the epilogue of one kernel.

use crate::layout;
use crate::plan::{Place, Planner};
use neuron_ir::{BinaryOp, DType, Dims, Op, TensorType, Value};
use neuron_kernels::KernelError;
use neuron_kernels::gemm::{Epilogue, Gemm, ScaleFactor};

/// A value that is `beta * bias + alpha * dot`, rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) dot: Value,
    alpha: ScaleFactor,
    bias: Option<(Value, ScaleFactor)>,
}

/// Each product with as much of what follows it as one kernel computes, by the value that ends in.
pub(crate) fn find(p: &Planner) -> Vec<(Value, Match)> {
    if p.graph.nodes.iter().all(|n| n.op != Op::Dot) {
        return Vec::new();
    }
    // The one operator that uses a value, or none.
    let mut user = vec![None; p.graph.values()];
    for node in &p.graph.nodes {
        for v in &node.operands {
            user[v.0 as usize] = p.facts.has_one_use(*v).then_some(node.first);
        }
    }
    let mut found: Vec<(Value, Match)> = Vec::new();
    for node in p.graph.nodes.iter().filter(|n| n.op == Op::Dot && p.facts.is_live(n)) {
        let (mut end, mut best) = (node.first, None);
        while let Some(next) = user[end.0 as usize] {
            let op = &p.graph.def(next).op;
            if !matches!(op, Op::Reshape | Op::Convert | Op::Binary(BinaryOp::Mul | BinaryOp::Add)) {
                break;
            }
            end = next;
            // A sum of two products is the end of one of them, and the other its bias.
            let taken = found.iter().any(|(other, _)| *other == end);
            if let Some(m) = match_value(p, end).filter(|m| m.dot == node.first && !taken) {
                best = Some((end, m));
            }
        }
        found.extend(best);
    }
    found
}

/// Recognises a product that ends in `value`.
fn match_value(p: &Planner, end: Value) -> Option<Match> {
    let mut value = end;
    let single = |v: Value| p.facts.has_one_use(v);
    let mut rounds = 0;
    while matches!(p.graph.def(value).op, Op::Convert | Op::Reshape) {
        let inner = p.graph.def(value).operands[0];
        if p.graph.def(value).op == Op::Convert {
            rounds += 1;
        }
        if rounds > 1 || !single(inner) {
            return None;
        }
        value = inner;
    }
    if let Some((dot, alpha)) = scaled_dot(p, value) {
        return Some(Match { dot, alpha, bias: None });
    }
    let node = p.graph.def(value);
    if node.op != Op::Binary(BinaryOp::Add) {
        return None;
    }
    let [a, b] = node.operands[..] else { unreachable!("a sum has two operands") };
    let (dot, alpha, other) = match scaled_dot(p, a) {
        Some((dot, alpha)) => (dot, alpha, b),
        None => scaled_dot(p, b).map(|(dot, alpha)| (dot, alpha, a))?,
    };
    let (bias, beta) = scaled(p, other).unwrap_or((other, ScaleFactor::One));
    // The kernel widens a bias of the type of the result or of the operands.
    let dtype = bias_dtype(p, bias);
    let known = [p.graph.shape(end).dtype, p.graph.shape(p.graph.def(dot).operands[0]).dtype];
    known.contains(&dtype).then_some(Match { dot, alpha, bias: Some((bias, beta)) })
}

/// The type in memory of what [`realize_bias`] gives.
fn bias_dtype(p: &Planner, value: Value) -> DType {
    let node = p.graph.def(value);
    match node.op {
        Op::Convert if p.graph.shape(node.operands[0]).dtype.compute() == node.results[0].dtype => {
            p.graph.shape(node.operands[0]).dtype
        }
        Op::Broadcast => bias_dtype(p, node.operands[0]),
        _ => node.results[0].dtype,
    }
}

/// `v` as a value times a scalar argument of the launch.
fn scaled(p: &Planner, v: Value) -> Option<(Value, ScaleFactor)> {
    let node = p.graph.def(v);
    if node.op != Op::Binary(BinaryOp::Mul) || !p.facts.has_one_use(v) {
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
    while matches!(p.graph.def(dot).op, Op::Reshape) && p.facts.has_one_use(dot) {
        dot = p.graph.def(dot).operands[0];
    }
    (p.graph.def(dot).op == Op::Dot && p.facts.has_one_use(dot)).then_some((dot, alpha))
}

/// Computes the product that ends in `value` into `target`.
pub(crate) fn emit(p: &mut Planner, value: Value, target: &Place) -> Result<(), KernelError> {
    let Some(m) = p.product(value).copied() else { unreachable!("a product ends here") };
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
        _ if p.place(value).is_some() => {
            // A cluster has widened it: back to what it was.
            let (place, dtype) = (p.realize(value)?, bias_dtype(p, value));
            if place.ty.dtype == dtype {
                return Ok(place);
            }
            let narrow = p.temporary(dtype, &place.ty.sizes.clone());
            crate::pointwise::copy(p, &place, &narrow)?;
            Ok(narrow)
        }
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
