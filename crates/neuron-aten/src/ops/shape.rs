//! Joining tensors and cutting triangles out of them.

use super::{Row, overloads};
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed, as_tensor, wrap_dim};
use neuron_ir::{BinaryOp, DType, Op, Scalar, Shape};

pub(super) const ROWS: &[Row] = &[
    (&["aten::cat", "aten::cat.out"], cat),
    (overloads!("tril"), |l| triangle(l, BinaryOp::Le)),
    (overloads!("triu"), |l| triangle(l, BinaryOp::Ge)),
    (&["neuron::copy"], copy),
];

/// `(tensors, dim)`. Empty 1-dimensional tensors are left out, whatever the shape of the others.
fn cat(l: &mut Lower) -> Lowered {
    let list = l.list(0)?;
    let out = l.out(0)?.clone();
    let mut values = Vec::new();
    let dim = wrap_dim(l.int(1)?, out.rank())?;
    for (i, arg) in list.iter().enumerate() {
        let t = as_tensor(arg, i)?;
        if t.ty.numel() == 0 {
            continue;
        }
        let value = l.value_of(t);
        values.push(l.g.convert(value, out.dtype));
    }
    if values.is_empty() {
        let nothing = l.constant(out.dtype, 0.0);
        return l.store_value(nothing);
    }
    let value = l.g.op(Op::Concat { dim }, &values, out.shape());
    l.store_value(value)
}

/// Keeps what lies on one side of a diagonal of the last two dimensions.
fn triangle(l: &mut Lower, keep: BinaryOp) -> Lowered {
    let ty = l.ty(0)?;
    let diagonal = match l.arg(1) {
        Arg::None => 0,
        _ => l.int(1)?,
    };
    let rank = ty.rank();
    if rank < 2 {
        return Err(LowerError::unsupported("a triangle of a vector"));
    }
    let index = Shape { dtype: DType::I64, sizes: ty.sizes.clone() };
    let row = l.g.op(Op::Iota { dim: rank - 2 }, &[], index.clone());
    let column = l.g.op(Op::Iota { dim: rank - 1 }, &[], index);
    let diagonal = l.g.constant(DType::I64, Scalar::I64(diagonal));
    let edge = l.bin(BinaryOp::Add, row, diagonal);
    let kept = l.bin(keep, column, edge);
    let x = l.tensor(0)?;
    let dtype = ty.dtype;
    let zero = l.constant(dtype, 0.0);
    let value = l.g.select(kept, x, zero);
    l.store(Typed { value, dtype })
}

/// `(from, to)`: the conversion a copy makes.
fn copy(l: &mut Lower) -> Lowered {
    let value = l.tensor(0)?;
    let to = l.out(0)?.dtype;
    let value = l.g.convert(value, to);
    l.store_value(value)
}
