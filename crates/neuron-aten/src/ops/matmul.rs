//! Matrix products.

use super::Row;
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, Op, Shape, Value};

pub(super) const ROWS: &[Row] = &[
    (&["aten::mm", "aten::mm.out"], |l| product(l, 0, 1)),
    (&["aten::bmm", "aten::bmm.out"], |l| product(l, 0, 1)),
    (&["aten::mv", "aten::mv.out"], matrix_vector),
    (&["aten::dot", "aten::vdot"], dot),
    (&["aten::addmm", "aten::addmm_", "aten::addmm.out"], |l| sum_with_product(l, 3)),
    (&["aten::baddbmm", "aten::baddbmm_", "aten::baddbmm.out"], |l| sum_with_product(l, 3)),
    (&["aten::addbmm", "aten::addbmm_", "aten::addbmm.out"], sum_with_products),
    (&["aten::_int_mm", "aten::_int_mm.out"], integer_product),
    (&["aten::addmv", "aten::addmv_", "aten::addmv.out"], add_matrix_vector),
];

/// `a @ b` in the compute type.
fn multiply(l: &mut Lower, a: Value, b: Value) -> Value {
    let (x, y) = (l.g.shape(a).clone(), l.g.shape(b).clone());
    let mut shape = x.clone();
    shape.dtype = x.dtype.compute();
    let rank = shape.rank();
    shape.sizes[rank - 1] = y.sizes[rank - 1];
    l.g.op(Op::Dot, &[a, b], shape)
}

fn operands(l: &mut Lower, i: usize, j: usize) -> Result<(Value, Value, DType), LowerError> {
    let dtype = l.ty(i)?.dtype;
    if dtype == DType::Bool || l.ty(j)?.dtype != dtype {
        return Err(LowerError::unsupported(format!("a matrix product of {dtype} and {}", l.ty(j)?.dtype)));
    }
    Ok((l.tensor(i)?, l.tensor(j)?, dtype))
}

fn product(l: &mut Lower, i: usize, j: usize) -> Lowered {
    let (a, b, dtype) = operands(l, i, j)?;
    let value = multiply(l, a, b);
    l.store(Typed { value, dtype })
}

fn matrix_vector(l: &mut Lower) -> Lowered {
    let (a, b, dtype) = operands(l, 0, 1)?;
    let k = l.g.shape(b).numel();
    let column = l.g.reshape(b, &[k, 1]);
    let value = multiply(l, a, column);
    l.store(Typed { value, dtype })
}

fn dot(l: &mut Lower) -> Lowered {
    let (a, b, dtype) = operands(l, 0, 1)?;
    let k = l.g.shape(b).numel();
    let (row, column) = (l.g.reshape(a, &[1, k]), l.g.reshape(b, &[k, 1]));
    let value = multiply(l, row, column);
    l.store(Typed { value, dtype })
}

/// `beta * self + alpha * product`; nothing of `self` is read where beta is 0.
fn combine(l: &mut Lower, product: Value, dtype: DType, beta: usize, sizes: &[i64]) -> Lowered {
    let value = l.scaled(product, beta + 1)?;
    let value = match l.arg(beta) {
        Arg::Scalar(s) if s.zero => value,
        _ => {
            let bias = l.wide_operand(0, dtype)?;
            let bias = l.g.broadcast(bias, sizes);
            let bias = l.scaled(bias, beta)?;
            l.bin(BinaryOp::Add, value, bias)
        }
    };
    l.store(Typed { value, dtype })
}

fn sum_with_product(l: &mut Lower, beta: usize) -> Lowered {
    let (a, b, dtype) = operands(l, 1, 2)?;
    let value = multiply(l, a, b);
    let sizes = l.g.shape(value).sizes.clone();
    combine(l, value, dtype, beta, &sizes)
}

/// `(self, batch1, batch2, beta, alpha)`: the products of a batch added up are one product.
fn sum_with_products(l: &mut Lower) -> Lowered {
    let (a, b, dtype) = operands(l, 1, 2)?;
    let (x, y) = (l.g.shape(a).clone(), l.g.shape(b).clone());
    let (batch, rows, depth, columns) = (x.sizes[0], x.sizes[1], x.sizes[2], y.sizes[2]);
    let turned = Shape::new(dtype, &[rows, batch, depth]);
    let a = l.g.op(Op::Transpose { permutation: [1, 0, 2].into_iter().collect() }, &[a], turned);
    let (a, b) = (l.g.reshape(a, &[rows, batch * depth]), l.g.reshape(b, &[batch * depth, columns]));
    let value = multiply(l, a, b);
    combine(l, value, dtype, 3, &[rows, columns])
}

/// `(self, mat2)` of `int8`, summed in `int32`
fn integer_product(l: &mut Lower) -> Lowered {
    let (a, b, _) = operands(l, 0, 1)?;
    let (a, b) = (l.g.convert(a, DType::I32), l.g.convert(b, DType::I32));
    let value = multiply(l, a, b);
    l.store(Typed { value, dtype: DType::I32 })
}

fn add_matrix_vector(l: &mut Lower) -> Lowered {
    let (a, b, dtype) = operands(l, 1, 2)?;
    let k = l.g.shape(b).numel();
    let column = l.g.reshape(b, &[k, 1]);
    let value = multiply(l, a, column);
    let rows = l.g.shape(value).sizes[0];
    let shape = Shape::new(dtype.compute(), &[rows]);
    let value = l.g.op(Op::Reshape, &[value], shape);
    combine(l, value, dtype, 3, &[rows])
}
