//! Steps of optimizers: numbers in `f64`, tensors in their compute type.

use super::text::{El, Text, V};
use super::{Call, Written};
use crate::OptimizerOp;

/// What the formulas are written from.
struct Step {
    param: V,
    /// As it is stored after the step, and as the step uses it.
    scaled: V,
    grad: V,
    state: Vec<V>,
    numbers: Vec<V>,
    step: Option<V>,
}

impl Step {
    /// A number as a tensor of the parameter's compute type.
    fn wide(&self, t: &mut Text, number: &V) -> V {
        let number = t.convert(number, self.param.el);
        t.broadcast(&number, &self.param.dims)
    }
}

pub(super) fn write(t: &mut Text, c: &Call, op: OptimizerOp) -> Written {
    let tensors: Vec<V> = (0..op.tensors()).map(|i| c.wide(t, i)).collect();
    let (flags, numbers) = c.args[op.tensors()..].split_at(c.args.len() - op.tensors() - op.numbers());
    let mut flags = flags.iter();
    let (has_step, maximize, found_inf) = match op {
        OptimizerOp::Adam { maximize, found_inf, .. } | OptimizerOp::Adagrad { maximize, found_inf, .. } => {
            (true, maximize, found_inf)
        }
        OptimizerOp::Sgd { maximize, found_inf, .. } => (false, maximize, found_inf),
    };
    let number = |t: &mut Text, v: &V| {
        let v = t.reshape(v, &[]);
        t.convert(&v, El::F64)
    };
    let step = if has_step { flags.next().map(|v| number(t, v)) } else { None };
    let numbers: Vec<V> = numbers.iter().map(|v| number(t, v)).collect();
    let mut s = Step {
        param: tensors[0].clone(),
        scaled: tensors[1].clone(),
        grad: tensors[1].clone(),
        state: tensors[2..].to_vec(),
        numbers,
        step,
    };
    if op.scales_gradient()
        && let Some(scale) = flags.next()
    {
        let scale = number(t, scale);
        let scale = s.wide(t, &scale);
        s.scaled = t.div(&s.grad, &scale);
        s.grad = s.scaled.clone();
    }
    if maximize {
        s.grad = t.un("negate", &s.grad);
    }
    let mut results = match op {
        OptimizerOp::Adam { adamw, amsgrad, .. } => adam(t, &mut s, adamw, amsgrad),
        OptimizerOp::Sgd { momentum, first_step, nesterov, .. } => sgd(t, &mut s, momentum, first_step, nesterov),
        OptimizerOp::Adagrad { .. } => adagrad(t, &mut s),
    };
    results.insert(1, s.scaled.clone());
    if found_inf && let Some(flag) = flags.next() {
        let flag = number(t, flag);
        let found = t.compare_num("EQ", &flag, 1.0);
        let found = t.broadcast(&found, &s.param.dims);
        results = results.iter().zip(&tensors).map(|(new, old)| t.select(&found, old, new)).collect();
    }
    Ok(results)
}

/// `1 - number`
fn rest(t: &mut Text, number: &V) -> V {
    let one = t.like(number, 1.0);
    t.sub(&one, number)
}

/// Weight decay as part of the gradient.
fn decayed(t: &mut Text, s: &Step, weight_decay: &V) -> V {
    let none = t.compare_num("EQ", weight_decay, 0.0);
    let none = t.broadcast(&none, &s.param.dims);
    let factor = s.wide(t, weight_decay);
    let part = t.mul(&s.param, &factor);
    let sum = t.add(&s.grad, &part);
    t.select(&none, &s.grad, &sum)
}

fn adam(t: &mut Text, s: &mut Step, adamw: bool, amsgrad: bool) -> Vec<V> {
    let [lr, beta1, beta2, weight_decay, eps] = &s.numbers[..] else { unreachable!("five numbers") };
    let step = s.step.clone().unwrap_or_else(|| lr.clone());
    let correction = |t: &mut Text, beta: &V| {
        let power = t.bin("power", beta, &step);
        rest(t, &power)
    };
    let (c1, c2) = (correction(t, beta1), correction(t, beta2));
    let step_size = t.div(lr, &c1);
    let c2 = t.un("sqrt", &c2);
    let mut param = s.param.clone();
    if adamw {
        let shrink = t.mul(lr, weight_decay);
        let shrink = rest(t, &shrink);
        let shrink = s.wide(t, &shrink);
        param = t.mul(&param, &shrink);
    } else {
        s.grad = decayed(t, s, weight_decay);
    }
    let first = rest(t, beta1);
    let first = s.wide(t, &first);
    let d = t.sub(&s.grad, &s.state[0]);
    let d = t.mul(&d, &first);
    let m = t.add(&s.state[0], &d);
    let (keep, second) = (s.wide(t, beta2), rest(t, beta2));
    let second = s.wide(t, &second);
    let old = t.mul(&s.state[1], &keep);
    let square = t.mul(&s.grad, &s.grad);
    let square = t.mul(&square, &second);
    let v = t.add(&old, &square);
    let largest = if amsgrad { t.bin("maximum", &s.state[2], &v) } else { v.clone() };
    let root = t.un("sqrt", &largest);
    let c2 = s.wide(t, &c2);
    let root = t.div(&root, &c2);
    let eps = s.wide(t, eps);
    let denominator = t.add(&root, &eps);
    let step_size = s.wide(t, &step_size);
    let change = t.mul(&step_size, &m);
    let change = t.div(&change, &denominator);
    let mut results = vec![t.sub(&param, &change), m, v];
    if amsgrad {
        results.push(largest);
    }
    results
}

fn sgd(t: &mut Text, s: &mut Step, momentum: bool, first_step: bool, nesterov: bool) -> Vec<V> {
    let [weight_decay, factor, lr, dampening] = &s.numbers[..] else { unreachable!("four numbers") };
    let mut g = decayed(t, s, weight_decay);
    let mut results = Vec::new();
    if momentum {
        let factor = s.wide(t, factor);
        let m = if first_step {
            g.clone()
        } else {
            let undamped = rest(t, dampening);
            let undamped = s.wide(t, &undamped);
            let (old, new) = (t.mul(&s.state[0], &factor), t.mul(&g, &undamped));
            t.add(&old, &new)
        };
        g = if nesterov {
            let ahead = t.mul(&m, &factor);
            t.add(&g, &ahead)
        } else {
            m.clone()
        };
        results.push(m);
    }
    let lr = s.wide(t, lr);
    let change = t.mul(&g, &lr);
    results.insert(0, t.sub(&s.param, &change));
    results
}

fn adagrad(t: &mut Text, s: &mut Step) -> Vec<V> {
    let [lr, lr_decay, weight_decay, eps] = &s.numbers[..] else { unreachable!("four numbers") };
    let step = s.step.clone().unwrap_or_else(|| lr.clone());
    let before = t.bin_num("subtract", &step, 1.0);
    let decay = t.mul(&before, lr_decay);
    let decay = t.bin_num("add", &decay, 1.0);
    let lr = t.div(lr, &decay);
    let g = decayed(t, s, weight_decay);
    let square = t.mul(&g, &g);
    let sum = t.add(&s.state[0], &square);
    let root = t.un("sqrt", &sum);
    let eps = s.wide(t, eps);
    let denominator = t.add(&root, &eps);
    let lr = s.wide(t, &lr);
    let change = t.mul(&lr, &g);
    let change = t.div(&change, &denominator);
    vec![t.sub(&s.param, &change), sum]
}
