//! Activation functions and their gradients.

use super::{Row, overloads};
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Op, RandomOp, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::relu", "aten::relu_", "aten::relu.out"], relu),
    (overloads!("silu"), silu),
    (&["aten::silu_backward", "aten::silu_backward.grad_input"], silu_backward),
    (overloads!("gelu"), gelu),
    (&["aten::gelu_backward", "aten::gelu_backward.grad_input"], gelu_backward),
    (&["aten::sigmoid_backward", "aten::sigmoid_backward.grad_input"], sigmoid_backward),
    (&["aten::tanh_backward", "aten::tanh_backward.grad_input"], tanh_backward),
    (&["aten::threshold", "aten::threshold_", "aten::threshold.out"], threshold),
    (&["aten::threshold_backward", "aten::threshold_backward.grad_input"], threshold_backward),
    (&["aten::leaky_relu", "aten::leaky_relu_", "aten::leaky_relu.out"], leaky_relu),
    (&["aten::leaky_relu_backward", "aten::leaky_relu_backward.grad_input"], leaky_relu_backward),
    (&["aten::hardtanh", "aten::hardtanh_", "aten::hardtanh.out"], hardtanh),
    (&["aten::hardtanh_backward", "aten::hardtanh_backward.grad_input"], hardtanh_backward),
    (&["aten::softplus", "aten::softplus.out"], softplus),
    (&["aten::softplus_backward", "aten::softplus_backward.grad_input"], softplus_backward),
    (&["aten::hardsigmoid", "aten::hardsigmoid_", "aten::hardsigmoid.out"], hardsigmoid),
    (&["aten::hardswish", "aten::hardswish_", "aten::hardswish.out"], hardswish),
    (&["aten::mish", "aten::mish_", "aten::mish.out"], mish),
    (&["aten::elu", "aten::elu_", "aten::elu.out"], elu),
    (&["aten::elu_backward", "aten::elu_backward.grad_input"], elu_backward),
    (&["aten::hardsigmoid_backward", "aten::hardsigmoid_backward.grad_input"], hardsigmoid_backward),
    (&["aten::hardswish_backward"], hardswish_backward),
    (&["aten::hardshrink", "aten::hardshrink.out"], hardshrink),
    (&["aten::softshrink", "aten::softshrink.out"], softshrink),
    (&["aten::hardshrink_backward", "aten::hardshrink_backward.grad_input"], shrink_backward),
    (&["aten::softshrink_backward", "aten::softshrink_backward.grad_input"], shrink_backward),
    (&["aten::log_sigmoid_forward", "aten::log_sigmoid_forward.output"], log_sigmoid),
    (&["aten::log_sigmoid_backward", "aten::log_sigmoid_backward.grad_input"], log_sigmoid_backward),
    (&["aten::glu", "aten::glu.out"], glu),
    (&["aten::glu_backward", "aten::glu_backward.grad_input"], glu_backward),
    (&["aten::_prelu_kernel"], prelu),
    (&["aten::_prelu_kernel_backward"], prelu_backward),
    (&["aten::rrelu_with_noise", "aten::rrelu_with_noise_", "aten::rrelu_with_noise.out"], rrelu),
];

/// Tensor argument `i` in the compute type of the first one.
fn input(l: &mut Lower, i: usize) -> Result<(Value, DType), LowerError> {
    let dtype = l.ty(0)?.dtype;
    Ok((l.operand(i, dtype)?, dtype))
}

fn relu(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let value = l.with_constant(BinaryOp::Maximum, x, 0.0);
    l.store(Typed { value, dtype })
}

fn silu(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let gate = l.un(UnaryOp::Sigmoid, x);
    let value = l.bin(BinaryOp::Mul, x, gate);
    l.store(Typed { value, dtype })
}

/// `grad * s * (1 + x * (1 - s))`
fn silu_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let s = l.un(UnaryOp::Sigmoid, x);
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, s);
    let inner = l.bin(BinaryOp::Mul, x, rest);
    let inner = l.bin(BinaryOp::Add, one, inner);
    let slope = l.bin(BinaryOp::Mul, s, inner);
    let value = l.bin(BinaryOp::Mul, grad, slope);
    l.store(Typed { value, dtype })
}

const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
const CUBIC: f64 = 0.044715;

fn is_tanh(l: &Lower, i: usize) -> Result<bool, LowerError> {
    match l.str(i) {
        "none" => Ok(false),
        "tanh" => Ok(true),
        other => Err(LowerError::unsupported(format!("approximate={other:?}"))),
    }
}

fn gelu(l: &mut Lower) -> Lowered {
    let tanh = is_tanh(l, 1)?;
    let (x, dtype) = input(l, 0)?;
    let half = l.with_constant(BinaryOp::Mul, x, 0.5);
    let inner = if tanh {
        let square = l.bin(BinaryOp::Mul, x, x);
        let cube = l.bin(BinaryOp::Mul, square, x);
        let cube = l.with_constant(BinaryOp::Mul, cube, CUBIC);
        let sum = l.bin(BinaryOp::Add, x, cube);
        let arg = l.with_constant(BinaryOp::Mul, sum, SQRT_2_OVER_PI);
        l.un(UnaryOp::Tanh, arg)
    } else {
        let arg = l.with_constant(BinaryOp::Mul, x, std::f64::consts::FRAC_1_SQRT_2);
        l.un(UnaryOp::Erf, arg)
    };
    let gate = l.with_constant(BinaryOp::Add, inner, 1.0);
    let value = l.bin(BinaryOp::Mul, half, gate);
    l.store(Typed { value, dtype })
}

fn gelu_backward(l: &mut Lower) -> Lowered {
    let tanh = is_tanh(l, 2)?;
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let square = l.bin(BinaryOp::Mul, x, x);
    let slope = if tanh {
        // t = tanh(u), u = c (x + k x^3): 0.5 (1 + t) + 0.5 x (1 - t^2) c (1 + 3 k x^2)
        let cubic = l.with_constant(BinaryOp::Mul, square, CUBIC);
        let poly = l.with_constant(BinaryOp::Add, cubic, 1.0);
        let arg = l.bin(BinaryOp::Mul, x, poly);
        let arg = l.with_constant(BinaryOp::Mul, arg, SQRT_2_OVER_PI);
        let t = l.un(UnaryOp::Tanh, arg);
        let left = l.with_constant(BinaryOp::Add, t, 1.0);
        let left = l.with_constant(BinaryOp::Mul, left, 0.5);
        let t2 = l.bin(BinaryOp::Mul, t, t);
        let one = l.constant(dtype.compute(), 1.0);
        let sech = l.bin(BinaryOp::Sub, one, t2);
        let inner = l.with_constant(BinaryOp::Mul, square, 3.0 * CUBIC);
        let inner = l.with_constant(BinaryOp::Add, inner, 1.0);
        let inner = l.with_constant(BinaryOp::Mul, inner, 0.5 * SQRT_2_OVER_PI);
        let right = l.bin(BinaryOp::Mul, x, sech);
        let right = l.bin(BinaryOp::Mul, right, inner);
        l.bin(BinaryOp::Add, left, right)
    } else {
        let arg = l.with_constant(BinaryOp::Mul, x, std::f64::consts::FRAC_1_SQRT_2);
        let e = l.un(UnaryOp::Erf, arg);
        let cdf = l.with_constant(BinaryOp::Add, e, 1.0);
        let cdf = l.with_constant(BinaryOp::Mul, cdf, 0.5);
        let exponent = l.with_constant(BinaryOp::Mul, square, -0.5);
        let density = l.un(UnaryOp::Exp, exponent);
        let density = l.with_constant(
            BinaryOp::Mul,
            density,
            0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2,
        );
        let right = l.bin(BinaryOp::Mul, x, density);
        l.bin(BinaryOp::Add, cdf, right)
    };
    let value = l.bin(BinaryOp::Mul, grad, slope);
    l.store(Typed { value, dtype })
}

/// `grad * y * (1 - y)`
fn sigmoid_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (y, _) = input(l, 1)?;
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, y);
    let left = l.bin(BinaryOp::Mul, grad, rest);
    let value = l.bin(BinaryOp::Mul, left, y);
    l.store(Typed { value, dtype })
}

/// `grad * (1 - y^2)`
fn tanh_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (y, _) = input(l, 1)?;
    let square = l.bin(BinaryOp::Mul, y, y);
    let one = l.constant(dtype.compute(), 1.0);
    let slope = l.bin(BinaryOp::Sub, one, square);
    let value = l.bin(BinaryOp::Mul, grad, slope);
    l.store(Typed { value, dtype })
}

/// `x` above the threshold, else the value; NaN is not at or below anything and stays.
fn threshold(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let (limit, other) = (l.operand(1, dtype)?, l.operand(2, dtype)?);
    let below = l.bin(BinaryOp::Le, x, limit);
    let value = l.g.select(below, other, x);
    l.store(Typed { value, dtype })
}

fn threshold_backward(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    let (grad, x) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let limit = l.operand(2, dtype)?;
    let below = l.bin(BinaryOp::Le, x, limit);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(below, zero, grad);
    l.store(Typed { value, dtype })
}

fn leaky_relu(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let slope = l.wide_operand(1, dtype)?;
    let negative = l.bin(BinaryOp::Mul, x, slope);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let value = l.g.select(above, x, negative);
    l.store(Typed { value, dtype })
}

fn leaky_relu_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let slope = l.wide_operand(2, dtype)?;
    let negative = l.bin(BinaryOp::Mul, grad, slope);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let value = l.g.select(above, grad, negative);
    l.store(Typed { value, dtype })
}

fn hardtanh(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let (low, high) = (l.operand(1, dtype)?, l.operand(2, dtype)?);
    let value = l.bin(BinaryOp::Maximum, x, low);
    let value = l.bin(BinaryOp::Minimum, value, high);
    l.store(Typed { value, dtype })
}

fn hardtanh_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let (low, high) = (l.operand(2, dtype)?, l.operand(3, dtype)?);
    let below = l.bin(BinaryOp::Le, x, low);
    let above = l.bin(BinaryOp::Ge, x, high);
    let outside = l.bin(BinaryOp::Or, below, above);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(outside, zero, grad);
    l.store(Typed { value, dtype })
}

/// `log(1 + e^(beta x)) / beta`, the identity where `beta x` exceeds the threshold.
fn softplus(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let (beta, limit) = (l.wide_operand(1, dtype)?, l.wide_operand(2, dtype)?);
    let scaled = l.bin(BinaryOp::Mul, x, beta);
    let e = l.un(UnaryOp::Exp, scaled);
    let log = l.un(UnaryOp::Log1p, e);
    let soft = l.bin(BinaryOp::Div, log, beta);
    let above = l.bin(BinaryOp::Gt, scaled, limit);
    let value = l.g.select(above, x, soft);
    l.store(Typed { value, dtype })
}

fn softplus_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let (beta, limit) = (l.wide_operand(2, dtype)?, l.wide_operand(3, dtype)?);
    let scaled = l.bin(BinaryOp::Mul, x, beta);
    let slope = l.un(UnaryOp::Sigmoid, scaled);
    let soft = l.bin(BinaryOp::Mul, grad, slope);
    let above = l.bin(BinaryOp::Gt, scaled, limit);
    let value = l.g.select(above, grad, soft);
    l.store(Typed { value, dtype })
}

/// `min(max(x + 3, 0), 6)`
fn gate_of_six(l: &mut Lower, x: Value) -> Value {
    let shifted = l.with_constant(BinaryOp::Add, x, 3.0);
    let low = l.with_constant(BinaryOp::Maximum, shifted, 0.0);
    l.with_constant(BinaryOp::Minimum, low, 6.0)
}

fn hardsigmoid(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let gate = gate_of_six(l, x);
    let value = l.with_constant(BinaryOp::Div, gate, 6.0);
    l.store(Typed { value, dtype })
}

fn hardswish(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let gate = gate_of_six(l, x);
    let product = l.bin(BinaryOp::Mul, x, gate);
    let value = l.with_constant(BinaryOp::Div, product, 6.0);
    l.store(Typed { value, dtype })
}

fn mish(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let e = l.un(UnaryOp::Exp, x);
    let soft = l.un(UnaryOp::Log1p, e);
    let gate = l.un(UnaryOp::Tanh, soft);
    let value = l.bin(BinaryOp::Mul, x, gate);
    l.store(Typed { value, dtype })
}

/// `scale * x` above 0, else `scale * alpha * (e^(input_scale x) - 1)`
fn elu(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let (alpha, scale, input_scale) = (l.wide_operand(1, dtype)?, l.wide_operand(2, dtype)?, l.wide_operand(3, dtype)?);
    let inner = l.bin(BinaryOp::Mul, x, input_scale);
    let curve = l.un(UnaryOp::Expm1, inner);
    let factor = l.bin(BinaryOp::Mul, alpha, scale);
    let negative = l.bin(BinaryOp::Mul, curve, factor);
    let positive = l.bin(BinaryOp::Mul, x, scale);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let value = l.g.select(above, positive, negative);
    l.store(Typed { value, dtype })
}

/// `(grad, alpha, scale, input_scale, is_result, self or result)`
fn elu_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 5)?;
    let (alpha, scale, input_scale) = (l.wide_operand(1, dtype)?, l.wide_operand(2, dtype)?, l.wide_operand(3, dtype)?);
    let factor = l.bin(BinaryOp::Mul, alpha, scale);
    let inner = l.bin(BinaryOp::Mul, grad, input_scale);
    let negative = if l.flag(4) {
        let sum = l.bin(BinaryOp::Add, x, factor);
        l.bin(BinaryOp::Mul, inner, sum)
    } else {
        let scaled = l.bin(BinaryOp::Mul, x, input_scale);
        let e = l.un(UnaryOp::Exp, scaled);
        let inner = l.bin(BinaryOp::Mul, inner, factor);
        l.bin(BinaryOp::Mul, inner, e)
    };
    let positive = l.bin(BinaryOp::Mul, grad, scale);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let value = l.g.select(above, positive, negative);
    l.store(Typed { value, dtype })
}

fn hardsigmoid_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let low = l.with_constant(BinaryOp::Gt, x, -3.0);
    let high = l.with_constant(BinaryOp::Lt, x, 3.0);
    let inside = l.bin(BinaryOp::And, low, high);
    let slope = l.with_constant(BinaryOp::Mul, grad, f64::from(1.0f32 / 6.0));
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(inside, slope, zero);
    l.store(Typed { value, dtype })
}

fn hardswish_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let third = l.with_constant(BinaryOp::Div, x, 3.0);
    let slope = l.with_constant(BinaryOp::Add, third, 0.5);
    let inside = l.bin(BinaryOp::Mul, grad, slope);
    let above = l.with_constant(BinaryOp::Ge, x, 3.0);
    let below = l.with_constant(BinaryOp::Lt, x, -3.0);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(above, grad, inside);
    let value = l.g.select(below, zero, value);
    l.store(Typed { value, dtype })
}

/// Whether `-lambda <= x <= lambda`.
fn within(l: &mut Lower, x: Value, lambda: Value) -> Value {
    let negative = l.un(UnaryOp::Neg, lambda);
    let low = l.bin(BinaryOp::Ge, x, negative);
    let high = l.bin(BinaryOp::Le, x, lambda);
    l.bin(BinaryOp::And, low, high)
}

fn hardshrink(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let lambda = l.operand(1, dtype)?;
    let inside = within(l, x, lambda);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(inside, zero, x);
    l.store(Typed { value, dtype })
}

/// Towards 0 by `lambda`; NaN stays.
fn softshrink(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let lambda = l.wide_operand(1, dtype)?;
    let negative = l.un(UnaryOp::Neg, lambda);
    let down = l.bin(BinaryOp::Sub, x, lambda);
    let up = l.bin(BinaryOp::Add, x, lambda);
    let above = l.bin(BinaryOp::Gt, x, lambda);
    let below = l.bin(BinaryOp::Lt, x, negative);
    let inside = l.with_constant(BinaryOp::Mul, x, 0.0);
    let value = l.g.select(below, up, inside);
    let value = l.g.select(above, down, value);
    l.store(Typed { value, dtype })
}

/// `(grad, self, lambda)`
fn shrink_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let lambda = l.operand(2, dtype)?;
    let inside = within(l, x, lambda);
    let zero = l.constant(dtype.compute(), 0.0);
    let value = l.g.select(inside, zero, grad);
    l.store(Typed { value, dtype })
}

/// e^-|x|
fn decay(l: &mut Lower, x: Value) -> Value {
    let magnitude = l.un(UnaryOp::Abs, x);
    let negative = l.un(UnaryOp::Neg, magnitude);
    l.un(UnaryOp::Exp, negative)
}

/// Results `min(x, 0) - log(1 + e^-|x|)` and, where PyTorch gives it a size, `e^-|x|`.
fn log_sigmoid(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let e = decay(l, x);
    let log = l.un(UnaryOp::Log1p, e);
    let low = l.with_constant(BinaryOp::Minimum, x, 0.0);
    let value = l.bin(BinaryOp::Sub, low, log);
    l.store(Typed { value, dtype })?;
    let value = if l.out(1)?.numel() == 0 { l.constant(dtype.compute(), 0.0) } else { e };
    l.store(Typed { value, dtype })
}

/// `(grad, self, buffer)`. The exponential is computed again: the buffer holds it rounded, or not at all.
fn log_sigmoid_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let e = decay(l, x);
    let one = l.constant(dtype.compute(), 1.0);
    let sum = l.bin(BinaryOp::Add, one, e);
    let share = l.bin(BinaryOp::Div, e, sum);
    let rest = l.bin(BinaryOp::Sub, one, share);
    let negative = l.with_constant(BinaryOp::Lt, x, 0.0);
    let slope = l.g.select(negative, rest, share);
    let value = l.bin(BinaryOp::Mul, slope, grad);
    l.store(Typed { value, dtype })
}

/// The two halves along `dim`, in the compute type.
fn halves(l: &mut Lower, x: Value, dim: usize, dtype: DType) -> [Value; 2] {
    let extent = l.g.shape(x).sizes[dim] / 2;
    [0, extent].map(|start| {
        let half = l.slice(x, dim, start, extent);
        l.g.convert(half, dtype.compute())
    })
}

/// `(self, dim)`: the first half times the logistic function of the second.
fn glu(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let dim = l.dim(1, ty.rank())?;
    let x = l.tensor(0)?;
    let [a, b] = halves(l, x, dim, ty.dtype);
    let gate = l.un(UnaryOp::Sigmoid, b);
    let value = l.bin(BinaryOp::Mul, a, gate);
    l.store(Typed { value, dtype: ty.dtype })
}

/// `(grad, self, dim)`
fn glu_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(1)?.clone();
    let dtype = ty.dtype;
    let dim = l.dim(2, ty.rank())?;
    let grad = l.operand(0, dtype)?;
    let x = l.tensor(1)?;
    let [a, b] = halves(l, x, dim, dtype);
    let gate = l.un(UnaryOp::Sigmoid, b);
    let first = l.bin(BinaryOp::Mul, grad, gate);
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, gate);
    let second = l.bin(BinaryOp::Mul, rest, gate);
    let second = l.bin(BinaryOp::Mul, second, grad);
    let second = l.bin(BinaryOp::Mul, second, a);
    let parts = [first, second].map(|v| l.g.convert(v, dtype));
    let value = l.g.op(Op::Concat { dim }, &parts, ty.shape());
    l.store_value(value)
}

/// `(self, weight)`, the weight already shaped to broadcast.
fn prelu(l: &mut Lower) -> Lowered {
    let (x, dtype) = input(l, 0)?;
    let (weight, _) = input(l, 1)?;
    let negative = l.bin(BinaryOp::Mul, weight, x);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let value = l.g.select(above, x, negative);
    l.store(Typed { value, dtype })
}

/// `(grad, self, weight)`: results gradients of the tensor and of the weight, the latter not yet summed.
fn prelu_backward(l: &mut Lower) -> Lowered {
    let (grad, dtype) = input(l, 0)?;
    let (x, _) = input(l, 1)?;
    let (weight, _) = input(l, 2)?;
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    let scaled = l.bin(BinaryOp::Mul, weight, grad);
    let value = l.g.select(above, grad, scaled);
    l.store(Typed { value, dtype })?;
    let zero = l.constant(dtype.compute(), 0.0);
    let product = l.bin(BinaryOp::Mul, x, grad);
    let value = l.g.select(above, zero, product);
    l.store(Typed { value, dtype })
}

/// `(self, noise, lower, upper, training)`: slopes drawn for what is not positive are kept in the noise, 1 elsewhere.
fn rrelu(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let dtype = ty.dtype;
    let (x, _) = input(l, 0)?;
    let (lower, upper) = (l.wide_operand(2, dtype)?, l.wide_operand(3, dtype)?);
    let above = l.with_constant(BinaryOp::Gt, x, 0.0);
    if !l.flag(4) {
        let sum = l.bin(BinaryOp::Add, lower, upper);
        let slope = l.with_constant(BinaryOp::Div, sum, 2.0);
        let negative = l.bin(BinaryOp::Mul, x, slope);
        let value = l.g.select(above, x, negative);
        return l.store(Typed { value, dtype });
    }
    let values = if dtype == DType::F64 { 2 } else { 1 };
    let uniform = l.random(RandomOp::Uniform, dtype.compute(), &ty.sizes, values);
    let width = l.bin(BinaryOp::Sub, upper, lower);
    let drawn = l.bin(BinaryOp::Mul, uniform, width);
    let drawn = l.bin(BinaryOp::Add, drawn, lower);
    let drawn = l.round(drawn, dtype);
    let one = l.constant(dtype.compute(), 1.0);
    let noise = l.g.select(above, one, drawn);
    let value = l.bin(BinaryOp::Mul, x, noise);
    l.store(Typed { value, dtype })?;
    l.store(Typed { value: noise, dtype })
}
