//! What a graph says before any kernel is chosen: what is needed, what gets memory of its own, who reads what.

use neuron_ir::{BinaryOp, Graph, Node, Op, UnaryOp, Value};
use smallvec::SmallVec;

/// Most operators of a pointwise kernel.
const MOST_OPERATORS: u32 = 96;

/// Facts of a graph, by value.
pub(crate) struct Analysis {
    live: Vec<bool>,
    /// How often a value is used by needed operators and stores.
    uses: Vec<u32>,
    /// Elementwise values that get memory of their own.
    kept: Vec<bool>,
    /// The kernel that an elementwise value, or the reading of an argument, is part of.
    kernel: Vec<Kernel>,
    /// The first results of the operators that use a value.
    users: Vec<SmallVec<[Value; 2]>>,
    /// The outputs that take a value, as it is or reshaped.
    stores: Vec<SmallVec<[u32; 1]>>,
    /// The values of tensor arguments.
    params: Vec<Option<Value>>,
}

/// Where an elementwise value is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Nowhere,
    /// In the kernel that makes this value.
    Of(Value),
    Several,
}

impl Kernel {
    fn join(self, other: Kernel) -> Kernel {
        match (self, other) {
            (Kernel::Nowhere, k) | (k, Kernel::Nowhere) => k,
            (a, b) if a == b => a,
            _ => Kernel::Several,
        }
    }
}

/// True for operators that are folded into whatever uses their result.
pub(crate) fn is_lazy(op: &Op) -> bool {
    op.is_pointwise() || op.is_leaf() || is_view(op)
}

fn is_view(op: &Op) -> bool {
    matches!(op, Op::Broadcast | Op::Reshape | Op::Transpose { .. } | Op::Slice { .. })
}

/// True for operators whose errors are seen even if their results are not.
fn can_fail(op: &Op) -> bool {
    matches!(
        op,
        Op::Check(_)
            | Op::IndexSelect { .. }
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::IndexAdd { .. }
            | Op::Index { .. }
            | Op::IndexPut { .. }
            | Op::NllLoss { .. }
            | Op::Sample(_)
            | Op::Ordering(_)
    )
}

/// True for arithmetic that costs less than to write the result and read it again.
fn is_cheap(op: &Op) -> bool {
    use BinaryOp::{Add, And, Div, Maximum, Minimum, Mul, Or, Sub};
    match op {
        Op::Unary(u) => matches!(u, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::Sqrt),
        Op::Binary(b) => b.is_comparison() || matches!(b, Add | Sub | Mul | Div | Maximum | Minimum | And | Or),
        Op::Convert | Op::Select | Op::Iota { .. } => true,
        other => is_view(other),
    }
}

impl Analysis {
    pub(crate) fn new(graph: &Graph) -> Analysis {
        let n = graph.values();
        let mut a = Analysis {
            live: vec![false; n],
            uses: vec![0; n],
            kept: vec![false; n],
            kernel: vec![Kernel::Nowhere; n],
            users: vec![SmallVec::new(); n],
            stores: vec![SmallVec::new(); n],
            params: vec![None; graph.params.len()],
        };
        a.liveness(graph);
        a.find_stores(graph);
        a.find_kernels(graph);
        a
    }

    fn liveness(&mut self, graph: &Graph) {
        for o in &graph.outputs {
            self.live[o.value.0 as usize] = true;
            self.uses[o.value.0 as usize] += 1;
        }
        for node in graph.nodes.iter().rev() {
            let results = node.first.0 as usize..node.first.0 as usize + node.results.len();
            let live = can_fail(&node.op) || self.live[results.clone()].contains(&true);
            self.live[results].fill(live);
            if live {
                for v in &node.operands {
                    self.live[v.0 as usize] = true;
                    self.uses[v.0 as usize] += 1;
                    self.users[v.0 as usize].push(node.first);
                }
            }
            if let Op::Param { index } = node.op {
                self.params[index] = Some(node.first);
            }
        }
    }

    fn find_stores(&mut self, graph: &Graph) {
        for (k, output) in graph.outputs.iter().enumerate() {
            let mut source = output.value;
            self.stores[source.0 as usize].push(k as u32);
            while matches!(graph.def(source).op, Op::Reshape) && self.uses[source.0 as usize] == 1 {
                source = graph.def(source).operands[0];
                self.stores[source.0 as usize].push(k as u32);
            }
        }
    }

    /// An elementwise value is computed in the kernel that needs it. One that several need gets memory of its own, unless
    /// it costs less to compute it anew in each.
    fn find_kernels(&mut self, graph: &Graph) {
        for output in &graph.outputs {
            self.keep(output.value);
        }
        let mut operators = vec![0u32; graph.values()];
        for node in &graph.nodes {
            if node.op.is_pointwise() {
                let of = |v: &Value| operators[v.0 as usize];
                let sum = 1 + node.operands.iter().map(of).sum::<u32>();
                if sum > MOST_OPERATORS && self.uses[node.first.0 as usize] > 0 {
                    self.kept[node.first.0 as usize] = true;
                }
                operators[node.first.0 as usize] = if sum > MOST_OPERATORS { 1 } else { sum };
            } else if is_view(&node.op) {
                operators[node.first.0 as usize] = operators[node.operands[0].0 as usize];
            }
        }
        for node in graph.nodes.iter().rev() {
            let v = node.first.0 as usize;
            if !self.is_live(node) {
                continue;
            }
            if !is_lazy(&node.op) {
                for operand in &node.operands {
                    self.keep_operand(graph, *operand);
                }
                continue;
            }
            if self.kernel[v] == Kernel::Several
                && !self.kept[v]
                && node.op.is_pointwise()
                && !self.is_cheap(graph, node)
            {
                self.kept[v] = true;
            }
            let kernel = if self.kept[v] { Kernel::Of(node.first) } else { self.kernel[v] };
            for operand in &node.operands {
                let o = operand.0 as usize;
                self.kernel[o] = self.kernel[o].join(kernel);
                if matches!(node.op, Op::Slice { .. } | Op::Reshape) && !is_view(&graph.def(*operand).op) {
                    // Shown as part of what is in memory, or, if extents of 1 are all that changes, inlined.
                    let inlined = matches!(node.op, Op::Reshape) && changes_units_only(graph, node);
                    if !inlined {
                        self.keep(*operand);
                    }
                }
            }
        }
    }

    /// The operand of a kernel, below views of it, is in memory.
    fn keep_operand(&mut self, graph: &Graph, value: Value) {
        self.kernel[value.0 as usize] = self.kernel[value.0 as usize].join(Kernel::Of(value));
        let mut value = value;
        while is_view(&graph.def(value).op) {
            value = graph.def(value).operands[0];
        }
        self.keep(value);
    }

    /// Gives a value memory of its own.
    pub(crate) fn keep(&mut self, value: Value) {
        self.kept[value.0 as usize] = true;
    }

    fn is_cheap(&self, graph: &Graph, node: &Node) -> bool {
        let in_memory = |v: &Value| {
            let mut v = *v;
            while is_view(&graph.def(v).op) {
                v = graph.def(v).operands[0];
            }
            let op = &graph.def(v).op;
            !is_lazy(op) || op.is_leaf() || self.kept[v.0 as usize]
        };
        is_cheap(&node.op) && node.operands.iter().all(in_memory)
    }

    pub(crate) fn is_live(&self, node: &Node) -> bool {
        self.live[node.first.0 as usize]
    }

    /// The operators that use the value, by their first results.
    pub(crate) fn users(&self, value: Value) -> &[Value] {
        &self.users[value.0 as usize]
    }

    /// True if one operator or store uses the value, once.
    pub(crate) fn has_one_use(&self, value: Value) -> bool {
        self.uses[value.0 as usize] == 1
    }

    /// True if the value gets memory of its own.
    pub(crate) fn is_kept(&self, value: Value) -> bool {
        self.kept[value.0 as usize]
    }

    /// The outputs that take the value, as it is or reshaped.
    pub(crate) fn stores(&self, value: Value) -> SmallVec<[usize; 1]> {
        self.stores[value.0 as usize].iter().map(|k| *k as usize).collect()
    }

    /// How often a tensor argument is read.
    pub(crate) fn param_uses(&self, index: usize) -> u32 {
        self.params[index].map_or(0, |v| self.uses[v.0 as usize])
    }

    /// True if a tensor argument is read in the kernel that makes `value`, and nowhere else.
    pub(crate) fn is_read_by_alone(&self, index: usize, value: Value) -> bool {
        self.params[index].is_some_and(|v| self.kernel[v.0 as usize] == Kernel::Of(value))
    }
}

/// True if a reshape only adds or removes extents of 1.
fn changes_units_only(graph: &Graph, node: &Node) -> bool {
    let (from, to) = (&graph.shape(node.operands[0]).sizes, &node.results[0].sizes);
    from.iter().filter(|s| **s != 1).eq(to.iter().filter(|s| **s != 1))
}
