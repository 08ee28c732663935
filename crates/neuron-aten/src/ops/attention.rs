//! Scaled dot-product attention.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{DType, Op, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::_scaled_dot_product_fused_attention_overrideable"], forward),
    (&["aten::_scaled_dot_product_fused_attention_overrideable_backward"], backward),
    (&["aten::_scaled_dot_product_flash_attention_for_cpu"], flash),
    (&["aten::_scaled_dot_product_flash_attention_for_cpu_backward"], flash_backward),
];

/// The default scale is one over the root of the head size.
fn scale(l: &Lower, i: usize, head_size: i64) -> f64 {
    l.float_or(i, 1.0 / (head_size as f64).sqrt())
}

/// The bias expanded to `[b, h, l, s]`.
fn bias(l: &mut Lower, i: usize, scores: &[i64]) -> Result<Option<Value>, crate::LowerError> {
    if !l.has_tensor(i) {
        return Ok(None);
    }
    let value = l.tensor(i)?;
    Ok(Some(l.g.broadcast(value, scores)))
}

/// `(query, key, value, attn_bias?, dropout_p, is_causal, return_debug_mask, scale?)`; the results are
/// `output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask`.
fn forward(l: &mut Lower) -> Lowered {
    let (q, k, v) = (l.ty(0)?.clone(), l.ty(1)?.clone(), l.ty(2)?.clone());
    let (b, h, len, s) = (q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]);
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(2)?];
    let bias = bias(l, 3, &[b, h, len, s])?;
    operands.extend(bias);
    let dropout = l.float_or(4, 0.0);
    let random = (dropout > 0.0).then(|| l.reserve_random((b * h * len * s) as u64));
    if let Some((seed, offset)) = random {
        operands.extend([seed, offset]);
    }
    let op = Op::Attention { causal: l.flag(5), scale: scale(l, 7, q.sizes[3]), bias: bias.is_some(), dropout };
    let out = Shape::new(q.dtype, &[b, h, len, v.sizes[3]]);
    let lse = Shape::new(q.dtype.compute(), &[b, h, len]);
    let first = l.g.push(op, &operands, &[out, lse]);
    l.store_value(first)?;
    l.store_value(Value(first.0 + 1))?;
    for k in 2..9 {
        match (k, random) {
            (6, Some((seed, _))) => l.store_value(seed)?,
            (7, Some((_, offset))) => l.store_value(offset)?,
            _ => {
                let zero = l.constant(DType::I64, 0.0);
                l.store_value(zero)?;
            }
        }
    }
    Ok(())
}

/// `(grad_out, query, key, value, attn_bias?, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
/// dropout_p, is_causal, philox_seed, philox_offset, scale?)`
fn backward(l: &mut Lower) -> Lowered {
    let (q, k, v) = (l.ty(1)?.clone(), l.ty(2)?.clone(), l.ty(3)?.clone());
    let scores = [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]];
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(2)?, l.tensor(3)?];
    let bias = bias(l, 4, &scores)?;
    operands.extend(bias);
    operands.extend([l.tensor(6)?, l.tensor(7)?]);
    let dropout = l.float_or(12, 0.0);
    if dropout > 0.0 {
        operands.extend([l.tensor(14)?, l.tensor(15)?]);
    }
    let grad_bias = bias.is_some() && matches!(l.arg(5), Arg::BoolList(m) if m.get(3) == Some(&true));
    if grad_bias {
        return Err(crate::LowerError::unsupported("the gradient of an attention bias"));
    }
    let op = Op::AttentionBackward {
        causal: l.flag(13),
        scale: scale(l, 16, q.sizes[3]),
        bias: bias.is_some(),
        dropout,
        grad_bias,
    };
    let first = l.g.push(op, &operands, &[q.shape(), k.shape(), v.shape()]);
    (0..3).try_for_each(|i| l.store_value(Value(first.0 + i)))?;
    if l.output_count() > 3 {
        let zero = l.constant(q.dtype, 0.0);
        l.store_value(zero)?;
    }
    Ok(())
}

/// What the CPU's operator and its backward take.
fn check_flash(l: &Lower, query: usize, dropout: usize) -> Lowered {
    let (q, k, v) = (l.ty(query)?, l.ty(query + 1)?, l.ty(query + 2)?);
    if [q, k, v].iter().any(|t| t.rank() != 4 || t.numel() == 0 || t.dtype != q.dtype) || !q.dtype.is_float() {
        return Err(LowerError::unsupported("attention of nothing, or of other than four dimensions"));
    }
    if l.float_or(dropout, 0.0) > 0.0 {
        return Err(LowerError::unsupported("dropout, which the CPU's operator has not"));
    }
    Ok(())
}

/// `(query, key, value, dropout_p, is_causal, attn_mask?, scale?)`: results `output, logsumexp`
fn flash(l: &mut Lower) -> Lowered {
    check_flash(l, 0, 3)?;
    let (q, k, v) = (l.ty(0)?.clone(), l.ty(1)?.clone(), l.ty(2)?.clone());
    let (b, h, len, s) = (q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]);
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(2)?];
    let bias = bias(l, 5, &[b, h, len, s])?;
    operands.extend(bias);
    let op = Op::Attention { causal: l.flag(4), scale: scale(l, 6, q.sizes[3]), bias: bias.is_some(), dropout: 0.0 };
    let out = Shape::new(q.dtype, &[b, h, len, v.sizes[3]]);
    let lse = Shape::new(q.dtype.compute(), &[b, h, len]);
    let first = l.g.push(op, &operands, &[out, lse]);
    l.store_value(first)?;
    let dtype = l.out(1)?.dtype;
    l.store(Typed { value: Value(first.0 + 1), dtype })
}

/// `(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask?, scale?)`
fn flash_backward(l: &mut Lower) -> Lowered {
    check_flash(l, 1, 6)?;
    let (q, k, v) = (l.ty(1)?.clone(), l.ty(2)?.clone(), l.ty(3)?.clone());
    let scores = [q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]];
    let mut operands = vec![l.tensor(0)?, l.tensor(1)?, l.tensor(2)?, l.tensor(3)?];
    let bias = bias(l, 8, &scores)?;
    operands.extend(bias);
    let lse = l.tensor(5)?;
    operands.extend([l.tensor(4)?, l.g.convert(lse, q.dtype.compute())]);
    let (causal, scale) = (l.flag(7), scale(l, 9, q.sizes[3]));
    let op = Op::AttentionBackward { causal, scale, bias: bias.is_some(), dropout: 0.0, grad_bias: false };
    let first = l.g.push(op, &operands, &[q.shape(), k.shape(), v.shape()]);
    (0..3).try_for_each(|i| l.store_value(Value(first.0 + i)))
}
