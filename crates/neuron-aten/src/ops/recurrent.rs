//! The cells of LSTM and GRU. PyTorch sends them here fused on devices other than the CPU; their gates lie side by side
//! in the last dimension.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Dims, Op, ReduceOp, Shape, UnaryOp, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::_thnn_fused_lstm_cell"], lstm),
    (&["aten::_thnn_fused_lstm_cell_backward_impl"], lstm_backward),
    (&["aten::_thnn_fused_gru_cell"], gru),
    (&["aten::_thnn_fused_gru_cell_backward"], gru_backward),
];

/// The parts of argument `i` along its last dimension, each `hidden` wide, in the compute type.
fn parts<const N: usize>(l: &mut Lower, i: usize, hidden: i64) -> Result<[Value; N], LowerError> {
    let whole = l.tensor(i)?;
    let (dim, compute) = (l.g.shape(whole).rank() - 1, l.g.dtype(whole).compute());
    Ok(std::array::from_fn(|k| {
        let part = l.slice(whole, dim, k as i64 * hidden, hidden);
        l.g.convert(part, compute)
    }))
}

/// The gates of the input and of the hidden state, arguments 0 and 1, each with its bias, arguments 3 and 4.
fn gates<const N: usize>(l: &mut Lower, hidden: i64) -> Result<[[Value; N]; 2], LowerError> {
    let mut both = [parts::<N>(l, 0, hidden)?, parts::<N>(l, 1, hidden)?];
    for (side, gates) in both.iter_mut().enumerate() {
        if l.has_tensor(3 + side) {
            let bias = parts::<N>(l, 3 + side, hidden)?;
            for (gate, b) in gates.iter_mut().zip(bias) {
                *gate = l.bin(BinaryOp::Add, *gate, b);
            }
        }
    }
    Ok(both)
}

fn add(l: &mut Lower, a: Value, b: Value) -> Value {
    l.bin(BinaryOp::Add, a, b)
}

fn mul(l: &mut Lower, a: Value, b: Value) -> Value {
    l.bin(BinaryOp::Mul, a, b)
}

/// `1 - a`
fn complement(l: &mut Lower, a: Value) -> Value {
    let dtype = l.g.dtype(a);
    let one = l.constant(dtype, 1.0);
    l.bin(BinaryOp::Sub, one, a)
}

/// The derivative of the logistic function where it is `a`.
fn sigmoid_slope(l: &mut Lower, a: Value) -> Value {
    let rest = complement(l, a);
    mul(l, rest, a)
}

/// The derivative of the hyperbolic tangent where it is `a`.
fn tanh_slope(l: &mut Lower, a: Value) -> Value {
    let square = mul(l, a, a);
    complement(l, square)
}

/// Argument `i` in the compute type, or zeros of `like`'s shape where there is no gradient.
fn gradient(l: &mut Lower, i: usize, like: Value) -> Result<Value, LowerError> {
    let Shape { dtype, sizes } = l.g.shape(like).clone();
    if !l.has_tensor(i) {
        let zero = l.constant(dtype, 0.0);
        return Ok(l.g.broadcast(zero, &sizes));
    }
    let value = l.tensor(i)?;
    Ok(l.g.convert(value, dtype))
}

/// Parts side by side, rounded to the type of the output they are stored to.
fn joined(l: &mut Lower, parts: &[Value], dtype: DType) -> Value {
    let parts: Vec<Value> = parts.iter().map(|p| l.g.convert(*p, dtype)).collect();
    let mut shape = l.g.shape(parts[0]).clone();
    shape.sizes[1] *= parts.len() as i64;
    l.g.op(Op::Concat { dim: 1 }, &parts, shape)
}

/// Sum over the batch: the gradient of a bias.
fn bias_gradient(l: &mut Lower, gates: Value, dtype: DType) -> Typed {
    let wide = l.g.convert(gates, dtype.compute());
    let mut shape = l.g.shape(wide).clone();
    shape.sizes[0] = 1;
    let op = Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[0]) };
    Typed { value: l.g.op(op, &[wide], shape), dtype }
}

/// `(input_gates, hidden_gates, cx, input_bias?, hidden_bias?)`: results `hy, cy`, and the gates for the backward
fn lstm(l: &mut Lower) -> Lowered {
    let ty = l.ty(2)?.clone();
    let [input, hidden] = gates::<4>(l, ty.sizes[1])?;
    let mut gate = input;
    for (a, b) in gate.iter_mut().zip(hidden) {
        *a = add(l, *a, b);
    }
    for (k, g) in gate.iter_mut().enumerate() {
        *g = l.un(if k == 2 { UnaryOp::Tanh } else { UnaryOp::Sigmoid }, *g);
    }
    let [i, f, c, o] = gate;
    let cx = l.tensor(2)?;
    let cx = l.g.convert(cx, ty.dtype.compute());
    let kept = mul(l, f, cx);
    let new = mul(l, i, c);
    let cy = add(l, kept, new);
    let squashed = l.un(UnaryOp::Tanh, cy);
    let hy = mul(l, o, squashed);
    l.store(Typed { value: hy, dtype: ty.dtype })?;
    l.store(Typed { value: cy, dtype: ty.dtype })?;
    let workspace = joined(l, &gate, ty.dtype);
    l.store_value(workspace)
}

/// `(grad_hy?, grad_cy?, cx, cy, gates, has_bias)`: gradients of the gates, of `cx` and of a bias
fn lstm_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(2)?.clone();
    let [i, f, c, o] = parts::<4>(l, 4, ty.sizes[1])?;
    let (cx, cy) = (l.tensor(2)?, l.tensor(3)?);
    let (cx, cy) = (l.g.convert(cx, ty.dtype.compute()), l.g.convert(cy, ty.dtype.compute()));
    let (grad_hy, grad_cy) = (gradient(l, 0, cx)?, gradient(l, 1, cx)?);
    let squashed = l.un(UnaryOp::Tanh, cy);
    let slope = tanh_slope(l, squashed);
    let through = mul(l, grad_hy, o);
    let through = mul(l, through, slope);
    let state = add(l, through, grad_cy);

    let mut grads = [mul(l, state, c), mul(l, state, cx), mul(l, state, i), mul(l, grad_hy, squashed)];
    for (k, (grad, gate)) in grads.iter_mut().zip([i, f, c, o]).enumerate() {
        let slope = if k == 2 { tanh_slope(l, gate) } else { sigmoid_slope(l, gate) };
        *grad = mul(l, *grad, slope);
    }
    let grad_gates = joined(l, &grads, ty.dtype);
    let grad_cx = mul(l, state, f);
    l.store_value(grad_gates)?;
    l.store(Typed { value: grad_cx, dtype: ty.dtype })?;
    let grad_bias = bias_gradient(l, grad_gates, ty.dtype);
    l.store(grad_bias)
}

/// `(input_gates, hidden_gates, hx, input_bias?, hidden_bias?)`: results `hy`, and what the backward needs
fn gru(l: &mut Lower) -> Lowered {
    let ty = l.ty(2)?.clone();
    let [[ir, iz, inew], [hr, hz, hnew]] = gates::<3>(l, ty.sizes[1])?;
    let reset = add(l, ir, hr);
    let reset = l.un(UnaryOp::Sigmoid, reset);
    let update = add(l, iz, hz);
    let update = l.un(UnaryOp::Sigmoid, update);
    let remembered = mul(l, reset, hnew);
    let new = add(l, inew, remembered);
    let new = l.un(UnaryOp::Tanh, new);
    let hx = l.tensor(2)?;
    let hx = l.g.convert(hx, ty.dtype.compute());
    let difference = l.bin(BinaryOp::Sub, hx, new);
    let moved = mul(l, update, difference);
    let hy = add(l, new, moved);
    l.store(Typed { value: hy, dtype: ty.dtype })?;
    let workspace = joined(l, &[reset, update, new, hx, hnew], ty.dtype);
    l.store_value(workspace)
}

/// `(grad_hy, workspace, has_bias)`: gradients of both gates, of `hx` and of both biases
fn gru_backward(l: &mut Lower) -> Lowered {
    let ty = l.ty(0)?.clone();
    let [reset, update, new, hx, hnew] = parts::<5>(l, 1, ty.sizes[1])?;
    let grad = l.tensor(0)?;
    let grad = l.g.convert(grad, ty.dtype.compute());
    let difference = l.bin(BinaryOp::Sub, hx, new);
    let grad_update = mul(l, grad, difference);
    let slope = sigmoid_slope(l, update);
    let grad_update = mul(l, grad_update, slope);
    let grad_hx = mul(l, grad, update);
    let rest = complement(l, update);
    let grad_new = mul(l, grad, rest);
    let slope = tanh_slope(l, new);
    let grad_new = mul(l, grad_new, slope);
    let grad_hnew = mul(l, grad_new, reset);
    let grad_reset = mul(l, grad_new, hnew);
    let slope = sigmoid_slope(l, reset);
    let grad_reset = mul(l, grad_reset, slope);

    let input = joined(l, &[grad_reset, grad_update, grad_new], ty.dtype);
    let hidden = joined(l, &[grad_reset, grad_update, grad_hnew], ty.dtype);
    l.store_value(input)?;
    l.store_value(hidden)?;
    l.store(Typed { value: grad_hx, dtype: ty.dtype })?;
    for gates in [input, hidden] {
        let grad_bias = bias_gradient(l, gates, ty.dtype);
        l.store(grad_bias)?;
    }
    Ok(())
}
