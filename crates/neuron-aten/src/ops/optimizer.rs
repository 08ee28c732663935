//! Fused optimizers and the scaling of gradients: one launch for all parameters of a step.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed, as_tensor};
use neuron_ir::{BinaryOp, DType, Op, OptimizerOp, ReduceOp, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::_fused_adam_", "aten::_fused_adam_.tensor_lr"], |l| adam(l, false)),
    (&["aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr"], |l| adam(l, true)),
    (&["aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr"], sgd),
    (&["aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr"], adagrad),
    (&["aten::_amp_foreach_non_finite_check_and_unscale_"], unscale),
    (&["aten::_amp_update_scale_"], update_scale),
];

/// Argument `i` as a 0-dimensional `f64`: a float is a scalar of the launch, a learning rate may be a tensor.
fn number(l: &mut Lower, i: usize) -> Result<Value, LowerError> {
    match l.arg(i) {
        Arg::Scalar(s) => Ok(l.number(*s, DType::F64)),
        Arg::Float(v) => Ok(l.constant(DType::F64, *v)),
        arg => {
            let t = as_tensor(arg, i)?;
            let value = l.value_of(t);
            let value = l.g.reshape(value, &[]);
            Ok(l.g.convert(value, DType::F64))
        }
    }
}

/// Element `k` of list `i`.
fn element(l: &mut Lower, i: usize, k: usize) -> Result<Value, LowerError> {
    let arg = l.list(i)?.get(k).ok_or_else(|| LowerError::unsupported("lists of different lengths"))?;
    let t = as_tensor(arg, i)?;
    Ok(l.value_of(t))
}

/// An optional tensor of one `f32`.
fn flag(l: &mut Lower, i: usize) -> Result<Option<Value>, LowerError> {
    if !l.has_tensor(i) {
        return Ok(None);
    }
    let value = l.tensor(i)?;
    let value = l.g.reshape(value, &[]);
    Ok(Some(l.g.convert(value, DType::F32)))
}

/// Emits a step for each parameter and stores what changed, in the order of the lists.
///
/// `lists` are those of the tensors, `step` that of the counters, `flags` the scale and the flag of overflow.
fn steps(
    l: &mut Lower,
    op: OptimizerOp,
    lists: &[usize],
    step: Option<usize>,
    flags: [usize; 2],
    numbers: &[usize],
) -> Lowered {
    let numbers = numbers.iter().map(|i| number(l, *i)).collect::<Result<Vec<_>, _>>()?;
    let flags = [flag(l, flags[0])?, flag(l, flags[1])?];
    let mut results = Vec::new();
    for k in 0..l.list(0)?.len() {
        let mut operands = lists.iter().map(|i| element(l, *i, k)).collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<_> = operands.iter().map(|v| l.g.shape(*v).clone()).collect();
        if let Some(i) = step {
            let counter = element(l, i, k)?;
            let counter = l.g.reshape(counter, &[]);
            operands.push(l.g.convert(counter, DType::F32));
        }
        operands.extend(flags.iter().flatten());
        operands.extend(&numbers);
        results.push(l.g.push(Op::Optimizer(op), &operands, &shapes));
    }
    for (i, list) in lists.iter().enumerate() {
        for first in &results {
            if *list == 1 && !op.scales_gradient() {
                l.skip();
            } else {
                l.store_value(Value(first.0 + i as u32))?;
            }
        }
    }
    Ok(())
}

/// `(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
/// maximize, grad_scale, found_inf)`
fn adam(l: &mut Lower, adamw: bool) -> Lowered {
    let amsgrad = l.flag(11);
    let op = OptimizerOp::Adam {
        adamw,
        amsgrad,
        maximize: l.flag(12),
        grad_scale: l.has_tensor(13),
        found_inf: l.has_tensor(14),
    };
    let lists: &[usize] = if amsgrad { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 3] };
    steps(l, op, lists, Some(5), [13, 14], &[6, 7, 8, 9, 10])
}

/// `(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
/// grad_scale, found_inf)`
fn sgd(l: &mut Lower) -> Lowered {
    let momentum = !l.list(2)?.is_empty();
    let op = OptimizerOp::Sgd {
        momentum,
        nesterov: l.flag(7),
        maximize: l.flag(8),
        first_step: l.flag(9),
        grad_scale: l.has_tensor(10),
        found_inf: l.has_tensor(11),
    };
    let lists: &[usize] = if momentum { &[0, 1, 2] } else { &[0, 1] };
    steps(l, op, lists, None, [10, 11], &[3, 4, 5, 6])
}

/// `(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf)`
fn adagrad(l: &mut Lower) -> Lowered {
    let op = OptimizerOp::Adagrad { maximize: l.flag(8), grad_scale: l.has_tensor(9), found_inf: l.has_tensor(10) };
    steps(l, op, &[0, 1, 2], Some(3), [9, 10], &[4, 5, 6, 7])
}

/// `(grads, found_inf, inv_scale)`: gradients times the factor; the flag becomes 1 where one is not finite
fn unscale(l: &mut Lower) -> Lowered {
    let found = l.tensor(1)?;
    let found_shape = l.g.shape(found).sizes.clone();
    let mut found = l.g.convert(found, DType::F32);
    let factor = l.tensor(2)?;
    let factor = l.g.reshape(factor, &[]);
    let factor = l.g.convert(factor, DType::F32);
    let count = l.list(0)?.len();
    let mut scaled = Vec::new();
    for k in 0..count {
        let grad = element(l, 0, k)?;
        let dtype = l.g.dtype(grad);
        if !dtype.is_float() {
            return Err(LowerError::unsupported(format!("a gradient of {dtype}, as on the CPU")));
        }
        let x = l.g.convert(grad, dtype.compute());
        let magnitude = l.un(UnaryOp::Abs, x);
        let finite = l.with_constant(BinaryOp::Lt, magnitude, f64::INFINITY);
        let other = l.un(UnaryOp::Not, finite);
        let mut kept = l.g.shape(other).clone();
        let dims = (0..kept.rank() as i64).collect();
        kept.sizes.fill(1);
        let any = l.g.op(Op::Reduce { op: ReduceOp::Any, dims }, &[other], kept);
        let any = l.g.reshape(any, &found_shape);
        let any = l.g.convert(any, DType::F32);
        found = l.bin(BinaryOp::Maximum, found, any);
        let factor = l.g.convert(factor, dtype.compute());
        scaled.push(Typed { value: l.bin(BinaryOp::Mul, x, factor), dtype });
    }
    for value in scaled {
        l.store(value)?;
    }
    l.store(Typed { value: found, dtype: DType::F32 })
}

/// `(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval)`: backs off after an overflow,
/// grows after so many steps without one, unless that overflows
fn update_scale(l: &mut Lower) -> Lowered {
    let scale = l.tensor(0)?;
    let scale = l.g.convert(scale, DType::F32);
    let tracker = l.tensor(1)?;
    let tracker = l.g.convert(tracker, DType::I64);
    let found = l.tensor(2)?;
    let found = l.g.convert(found, DType::Bool);
    let smaller = l.with_constant(BinaryOp::Mul, scale, l.float_or(4, 0.5));
    let larger = l.with_constant(BinaryOp::Mul, scale, l.float_or(3, 2.0));
    let finite = l.with_constant(BinaryOp::Lt, larger, f64::INFINITY);
    let larger = l.g.select(finite, larger, scale);
    let successes = l.with_constant(BinaryOp::Add, tracker, 1.0);
    let due = l.with_constant(BinaryOp::Eq, successes, l.int(5)? as f64);
    let zero = l.constant(DType::I64, 0.0);
    let grown = l.g.select(due, larger, scale);
    let counted = l.g.select(due, zero, successes);
    let value = l.g.select(found, smaller, grown);
    let count = l.g.select(found, zero, counted);
    l.store(Typed { value, dtype: DType::F32 })?;
    l.store(Typed { value: count, dtype: DType::I32 })
}
