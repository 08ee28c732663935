//! The walk over a graph.

use crate::analysis::{Analysis, is_lazy};
use crate::program::{ALIGNMENT, Program, ScalarSource, Slot, Step};
use crate::strips::{self, Strips};
use crate::{arena, kernels, layout, pointwise, product};
use neuron_ir::{Destination, Graph, Op, Output, TensorType, Value};
use neuron_kernels::{Kernel, KernelError};
use smallvec::SmallVec;

/// A value in memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) ty: TensorType,
}

/// The state of a compilation.
pub(crate) struct Planner<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) facts: Analysis,
    /// Products with what follows them, by the value they end in.
    products: Vec<(Value, product::Match)>,
    /// Where a value is in memory, if it is.
    places: Vec<Option<Place>>,
    steps: Vec<Step>,
    /// Where each temporary begins, as long as they all lie one after the other.
    temporaries: Vec<usize>,
    workspace: usize,
    /// Outputs already written.
    stored: Vec<bool>,
}

/// Compiles a graph.
///
/// # Errors
/// [`KernelError::Unsupported`] where an operator has no kernel for its types.
pub fn compile(graph: &Graph) -> Result<Program, KernelError> {
    let mut p = Planner::new(graph);
    let clusters = strips::find(&p);
    p.steps(&clusters)?;
    p.outputs()?;
    let workspace = arena::assign(&mut p.steps, &p.temporaries, p.workspace);
    Ok(Program::new(graph.clone(), p.steps, workspace))
}

impl<'g> Planner<'g> {
    fn new(graph: &'g Graph) -> Self {
        let facts = Analysis::new(graph);
        let mut places = vec![None; graph.values()];
        for node in &graph.nodes {
            if let Op::Param { index } = node.op {
                let ty = graph.params[index].clone();
                places[node.first.0 as usize] = Some(Place { slot: Slot::argument(index), ty });
            }
        }
        let mut p = Planner {
            graph,
            facts,
            products: Vec::new(),
            places,
            steps: Vec::new(),
            temporaries: Vec::new(),
            workspace: 0,
            stored: vec![false; graph.outputs.len()],
        };
        p.products = product::find(&p);
        for (end, _) in &p.products {
            p.facts.keep(*end);
        }
        p
    }

    /// Kernels of what is not elementwise, in order; elementwise operators become kernels when one of these needs them.
    fn steps(&mut self, clusters: &[Strips]) -> Result<(), KernelError> {
        let mut cluster = vec![None; self.graph.nodes.len()];
        for c in clusters {
            c.nodes.iter().for_each(|n| cluster[*n] = Some(c));
        }
        for (i, node) in self.graph.nodes.iter().enumerate() {
            match cluster[i] {
                Some(c) if c.last() == i => strips::emit(self, c)?,
                Some(_) => {}
                None if is_lazy(&node.op) || !self.facts.is_live(node) => {}
                None if self.products.iter().any(|(_, m)| m.dot == node.first) => {}
                None => kernels::emit(self, node)?,
            }
        }
        Ok(())
    }

    /// Stores what is not stored yet.
    fn outputs(&mut self) -> Result<(), KernelError> {
        let mut copies = Vec::new();
        for k in 0..self.graph.outputs.len() {
            if self.stored[k] {
                continue;
            }
            let value = self.graph.outputs[k].value;
            let safe = self.is_safe_to_write_early(k);
            if self.place(value).is_none() && self.product(value).is_some() {
                let target =
                    if safe && !self.reads_destination(k) { self.destination(k) } else { self.temporary_like(k) };
                product::emit(self, value, &target)?;
                if target.slot != self.destination(k).slot {
                    copies.push((k, target));
                }
            } else if !safe || !pointwise::store(self, k)? {
                let place = self.materialize(value)?;
                copies.push((k, place));
            }
        }
        for (k, place) in copies {
            let to = self.destination(k);
            pointwise::copy(self, &place, &to)?;
        }
        Ok(())
    }

    pub(crate) fn product(&self, value: Value) -> Option<&product::Match> {
        self.products.iter().find(|(end, _)| *end == value).map(|(_, m)| m)
    }

    /// How many buffers a launch has: arguments, then new tensors.
    pub(crate) fn buffers(&self) -> usize {
        self.graph.buffers().count()
    }

    pub(crate) fn push(&mut self, kernel: Box<dyn Kernel>, buffers: &[Slot]) {
        self.push_with_scalars(kernel, buffers, &[]);
    }

    /// Adds a kernel that has further scalars, after those of the launch.
    pub(crate) fn push_with_scalars(&mut self, kernel: Box<dyn Kernel>, buffers: &[Slot], scalars: &[ScalarSource]) {
        self.steps.push(Step {
            kernel,
            buffers: SmallVec::from_slice(buffers),
            scalars: SmallVec::from_slice(scalars),
        });
    }

    /// Where a kernel finds a 0-dimensional `i64`.
    pub(crate) fn scalar(&mut self, value: Value) -> Result<ScalarSource, KernelError> {
        match self.graph.def(value).op {
            Op::ScalarParam { index } => Ok(ScalarSource::Launch(index)),
            _ => Ok(ScalarSource::Memory(self.realize(value)?.slot)),
        }
    }

    /// True if the program so far is empty: a pointwise store may then take the launch's buffers as they are.
    pub(crate) fn is_first_step(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn is_stored(&self, k: usize) -> bool {
        self.stored[k]
    }

    pub(crate) fn place(&self, value: Value) -> Option<&Place> {
        self.places[value.0 as usize].as_ref()
    }

    pub(crate) fn set_place(&mut self, value: Value, place: Place) {
        self.places[value.0 as usize] = Some(place);
    }

    /// Space for a row-major temporary.
    pub(crate) fn temporary(&mut self, dtype: neuron_ir::DType, sizes: &[i64]) -> Place {
        let ty = TensorType::contiguous(dtype, sizes);
        let bytes = ty.numel() as usize * dtype.size();
        let slot = Slot::Temporary { offset: self.workspace };
        self.temporaries.push(self.workspace);
        self.workspace += bytes.max(1).next_multiple_of(ALIGNMENT);
        Place { slot, ty }
    }

    fn temporary_like(&mut self, k: usize) -> Place {
        let ty = &self.graph.outputs[k].layout;
        let (dtype, sizes) = (ty.dtype, ty.sizes.clone());
        self.temporary(dtype, &sizes)
    }

    /// The memory of output `k`.
    pub(crate) fn destination(&self, k: usize) -> Place {
        let Output { to, layout, .. } = &self.graph.outputs[k];
        let index = match to {
            Destination::Param(i) => *i,
            Destination::Fresh(i) => self.graph.params.len() + i,
        };
        Place { slot: Slot::argument(index), ty: layout.clone() }
    }

    /// The value in memory: where it is, or a view of that, or computed into a temporary.
    pub(crate) fn realize(&mut self, value: Value) -> Result<Place, KernelError> {
        if let Some(place) = self.place(value) {
            return Ok(place.clone());
        }
        let node = self.graph.def(value);
        let sizes = &node.results[0].sizes;
        let view = match &node.op {
            _ if self.product(value).is_some() => None,
            Op::Broadcast => {
                let inner = self.realize(node.operands[0])?;
                Some(Place { ty: layout::broadcast(&inner.ty, sizes), ..inner })
            }
            Op::Transpose { permutation } => {
                let inner = self.realize(node.operands[0])?;
                Some(Place { ty: layout::transpose(&inner.ty, permutation), ..inner })
            }
            Op::Slice { dim, start, step } => {
                let inner = self.realize(node.operands[0])?;
                let (bytes, ty) = layout::slice(&inner.ty, *dim, *start, *step, sizes[*dim]);
                Some(Place { slot: inner.slot.after(bytes), ty })
            }
            Op::Reshape => {
                let inner = self.realize(node.operands[0])?;
                let ty = match layout::reshape(&inner.ty, sizes) {
                    Some(ty) => Place { ty, ..inner },
                    None => {
                        let packed = self.pack(&inner)?;
                        Place { ty: TensorType::contiguous(packed.ty.dtype, sizes), ..packed }
                    }
                };
                Some(ty)
            }
            _ => None,
        };
        let place = match view {
            Some(place) => place,
            None if self.product(value).is_some() => {
                let place = self.result(value);
                product::emit(self, value, &place)?;
                place
            }
            None => pointwise::into_memory(self, value)?,
        };
        self.set_place(value, place.clone());
        Ok(place)
    }

    /// The value in memory, row-major.
    pub(crate) fn realize_contiguous(&mut self, value: Value) -> Result<Place, KernelError> {
        let place = self.realize(value)?;
        if place.ty.is_contiguous() { Ok(place) } else { self.pack(&place) }
    }

    /// The value in memory that no later step writes: an argument that an output overwrites is copied.
    fn materialize(&mut self, value: Value) -> Result<Place, KernelError> {
        let place = self.realize(value)?;
        match place.slot {
            Slot::Argument { .. } => self.pack(&place),
            Slot::Temporary { .. } => Ok(place),
        }
    }

    fn pack(&mut self, place: &Place) -> Result<Place, KernelError> {
        let packed = self.temporary(place.ty.dtype, &place.ty.sizes.clone());
        pointwise::copy(self, place, &packed)?;
        Ok(packed)
    }

    /// Where the kernel of `value` writes: an output that takes the value as it is, or a temporary.
    pub(crate) fn result(&mut self, value: Value) -> Place {
        self.result_where(value, |_| true)
    }

    /// As [`Planner::result`], for a kernel that writes only layouts that `fits` accepts; row-major always does.
    pub(crate) fn result_where(&mut self, value: Value, fits: impl Fn(&TensorType) -> bool) -> Place {
        let shape = self.graph.shape(value).clone();
        for k in self.facts.stores(value) {
            if self.stored[k] || !self.is_write_only(k, value) {
                continue;
            }
            if let Some(ty) = layout::reshape(&self.graph.outputs[k].layout, &shape.sizes).filter(&fits) {
                self.stored[k] = true;
                let place = Place { slot: self.destination(k).slot, ty };
                self.set_place(value, place.clone());
                return place;
            }
        }
        let place = self.temporary(shape.dtype, &shape.sizes);
        self.set_place(value, place.clone());
        place
    }

    /// Marks output `k`, whose memory already holds the value, as written.
    pub(crate) fn mark_stored(&mut self, k: usize) {
        self.stored[k] = true;
    }

    /// The arguments whose memory output `k` overwrites.
    fn overwritten(&self, k: usize) -> SmallVec<[usize; 2]> {
        let Destination::Param(p) = self.graph.outputs[k].to else {
            return SmallVec::new();
        };
        let mut all = SmallVec::from_slice(&[p]);
        for (a, b) in &self.graph.aliases {
            if all.contains(a) && !all.contains(b) {
                all.push(*b);
            } else if all.contains(b) && !all.contains(a) {
                all.push(*a);
            }
        }
        all
    }

    /// True if nothing else reads the memory of output `k` than, element by element, the kernel that makes `value` for it:
    /// it can be written at any time.
    fn is_write_only(&self, k: usize, value: Value) -> bool {
        self.overwritten(k).iter().all(|p| {
            self.facts.param_uses(*p) == 0
                || (self.graph.outputs[k].value == value
                    && is_lazy(&self.graph.def(value).op)
                    && self.facts.is_read_by_alone(*p, value)
                    && self.reads_as_it_lies(value, *p, &self.graph.outputs[k].layout))
        })
    }

    /// True if output `k` overwrites an argument that something reads.
    pub(crate) fn overwrites_what_is_read(&self, k: usize) -> bool {
        self.overwritten(k).iter().any(|p| self.facts.param_uses(*p) > 0)
    }

    /// True if no output after `k` still reads memory that output `k` overwrites.
    fn is_safe_to_write_early(&self, k: usize) -> bool {
        let overwritten = self.overwritten(k);
        overwritten.is_empty()
            || (k + 1..self.graph.outputs.len())
                .filter(|later| !self.stored[*later])
                .all(|later| !self.reads(self.graph.outputs[later].value, &overwritten))
    }

    /// True if computing output `k` reads memory that it overwrites.
    pub(crate) fn reads_destination(&self, k: usize) -> bool {
        let overwritten = self.overwritten(k);
        !overwritten.is_empty() && self.reads(self.graph.outputs[k].value, &overwritten)
    }

    /// True if the memory of arguments `params` is read when `value` is computed from what is in memory now.
    fn reads(&self, value: Value, params: &[usize]) -> bool {
        let mut seen = vec![false; value.0 as usize + 1];
        let mut stack = vec![value];
        while let Some(v) = stack.pop() {
            if std::mem::replace(&mut seen[v.0 as usize], true) {
                continue;
            }
            match self.place(v) {
                Some(Place { slot: Slot::Argument { index, .. }, .. }) if params.contains(index) => return true,
                Some(_) => {}
                None => stack.extend(&self.graph.def(v).operands),
            }
        }
        false
    }

    /// True if the kernel that makes `value` reads argument `param` element by element as the output's layout writes it.
    fn reads_as_it_lies(&self, value: Value, param: usize, layout: &TensorType) -> bool {
        if self.graph.params[param] != *layout {
            return false;
        }
        let mut seen = vec![false; value.0 as usize + 1];
        let mut stack: Vec<Value> = self.graph.def(value).operands.to_vec();
        while let Some(v) = stack.pop() {
            if std::mem::replace(&mut seen[v.0 as usize], true) {
                continue;
            }
            let node = self.graph.def(v);
            if matches!(node.op, Op::Param { .. }) {
                continue;
            }
            if !node.op.is_pointwise() && self.reads(v, &[param]) {
                return false;
            }
            if node.op.is_pointwise() && self.place(v).is_none() {
                stack.extend(&node.operands);
            }
        }
        true
    }

    /// Whether two arguments are, or may be, the same memory.
    pub(crate) fn same_memory(&self, a: usize, b: usize) -> bool {
        a == b || self.graph.aliases.contains(&(a, b)) || self.graph.aliases.contains(&(b, a))
    }
}
