//! Golden tests: graphs as StableHLO text. `UPDATE_GOLDEN=1` writes the files anew; `tests/test_stablehlo.py` runs texts.

use neuron_ir::stablehlo::{UNSUPPORTED, Unsupported, scalars, write};
use neuron_ir::{
    BinaryOp, ConvolutionOp, ConvolutionWindows, DType, Destination, Dims, Graph, GraphBuilder, Op, OrderingOp,
    RandomOp, ReduceOp, ScatterOp, Selection, Shape, TensorType, UnaryOp, Value, verify,
};
use std::path::PathBuf;

fn tensor(dtype: DType, sizes: &[i64]) -> TensorType {
    TensorType::contiguous(dtype, sizes)
}

/// A graph whose results are these values, as new tensors.
fn finished(mut g: GraphBuilder, results: &[Value]) -> Graph {
    for (i, v) in results.iter().enumerate() {
        let shape = g.shape(*v).clone();
        g.output(*v, Destination::Fresh(i), tensor(shape.dtype, &shape.sizes));
    }
    let graph = g.finish();
    verify(&graph).expect("a well-formed graph");
    graph
}

/// Compares with `tests/golden/<name>.mlir`.
fn golden(name: &str, graph: &Graph) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.mlir"));
    let text = write(graph).expect("a StableHLO form");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("a writable source tree");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, want, "{name}: UPDATE_GOLDEN=1 accepts the new text");
}

#[test]
fn half_floats_are_computed_in_single_precision() {
    let mut g = GraphBuilder::default();
    let (a, b) = (g.param(tensor(DType::BF16, &[2, 3])), g.param(tensor(DType::BF16, &[3])));
    let alpha = g.scalar(0, DType::F32);
    let (a, b) = (g.convert(a, DType::F32), g.convert(b, DType::F32));
    let scaled = g.binary(BinaryOp::Mul, b, alpha);
    let sum = g.binary(BinaryOp::Add, a, scaled);
    let out = g.convert(sum, DType::BF16);
    golden("add_alpha_bf16", &finished(g, &[out]));
}

#[test]
fn floats_become_integers_as_the_processor_has_it() {
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[4]));
    let out = g.convert(a, DType::U8);
    golden("to_uint8", &finished(g, &[out]));
}

#[test]
fn reductions_keep_their_dimensions() {
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[2, 3]));
    let sum =
        g.op(Op::Reduce { op: ReduceOp::Sum, dims: Dims::from_slice(&[1]) }, &[a], Shape::new(DType::F32, &[2, 1]));
    let most =
        g.op(Op::Reduce { op: ReduceOp::ArgMax, dims: Dims::from_slice(&[1]) }, &[a], Shape::new(DType::I64, &[2, 1]));
    golden("sum_argmax", &finished(g, &[sum, most]));
}

#[test]
fn softmax_of_a_masked_product() {
    let mut g = GraphBuilder::default();
    let (q, k) = (g.param(tensor(DType::F32, &[2, 4, 8])), g.param(tensor(DType::F32, &[2, 8, 4])));
    let scores = g.op(Op::Dot, &[q, k], Shape::new(DType::F32, &[2, 4, 4]));
    let out = g.op(Op::Softmax { dim: 2, log: false }, &[scores], Shape::new(DType::F32, &[2, 4, 4]));
    golden("dot_softmax", &finished(g, &[out]));
}

#[test]
fn a_convolution_with_groups_and_its_gradients() {
    let mut g = GraphBuilder::default();
    let x = g.param(tensor(DType::F32, &[2, 4, 6, 6]));
    let w = g.param(tensor(DType::F32, &[6, 2, 3, 3]));
    let of = |n: i64| Dims::from_slice(&[n, n]);
    let windows = ConvolutionWindows { stride: of(2), padding: of(1), dilation: of(1), groups: 2 };
    let op = ConvolutionOp::Forward { windows: windows.clone(), transposed: false, bias: false };
    let y = g.op(Op::Convolution(op), &[x, w], Shape::new(DType::F32, &[2, 6, 3, 3]));
    let op = ConvolutionOp::Forward { windows: windows.clone(), transposed: true, bias: false };
    let dx = g.op(Op::Convolution(op), &[y, w], Shape::new(DType::F32, &[2, 4, 6, 6]));
    let op = ConvolutionOp::WeightGradient { windows };
    let dw = g.op(Op::Convolution(op), &[x, y], Shape::new(DType::F32, &[6, 2, 3, 3]));
    golden("convolution", &finished(g, &[y, dx, dw]));
}

#[test]
fn the_last_update_of_a_scatter_wins() {
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[5, 2]));
    let index = g.param(tensor(DType::I64, &[3, 2]));
    let updates = g.param(tensor(DType::F32, &[3, 2]));
    let out = g.op(Op::Scatter { dim: 0, op: ScatterOp::Set }, &[a, index, updates], Shape::new(DType::F32, &[5, 2]));
    golden("scatter", &finished(g, &[out]));
}

#[test]
fn random_numbers_are_those_of_the_generator() {
    let mut g = GraphBuilder::default();
    let (seed, offset) = (g.scalar(0, DType::I64), g.scalar(1, DType::I64));
    let out = g.op(Op::Random(RandomOp::Uniform), &[seed, offset], Shape::new(DType::F32, &[2, 3]));
    golden("uniform", &finished(g, &[out]));
}

#[test]
fn scalars_come_after_tensors_and_once_for_each_type() {
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[]));
    let (second, first) = (g.scalar(1, DType::F32), g.scalar(0, DType::I64));
    let again = g.scalar(1, DType::I64);
    let first = g.binary(BinaryOp::Add, first, again);
    let first = g.convert(first, DType::F32);
    let sum = g.binary(BinaryOp::Add, a, second);
    let out = g.binary(BinaryOp::Add, sum, first);
    let graph = finished(g, &[out]);
    assert_eq!(scalars(&graph), [(0, DType::I64), (1, DType::I64), (1, DType::F32)]);
    let text = write(&graph).expect("a StableHLO form");
    assert!(text.contains("@main(%arg0: tensor<f32>, %arg1: tensor<i64>, %arg2: tensor<i64>, %arg3: tensor<f32>)"));
}

#[test]
fn what_has_no_exact_form_is_refused_with_the_reason_of_the_table() {
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[100]));
    let selection = Selection::TopK { k: 3, largest: true, sorted: true };
    let shapes = [Shape::new(DType::F32, &[3]), Shape::new(DType::I64, &[3])];
    let values = g.push(Op::Ordering(OrderingOp::Select { dim: 0, selection }), &[a], &shapes);
    // Without the positions, of which those of equal values are a matter of the algorithm, there is one.
    assert!(write(&finished(g, &[values])).is_ok());

    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[100]));
    let values = g.push(Op::Ordering(OrderingOp::Select { dim: 0, selection }), &[a], &shapes);
    let Err(Unsupported { op, reason }) = write(&finished(g, &[values, Value(values.0 + 1)])) else {
        panic!("positions have no form")
    };
    assert!(UNSUPPORTED.contains(&(op, reason)));

    // What no result depends on does not count.
    let mut g = GraphBuilder::default();
    let a = g.param(tensor(DType::F32, &[3]));
    g.unary(UnaryOp::AiryAi, a);
    let out = g.unary(UnaryOp::Neg, a);
    assert!(write(&finished(g, &[out])).is_ok());
}
