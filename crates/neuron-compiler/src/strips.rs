//! Operators on the same rows, a strip of rows at a time.
//!
//! A norm, a softmax or a sum along rows, and what is elementwise before, between and after them, each need one row at a
//! time. Such a cluster runs on strips of rows that stay in the second-level cache: memory is read and written once. A
//! cluster is compiled like any graph, for the rows of a strip, and is then one kernel. Every row is computed as it would
//! be in the whole, so that no bit changes.

use crate::analysis::is_lazy;
use crate::plan::{Place, Planner};
use crate::program::{Program, Slot};
use crate::{compile, layout};
use neuron_ir::{Destination, Dims, Graph, GraphBuilder, Node, Op, Scalar, Shape, TensorType, Value};
use neuron_kernels::pool::parallel_for;
use neuron_kernels::{Kernel, KernelError};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BinaryHeap;

/// Bytes of a strip, all its values counted: they stay in the second-level cache beside what streams through.
const STRIP_BYTES: i64 = 256 << 10;
/// Strips aimed at, so that threads end together.
const STRIPS: i64 = 16;

/// Lengths of rows for which a reduction adds in the same order however many rows there are.
const ROW_LENGTH: std::ops::Range<i64> = 16..1 << 16;

/// Operators of a graph on the same rows.
#[derive(Debug)]
pub(crate) struct Strips {
    /// Positions among the nodes, ascending.
    pub(crate) nodes: Vec<usize>,
    /// The leading dimensions, whose positions are the rows.
    rows: Dims,
}

impl Strips {
    /// The node where the cluster's kernel stands.
    pub(crate) fn last(&self) -> usize {
        self.nodes[self.nodes.len() - 1]
    }
}

/// Clusters worth a kernel of their own.
pub(crate) fn find(p: &Planner) -> Vec<Strips> {
    let mut found = Vec::new();
    let mut search = Search { p, open: None, inside: FxHashSet::default(), behind: FxHashSet::default() };
    for (i, node) in p.graph.nodes.iter().enumerate() {
        if p.facts.is_live(node) && !node.op.is_leaf() {
            found.extend(search.visit(i, node));
        }
    }
    found.extend(search.close());
    found
}

struct Search<'p, 'g> {
    p: &'p Planner<'g>,
    open: Option<Strips>,
    /// Values of the open cluster.
    inside: FxHashSet<Value>,
    /// Values that depend on the open cluster without being part of it.
    behind: FxHashSet<Value>,
}

impl Search<'_, '_> {
    /// Takes a node into the open cluster, opens one with it, or leaves it; returns a cluster that it ends.
    fn visit(&mut self, i: usize, node: &Node) -> Option<Strips> {
        let results = || (0..node.results.len() as u32).map(|r| Value(node.first.0 + r));
        let depends = node.operands.iter().any(|v| self.inside.contains(v));
        let blocked = node.operands.iter().any(|v| self.behind.contains(v));
        if let Some(open) = &mut self.open {
            if depends && !blocked && joins(self.p, node, &open.rows, &self.inside) {
                open.nodes.push(i);
                self.inside.extend(results());
                return None;
            }
            if depends || blocked {
                if is_lazy(&node.op) {
                    self.behind.extend(results());
                    return None;
                }
                // It needs the cluster's results now.
                let ended = self.close();
                self.open(i, node);
                return ended;
            }
        }
        if row_dims(self.p, node).is_some() {
            let ended = self.close();
            self.open(i, node);
            return ended;
        }
        None
    }

    fn open(&mut self, i: usize, node: &Node) {
        let Some(dims) = row_dims(self.p, node) else { return };
        let sizes = &self.p.graph.shape(node.operands[0]).sizes;
        self.open = Some(Strips { nodes: vec![i], rows: Dims::from_slice(&sizes[..dims]) });
        self.inside.extend((0..node.results.len() as u32).map(|r| Value(node.first.0 + r)));
    }

    fn close(&mut self) -> Option<Strips> {
        let inside = std::mem::take(&mut self.inside);
        self.behind.clear();
        self.open.take().filter(|c| is_worthwhile(self.p, c, &inside))
    }
}

/// How many leading dimensions of its operand are rows to an operator that works along rows: all but those it reduces.
fn row_dims(p: &Planner, node: &Node) -> Option<usize> {
    let shape = p.graph.shape(*node.operands.first()?);
    let dims = match &node.op {
        Op::Reduce { dims, .. } | Op::Variance { dims, .. } => {
            let first = *dims.first()? as usize;
            (first + dims.len() == shape.rank()).then_some(first)?
        }
        Op::Softmax { dim, .. } | Op::SoftmaxBackward { dim, .. } => (dim + 1 == shape.rank()).then_some(*dim)?,
        Op::LayerNorm { dims, .. } | Op::RmsNorm { dims, .. } => shape.rank() - dims,
        _ => return None,
    };
    let rows: i64 = shape.sizes[..dims].iter().product();
    let length: i64 = shape.sizes[dims..].iter().product();
    (rows > 1 && ROW_LENGTH.contains(&length) && lies_by_rows(p, node.operands[0])).then_some(dims)
}

/// True if neighbours in a row of an operand are neighbours in memory: a reduction of such rows takes each by itself.
fn lies_by_rows(p: &Planner, value: Value) -> bool {
    let node = p.graph.def(value);
    match &node.op {
        Op::Param { index } => p.graph.params[*index].strides.last() == Some(&1),
        Op::Convert => lies_by_rows(p, node.operands[0]),
        Op::Reshape | Op::Slice { .. } => lies_by_rows(p, node.operands[0]),
        Op::Transpose { .. } | Op::Broadcast => false,
        _ => true,
    }
}

/// How many operands of an operator have its rows; the others are weights, the same for all rows.
fn with_rows(node: &Node) -> usize {
    match node.op {
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => 1,
        _ => node.operands.len(),
    }
}

/// Whether an operator that uses values of a cluster works on its rows.
fn joins(p: &Planner, node: &Node, rows: &Dims, inside: &FxHashSet<Value>) -> bool {
    let has_rows = |shape: &Shape| shape.sizes.starts_with(rows);
    if !node.results.iter().all(has_rows) || p.product(node.first).is_some() {
        return false;
    }
    let n = rows.len();
    let operand = |i: usize| p.graph.shape(node.operands[i]);
    match &node.op {
        op if op.is_pointwise() => !matches!(op, Op::Iota { .. }),
        Op::Broadcast => operand(0).rank() == node.results[0].rank() && has_rows(operand(0)),
        Op::Reshape => has_rows(operand(0)),
        Op::Slice { dim, .. } => *dim >= n,
        Op::Transpose { permutation } => permutation[..n].iter().enumerate().all(|(i, d)| i as i64 == *d),
        _ => {
            let (own, weights) = node.operands.split_at(with_rows(node));
            row_dims(p, node).is_some_and(|dims| dims >= n)
                && own.iter().all(|v| has_rows(p.graph.shape(*v)))
                && !weights.iter().any(|v| inside.contains(v))
        }
    }
}

/// A cluster saves passes over memory if it has more than one kernel, or one whose operand is computed.
fn is_worthwhile(p: &Planner, c: &Strips, inside: &FxHashSet<Value>) -> bool {
    let rows: i64 = c.rows.iter().product();
    let nodes = || c.nodes.iter().map(|i| &p.graph.nodes[*i]);
    let bytes: i64 = nodes()
        .filter(|n| !is_lazy(&n.op))
        .flat_map(|n| &n.operands)
        .map(|v| p.graph.shape(*v))
        .map(|s| s.numel() * s.dtype.size() as i64)
        .sum();
    let computed = |v: &Value| !inside.contains(v) && is_computed(p, *v);
    rows >= 2 && bytes >= 2 * STRIP_BYTES && (c.nodes.len() > 1 || nodes().any(|n| n.operands.iter().any(computed)))
}

/// True if a value is elementwise arithmetic that no kernel has done yet.
fn is_computed(p: &Planner, value: Value) -> bool {
    let mut v = value;
    loop {
        let node = p.graph.def(v);
        if node.op.is_pointwise() {
            return true;
        }
        if !matches!(node.op, Op::Broadcast | Op::Reshape) {
            return false;
        }
        v = node.operands[0];
    }
}

/// The graph of a cluster for some rows, while it is written.
struct Inner<'p, 'g> {
    p: &'p mut Planner<'g>,
    rows: Dims,
    strip: i64,
    inside: FxHashSet<Value>,
    g: GraphBuilder,
    /// Values with rows.
    values: FxHashMap<Value, Value>,
    /// Values that are the same for all rows.
    shared: FxHashMap<Value, Value>,
    /// Where each argument is, and bytes from row to row.
    arguments: Vec<(Slot, isize)>,
}

/// Emits the kernel of a cluster.
pub(crate) fn emit(p: &mut Planner, c: &Strips) -> Result<(), KernelError> {
    let rows: i64 = c.rows.iter().product();
    let inside: FxHashSet<Value> = c
        .nodes
        .iter()
        .map(|i| &p.graph.nodes[*i])
        .flat_map(|n| (0..n.results.len() as u32).map(|r| Value(n.first.0 + r)))
        .collect();
    let results = results(p, c, &inside);
    let parts = parts(p, c, &inside);
    externals(p, c, &inside, &parts)?;
    let places: Vec<Place> = results.iter().map(|v| row_place(p, *v, &c.rows)).collect();
    let strip = strip_rows(p, c, rows);
    let main = Inner::new(p, c, strip, &inside).build(c, &results, &places)?;
    let rest = match rows % strip {
        0 => None,
        rest => Some(compile(&Inner::new(p, c, rest, &inside).build(c, &results, &places)?.0)?),
    };
    let (graph, arguments) = main;
    let program = compile(&graph)?;
    let cost = program.cost() * (rows / strip) as u64;
    let slots: Vec<Slot> = arguments.iter().map(|a| a.0).collect();
    let steps: Vec<isize> = arguments.iter().map(|a| a.1 * strip as isize).collect();
    let kernel = StripKernel { program, rest, strips: (rows / strip) as usize, steps, cost };
    p.push(Box::new(kernel), &slots);
    Ok(())
}

/// Rows of a strip: all that is in work for them fits the cache, and there are enough strips to share.
fn strip_rows(p: &Planner, c: &Strips, rows: i64) -> i64 {
    let bytes: i64 = c
        .nodes
        .iter()
        .map(|i| &p.graph.nodes[*i])
        .filter(|n| !is_lazy(&n.op) || p.facts.is_kept(n.first))
        .flat_map(|n| n.operands.iter().map(|v| p.graph.shape(*v)).chain(&n.results))
        .filter(|s| s.sizes.starts_with(&c.rows))
        .map(|s| s.numel() / rows * s.dtype.size() as i64)
        .sum();
    (STRIP_BYTES / bytes.max(1)).min(rows / STRIPS).clamp(1, rows)
}

/// What the cluster makes for others.
fn results(p: &Planner, c: &Strips, inside: &FxHashSet<Value>) -> Vec<Value> {
    let mut wanted: FxHashSet<Value> = FxHashSet::default();
    for (i, node) in p.graph.nodes.iter().enumerate() {
        if p.facts.is_live(node) && c.nodes.binary_search(&i).is_err() {
            wanted.extend(node.operands.iter().filter(|v| inside.contains(v)));
        }
    }
    wanted.extend(p.graph.outputs.iter().map(|o| &o.value).filter(|v| inside.contains(v)));
    let mut all: Vec<Value> = wanted.into_iter().collect();
    all.sort_unstable();
    all
}

/// Elementwise values before the cluster that are computed in it: on the same rows, and not wanted in memory by others.
fn parts(p: &Planner, c: &Strips, inside: &FxHashSet<Value>) -> FxHashSet<Value> {
    let mut parts = FxHashSet::default();
    let mut seen = FxHashSet::default();
    let own = |i: &usize| {
        let node = &p.graph.nodes[*i];
        node.operands[..with_rows(node)].to_vec()
    };
    // The last value first: whoever uses a value has been looked at before it.
    let mut open: BinaryHeap<Value> = c.nodes.iter().flat_map(own).collect();
    while let Some(v) = open.pop() {
        if inside.contains(&v) || p.place(v).is_some() || !seen.insert(v) {
            continue;
        }
        let ours = |user: &Value| inside.contains(user) || parts.contains(user);
        let wanted = p.facts.is_kept(v) && !(p.facts.stores(v).is_empty() && p.facts.users(v).iter().all(ours));
        if wanted || !is_part(p, v, &c.rows) {
            continue;
        }
        parts.insert(v);
        if !is_row_free(p, v, &c.rows) {
            open.extend(&p.graph.def(v).operands);
        }
    }
    parts
}

/// Brings into memory what the cluster reads but does not compute.
fn externals(
    p: &mut Planner,
    c: &Strips,
    inside: &FxHashSet<Value>,
    parts: &FxHashSet<Value>,
) -> Result<(), KernelError> {
    let mut needed: Vec<Value> = Vec::new();
    for i in &c.nodes {
        needed.extend(&p.graph.nodes[*i].operands);
    }
    for v in parts {
        needed.extend(&p.graph.def(*v).operands);
    }
    needed.sort_unstable();
    needed.dedup();
    for v in needed {
        if !inside.contains(&v) && !parts.contains(&v) && !is_constant(p, v) {
            p.realize(v)?;
        }
    }
    Ok(())
}

/// True for numbers of the launch or the graph, converted or not: a cluster has its own.
fn is_constant(p: &Planner, v: Value) -> bool {
    let node = p.graph.def(v);
    match node.op {
        Op::ScalarParam { .. } | Op::Constant(_) => true,
        Op::Convert => node.results[0].rank() == 0 && is_constant(p, node.operands[0]),
        _ => false,
    }
}

/// True if a value outside the cluster, not in memory, can be computed for a strip within it.
fn is_part(p: &Planner, v: Value, rows: &Dims) -> bool {
    let node = p.graph.def(v);
    let has_rows = |v: Value| p.graph.shape(v).sizes.starts_with(rows);
    let own = has_rows(v) && p.product(v).is_none();
    match &node.op {
        Op::Iota { .. } => false,
        op if op.is_pointwise() => own,
        Op::Broadcast => {
            own && {
                let inner = node.operands[0];
                // Either it has the rows, or it is the same for all of them.
                (p.graph.shape(inner).rank() == node.results[0].rank() && has_rows(inner)) || is_row_free(p, v, rows)
            }
        }
        Op::Reshape => own && has_rows(node.operands[0]),
        _ => false,
    }
}

/// True for a broadcast that repeats one row for all.
fn is_row_free(p: &Planner, value: Value, rows: &Dims) -> bool {
    let node = p.graph.def(value);
    if node.op != Op::Broadcast {
        return false;
    }
    let inner = &p.graph.shape(node.operands[0]).sizes;
    let missing = node.results[0].rank() - inner.len();
    (missing..rows.len()).all(|d| inner[d - missing] == 1)
}

/// The memory of a result, row by row.
fn row_place(p: &mut Planner, v: Value, rows: &Dims) -> Place {
    let shape = p.graph.shape(v).clone();
    p.result_where(v, |ty| layout::reshape(ty, &by_rows(&shape.sizes, rows)).is_some())
}

/// Sizes with the rows as the one leading dimension.
fn by_rows(sizes: &[i64], rows: &Dims) -> Dims {
    let mut joined = Dims::from_slice(&[rows.iter().product()]);
    joined.extend_from_slice(&sizes[rows.len()..]);
    joined
}

type InnerGraph = (Graph, Vec<(Slot, isize)>);

impl<'p, 'g> Inner<'p, 'g> {
    fn new(p: &'p mut Planner<'g>, c: &Strips, strip: i64, inside: &FxHashSet<Value>) -> Self {
        Inner {
            p,
            rows: c.rows.clone(),
            strip,
            inside: inside.clone(),
            g: GraphBuilder::default(),
            values: FxHashMap::default(),
            shared: FxHashMap::default(),
            arguments: Vec::new(),
        }
    }

    fn build(mut self, c: &Strips, results: &[Value], places: &[Place]) -> Result<InnerGraph, KernelError> {
        for i in &c.nodes {
            let node = &self.p.graph.nodes[*i];
            self.node(node)?;
        }
        for (k, (v, place)) in results.iter().zip(places).enumerate() {
            let value = self.values[v];
            let (ty, step) = self.strip_of(&place.ty).expect("a layout that was asked for");
            self.arguments.push((place.slot, step));
            self.g.output(value, Destination::Fresh(k), ty);
        }
        Ok((self.g.finish(), self.arguments))
    }

    /// A node for the rows of a strip, its operands before it.
    fn node(&mut self, node: &Node) -> Result<(), KernelError> {
        let (own, weights) = node.operands.split_at(with_rows(node));
        let mut operands = own.iter().map(|v| self.value(*v)).collect::<Result<Vec<_>, _>>()?;
        operands.extend(weights.iter().map(|v| self.shared(*v)));
        let n = self.rows.len() as i64;
        let shift = |d: i64| d - n + 1;
        let op = match &node.op {
            Op::Reduce { op, dims } => Op::Reduce { op: *op, dims: dims.iter().map(|d| shift(*d)).collect() },
            Op::Variance { dims, correction } => {
                Op::Variance { dims: dims.iter().map(|d| shift(*d)).collect(), correction: *correction }
            }
            Op::Softmax { dim, log } => Op::Softmax { dim: shift(*dim as i64) as usize, log: *log },
            Op::SoftmaxBackward { dim, log } => Op::SoftmaxBackward { dim: shift(*dim as i64) as usize, log: *log },
            Op::Slice { dim, start, step } => {
                Op::Slice { dim: shift(*dim as i64) as usize, start: *start, step: *step }
            }
            Op::Transpose { permutation } => {
                let inner = permutation[n as usize..].iter().map(|d| shift(*d));
                Op::Transpose { permutation: std::iter::once(0).chain(inner).collect() }
            }
            other => other.clone(),
        };
        let results: Vec<Shape> =
            node.results.iter().map(|s| Shape::new(s.dtype, &self.strip_sizes(&s.sizes))).collect();
        let first = self.g.push(op, &operands, &results);
        for r in 0..node.results.len() as u32 {
            self.values.insert(Value(node.first.0 + r), Value(first.0 + r));
        }
        Ok(())
    }

    fn strip_sizes(&self, sizes: &[i64]) -> Dims {
        let mut strip = by_rows(sizes, &self.rows);
        strip[0] = self.strip;
        strip
    }

    /// The layout of a strip of rows, and bytes from row to row.
    fn strip_of(&self, ty: &TensorType) -> Option<(TensorType, isize)> {
        let mut strip = layout::reshape(ty, &by_rows(&ty.sizes, &self.rows))?;
        strip.sizes[0] = self.strip;
        let step = strip.strides[0] as isize * ty.dtype.size() as isize;
        Some((strip, step))
    }

    fn value(&mut self, v: Value) -> Result<Value, KernelError> {
        if let Some(inner) = self.values.get(&v) {
            return Ok(*inner);
        }
        let node = self.p.graph.def(v);
        let value = if let Some(place) = self.p.place(v).cloned() {
            self.argument(v, place)?
        } else if is_constant(self.p, v) {
            self.shared(v)
        } else if is_row_free(self.p, v, &self.rows) && !self.inside.contains(&v) {
            let inner = self.shared(node.operands[0]);
            // The repeated dimensions become the one of the rows.
            let rank = self.g.shape(inner).rank();
            let repeated = self.rows.len().saturating_sub(node.results[0].rank() - rank);
            let sizes = Dims::from_slice(&self.g.shape(inner).sizes[repeated..]);
            let inner = self.g.reshape(inner, &sizes);
            let sizes = self.strip_sizes(&node.results[0].sizes);
            self.g.broadcast(inner, &sizes)
        } else {
            self.node(node)?;
            self.values[&v]
        };
        self.values.insert(v, value);
        Ok(value)
    }

    /// The rows of what is in memory.
    fn argument(&mut self, v: Value, place: Place) -> Result<Value, KernelError> {
        let (place, (ty, step)) = match self.strip_of(&place.ty) {
            Some(strip) => (place, strip),
            None => {
                let packed = self.p.realize_contiguous(v)?;
                let strip = self.strip_of(&packed.ty).expect("row-major memory has rows");
                (packed, strip)
            }
        };
        self.arguments.push((place.slot, step));
        Ok(self.g.param(ty))
    }

    /// What all rows share.
    fn shared(&mut self, v: Value) -> Value {
        if let Some(inner) = self.shared.get(&v) {
            return *inner;
        }
        let value = match self.p.place(v).cloned() {
            Some(place) => {
                self.arguments.push((place.slot, 0));
                self.g.param(place.ty)
            }
            None => {
                let node = self.p.graph.def(v);
                let operands: Vec<Value> = node.operands.iter().map(|v| self.shared(*v)).collect();
                self.g.op(node.op.clone(), &operands, node.results[0].clone())
            }
        };
        self.shared.insert(v, value);
        value
    }
}

/// A program for a strip, run on all strips.
#[derive(Debug)]
struct StripKernel {
    program: Program,
    /// For the rows that do not fill a strip.
    rest: Option<Program>,
    strips: usize,
    /// Bytes from strip to strip, for each buffer.
    steps: Vec<isize>,
    cost: u64,
}

struct Buffers<'a>(&'a [*mut u8]);
// SAFETY: strips write disjoint rows; see `Kernel::run`.
unsafe impl Sync for Buffers<'_> {}

impl Kernel for StripKernel {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let failed = std::sync::Mutex::new(None);
        let buffers = Buffers(buffers);
        parallel_for(self.strips + usize::from(self.rest.is_some()), |i| {
            let buffers = &buffers;
            let program = self.rest.as_ref().filter(|_| i == self.strips).unwrap_or(&self.program);
            let own: smallvec::SmallVec<[*mut u8; 8]> =
                buffers.0.iter().zip(&self.steps).map(|(b, step)| b.wrapping_offset(step * i as isize)).collect();
            // SAFETY: the buffers of a strip are rows of the launch's.
            if let Err(e) = unsafe { program.run(&own, scalars) } {
                *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
            }
        });
        match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    fn cost(&self) -> u64 {
        self.cost
    }
}
