//! Graphs: values in order of definition, each the result of one operator.

use crate::{BinaryOp, DType, Dims, Op, Scalar, Shape, TensorType, UnaryOp};
use smallvec::SmallVec;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

/// An operator applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// From what.
    pub operands: SmallVec<[Value; 4]>,
    /// The first result; the others follow it.
    pub first: Value,
    /// Shapes of the results.
    pub results: SmallVec<[Shape; 1]>,
}

/// Where a result of the graph goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A new tensor, number `i` among the new ones.
    Fresh(usize),
    /// The memory of tensor argument `i`: an in-place or `out=` operator.
    Param(usize),
}

/// A result of the graph: a value, stored in a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What is stored.
    pub value: Value,
    /// Where.
    pub to: Destination,
    /// In which layout; the element type is the value's.
    pub layout: TensorType,
}

/// A computation over tensor and scalar arguments.
///
/// ```
/// use neuron_ir::{BinaryOp, DType, Destination, GraphBuilder, TensorType};
/// let t = TensorType::contiguous(DType::F32, &[2, 3]);
/// let mut g = GraphBuilder::default();
/// let (a, b) = (g.param(t.clone()), g.param(t.clone()));
/// let sum = g.binary(BinaryOp::Add, a, b);
/// g.output(sum, Destination::Fresh(0), t);
/// let graph = g.finish();
/// assert_eq!(graph.to_string(), "\
/// %0 = param 0 : f32[2,3]
/// %1 = param 1 : f32[2,3]
/// %2 = add %0, %1 : f32[2,3]
/// store %2 -> fresh 0 : f32[2,3]
/// ");
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Graph {
    /// Layouts of the tensor arguments.
    pub params: Vec<TensorType>,
    /// Pairs of tensor arguments at the same address.
    pub aliases: Vec<(usize, usize)>,
    /// How many scalar arguments there are.
    pub scalars: usize,
    /// Operators in order of execution.
    pub nodes: Vec<Node>,
    /// What is stored at the end.
    pub outputs: Vec<Output>,
}

impl Graph {
    /// The node that defines `value`.
    pub fn def(&self, value: Value) -> &Node {
        let i = self.nodes.partition_point(|n| n.first <= value) - 1;
        &self.nodes[i]
    }

    /// The shape of `value`.
    pub fn shape(&self, value: Value) -> &Shape {
        let node = self.def(value);
        &node.results[(value.0 - node.first.0) as usize]
    }

    /// Layouts of the buffers of a launch: the tensor arguments, then the new tensors.
    pub fn buffers(&self) -> impl Iterator<Item = &TensorType> {
        let fresh = self.outputs.iter().filter(|o| matches!(o.to, Destination::Fresh(_)));
        self.params.iter().chain(fresh.map(|o| &o.layout))
    }

    /// How many values there are.
    pub fn values(&self) -> usize {
        self.nodes.last().map_or(0, |n| n.first.0 as usize + n.results.len())
    }
}

/// Builds a [`Graph`], one operator at a time.
#[derive(Default)]
pub struct GraphBuilder {
    graph: Graph,
    next: u32,
}

impl GraphBuilder {
    /// Adds an operator with any number of results; the first is returned, the others follow it.
    pub fn push(&mut self, op: Op, operands: &[Value], results: &[Shape]) -> Value {
        let first = Value(self.next);
        self.next += results.len() as u32;
        self.graph.nodes.push(Node {
            op,
            operands: SmallVec::from_slice(operands),
            first,
            results: results.iter().cloned().collect(),
        });
        first
    }

    /// Adds an operator with one result.
    pub fn op(&mut self, op: Op, operands: &[Value], result: Shape) -> Value {
        self.push(op, operands, std::slice::from_ref(&result))
    }

    /// The shape of a value.
    pub fn shape(&self, value: Value) -> &Shape {
        self.graph.shape(value)
    }

    /// The node that defines a value.
    pub fn def(&self, value: Value) -> &Node {
        self.graph.def(value)
    }

    /// The element type of a value.
    pub fn dtype(&self, value: Value) -> DType {
        self.shape(value).dtype
    }

    /// The next tensor argument.
    pub fn param(&mut self, layout: TensorType) -> Value {
        let index = self.graph.params.len();
        let shape = layout.shape();
        self.graph.params.push(layout);
        self.op(Op::Param { index }, &[], shape)
    }

    /// Declares that two tensor arguments are at the same address.
    pub fn alias(&mut self, a: usize, b: usize) {
        self.graph.aliases.push((a, b));
    }

    /// Scalar argument number `index`, as a 0-dimensional value.
    pub fn scalar(&mut self, index: usize, dtype: DType) -> Value {
        self.graph.scalars = self.graph.scalars.max(index + 1);
        self.op(Op::ScalarParam { index }, &[], Shape::new(dtype, &[]))
    }

    /// A constant, as a 0-dimensional value.
    pub fn constant(&mut self, dtype: DType, value: Scalar) -> Value {
        self.op(Op::Constant(value), &[], Shape::new(dtype, &[]))
    }

    /// `op(a)`.
    pub fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        let mut shape = self.shape(a).clone();
        if op.is_predicate() {
            shape.dtype = DType::Bool;
        }
        self.op(Op::Unary(op), &[a], shape)
    }

    /// `op(a, b)`; the operands broadcast against each other.
    ///
    /// # Panics
    /// If the shapes do not broadcast: PyTorch has checked them before.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let sizes = self.common(a, b);
        let (a, b) = (self.broadcast(a, &sizes), self.broadcast(b, &sizes));
        let dtype = if op.is_comparison() { DType::Bool } else { self.dtype(a) };
        self.op(Op::Binary(op), &[a, b], Shape { dtype, sizes })
    }

    /// `a` where `condition`, else `b`; all three broadcast.
    ///
    /// # Panics
    /// If the shapes do not broadcast.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let sizes = self.common(a, b);
        let a = self.broadcast(a, &sizes);
        let sizes = self.common(condition, a);
        let (condition, a, b) =
            (self.broadcast(condition, &sizes), self.broadcast(a, &sizes), self.broadcast(b, &sizes));
        let dtype = self.dtype(a);
        self.op(Op::Select, &[condition, a, b], Shape { dtype, sizes })
    }

    /// `a` as `dtype`; nothing is added where it is that already.
    pub fn convert(&mut self, a: Value, dtype: DType) -> Value {
        if self.dtype(a) == dtype {
            return a;
        }
        let sizes = self.shape(a).sizes.clone();
        self.op(Op::Convert, &[a], Shape { dtype, sizes })
    }

    /// `a` expanded to `sizes`; nothing is added where it has them.
    pub fn broadcast(&mut self, a: Value, sizes: &[i64]) -> Value {
        let shape = self.shape(a);
        if shape.sizes.as_slice() == sizes {
            return a;
        }
        let result = Shape::new(shape.dtype, sizes);
        self.op(Op::Broadcast, &[a], result)
    }

    /// `a` with other sizes and the same elements.
    pub fn reshape(&mut self, a: Value, sizes: &[i64]) -> Value {
        let shape = self.shape(a);
        if shape.sizes.as_slice() == sizes {
            return a;
        }
        let result = Shape::new(shape.dtype, sizes);
        self.op(Op::Reshape, &[a], result)
    }

    /// Declares a result of the graph.
    pub fn output(&mut self, value: Value, to: Destination, layout: TensorType) {
        self.graph.outputs.push(Output { value, to, layout });
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    fn common(&self, a: Value, b: Value) -> Dims {
        let (a, b) = (&self.shape(a).sizes, &self.shape(b).sizes);
        crate::broadcast_sizes(a, b).unwrap_or_else(|| panic!("shapes {a:?} and {b:?} do not broadcast"))
    }
}
