//! Golden tests: what an operator call is lowered to, as text. `UPDATE_GOLDEN=1` writes the files anew.

use neuron_aten::{Arg, Call, OutputType, ScalarArg, ScalarKind, Source, TensorArg, lower, table};
use neuron_ir::{DType, Dims, TensorType};
use std::path::PathBuf;

/// Builds a call, numbering tensors and scalars as the adapter does.
struct CallBuilder {
    call: Call,
}

impl CallBuilder {
    fn new(name: &str) -> Self {
        let op = table().iter().position(|e| e.name == name).expect("an operator of the table");
        CallBuilder { call: Call { op, args: Vec::new(), tensors: 0, scalars: 0 } }
    }

    fn tensor_arg(&mut self, ty: TensorType) -> Arg {
        self.call.tensors += 1;
        let source = Source::Device { index: self.call.tensors - 1, alias: None };
        Arg::Tensor(TensorArg { ty, source, wrapped: false })
    }

    fn tensor(mut self, dtype: DType, sizes: &[i64]) -> Self {
        let arg = self.tensor_arg(TensorType::contiguous(dtype, sizes));
        self.call.args.push(arg);
        self
    }

    fn number(mut self, dtype: DType) -> Self {
        self.call.scalars += 1;
        let source = Source::Host { index: self.call.scalars - 1 };
        let ty = TensorType::contiguous(dtype, &[]);
        self.call.args.push(Arg::Tensor(TensorArg { ty, source, wrapped: true }));
        self
    }

    fn scalar(mut self, kind: ScalarKind, value: Option<i64>) -> Self {
        self.call.scalars += 1;
        let index = self.call.scalars - 1;
        let is = |v| value == Some(v);
        self.call.args.push(Arg::Scalar(ScalarArg { index, kind, zero: is(0), one: is(1), two: is(2), value: None }));
        self
    }

    fn arg(mut self, arg: Arg) -> Self {
        self.call.args.push(arg);
        self
    }

    fn lower(&self, outputs: &[OutputType]) -> String {
        let outputs: Vec<_> = outputs.iter().cloned().map(Some).collect();
        match lower(&self.call, &outputs) {
            Ok((graph, random)) => {
                neuron_ir::verify(&graph).expect("a well-formed graph");
                format!(
                    "{graph}{}",
                    if random > 0 { format!("consumes {random} random values\n") } else { String::new() }
                )
            }
            Err(e) => format!("unsupported: {e}\n"),
        }
    }
}

fn fresh(dtype: DType, sizes: &[i64]) -> OutputType {
    OutputType { ty: TensorType::contiguous(dtype, sizes), argument: None }
}

fn into_argument(i: usize, dtype: DType, sizes: &[i64]) -> OutputType {
    OutputType { ty: TensorType::contiguous(dtype, sizes), argument: Some(i) }
}

/// Compares with `tests/golden/<name>.txt`.
fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("a writable source tree");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, want, "{} differs; UPDATE_GOLDEN=1 accepts the new text", path.display());
}

use DType::{BF16, Bool, F32, I64};

#[test]
fn add_of_mixed_types_converts_then_adds_then_rounds() {
    let call =
        CallBuilder::new("aten::add.Tensor").tensor(BF16, &[2, 3]).tensor(I64, &[3]).scalar(ScalarKind::Int, Some(1));
    golden("add_mixed", &call.lower(&[fresh(BF16, &[2, 3])]));
}

#[test]
fn in_place_and_functional_differ_in_the_store_alone() {
    let call = || CallBuilder::new("aten::mul.Tensor").tensor(F32, &[4]).number(DType::F64);
    let functional = call().lower(&[fresh(F32, &[4])]);
    let in_place = call().lower(&[into_argument(0, F32, &[4])]);
    golden("mul_number", &functional);
    assert_eq!(in_place, functional.replace("fresh 0", "param 0"));
}

#[test]
fn integer_division_is_float() {
    let call = CallBuilder::new("aten::div.Tensor").tensor(I64, &[4]).tensor(I64, &[4]);
    golden("div_integers", &call.lower(&[fresh(F32, &[4])]));
}

#[test]
fn comparison_with_a_number_rounds_it_to_the_tensor_type() {
    let call = CallBuilder::new("aten::lt.Scalar").tensor(BF16, &[4]).scalar(ScalarKind::Float, None);
    golden("lt_scalar", &call.lower(&[fresh(Bool, &[4])]));
}

#[test]
fn addmm_reads_no_bias_where_beta_is_zero() {
    let call = |beta| {
        CallBuilder::new("aten::addmm")
            .tensor(F32, &[5])
            .tensor(F32, &[2, 3])
            .tensor(F32, &[3, 5])
            .scalar(ScalarKind::Int, beta)
            .scalar(ScalarKind::Int, Some(1))
    };
    let out = [fresh(F32, &[2, 5])];
    golden("addmm", &call(Some(1)).lower(&out));
    golden("addmm_beta_zero", &call(Some(0)).lower(&out));
}

#[test]
fn mean_over_a_kept_dimension() {
    let call = CallBuilder::new("aten::mean.dim")
        .tensor(BF16, &[2, 3, 4])
        .arg(Arg::IntList(Dims::from_slice(&[-1])))
        .arg(Arg::Bool(false));
    golden("mean_dim", &call.lower(&[fresh(BF16, &[2, 3])]));
}

#[test]
fn dropout_draws_one_value_per_element() {
    let call = CallBuilder::new("aten::native_dropout").tensor(F32, &[6]).arg(Arg::Float(0.25)).arg(Arg::Bool(true));
    golden("native_dropout", &call.lower(&[fresh(F32, &[6]), fresh(Bool, &[6])]));
}

#[test]
fn indices_apart_move_their_dimensions_to_the_front() {
    let mut call = CallBuilder::new("aten::index.Tensor").tensor(F32, &[2, 3, 4]);
    let (first, last) =
        (call.tensor_arg(TensorType::contiguous(I64, &[5])), call.tensor_arg(TensorType::contiguous(I64, &[5])));
    let call = call.arg(Arg::List(vec![first, Arg::None, last]));
    golden("index_apart", &call.lower(&[fresh(F32, &[5, 3])]));
}

#[test]
fn foreach_lowers_to_a_store_per_tensor() {
    let mut call = CallBuilder::new("aten::_foreach_addcdiv_.ScalarList");
    for _ in 0..3 {
        let list = vec![
            call.tensor_arg(TensorType::contiguous(F32, &[2])),
            call.tensor_arg(TensorType::contiguous(F32, &[3])),
        ];
        call = call.arg(Arg::List(list));
    }
    call = call.scalar(ScalarKind::Float, None).scalar(ScalarKind::Float, None);
    let scalars = call.call.args.split_off(3);
    let call = call.arg(Arg::List(scalars));
    golden("foreach_addcdiv", &call.lower(&[into_argument(0, F32, &[2]), into_argument(1, F32, &[3])]));
}

#[test]
fn what_is_not_covered_says_so() {
    let call = CallBuilder::new("aten::mm").tensor(Bool, &[2, 2]).tensor(Bool, &[2, 2]);
    assert_eq!(call.lower(&[fresh(Bool, &[2, 2])]), "unsupported: a matrix product of bool and bool\n");
}
