//! Launches in order, joined to one graph.
//!
//! A launch reads and writes memory; a graph has values. The tape follows what is where: a launch that reads what an
//! earlier one wrote gets its value, seen through a view if need be, and only what is still there at the end, and is not
//! known to be free, is stored. Where memory is shared in a way that values cannot follow, the launch is refused, and the
//! caller ends the graph before it.

use crate::analysis::is_lazy;
use crate::views::{self, View};
use neuron_ir::{Destination, Graph, GraphBuilder, Op, TensorType, Value};

/// One of the buffers of a launch on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The launch.
    pub launch: usize,
    /// Which of its buffers: tensor arguments, then new tensors.
    pub buffer: usize,
}

/// Bytes in memory, from the first to before the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: usize,
    end: usize,
}

impl Extent {
    fn new(address: usize, ty: &TensorType) -> Extent {
        Extent { start: address, end: address + ty.extent() }
    }

    fn overlaps(self, other: Extent) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn contains(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// Memory that a launch wrote.
struct Written {
    extent: Extent,
    ty: TensorType,
    value: Value,
    home: Home,
    /// A later launch has used it.
    used: bool,
}

#[derive(Clone, Copy)]
enum Home {
    Param(usize),
    Fresh(Origin),
}

/// Memory that the graph takes as an argument.
struct Read {
    extent: Extent,
    ty: TensorType,
    value: Value,
    origin: Origin,
}

/// How a launch comes by an argument.
enum Source {
    /// It does not look at it.
    Unused,
    Value(Value),
    View(Value, Box<View>),
    Memory,
}

/// What a tape comes to.
#[derive(Debug)]
pub struct Joined {
    /// The graph of all launches.
    pub graph: Graph,
    /// Where each buffer of a launch of it comes from: arguments, then new tensors.
    pub buffers: Vec<Origin>,
}

/// Launches in order.
#[derive(Default)]
pub struct Tape {
    /// Refuses what would be computed in another order, and so round differently.
    exact: bool,
    g: GraphBuilder,
    written: Vec<Written>,
    read: Vec<Read>,
    launches: usize,
    scalars: usize,
}

fn same_layout(a: &TensorType, b: &TensorType) -> bool {
    let strides = || a.sizes.iter().zip(a.strides.iter().zip(&b.strides));
    a.dtype == b.dtype && a.sizes == b.sizes && strides().all(|(size, (x, y))| *size == 1 || x == y)
}

impl Tape {
    /// A tape whose graph computes what its launches compute one by one, to the bit, and all of it: what nobody looked at
    /// before it was freed or overwritten is computed and stored too, so that whoever times operators times them.
    ///
    /// How a reduction adds depends on how its operand lies in memory, and what is not written lies row-major.
    pub fn exact() -> Tape {
        Tape { exact: true, ..Tape::default() }
    }

    /// Adds a launch of `graph` with so many scalars, and its buffers at these addresses: arguments, then new tensors. False, and nothing is
    /// added, where this tape cannot follow what it does to memory.
    pub fn push(&mut self, graph: &Graph, addresses: &[usize], scalars: usize) -> bool {
        if let Some(typed) = self.typed_copy(graph, addresses) {
            return self.push_typed(&typed, addresses, scalars);
        }
        self.push_typed(graph, addresses, scalars)
    }

    /// A copy of bits, as a copy of the numbers that were stored there; those are not changed by it.
    fn typed_copy(&self, graph: &Graph, addresses: &[usize]) -> Option<Graph> {
        let [output] = &graph.outputs[..] else { return None };
        let Op::Param { index } = graph.def(output.value).op else { return None };
        let (own, extent) = (graph.params[index].dtype, Extent::new(addresses[index], &graph.params[index]));
        let mut overlapping = self.written.iter().filter(|w| w.extent.overlaps(extent));
        let dtype = overlapping.next()?.ty.dtype;
        if overlapping.next().is_some() || dtype == own || dtype.size() != own.size() {
            return None;
        }
        let mut typed = graph.clone();
        typed.params.iter_mut().for_each(|p| p.dtype = dtype);
        typed.nodes.iter_mut().flat_map(|n| &mut n.results).for_each(|r| r.dtype = dtype);
        typed.outputs[0].layout.dtype = dtype;
        graph.nodes.iter().all(|n| matches!(n.op, Op::Param { .. })).then_some(typed)
    }

    fn push_typed(&mut self, graph: &Graph, addresses: &[usize], scalars: usize) -> bool {
        if self.exact && !graph.outputs.iter().all(|o| o.layout.is_contiguous()) {
            return false;
        }
        let fresh = graph.params.len();
        let Some(sources) = self.sources(graph, addresses) else { return false };
        let stores: Vec<(usize, &TensorType, Value)> = graph
            .outputs
            .iter()
            .map(|o| match o.to {
                Destination::Param(i) => (i, &o.layout, o.value),
                Destination::Fresh(i) => (fresh + i, &o.layout, o.value),
            })
            .collect();
        let writable = stores.iter().all(|(buffer, ty, _)| {
            let extent = Extent::new(addresses[*buffer], ty);
            self.may_write(extent, ty)
                && graph.params.iter().zip(&sources).enumerate().all(|(i, (p, source))| {
                    let own = Extent::new(addresses[i], p);
                    !matches!(source, Source::Memory) || !own.overlaps(extent) || (own == extent && same_layout(p, ty))
                })
        });
        if !writable {
            return false;
        }
        for source in &sources {
            if let Source::Value(v) | Source::View(v, _) = source {
                self.written.iter_mut().filter(|w| w.value == *v).for_each(|w| w.used = true);
            }
        }
        let values = self.append(graph, addresses, sources);
        for (buffer, ty, value) in stores {
            let origin = Origin { launch: self.launches, buffer };
            self.write(Extent::new(addresses[buffer], ty), ty, values[value.0 as usize], origin);
        }
        self.launches += 1;
        self.scalars += scalars;
        true
    }

    /// Nobody reads this memory any more, before it is written again.
    pub fn free(&mut self, address: usize, bytes: usize) {
        let freed = Extent { start: address, end: address + bytes };
        self.written.retain(|w| !(freed.contains(w.extent) && (w.used || !self.exact)));
    }

    /// How many launches there are.
    pub fn len(&self) -> usize {
        self.launches
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.launches == 0
    }

    /// The graph. What was written is stored where `keep` says so of its first and last address.
    pub fn finish(mut self, keep: impl Fn(usize, usize) -> bool) -> Joined {
        let mut buffers: Vec<Origin> = self.read.iter().map(|r| r.origin).collect();
        let mut fresh = 0;
        for w in &self.written {
            if !keep(w.extent.start, w.extent.end) {
                continue;
            }
            let to = match w.home {
                Home::Param(i) => Destination::Param(i),
                Home::Fresh(origin) => {
                    buffers.push(origin);
                    fresh += 1;
                    Destination::Fresh(fresh - 1)
                }
            };
            self.g.output(w.value, to, w.ty.clone());
        }
        Joined { graph: self.g.finish(), buffers }
    }

    /// Where each argument comes from; `None` where one is partly in memory and partly in values.
    fn sources(&self, graph: &Graph, addresses: &[usize]) -> Option<Vec<Source>> {
        let mut sources: Vec<Source> = graph.params.iter().map(|_| Source::Unused).collect();
        let mut used = vec![false; graph.values()];
        graph.nodes.iter().flat_map(|n| &n.operands).for_each(|v| used[v.0 as usize] = true);
        graph.outputs.iter().for_each(|o| used[o.value.0 as usize] = true);
        for node in &graph.nodes {
            if let Op::Param { index } = node.op
                && used[node.first.0 as usize]
            {
                sources[index] = self.source(addresses[index], &graph.params[index])?;
            }
        }
        Some(sources)
    }

    fn source(&self, address: usize, ty: &TensorType) -> Option<Source> {
        let extent = Extent::new(address, ty);
        let mut overlapping = self.written.iter().filter(|w| w.extent.overlaps(extent));
        let Some(w) = overlapping.next() else { return Some(Source::Memory) };
        if overlapping.next().is_some() || !w.extent.contains(extent) {
            return None;
        }
        if w.extent.start == address && same_layout(&w.ty, ty) {
            return Some(Source::Value(w.value));
        }
        let bytes = address - w.extent.start;
        let size = ty.dtype.size();
        if !bytes.is_multiple_of(size) {
            return None;
        }
        views::view(&w.ty, (bytes / size) as i64, ty).map(|view| Source::View(w.value, Box::new(view)))
    }

    /// Whether a store leaves no older one, and no argument, half overwritten.
    fn may_write(&self, extent: Extent, ty: &TensorType) -> bool {
        let dense = extent.end - extent.start == ty.numel() as usize * ty.dtype.size();
        let covers =
            |w: &Written| (dense && extent.contains(w.extent)) || (extent == w.extent && same_layout(&w.ty, ty));
        self.written.iter().filter(|w| w.extent.overlaps(extent)).all(|w| covers(w) && (w.used || !self.exact))
            && self
                .read
                .iter()
                .filter(|r| r.extent.overlaps(extent))
                .all(|r| r.extent == extent && same_layout(&r.ty, ty))
    }

    fn append(&mut self, graph: &Graph, addresses: &[usize], sources: Vec<Source>) -> Vec<Value> {
        let along_memory = graph.nodes.iter().any(|n| !is_lazy(&n.op));
        let mut values: Vec<Value> = Vec::with_capacity(graph.values());
        for node in &graph.nodes {
            match node.op {
                Op::Param { index } => {
                    let ty = &graph.params[index];
                    values.push(match &sources[index] {
                        // Nobody looks at it.
                        Source::Unused => Value(u32::MAX),
                        Source::Value(v) if self.exact && along_memory => self.row_major(*v),
                        Source::Value(v) => *v,
                        Source::View(v, view) => {
                            let v = if self.exact && along_memory { self.row_major(*v) } else { *v };
                            view.apply(&mut self.g, v, ty)
                        }
                        Source::Memory => {
                            self.argument(addresses[index], ty, Origin { launch: self.launches, buffer: index })
                        }
                    });
                }
                Op::ScalarParam { index } => {
                    values.push(self.g.scalar(self.scalars + index, node.results[0].dtype));
                }
                _ => {
                    let operands: Vec<Value> = node.operands.iter().map(|v| values[v.0 as usize]).collect();
                    let first = self.g.push(node.op.clone(), &operands, &node.results);
                    values.extend((0..node.results.len() as u32).map(|i| Value(first.0 + i)));
                }
            }
        }
        values
    }

    /// A value as it was stored, for an operator whose sums depend on how its operand lies.
    fn row_major(&mut self, value: Value) -> Value {
        let mut source = value;
        while self.g.def(source).op == Op::Reshape {
            source = self.g.def(source).operands[0];
        }
        match self.g.def(source).op {
            Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast => {
                let shape = self.g.shape(value).clone();
                self.g.op(Op::Once, &[value], shape)
            }
            _ => value,
        }
    }

    fn argument(&mut self, address: usize, ty: &TensorType, origin: Origin) -> Value {
        let extent = Extent::new(address, ty);
        if let Some(r) = self.read.iter().find(|r| r.extent == extent && same_layout(&r.ty, ty)) {
            return r.value;
        }
        let value = self.g.param(ty.clone());
        self.read.push(Read { extent, ty: ty.clone(), value, origin });
        value
    }

    fn write(&mut self, extent: Extent, ty: &TensorType, value: Value, origin: Origin) {
        self.written.retain(|w| !(w.extent.overlaps(extent) || w.extent == extent));
        let home = match self.read.iter().position(|r| r.extent == extent && r.extent.overlaps(extent)) {
            Some(param) => Home::Param(param),
            None => Home::Fresh(origin),
        };
        self.written.push(Written { extent, ty: ty.clone(), value, home, used: false });
    }
}
