//! Filling tensors.

use super::Row;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Op, Scalar, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::fill_.Scalar"], fill),
    (&["aten::fill_.Tensor"], fill),
    (&["aten::zero_"], zero),
    (&["aten::arange"], |l| arange(l, None, None)),
    (&["aten::arange.start"], |l| arange(l, Some(0), None)),
    (&["aten::arange.start_step", "aten::arange.start_out"], |l| arange(l, Some(0), Some(2))),
    (&["aten::linspace.out"], linspace),
];

fn fill(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let value = l.wide_operand(1, dtype)?;
    let value = l.g.reshape(value, &[]);
    l.store(Typed { value, dtype })
}

fn zero(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let value = l.g.constant(dtype.compute(), Scalar::I64(0));
    l.store(Typed { value, dtype })
}

/// `start + step * i`, in the wider of the output's compute type and the type of the arguments.
fn arange(l: &mut Lower, start: Option<usize>, step: Option<usize>) -> Lowered {
    let out = l.out(0)?.clone();
    if out.rank() != 1 {
        return Err(LowerError::unsupported("a result that is not a vector"));
    }
    // Whole numbers are exact in i64; anything else is computed in double, as PyTorch accumulates.
    let whole = [start, step].into_iter().flatten().map(|i| l.scalar(i)).collect::<Result<Vec<_>, _>>()?;
    let integral = out.dtype.is_int() && whole.iter().all(|s| s.kind != crate::ScalarKind::Float);
    let compute = if integral { DType::I64 } else { DType::F64 };
    let number = |l: &mut Lower, i: Option<usize>, default: i64| -> Result<Value, LowerError> {
        match i {
            Some(i) => {
                let s = l.scalar(i)?;
                Ok(l.number(s, compute))
            }
            None => Ok(l.g.constant(compute, Scalar::I64(default))),
        }
    };
    let (first, step) = (number(l, start, 0)?, number(l, step, 1)?);
    let i = l.g.op(Op::Iota { dim: 0 }, &[], Shape { dtype: DType::I64, sizes: out.sizes.clone() });
    let i = l.g.convert(i, compute);
    let offset = l.bin(BinaryOp::Mul, step, i);
    let value = l.bin(BinaryOp::Add, first, offset);
    let value = l.g.convert(value, out.dtype);
    l.store_value(value)
}

/// `(start, end, steps, out)`: counted up from the start in the first half and down from the end in the second.
fn linspace(l: &mut Lower) -> Lowered {
    let (out, steps) = (l.out(0)?.clone(), l.int(2)?);
    if !matches!(out.dtype, DType::F32 | DType::F64) || steps < 2 || out.rank() != 1 {
        return Err(LowerError::unsupported("other types than float and double, or a single step"));
    }
    let ends = [l.scalar(0)?, l.scalar(1)?].map(|s| l.number(s, out.dtype));
    let [start, end] = ends;
    let span = l.bin(BinaryOp::Sub, end, start);
    let step = l.with_constant(BinaryOp::Div, span, (steps - 1) as f64);
    let i = l.iota(steps);
    let first_half = l.with_constant(BinaryOp::Lt, i, (steps / 2) as f64);
    let last = l.g.constant(DType::I64, Scalar::I64(steps - 1));
    let left = l.bin(BinaryOp::Sub, last, i);
    let (up, down) = (l.g.convert(i, out.dtype), l.g.convert(left, out.dtype));
    let (up, down) = (l.bin(BinaryOp::Mul, step, up), l.bin(BinaryOp::Mul, step, down));
    let (up, down) = (l.bin(BinaryOp::Add, start, up), l.bin(BinaryOp::Sub, end, down));
    let value = l.g.select(first_half, up, down);
    l.store_value(value)
}
