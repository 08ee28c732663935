//! StableHLO text of a graph.
//!
//! [`write`] gives one `module` with one function, `@main`. Its arguments are the graph's tensor arguments in order, then
//! its scalar arguments as [`scalars`] lists them, 0-dimensional; its results are the graph's outputs in order. All are
//! logical tensors: strides, aliases and in-place destinations are of the caller's memory, and the caller's business. A
//! `bool` is an `i1`, an `uint8` an `ui8`.
//!
//! The operators mean what [`Op`] says they mean: half floats are converted to `f32` and rounded where the graph converts,
//! integers are `i64` until then. What the specification of StableHLO leaves open is taken as XLA has it: conversions
//! between floats round to nearest even, those between integers wrap. These differ from the kernels in the last digits
//! only: the order of sums, elementary functions, and which zero of two a maximum is. What is an error of a launch, such
//! as an index out of range or an integer divided by 0, has no meaning in the text.
//!
//! Some elementary functions are CHLO, which every StableHLO compiler expands first. What has no exact form is
//! [`Unsupported`], never approximated text; [`UNSUPPORTED`] lists it.

mod convolution;
mod dot;
mod index;
mod movement;
mod norm;
mod optimizer;
mod ordering;
mod pointwise;
mod polynomials;
mod pooling;
mod random;
mod reasons;
mod reduce;
mod resample;
mod sampling;
mod special;
mod text;

pub use reasons::UNSUPPORTED;

use crate::{DType, Graph, Node, Op, Shape};
use std::fmt::Write;
use text::{El, Text, V, type_name};
use thiserror::Error;

/// Why a graph has no StableHLO form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{op}: {reason}")]
pub struct Unsupported {
    /// Name of the operator.
    pub op: &'static str,
    /// What StableHLO lacks.
    pub reason: &'static str,
}

/// The results of a node, or why it has none.
type Written = Result<Vec<V>, &'static str>;

/// What an operator is written from.
struct Call<'a> {
    node: &'a Node,
    /// Its operands as the text has them.
    args: Vec<V>,
    /// Which of its results something takes.
    used: Vec<bool>,
}

impl Call<'_> {
    fn result(&self) -> &Shape {
        &self.node.results[0]
    }

    /// Operand `i` in its compute type.
    fn wide(&self, t: &mut Text, i: usize) -> V {
        let el = self.args[i].el.compute();
        t.convert(&self.args[i], el)
    }
}

/// The scalar arguments of the text: for each the number of the graph's scalar argument, and the type it is wanted in. A
/// scalar that the graph reads in two types is there twice, one that it does not read is not there.
pub fn scalars(graph: &Graph) -> Vec<(usize, DType)> {
    let mut found: Vec<(usize, DType)> = Vec::new();
    for node in &graph.nodes {
        if let Op::ScalarParam { index } = node.op {
            let wanted = (index, node.results[0].dtype);
            if !found.contains(&wanted) {
                found.push(wanted);
            }
        }
    }
    found.sort();
    found
}

/// The graph as StableHLO text.
///
/// # Errors
/// An operator that a result depends on has no StableHLO form.
pub fn write(graph: &Graph) -> Result<String, Unsupported> {
    let live = live(graph);
    let scalars = scalars(graph);
    let mut text = Text::default();
    let mut values: Vec<Option<V>> = vec![None; graph.values()];
    let argument =
        |i: usize, shape: &Shape| V { name: format!("%arg{i}"), el: shape.dtype.into(), dims: shape.sizes.to_vec() };
    for node in &graph.nodes {
        let first = node.first.0 as usize;
        let used = live[first..first + node.results.len()].to_vec();
        if !used.contains(&true) {
            continue;
        }
        let results = match node.op {
            Op::Param { index } => vec![argument(index, &node.results[0])],
            Op::ScalarParam { index } => {
                let wanted = (index, node.results[0].dtype);
                let position = scalars.iter().position(|s| *s == wanted).unwrap_or(0);
                vec![argument(graph.params.len() + position, &node.results[0])]
            }
            _ => {
                let args = node.operands.iter().filter_map(|v| values[v.0 as usize].clone()).collect();
                let call = Call { node, args, used };
                operator(&mut text, &call).map_err(|reason| Unsupported { op: node.op.name(), reason })?
            }
        };
        for (i, (v, shape)) in results.into_iter().zip(&node.results).enumerate() {
            // Families return what is natural to them; kept dimensions and rounding are added here.
            let v = text.convert(&v, shape.dtype.into());
            values[first + i] = Some(text.reshape(&v, &shape.sizes));
        }
    }
    Ok(module(graph, &scalars, &text.body, &values))
}

/// Which values an output depends on.
fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.values()];
    for o in &graph.outputs {
        live[o.value.0 as usize] = true;
    }
    for node in graph.nodes.iter().rev() {
        let first = node.first.0 as usize;
        if live[first..first + node.results.len()].contains(&true) {
            node.operands.iter().for_each(|v| live[v.0 as usize] = true);
        }
    }
    live
}

fn module(graph: &Graph, scalars: &[(usize, DType)], body: &str, values: &[Option<V>]) -> String {
    let tensors = graph.params.iter().map(|p| type_name(p.dtype.into(), &p.sizes));
    let numbers = scalars.iter().map(|(_, dtype)| type_name(El::from(*dtype), &[]));
    let arguments: Vec<String> = tensors.chain(numbers).enumerate().map(|(i, ty)| format!("%arg{i}: {ty}")).collect();
    let results: Vec<&V> = graph.outputs.iter().filter_map(|o| values[o.value.0 as usize].as_ref()).collect();
    let types: Vec<String> = results.iter().map(|v| v.ty()).collect();
    let names: Vec<&str> = results.iter().map(|v| v.name.as_str()).collect();
    let mut s = String::from("module {\n");
    let _ = writeln!(s, "  func.func public @main({}) -> ({}) {{", arguments.join(", "), types.join(", "));
    s.push_str(body);
    let colon = if results.is_empty() { "" } else { " : " };
    let _ = writeln!(s, "    return {}{colon}{}", names.join(", "), types.join(", "));
    s.push_str("  }\n}\n");
    s
}

fn operator(t: &mut Text, c: &Call) -> Written {
    match &c.node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Convert | Op::Constant(_) | Op::Iota { .. } | Op::Once => {
            pointwise::write(t, c)
        }
        Op::Broadcast | Op::Reshape | Op::Transpose { .. } | Op::Slice { .. } | Op::Concat { .. } => {
            movement::write(t, c)
        }
        Op::Reduce { .. }
        | Op::MinMax { .. }
        | Op::Variance { .. }
        | Op::Cumulative { .. }
        | Op::ChannelSums { .. } => reduce::write(t, c),
        Op::Softmax { .. }
        | Op::SoftmaxBackward { .. }
        | Op::LayerNorm { .. }
        | Op::LayerNormBackward { .. }
        | Op::RmsNorm { .. }
        | Op::RmsNormBackward { .. } => norm::write(t, c),
        Op::Dot | Op::Attention { .. } | Op::AttentionBackward { .. } => dot::write(t, c),
        Op::Convolution(op) => convolution::write(t, c, op),
        Op::IndexSelect { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::IndexAdd { .. }
        | Op::Index { .. }
        | Op::IndexPut { .. }
        | Op::EmbeddingBackward { .. }
        | Op::NllLoss { .. }
        | Op::NllLossBackward { .. } => index::write(t, c),
        Op::TrueCounts | Op::TruePositions | Op::Sort { .. } | Op::Ordering(_) => ordering::write(t, c),
        Op::Random(op) => random::write(t, c, *op),
        Op::Optimizer(op) => optimizer::write(t, c, *op),
        Op::Spatial(op) => pooling::write(t, c, op),
        // Its result has no content.
        Op::Check(_) => Ok(vec![t.splat(El::I1, &[], crate::Scalar::I64(0))]),
        Op::Sample(_) => Err(reasons::REJECTION),
        Op::Ctc(_) => Err(reasons::CTC),
        Op::Param { .. } | Op::ScalarParam { .. } => unreachable!("arguments have been written"),
    }
}
