//! One kernel for each operator that is not elementwise.

use crate::analysis::is_lazy;
use crate::plan::{Place, Planner};
use crate::program::Slot;
use crate::{convolution, ctc, optimizer, ordering, pointwise, product, spatial};
use neuron_ir::{DType, Destination, Node, Op, ReduceOp, TensorType, Value};
use neuron_kernels::attention::{Attention, AttentionBackward, AttentionOptions};
use neuron_kernels::concat::Concat;
use neuron_kernels::cumulative::Cumulative;
use neuron_kernels::embedding::EmbeddingBackward;
use neuron_kernels::gemm::ScaleFactor;
use neuron_kernels::index::{Gather, Index, IndexSelect};
use neuron_kernels::loss::{NllLoss, NllLossBackward};
use neuron_kernels::nonzero::{TrueCounts, TruePositions};
use neuron_kernels::norm::{ChannelSums, LayerNorm, LayerNormBackward, RmsNorm, RmsNormBackward};
use neuron_kernels::random::Random;
use neuron_kernels::reduce::{MinMaxDim, Reduce, Variance};
use neuron_kernels::scatter::{IndexAdd, IndexPut, Scatter};
use neuron_kernels::softmax::{Softmax, SoftmaxBackward};
use neuron_kernels::sort::Sort;
use neuron_kernels::{Kernel, KernelError};

pub(crate) type Emitted = Result<(), KernelError>;

/// Emits the kernel of one node.
pub(crate) fn emit(p: &mut Planner, node: &Node) -> Emitted {
    let v = node.first;
    match &node.op {
        Op::Dot => {
            let c = p.result(v);
            product::product(p, v, &c, None, ScaleFactor::One)
        }
        Op::Convolution(op) => convolution::emit(p, node, op),
        Op::Ctc(op) => ctc::emit(p, node, op),
        Op::ChannelSums { mean } => {
            let operands = node.operands.iter().map(|v| p.realize_contiguous(*v)).collect::<Result<Vec<_>, _>>()?;
            let results = [contiguous_result(p, v), contiguous_result(p, second(v))];
            let kernel = ChannelSums::new(&operands[0].ty, &operands[1].ty, *mean)?;
            let places: Vec<&Place> = operands.iter().chain(&results).collect();
            push(p, kernel, &places)
        }
        Op::Once => {
            let place = p.realize_contiguous(node.operands[0])?;
            p.set_place(v, place);
            Ok(())
        }
        Op::Reduce { op, dims } => {
            let x = reduce_operand(p, node.operands[0], *op)?;
            let out = p.result(v);
            let kernel = Reduce::new(*op, &x.ty, dims, &out.ty)?;
            push(p, kernel, &[&x, &out])
        }
        Op::MinMax { max, dim } => {
            let x = p.realize(node.operands[0])?;
            let (values, indices) = (p.result(v), p.result(second(v)));
            push(p, MinMaxDim::new(*max, &x.ty, *dim, &values.ty, &indices.ty)?, &[&x, &values, &indices])
        }
        Op::Variance { dims, correction } => {
            let x = p.realize(node.operands[0])?;
            let (var, mean) = (p.result(v), p.result(second(v)));
            push(p, Variance::new(&x.ty, dims, *correction, &var.ty, &mean.ty)?, &[&x, &var, &mean])
        }
        Op::Softmax { dim, log } => {
            let x = p.realize(node.operands[0])?;
            let out = p.result(v);
            push(p, Softmax::new(&x.ty, *dim, *log, &out.ty)?, &[&x, &out])
        }
        Op::SoftmaxBackward { dim, log } => {
            let (grad, y) = (p.realize(node.operands[0])?, p.realize(node.operands[1])?);
            let out = p.result(v);
            push(p, SoftmaxBackward::new(&grad.ty, &y.ty, *dim, *log, &out.ty)?, &[&grad, &y, &out])
        }
        Op::LayerNorm { .. } | Op::LayerNormBackward { .. } | Op::RmsNorm { .. } | Op::RmsNormBackward { .. } => {
            norm(p, node)
        }
        Op::Attention { .. } | Op::AttentionBackward { .. } => attention(p, node),
        Op::Concat { dim } => {
            let inputs = realize_all(p, &node.operands)?;
            let out = p.result(v);
            let types: Vec<TensorType> = inputs.iter().map(|i| i.ty.clone()).collect();
            let kernel = Concat::new(&types, *dim, &out.ty)?;
            let mut buffers: Vec<&Place> = inputs.iter().collect();
            buffers.push(&out);
            push(p, kernel, &buffers)
        }
        Op::IndexSelect { dim } => {
            let (table, index) = (p.realize(node.operands[0])?, p.realize(node.operands[1])?);
            let out = p.result(v);
            push(p, IndexSelect::new(&table.ty, *dim, &index.ty, &out.ty)?, &[&table, &index, &out])
        }
        Op::Gather { dim } => {
            let (x, index) = (p.realize(node.operands[0])?, p.realize(node.operands[1])?);
            let out = p.result(v);
            push(p, Gather::new(&x.ty, *dim, &index.ty, &out.ty)?, &[&x, &index, &out])
        }
        Op::Index { dims, result_dim } => {
            let operands = realize_all(p, &node.operands)?;
            let out = p.result(v);
            let indices: Vec<TensorType> = operands[1..].iter().map(|i| i.ty.clone()).collect();
            let kernel = Index::new(&operands[0].ty, dims, &indices, *result_dim, &out.ty)?;
            let mut buffers: Vec<&Place> = operands.iter().collect();
            buffers.push(&out);
            push(p, kernel, &buffers)
        }
        Op::Scatter { .. } | Op::IndexAdd { .. } | Op::IndexPut { .. } => update(p, node),
        Op::EmbeddingBackward { rows, padding, scale_by_frequency } => {
            let (grad, index) = (p.realize(node.operands[0])?, p.realize(node.operands[1])?);
            let out = p.result(v);
            let kernel = EmbeddingBackward::new(&grad.ty, &index.ty, *rows, *padding, *scale_by_frequency, &out.ty)?;
            push(p, kernel, &[&grad, &index, &out])
        }
        Op::NllLoss { .. } | Op::NllLossBackward { .. } => loss(p, node),
        Op::TrueCounts => {
            let mask = p.realize_contiguous(node.operands[0])?;
            let out = contiguous_result(p, v);
            push(p, TrueCounts::new(&mask.ty)?, &[&mask, &out])
        }
        Op::TruePositions => {
            let mask = p.realize_contiguous(node.operands[0])?;
            let counts = p.realize_contiguous(node.operands[1])?;
            let out = contiguous_result(p, v);
            push(p, TruePositions::new(&mask.ty, &out.ty)?, &[&mask, &counts, &out])
        }
        Op::Random(op) => random(p, node, *op),
        Op::Check(op) => optimizer::check(p, node, *op),
        Op::Sample(op) => optimizer::sample(p, node, *op),
        Op::Optimizer(op) => optimizer::step(p, node, *op),
        Op::Sort { dim, descending, k } => {
            let x = p.realize(node.operands[0])?;
            let (values, indices) = (p.result(v), p.result(second(v)));
            let kernel = Sort::new(&x.ty, *dim, *descending, *k, &values.ty, &indices.ty)?;
            push(p, kernel, &[&x, &values, &indices])
        }
        Op::Cumulative { op, dim } => {
            let x = p.realize(node.operands[0])?;
            let out = p.result(v);
            push(p, Cumulative::new(*op, &x.ty, *dim, &out.ty)?, &[&x, &out])
        }
        Op::Spatial(op) => spatial::emit(p, node, op),
        Op::Ordering(op) => ordering::emit(p, node, op),
        other => unreachable!("{} is folded into its users", other.name()),
    }
}

pub(crate) fn second(v: Value) -> Value {
    Value(v.0 + 1)
}

pub(crate) fn push(p: &mut Planner, kernel: impl Kernel + 'static, places: &[&Place]) -> Emitted {
    let slots: Vec<Slot> = places.iter().map(|p| p.slot).collect();
    p.push(Box::new(kernel), &slots);
    Ok(())
}

fn realize_all(p: &mut Planner, values: &[Value]) -> Result<Vec<Place>, KernelError> {
    values.iter().map(|v| p.realize(*v)).collect()
}

/// The operand of a reduction. A conversion to the compute type, or of anything to a truth value, is the kernel's own.
fn reduce_operand(p: &mut Planner, value: Value, op: ReduceOp) -> Result<Place, KernelError> {
    let node = p.graph.def(value);
    if matches!(node.op, Op::Convert) && p.place(value).is_none() {
        let inner = node.operands[0];
        let from = p.graph.shape(inner).dtype;
        let folds = match op {
            ReduceOp::Any | ReduceOp::All => true,
            _ => from.compute() == node.results[0].dtype,
        };
        if folds {
            return p.realize(inner);
        }
    }
    p.realize(value)
}

fn dtype(place: Option<&Place>) -> Option<DType> {
    place.map(|p| p.ty.dtype)
}

fn norm(p: &mut Planner, node: &Node) -> Emitted {
    let operands = node.operands.iter().map(|v| p.realize_contiguous(*v)).collect::<Result<Vec<_>, _>>()?;
    let results: Vec<Place> =
        (0..node.results.len() as u32).map(|i| contiguous_result(p, Value(node.first.0 + i))).collect();
    let mut buffers: Vec<&Place> = operands.iter().collect();
    buffers.extend(&results);
    let kernel: Box<dyn Kernel> = match &node.op {
        Op::LayerNorm { dims, eps, weight, bias } => {
            let w = dtype(weight.then(|| &operands[1]));
            let b = dtype(bias.then(|| &operands[1 + usize::from(*weight)]));
            Box::new(LayerNorm::new(&operands[0].ty, *dims, *eps, w, b, &results[0].ty, results[1].ty.dtype)?)
        }
        Op::LayerNormBackward { dims, weight } => {
            let w = dtype(weight.then(|| &operands[4]));
            Box::new(LayerNormBackward::new(
                &operands[0].ty,
                &operands[1].ty,
                *dims,
                w,
                operands[2].ty.dtype,
                [true; 3],
            )?)
        }
        Op::RmsNorm { dims, eps, weight } => {
            let w = dtype(weight.then(|| &operands[1]));
            Box::new(RmsNorm::new(&operands[0].ty, *dims, *eps, w, &results[0].ty, results[1].ty.dtype)?)
        }
        Op::RmsNormBackward { dims, weight } => {
            let w = dtype(weight.then(|| &operands[3]));
            Box::new(RmsNormBackward::new(&operands[0].ty, &operands[1].ty, *dims, w, operands[2].ty.dtype, [true; 2])?)
        }
        other => unreachable!("{} is not a norm", other.name()),
    };
    let slots: Vec<Slot> = buffers.iter().map(|b| b.slot).collect();
    p.push(kernel, &slots);
    Ok(())
}

/// Where a kernel that writes row-major puts a result; an output of another layout is copied to at the end.
pub(crate) fn contiguous_result(p: &mut Planner, value: Value) -> Place {
    p.result_where(value, |ty| ty.is_contiguous())
}

fn attention(p: &mut Planner, node: &Node) -> Emitted {
    let is_random = |v: &&Value| p.graph.shape(**v).rank() > 0;
    let tensors: Vec<Value> = node.operands.iter().filter(is_random).copied().collect();
    let operands = realize_all(p, &tensors)?;
    let results: Vec<Place> = (0..node.results.len() as u32).map(|i| p.result(Value(node.first.0 + i))).collect();
    let (kernel, dropout): (Box<dyn Kernel>, f64) = match &node.op {
        Op::Attention { causal, scale, bias, dropout } => {
            let options = AttentionOptions { causal: *causal, scale: *scale, dropout: *dropout };
            let bias = bias.then(|| &operands[3].ty);
            let [q, k, v] = [0, 1, 2].map(|i| &operands[i].ty);
            (Box::new(Attention::new(q, k, v, bias, options, &results[0].ty, &results[1].ty)?), *dropout)
        }
        Op::AttentionBackward { causal, scale, bias, dropout, grad_bias } => {
            let options = AttentionOptions { causal: *causal, scale: *scale, dropout: *dropout };
            let at = 4 + usize::from(*bias);
            let bias = bias.then(|| &operands[4].ty);
            let [g, q, k, v] = [0, 1, 2, 3].map(|i| &operands[i].ty);
            let grad_bias = grad_bias.then(|| &results[3].ty);
            let [gq, gk, gv] = [0, 1, 2].map(|i| &results[i].ty);
            let (out, lse) = (&operands[at].ty, &operands[at + 1].ty);
            (Box::new(AttentionBackward::new(g, q, k, v, bias, out, lse, options, gq, gk, gv, grad_bias)?), *dropout)
        }
        other => unreachable!("{} is not attention", other.name()),
    };
    // Seed and offset reach the kernel as scalars, wherever they come from.
    let tensors = node.operands.len() - if dropout > 0.0 { 2 } else { 0 };
    let slots: Vec<Slot> = operands[..tensors].iter().chain(&results).map(|b| b.slot).collect();
    let random = node.operands[tensors..].iter().map(|v| p.scalar(*v)).collect::<Result<Vec<_>, _>>()?;
    p.push_with_scalars(kernel, &slots, &random);
    Ok(())
}

/// Operators that change part of a tensor: the tensor is copied to the result, then the kernel updates it there.
fn update(p: &mut Planner, node: &Node) -> Emitted {
    let (rest, out) = begin_update(p, node)?;
    let mut buffers: Vec<Slot> = rest.iter().map(|b| b.slot).collect();
    buffers.push(out.slot);
    let kernel: Box<dyn Kernel> = match &node.op {
        Op::Scatter { dim, op } => Box::new(Scatter::new(*dim, *op, &rest[0].ty, &rest[1].ty, &out.ty)?),
        Op::IndexAdd { dim, alpha } => {
            let factor = match alpha {
                true => Some(scalar_index(p, node.operands[3])?),
                false => None,
            };
            buffers.truncate(2);
            buffers.push(out.slot);
            Box::new(IndexAdd::new(*dim, &rest[0].ty, &rest[1].ty, &out.ty, factor)?)
        }
        Op::IndexPut { dims, result_dim, accumulate } => {
            let indices: Vec<TensorType> = rest[1..].iter().map(|i| i.ty.clone()).collect();
            Box::new(IndexPut::new(&out.ty, dims, *result_dim, &rest[0].ty, &indices, *accumulate)?)
        }
        other => unreachable!("{} does not update", other.name()),
    };
    p.push(kernel, &buffers);
    Ok(())
}

/// The operands but the tensor that is changed, and where its copy is.
pub(crate) fn begin_update(p: &mut Planner, node: &Node) -> Result<(Vec<Place>, Place), KernelError> {
    let base = p.realize(node.operands[0])?;
    let rest = realize_all(p, &node.operands[1..])?;
    let out = match in_place(p, node, &base, &rest) {
        Some(k) => {
            p.mark_stored(k);
            let to = p.destination(k);
            p.set_place(node.first, to.clone());
            to
        }
        None if matches!(base.slot, Slot::Temporary { .. })
            && p.facts.has_one_use(node.operands[0])
            && p.facts.stores(node.first).is_empty()
            && base.ty.is_contiguous()
            && !is_lazy(&p.graph.def(node.operands[0]).op) =>
        {
            // Nobody else looks at this temporary.
            p.set_place(node.first, base.clone());
            base
        }
        None => {
            let to = p.result(node.first);
            pointwise::copy(p, &base, &to)?;
            to
        }
    };
    Ok((rest, out))
}

fn scalar_index(p: &Planner, value: Value) -> Result<usize, KernelError> {
    match p.graph.def(value).op {
        Op::ScalarParam { index } => Ok(index),
        _ => Err(KernelError::Unsupported { kernel: "index_add", what: "a constant factor".into() }),
    }
}

/// The output that updates its own memory, if nothing else reads that memory.
fn in_place(p: &Planner, node: &Node, base: &Place, rest: &[Place]) -> Option<usize> {
    let Slot::Argument { index, offset: 0 } = base.slot else { return None };
    let k = p.graph.outputs.iter().position(|o| o.value == node.first && o.to == Destination::Param(index))?;
    let reads_it = rest.iter().any(|r| matches!(r.slot, Slot::Argument { index: i, .. } if p.same_memory(i, index)));
    let alone = p.graph.outputs.len() == 1 || (p.facts.param_uses(index) == 1 && p.graph.aliases.is_empty());
    (!reads_it && alone && base.ty == p.graph.outputs[k].layout).then_some(k)
}

fn loss(p: &mut Planner, node: &Node) -> Emitted {
    let mut operands = realize_all(p, &node.operands)?;
    // The weights are the last operand, and the kernels take them row-major.
    if let (Op::NllLoss { weight: true, .. } | Op::NllLossBackward { weight: true, .. }, [.., weight]) =
        (&node.op, &node.operands[..])
    {
        operands.pop();
        operands.push(p.realize_contiguous(*weight)?);
    }
    let out = p.result(node.first);
    match &node.op {
        Op::NllLoss { reduction, ignore_index, weight } => {
            let total = p.result(second(node.first));
            let w = dtype(weight.then(|| &operands[2]));
            let kernel =
                NllLoss::new(&operands[0].ty, &operands[1].ty, w, *reduction, *ignore_index, &out.ty, total.ty.dtype)?;
            let mut buffers: Vec<&Place> = operands.iter().collect();
            buffers.extend([&out, &total]);
            push(p, kernel, &buffers)
        }
        Op::NllLossBackward { reduction, ignore_index, weight } => {
            let w = dtype(weight.then(|| &operands[3]));
            let kernel = NllLossBackward::new(
                &operands[0].ty,
                &operands[1].ty,
                w,
                *reduction,
                *ignore_index,
                operands[2].ty.dtype,
                &out.ty,
            )?;
            let mut buffers: Vec<&Place> = operands.iter().collect();
            buffers.push(&out);
            push(p, kernel, &buffers)
        }
        other => unreachable!("{} is not a loss", other.name()),
    }
}

fn random(p: &mut Planner, node: &Node, op: neuron_ir::RandomOp) -> Emitted {
    let out = p.result(node.first);
    let kernel = Random::new(op, &out.ty)?;
    let random = node.operands.iter().map(|v| p.scalar(*v)).collect::<Result<Vec<_>, _>>()?;
    p.push_with_scalars(Box::new(kernel), &[out.slot], &random);
    Ok(())
}
