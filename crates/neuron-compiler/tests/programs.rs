//! Programs against what their graphs say, above all where arguments share memory.

use neuron_compiler::{Program, Slot, compile};
use neuron_ir::{
    BinaryOp, DType, Destination, Dims, Graph, GraphBuilder, Op, RandomOp, ReduceOp, Scalar, ScatterOp, Shape,
    TensorType, UnaryOp,
};

use DType::{F32, I64};

fn vector(n: i64) -> TensorType {
    TensorType::contiguous(F32, &[n])
}

fn matrix(m: i64, n: i64) -> TensorType {
    TensorType::contiguous(F32, &[m, n])
}

fn count(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// Runs a program on buffers of `f32`; the same vector may stand for several arguments.
fn run(graph: Graph, buffers: &mut [&mut Vec<f32>], order: &[usize], scalars: &[Scalar]) -> Program {
    neuron_ir::verify(&graph).unwrap();
    let program = compile(&graph).unwrap();
    let addresses: Vec<*mut u8> = order.iter().map(|i| buffers[*i].as_mut_ptr().cast()).collect();
    // SAFETY: every buffer has the elements its layout needs.
    unsafe { program.run(&addresses, scalars).unwrap() };
    program
}

fn kernels(program: &Program) -> usize {
    program.steps().len()
}

#[test]
fn a_chain_is_one_kernel_on_the_buffers_of_the_launch() {
    let mut g = GraphBuilder::default();
    let (a, b) = (g.param(vector(4)), g.param(vector(4)));
    let sum = g.binary(BinaryOp::Add, a, b);
    let root = g.unary(UnaryOp::Sqrt, sum);
    let two = g.scalar(0, F32);
    let value = g.binary(BinaryOp::Mul, root, two);
    g.output(value, Destination::Fresh(0), vector(4));
    let (mut x, mut y, mut out) = (vec![1.0, 4.0, 9.0, 0.0], vec![0.0, 5.0, 7.0, 0.0], vec![0.0; 4]);
    let p = run(g.finish(), &mut [&mut x, &mut y, &mut out], &[0, 1, 2], &[Scalar::F64(2.0)]);
    assert_eq!(out, [2.0, 6.0, 8.0, 0.0]);
    assert_eq!((kernels(&p), p.workspace()), (1, 0));
}

/// `x = x + x^T`, which must not read what it has written.
#[test]
fn overwriting_what_is_read_in_another_order() {
    let mut g = GraphBuilder::default();
    let x = g.param(matrix(2, 2));
    let t = g.op(Op::Transpose { permutation: Dims::from_slice(&[1, 0]) }, &[x], Shape::new(F32, &[2, 2]));
    let sum = g.binary(BinaryOp::Add, x, t);
    g.output(sum, Destination::Param(0), matrix(2, 2));
    let mut data = vec![1.0, 2.0, 3.0, 4.0];
    run(g.finish(), &mut [&mut data], &[0], &[]);
    assert_eq!(data, [2.0, 5.0, 5.0, 8.0]);
}

/// `x[:, :2] * x[:, 1:]` reads parts of one buffer; `x[1:] = x[:2]` reads what it writes one place further.
#[test]
fn slices_are_places_in_their_buffer() {
    let part =
        |g: &mut GraphBuilder, x, start| g.op(Op::Slice { dim: 1, start, step: 1 }, &[x], Shape::new(F32, &[2, 2]));
    let mut g = GraphBuilder::default();
    let x = g.param(matrix(2, 3));
    let (a, b) = (part(&mut g, x, 0), part(&mut g, x, 1));
    let product = g.binary(BinaryOp::Mul, a, b);
    g.output(product, Destination::Fresh(0), matrix(2, 2));
    let (mut data, mut out) = (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.0; 4]);
    let p = run(g.finish(), &mut [&mut data, &mut out], &[0, 1], &[]);
    assert_eq!(out, [2.0, 6.0, 20.0, 30.0]);
    assert_eq!((kernels(&p), p.workspace()), (1, 0));

    let mut g = GraphBuilder::default();
    let x = g.param(vector(4));
    let tail = g.op(Op::Slice { dim: 0, start: 1, step: 1 }, &[x], Shape::new(F32, &[3]));
    let sum = g.op(Op::Concat { dim: 0 }, &[tail, tail], Shape::new(F32, &[6]));
    let odd = g.op(Op::Slice { dim: 0, start: 1, step: 2 }, &[sum], Shape::new(F32, &[3]));
    let both = g.binary(BinaryOp::Add, odd, tail);
    g.output(both, Destination::Param(0), TensorType::contiguous(F32, &[3]));
    let mut data = vec![1.0, 2.0, 3.0, 4.0];
    run(g.finish(), &mut [&mut data], &[0], &[]);
    assert_eq!(data, [5.0, 5.0, 8.0, 4.0]);
}

/// Two outputs that swap two arguments: each reads what the other overwrites.
#[test]
fn outputs_that_read_what_another_overwrites() {
    let mut g = GraphBuilder::default();
    let (a, b) = (g.param(vector(3)), g.param(vector(3)));
    let (sum, difference) = (g.binary(BinaryOp::Add, a, b), g.binary(BinaryOp::Sub, a, b));
    g.output(sum, Destination::Param(0), vector(3));
    g.output(difference, Destination::Param(1), vector(3));
    let (mut x, mut y) = (vec![5.0, 6.0, 7.0], vec![1.0, 2.0, 3.0]);
    run(g.finish(), &mut [&mut x, &mut y], &[0, 1], &[]);
    assert_eq!((x, y), (vec![6.0, 8.0, 10.0], vec![4.0, 4.0, 4.0]));
}

#[test]
fn a_product_takes_scale_and_bias_into_its_kernel() {
    let mut g = GraphBuilder::default();
    let (bias, a, b) = (g.param(vector(2)), g.param(matrix(2, 3)), g.param(matrix(3, 2)));
    let dot = g.op(Op::Dot, &[a, b], Shape::new(F32, &[2, 2]));
    let alpha = g.scalar(0, F32);
    let scaled = g.binary(BinaryOp::Mul, dot, alpha);
    let sum = g.binary(BinaryOp::Add, scaled, bias);
    g.output(sum, Destination::Fresh(0), matrix(2, 2));
    let (mut c, mut x, mut y, mut out) = (vec![10.0, 20.0], count(6), count(6), vec![0.0; 4]);
    let p = run(g.finish(), &mut [&mut c, &mut x, &mut y, &mut out], &[0, 1, 2, 3], &[Scalar::F64(2.0)]);
    assert_eq!(out, [30.0, 46.0, 66.0, 100.0]);
    assert_eq!(kernels(&p), 1);
}

/// `torch.mm(a, b, out=a)`: the destination is an operand.
#[test]
fn a_product_into_its_own_operand() {
    let mut g = GraphBuilder::default();
    let (a, b, out) = (g.param(matrix(2, 2)), g.param(matrix(2, 2)), g.param(matrix(2, 2)));
    g.alias(0, 2);
    let _ = out;
    let dot = g.op(Op::Dot, &[a, b], Shape::new(F32, &[2, 2]));
    g.output(dot, Destination::Param(2), matrix(2, 2));
    let (mut x, mut y) = (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 1.0, 1.0, 1.0]);
    run(g.finish(), &mut [&mut x, &mut y], &[0, 1, 0], &[]);
    assert_eq!(x, [3.0, 3.0, 7.0, 7.0]);
}

/// A reduction whose output drops the reduced dimension writes there directly.
#[test]
fn a_reduction_writes_its_output_in_place_of_a_temporary() {
    let mut g = GraphBuilder::default();
    let x = g.param(matrix(2, 3));
    let op = Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[1]) };
    let kept = g.op(op, &[x], Shape::new(F32, &[2, 1]));
    let flat = g.reshape(kept, &[2]);
    g.output(flat, Destination::Fresh(0), vector(2));
    let (mut data, mut out) = (count(6), vec![0.0; 2]);
    let p = run(g.finish(), &mut [&mut data, &mut out], &[0, 1], &[]);
    assert_eq!(out, [3.0, 12.0]);
    assert_eq!((kernels(&p), p.workspace()), (1, 0));
}

/// An in-place scatter touches only what it updates; a functional one copies first.
#[test]
fn updates_happen_where_the_result_goes() {
    let build = |to: Destination| {
        let mut g = GraphBuilder::default();
        let base = g.param(vector(4));
        let index = g.op(Op::Iota { dim: 0 }, &[], Shape::new(I64, &[2]));
        let updates = g.param(vector(2));
        let op = Op::Scatter { dim: 0, op: ScatterOp::Add };
        let value = g.op(op, &[base, index, updates], Shape::new(F32, &[4]));
        g.output(value, to, vector(4));
        g.finish()
    };
    let (mut base, mut updates, mut out) = (vec![1.0; 4], vec![5.0, 6.0], vec![0.0; 4]);
    run(build(Destination::Fresh(0)), &mut [&mut base, &mut updates, &mut out], &[0, 1, 2], &[]);
    assert_eq!((&base, &out), (&vec![1.0; 4], &vec![6.0, 7.0, 1.0, 1.0]));
    let p = run(build(Destination::Param(0)), &mut [&mut base, &mut updates], &[0, 1], &[]);
    assert_eq!(base, [6.0, 7.0, 1.0, 1.0]);
    let last = p.steps().last().unwrap();
    assert_eq!(last.buffers.last(), Some(&Slot::argument(0)));
}

/// Seed and offset may come from memory, as in the backward of attention with dropout.
#[test]
fn random_numbers_from_a_seed_in_memory_are_those_of_the_launch() {
    let build = |from_memory: bool| {
        let mut g = GraphBuilder::default();
        let (seed, offset) = if from_memory {
            let ty = TensorType::contiguous(I64, &[]);
            (g.param(ty.clone()), g.param(ty))
        } else {
            (g.scalar(0, I64), g.scalar(1, I64))
        };
        let value = g.op(Op::Random(RandomOp::Uniform), &[seed, offset], Shape::new(F32, &[64]));
        g.output(value, Destination::Fresh(0), vector(64));
        g.finish()
    };
    let as_floats = |v: i64| {
        let bytes = v.to_ne_bytes();
        vec![f32::from_ne_bytes(bytes[..4].try_into().unwrap()), f32::from_ne_bytes(bytes[4..].try_into().unwrap())]
    };
    let (mut seed, mut offset) = (as_floats(7), as_floats(8));
    let (mut a, mut b) = (vec![0.0; 64], vec![0.0; 64]);
    run(build(true), &mut [&mut seed, &mut offset, &mut a], &[0, 1, 2], &[]);
    run(build(false), &mut [&mut b], &[0], &[Scalar::I64(7), Scalar::I64(8)]);
    assert_eq!(a, b);
    assert!(a.iter().any(|v| *v != a[0]));
}

#[test]
fn an_operator_without_kernel_for_its_types_is_refused() {
    let mut g = GraphBuilder::default();
    let ty = TensorType::contiguous(DType::Bool, &[2]);
    let x = g.param(ty.clone());
    let root = g.unary(UnaryOp::Sqrt, x);
    g.output(root, Destination::Fresh(0), ty);
    assert!(compile(&g.finish()).is_err());
}

/// Every fold of a broadcast, a transpose and a reshape gives what doing them one by one gives.
#[test]
fn views_fold_into_strides() {
    let mut g = GraphBuilder::default();
    let x = g.param(matrix(2, 3));
    let negative = g.unary(UnaryOp::Neg, x);
    let permuted =
        g.op(Op::Transpose { permutation: Dims::from_slice(&[1, 0]) }, &[negative], Shape::new(F32, &[3, 2]));
    let row = g.reshape(permuted, &[1, 6]);
    let repeated = g.broadcast(row, &[2, 6]);
    g.output(repeated, Destination::Fresh(0), matrix(2, 6));
    let (mut data, mut out) = (count(6), vec![0.0; 12]);
    run(g.finish(), &mut [&mut data, &mut out], &[0, 1], &[]);
    let row = [0.0, -3.0, -1.0, -4.0, -2.0, -5.0];
    assert_eq!(out, [row, row].concat());
}
