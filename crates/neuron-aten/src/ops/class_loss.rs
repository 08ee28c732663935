//! Losses over classes, one target or several per sample.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, CheckOp, CtcOp, DType, Dims, Op, ReduceOp, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::nll_loss2d_forward", "aten::nll_loss2d_forward.output"], nll_loss_2d),
    (&["aten::nll_loss2d_backward", "aten::nll_loss2d_backward.grad_input"], nll_loss_2d_backward),
    (&["aten::multi_margin_loss", "aten::multi_margin_loss.out"], multi_margin),
    (&["aten::multi_margin_loss_backward", "aten::multi_margin_loss_backward.grad_input"], multi_margin_backward),
    (&["aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_forward.output"], multilabel_margin),
    (
        &["aten::multilabel_margin_loss_backward", "aten::multilabel_margin_loss_backward.grad_input"],
        multilabel_margin_backward,
    ),
    (&["aten::_ctc_loss"], ctc),
    (&["aten::_ctc_loss_backward"], ctc_backward),
];

/// Most elements of the table of pairs that a multilabel loss makes.
const MOST_PAIRS: i64 = 1 << 26;

fn reduce(l: &mut Lower, op: ReduceOp, value: Value, dims: &[i64]) -> Value {
    let mut shape = l.g.shape(value).clone();
    dims.iter().for_each(|d| shape.sizes[*d as usize] = 1);
    l.g.op(Op::Reduce { op, dims: Dims::from_slice(dims) }, &[value], shape)
}

fn sum(l: &mut Lower, value: Value, dims: &[i64]) -> Value {
    reduce(l, ReduceOp::Sum, value, dims)
}

/// Sum of all elements, with all dimensions kept.
fn total(l: &mut Lower, value: Value) -> Value {
    let dims: Dims = (0..l.g.shape(value).rank() as i64).collect();
    sum(l, value, &dims)
}

/// The elements of `x` along `dim` that `index`, of one rank with it, names.
fn gather(l: &mut Lower, x: Value, dim: usize, index: Value) -> Value {
    let shape = Shape { dtype: l.g.dtype(x), sizes: l.g.shape(index).sizes.clone() };
    l.g.op(Op::Gather { dim }, &[x, index], shape)
}

/// `value` computed once.
fn once(l: &mut Lower, value: Value) -> Value {
    let shape = l.g.shape(value).clone();
    l.g.op(Op::Once, &[value], shape)
}

fn negative(l: &mut Lower, value: Value) -> Value {
    l.un(neuron_ir::UnaryOp::Neg, value)
}

fn zero_like(l: &mut Lower, value: Value) -> Value {
    let dtype = l.g.dtype(value);
    l.constant(dtype, 0.0)
}

/// Class targets of images as `[n, 1, h, w]`: whether each counts, and the class, 0 where it does not.
fn image_targets(l: &mut Lower, i: usize, ignore: i64) -> Result<(Value, Value), LowerError> {
    let ty = l.ty(i)?;
    if !ty.dtype.is_int() || ty.rank() != 3 {
        return Err(LowerError::unsupported(format!("targets of type {ty}")));
    }
    let sizes = [ty.sizes[0], 1, ty.sizes[1], ty.sizes[2]];
    let target = l.tensor(i)?;
    let target = l.g.convert(target, DType::I64);
    let target = l.g.reshape(target, &sizes);
    let ignored = l.g.constant(DType::I64, neuron_ir::Scalar::I64(ignore));
    let counts = l.bin(BinaryOp::Ne, target, ignored);
    let zero = l.constant(DType::I64, 0.0);
    let class = l.g.select(counts, target, zero);
    Ok((counts, once(l, class)))
}

/// What each target weighs: the class weight, argument `i`, or 1, and 0 where the target does not count.
fn target_weight(l: &mut Lower, i: usize, counts: Value, class: Value, c: DType) -> Result<Value, LowerError> {
    let weight = if l.has_tensor(i) {
        let table = l.tensor(i)?;
        let shape = Shape { dtype: l.g.dtype(table), sizes: l.g.shape(class).sizes.clone() };
        let weight = l.g.op(Op::IndexSelect { dim: 0 }, &[table, class], shape);
        l.g.convert(weight, c)
    } else {
        l.constant(c, 1.0)
    };
    let zero = l.constant(c, 0.0);
    Ok(l.g.select(counts, weight, zero))
}

fn check_image(l: &Lower, i: usize) -> Result<DType, LowerError> {
    let ty = l.ty(i)?;
    if !ty.dtype.is_float() || ty.rank() != 4 || ty.numel() == 0 {
        return Err(LowerError::unsupported(format!("a loss of {ty}")));
    }
    Ok(ty.dtype)
}

/// `(self[n, c, h, w], target[n, h, w], weight?, reduction, ignore_index)`: results `output, total_weight`
fn nll_loss_2d(l: &mut Lower) -> Lowered {
    let dtype = check_image(l, 0)?;
    let c = dtype.compute();
    let (counts, class) = image_targets(l, 1, l.int(4)?)?;
    let x = l.tensor(0)?;
    let picked = gather(l, x, 1, class);
    let picked = l.g.convert(picked, c);
    let weight = target_weight(l, 2, counts, class, c)?;
    let product = l.bin(BinaryOp::Mul, picked, weight);
    let loss = negative(l, product);
    let zero = zero_like(l, loss);
    // A value that does not count is not even multiplied by zero: it may be infinite.
    let loss = l.g.select(counts, loss, zero);
    let reduction = l.int(3)?;
    if reduction == 0 {
        l.store(Typed { value: loss, dtype })?;
        let nothing = l.constant(c, 0.0);
        return l.store(Typed { value: nothing, dtype });
    }
    let (loss, weight) = (total(l, loss), total(l, weight));
    let loss = if reduction == 1 { l.bin(BinaryOp::Div, loss, weight) } else { loss };
    l.store(Typed { value: loss, dtype })?;
    l.store(Typed { value: weight, dtype })
}

/// `(grad_output, self, target, weight?, reduction, ignore_index, total_weight)`
fn nll_loss_2d_backward(l: &mut Lower) -> Lowered {
    let dtype = check_image(l, 1)?;
    let c = dtype.compute();
    let (counts, class) = image_targets(l, 2, l.int(5)?)?;
    let weight = target_weight(l, 3, counts, class, c)?;
    let grad = l.tensor(0)?;
    let grad = l.g.convert(grad, c);
    let sizes = l.g.shape(class).sizes.clone();
    let grad = if l.g.shape(grad).rank() == 0 { grad } else { l.g.reshape(grad, &sizes) };
    let mut value = l.bin(BinaryOp::Mul, weight, grad);
    if l.int(4)? == 1 {
        let total = l.tensor(6)?;
        let total = l.g.convert(total, c);
        value = l.bin(BinaryOp::Div, value, total);
    }
    let value = negative(l, value);
    let zero = zero_like(l, value);
    let value = l.g.select(counts, value, zero);
    let value = once(l, value);
    let shape = Shape { dtype: DType::I64, sizes: l.ty(1)?.sizes.clone() };
    let classes = l.g.op(Op::Iota { dim: 1 }, &[], shape);
    let here = l.bin(BinaryOp::Eq, classes, class);
    let zero = l.constant(c, 0.0);
    let value = l.g.select(here, value, zero);
    l.store(Typed { value, dtype })
}

/// Samples and classes of argument `i`, `[n, c]` or `[c]`.
fn samples(l: &Lower, i: usize) -> Result<(i64, i64), LowerError> {
    let ty = l.ty(i)?;
    let (n, c) = match ty.sizes[..] {
        [] => (1, 1),
        [c] => (1, c),
        [n, c] => (n, c),
        _ => return Err(LowerError::unsupported(format!("a loss of {ty}"))),
    };
    if !ty.dtype.is_float() || n * c == 0 {
        return Err(LowerError::unsupported(format!("a loss of {ty}")));
    }
    Ok((n, c))
}

/// Argument `i` in the compute type as a matrix.
fn matrix(l: &mut Lower, i: usize, sizes: (i64, i64)) -> Result<Value, LowerError> {
    let value = l.tensor(i)?;
    let value = l.g.reshape(value, &[sizes.0, sizes.1]);
    let dtype = l.g.dtype(value).compute();
    Ok(l.g.convert(value, dtype))
}

/// Position along a dimension of these sizes.
fn position(l: &mut Lower, sizes: &[i64], dim: usize) -> Value {
    l.g.op(Op::Iota { dim }, &[], Shape::new(DType::I64, sizes))
}

/// How much each class of each sample misses the margin by, 0 for the target: `[n, c]`; and the targets, `[n, 1]`.
struct Margin {
    excess: Value,
    is_target: Value,
    class: Value,
    squared: bool,
}

/// `(self, target, p, margin, weight?)`, arguments from `i` on.
fn margin(l: &mut Lower, i: usize, (n, c): (i64, i64)) -> Result<Margin, LowerError> {
    let p = l.scalar(i + 2)?;
    if !p.one && !p.two {
        return Err(LowerError::unsupported("an exponent other than 1 and 2"));
    }
    let x = matrix(l, i, (n, c))?;
    let class = l.tensor(i + 1)?;
    let class = l.g.convert(class, DType::I64);
    let class = l.g.reshape(class, &[n, 1]);
    require_classes(l, class, 0, c);
    let own = gather(l, x, 1, class);
    let margin = l.scalar(i + 3)?;
    let dtype = l.g.dtype(x);
    let margin = l.number(margin, dtype);
    let need = l.bin(BinaryOp::Sub, margin, own);
    let excess = l.bin(BinaryOp::Add, need, x);
    let zero = l.constant(dtype, 0.0);
    let over = l.bin(BinaryOp::Gt, excess, zero);
    let excess = l.g.select(over, excess, zero);
    let classes = position(l, &[n, c], 1);
    let is_target = l.bin(BinaryOp::Eq, classes, class);
    let excess = l.g.select(is_target, zero, excess);
    Ok(Margin { excess, is_target, class, squared: p.two })
}

/// `value` times the class weight, argument `i`, of the target.
fn weighted(l: &mut Lower, value: Value, i: usize, class: Value) -> Result<Value, LowerError> {
    if !l.has_tensor(i) {
        return Ok(value);
    }
    let table = l.tensor(i)?;
    let shape = Shape { dtype: l.g.dtype(table), sizes: l.g.shape(class).sizes.clone() };
    let weight = l.g.op(Op::IndexSelect { dim: 0 }, &[table, class], shape);
    let dtype = l.g.dtype(value);
    let weight = l.g.convert(weight, dtype);
    Ok(l.bin(BinaryOp::Mul, value, weight))
}

/// Stores a loss per sample, `[n, 1]`, reduced as `at::Reduction` says: 0 none, 1 mean, 2 sum.
fn store_reduced(l: &mut Lower, loss: Value, reduction: i64, n: i64, dtype: DType) -> Lowered {
    let value = match reduction {
        0 => loss,
        1 => {
            let sum = total(l, loss);
            l.with_constant(BinaryOp::Div, sum, n as f64)
        }
        _ => total(l, loss),
    };
    l.store(Typed { value, dtype })
}

/// `(self, target, p, margin, weight?, reduction)`
fn multi_margin(l: &mut Lower) -> Lowered {
    let (n, c) = samples(l, 0)?;
    let m = margin(l, 0, (n, c))?;
    let loss = if m.squared { l.bin(BinaryOp::Mul, m.excess, m.excess) } else { m.excess };
    let loss = weighted(l, loss, 4, m.class)?;
    let loss = sum(l, loss, &[1]);
    let loss = l.with_constant(BinaryOp::Div, loss, c as f64);
    let dtype = l.ty(0)?.dtype;
    store_reduced(l, loss, l.int(5)?, n, dtype)
}

/// The gradient of a loss per sample as `[n, 1]`, from that of the reduced loss, argument 0.
fn sample_gradient(l: &mut Lower, reduction: i64, (n, c): (i64, i64)) -> Result<Value, LowerError> {
    let grad = l.tensor(0)?;
    let dtype = l.g.dtype(grad).compute();
    let grad = l.g.convert(grad, dtype);
    let rows = if reduction == 0 { n } else { 1 };
    let grad = l.g.reshape(grad, &[rows, 1]);
    let share = if reduction == 1 { n * c } else { c };
    Ok(l.with_constant(BinaryOp::Mul, grad, 1.0 / share as f64))
}

/// `(grad_output, self, target, p, margin, weight?, reduction)`
fn multi_margin_backward(l: &mut Lower) -> Lowered {
    let (n, c) = samples(l, 1)?;
    let m = margin(l, 1, (n, c))?;
    let zero = zero_like(l, m.excess);
    let slope = if m.squared {
        l.with_constant(BinaryOp::Mul, m.excess, 2.0)
    } else {
        let over = l.bin(BinaryOp::Gt, m.excess, zero);
        let dtype = l.g.dtype(m.excess);
        l.g.convert(over, dtype)
    };
    let slope = weighted(l, slope, 5, m.class)?;
    let own = sum(l, slope, &[1]);
    let own = negative(l, own);
    let slope = l.g.select(m.is_target, own, slope);
    let grad = sample_gradient(l, l.int(6)?, (n, c))?;
    let value = l.bin(BinaryOp::Mul, slope, grad);
    let dtype = l.ty(1)?.dtype;
    l.store(Typed { value, dtype })
}

/// The targets of each sample.
struct Labels {
    /// `[n, c, 1]`: entry `d` of the list of targets is one.
    valid: Value,
    /// `[n, c]`: the class, 0 where the entry is none.
    class: Value,
    /// `[n, c, c]`: entry `d` names class `i`.
    names: Value,
}

/// Makes a launch fail where a class is not from `least` to below `c`, as the CPU's kernels do.
fn require_classes(l: &mut Lower, class: Value, least: i64, c: i64) {
    let class = l.g.convert(class, DType::F64);
    let below = l.with_constant(BinaryOp::Sub, class, c as f64);
    let before = l.constant(DType::F64, (least - 1) as f64);
    let above = l.bin(BinaryOp::Sub, before, class);
    let nearest = l.bin(BinaryOp::Maximum, below, above);
    l.require(CheckOp::Class, nearest);
}

/// Argument `i`: the targets are those before the first negative entry.
fn labels(l: &mut Lower, i: usize, (n, c): (i64, i64)) -> Result<Labels, LowerError> {
    if n * c * c > MOST_PAIRS {
        return Err(LowerError::unsupported("a multilabel loss of very many classes"));
    }
    let target = l.tensor(i)?;
    let target = l.g.convert(target, DType::I64);
    let target = l.g.reshape(target, &[n, c]);
    let zero = l.constant(DType::I64, 0.0);
    let listed = l.bin(BinaryOp::Ge, target, zero);
    let listed = l.g.convert(listed, DType::I64);
    let shape = l.g.shape(listed).clone();
    let running = l.g.op(Op::Cumulative { op: ReduceOp::Prod, dim: 1 }, &[listed], shape);
    let valid = l.g.convert(running, DType::Bool);
    let class = l.g.select(valid, target, zero);
    let class = once(l, class);
    // What comes after the first negative one does not count, but has to be one.
    require_classes(l, target, -1, c);
    let (valid, column) = (l.g.reshape(valid, &[n, c, 1]), l.g.reshape(class, &[n, c, 1]));
    let classes = position(l, &[n, c, c], 2);
    let same = l.bin(BinaryOp::Eq, classes, column);
    let no = l.constant(DType::Bool, 0.0);
    let names = l.g.select(valid, same, no);
    Ok(Labels { valid, class, names })
}

/// `[n, c, c]`: how much class `i` misses the margin to target `d` by; 0 for targets `is_target[n, c]`.
fn pair_excess(l: &mut Lower, x: Value, labels: &Labels, is_target: Value, (n, c): (i64, i64)) -> Value {
    let own = gather(l, x, 1, labels.class);
    let (own, x) = (l.g.reshape(own, &[n, c, 1]), l.g.reshape(x, &[n, 1, c]));
    let one = l.with_constant(BinaryOp::Sub, own, 1.0);
    let excess = l.bin(BinaryOp::Sub, x, one);
    let zero = zero_like(l, excess);
    let over = l.bin(BinaryOp::Gt, excess, zero);
    let excess = l.g.select(over, excess, zero);
    let excess = l.g.select(labels.valid, excess, zero);
    let is_target = l.g.reshape(is_target, &[n, 1, c]);
    l.g.select(is_target, zero, excess)
}

/// `(self, target, reduction)`: results `output, is_target`
fn multilabel_margin(l: &mut Lower) -> Lowered {
    let (n, c) = samples(l, 0)?;
    let labels = labels(l, 1, (n, c))?;
    let is_target = reduce(l, ReduceOp::Any, labels.names, &[1]);
    let is_target = l.g.reshape(is_target, &[n, c]);
    let x = matrix(l, 0, (n, c))?;
    let excess = pair_excess(l, x, &labels, is_target, (n, c));
    let loss = sum(l, excess, &[1, 2]);
    let loss = l.with_constant(BinaryOp::Div, loss, c as f64);
    let dtype = l.ty(0)?.dtype;
    store_reduced(l, loss, l.int(2)?, n, dtype)?;
    let flags = l.g.convert(is_target, dtype.compute());
    l.store(Typed { value: flags, dtype })
}

/// `(grad_output, self, target, reduction, is_target)`
fn multilabel_margin_backward(l: &mut Lower) -> Lowered {
    let (n, c) = samples(l, 1)?;
    let labels = labels(l, 2, (n, c))?;
    let flags = matrix(l, 4, (n, c))?;
    let is_target = l.g.convert(flags, DType::Bool);
    let x = matrix(l, 1, (n, c))?;
    let excess = pair_excess(l, x, &labels, is_target, (n, c));
    let zero = zero_like(l, excess);
    let over = l.bin(BinaryOp::Gt, excess, zero);
    let dtype = l.g.dtype(x);
    let over = l.g.convert(over, dtype);
    let over = once(l, over);
    let up = sum(l, over, &[1]);
    let each = sum(l, over, &[2]);
    let down = l.g.select(labels.names, each, zero);
    let down = sum(l, down, &[1]);
    let value = l.bin(BinaryOp::Sub, up, down);
    let value = l.g.reshape(value, &[n, c]);
    let grad = sample_gradient(l, l.int(3)?, (n, c))?;
    let value = l.bin(BinaryOp::Mul, value, grad);
    let dtype = l.ty(1)?.dtype;
    l.store(Typed { value, dtype })
}

/// Lengths of inputs and targets, arguments `i` and `i + 1`.
fn lengths(l: &Lower, i: usize) -> Result<[Vec<i64>; 2], LowerError> {
    let list = |i: usize| l.ints(i).map(|v| v.to_vec());
    match (list(i), list(i + 1)) {
        (Some(input), Some(target)) => Ok([input, target]),
        _ => Err(LowerError::unsupported("lengths that are not known")),
    }
}

/// `(log_probs[t, n, c], targets, input_lengths, target_lengths, blank, zero_infinity)`: results `loss, log_alpha`
fn ctc(l: &mut Lower) -> Lowered {
    let [input_lengths, target_lengths] = lengths(l, 2)?;
    let operands = [l.tensor(0)?, l.tensor(1)?];
    let op = CtcOp { input_lengths, target_lengths, blank: l.int(4)?, zero_infinity: false, backward: false };
    let (loss, alpha) = (l.out(0)?.shape(), l.out(1)?.shape());
    if loss.rank() != 1 || alpha.rank() != 3 || alpha.numel() == 0 || l.ty(0)?.numel() == 0 {
        return Err(LowerError::unsupported("a loss of nothing"));
    }
    let first = l.g.push(Op::Ctc(op), &operands, &[loss, alpha]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))
}

/// `(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity)`
fn ctc_backward(l: &mut Lower) -> Lowered {
    let [input_lengths, target_lengths] = lengths(l, 3)?;
    let op = CtcOp { input_lengths, target_lengths, blank: l.int(7)?, zero_infinity: l.flag(8), backward: true };
    let shape = l.out(0)?.shape();
    if shape.rank() != 3 || shape.numel() == 0 {
        return Err(LowerError::unsupported("a loss of nothing"));
    }
    let grad = l.tensor(0)?;
    // One gradient for all samples is expanded to them.
    let grad = l.g.broadcast(grad, &[shape.sizes[1]]);
    let operands = [grad, l.tensor(1)?, l.tensor(2)?, l.tensor(5)?, l.tensor(6)?];
    let value = l.g.op(Op::Ctc(op), &operands, shape);
    l.store_value(value)
}
