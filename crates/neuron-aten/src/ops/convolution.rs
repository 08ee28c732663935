//! Convolutions. PyTorch sends those of a device it does not know to the overrideable operators.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{ConvolutionOp, ConvolutionWindows, DType, Dims, Op, ReduceOp, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::convolution_overrideable"], convolution),
    (&["aten::convolution_backward_overrideable"], convolution_backward),
];

/// Stride, padding and dilation, arguments from `at` on, and `groups`, argument `groups`.
fn windows(l: &Lower, at: usize, groups: usize, spatial: usize) -> Result<ConvolutionWindows, LowerError> {
    let list = |i: usize| -> Result<Dims, LowerError> {
        let given = l.ints(i).unwrap_or_default();
        match given.len() {
            1 => Ok(Dims::from_elem(given[0], spatial)),
            n if n == spatial => Ok(given),
            n => Err(LowerError::unsupported(format!("{n} window entries for {spatial} dimensions"))),
        }
    };
    Ok(ConvolutionWindows {
        stride: list(at)?,
        padding: list(at + 1)?,
        dilation: list(at + 2)?,
        groups: l.int(groups)?,
    })
}

fn check(l: &Lower, x: usize, weight: usize) -> Result<usize, LowerError> {
    let (x, weight) = (l.ty(x)?, l.ty(weight)?);
    if !(3..=5).contains(&x.rank()) || weight.rank() != x.rank() || weight.dtype != x.dtype || x.dtype == DType::Bool {
        return Err(LowerError::unsupported(format!("a convolution of {x} with {weight}")));
    }
    Ok(x.rank() - 2)
}

/// `(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)`; the output padding shows in the
/// shape of the result.
fn convolution(l: &mut Lower) -> Lowered {
    let spatial = check(l, 0, 1)?;
    let windows = windows(l, 3, 8, spatial)?;
    let dtype = l.ty(0)?.dtype;
    // Integers are summed as 64 bits, of which the result keeps the low ones.
    let computed = if dtype.is_int() { DType::I64 } else { dtype };
    let bias = l.has_tensor(2);
    let mut operands = Vec::new();
    for i in 0..2 + usize::from(bias) {
        let value = l.tensor(i)?;
        operands.push(l.g.convert(value, computed));
    }
    let op = ConvolutionOp::Forward { windows, transposed: l.flag(6), bias };
    let shape = Shape { dtype: computed, sizes: l.out(0)?.sizes.clone() };
    let value = l.g.op(Op::Convolution(op), &operands, shape);
    l.store(Typed { value, dtype })
}

/// `(grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask)`
fn convolution_backward(l: &mut Lower) -> Lowered {
    let spatial = check(l, 1, 2)?;
    check(l, 0, 2)?;
    let windows = windows(l, 3, 8, spatial)?;
    let transposed = l.flag(6);
    let (grad, x, weight) = (l.tensor(0)?, l.tensor(1)?, l.tensor(2)?);
    let x_shape = l.ty(1)?.shape();
    gradient(l, 0, |l| {
        let op = ConvolutionOp::Forward { windows: windows.clone(), transposed: !transposed, bias: false };
        Ok(l.g.op(Op::Convolution(op), &[grad, weight], x_shape.clone()))
    })?;
    gradient(l, 1, |l| {
        let (from, to) = if transposed { (grad, x) } else { (x, grad) };
        let op = ConvolutionOp::WeightGradient { windows: windows.clone() };
        let shape = l.ty(2)?.shape();
        Ok(l.g.op(Op::Convolution(op), &[from, to], shape))
    })?;
    gradient(l, 2, |l| {
        let grad_shape = l.g.shape(grad).clone();
        let dims: Dims = [0].into_iter().chain(2..grad_shape.rank() as i64).collect();
        let c = grad_shape.dtype.compute();
        let mut shape = Shape::new(c, &grad_shape.sizes);
        dims.iter().for_each(|d| shape.sizes[*d as usize] = 1);
        let operand = l.g.convert(grad, c);
        let sum = l.g.op(Op::Reduce { op: ReduceOp::Sum, dims }, &[operand], shape);
        Ok(l.g.convert(sum, grad_shape.dtype))
    })
}

/// Stores output `k`, computed only if it is wanted.
pub(super) fn gradient(
    l: &mut Lower,
    k: usize,
    value: impl FnOnce(&mut Lower) -> Result<Value, LowerError>,
) -> Lowered {
    let value = if l.out(k).is_ok() { value(l)? } else { l.constant(DType::F32, 0.0) };
    let dtype = l.g.dtype(value);
    l.store(Typed { value, dtype })
}
