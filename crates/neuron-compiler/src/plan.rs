//! The walk over a graph.

use crate::program::{ALIGNMENT, Program, Slot, Step};
use crate::{kernels, layout, pointwise, product};
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
    /// Where a value is in memory, if it is.
    places: Vec<Option<Place>>,
    /// How often a value is used by operators and stores.
    pub(crate) uses: Vec<u32>,
    /// Dots that the store of an output computes.
    fused: Vec<bool>,
    steps: Vec<Step>,
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
    let products: Vec<_> = (0..graph.outputs.len()).map(|k| product::match_output(&p, k)).collect();
    for m in products.iter().flatten() {
        p.fused[m.dot.0 as usize] = true;
    }
    for node in &graph.nodes {
        if !is_lazy(&node.op) && !p.fused[node.first.0 as usize] {
            kernels::emit(&mut p, node)?;
        }
    }
    let mut copies = Vec::new();
    for (k, product) in products.iter().enumerate() {
        if p.stored[k] {
            continue;
        }
        let safe = p.is_safe_to_write_early(k);
        if let Some(m) = product {
            let target = if safe && !p.reads_destination(k) { p.destination(k) } else { p.temporary_like(k) };
            product::emit(&mut p, m, &target)?;
            if target.slot != p.destination(k).slot {
                copies.push((k, target));
            }
        } else if !safe || !pointwise::store(&mut p, k)? {
            let place = p.materialize(graph.outputs[k].value)?;
            copies.push((k, place));
        }
    }
    for (k, place) in copies {
        let to = p.destination(k);
        pointwise::copy(&mut p, &place, &to)?;
    }
    let buffers = p.buffers();
    Ok(Program::new(p.steps, buffers, p.workspace))
}

/// True for operators that are folded into whatever uses their result.
fn is_lazy(op: &Op) -> bool {
    op.is_pointwise()
        || op.is_leaf()
        || matches!(op, Op::Broadcast | Op::Reshape | Op::Transpose { .. } | Op::Slice { .. })
}

impl<'g> Planner<'g> {
    fn new(graph: &'g Graph) -> Self {
        let mut uses = vec![0; graph.values()];
        let mut places = vec![None; graph.values()];
        for node in &graph.nodes {
            for v in &node.operands {
                uses[v.0 as usize] += 1;
            }
            if let Op::Param { index } = node.op {
                let ty = graph.params[index].clone();
                places[node.first.0 as usize] = Some(Place { slot: Slot::argument(index), ty });
            }
        }
        for o in &graph.outputs {
            uses[o.value.0 as usize] += 1;
        }
        Planner {
            graph,
            places,
            uses,
            fused: vec![false; graph.values()],
            steps: Vec::new(),
            workspace: 0,
            stored: vec![false; graph.outputs.len()],
        }
    }

    /// How many buffers a launch has: arguments, then new tensors.
    pub(crate) fn buffers(&self) -> usize {
        let fresh = self.graph.outputs.iter().filter(|o| matches!(o.to, Destination::Fresh(_))).count();
        self.graph.params.len() + fresh
    }

    pub(crate) fn push(&mut self, kernel: Box<dyn Kernel>, buffers: &[Slot]) {
        self.steps.push(Step { kernel, buffers: SmallVec::from_slice(buffers), scalars: SmallVec::new() });
    }

    /// Adds a kernel whose last scalars, `i64`, are read from memory.
    pub(crate) fn push_with_scalars(&mut self, kernel: Box<dyn Kernel>, buffers: &[Slot], scalars: &[Slot]) {
        self.steps.push(Step {
            kernel,
            buffers: SmallVec::from_slice(buffers),
            scalars: SmallVec::from_slice(scalars),
        });
    }

    /// True if the program so far is empty: a pointwise store may then take the launch's buffers as they are.
    pub(crate) fn is_first_step(&self) -> bool {
        self.steps.is_empty()
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
            None => pointwise::into_temporary(self, value)?,
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
        for k in 0..self.graph.outputs.len() {
            let output = &self.graph.outputs[k];
            let mut source = output.value;
            while matches!(self.graph.def(source).op, Op::Reshape) && self.uses[source.0 as usize] == 1 {
                source = self.graph.def(source).operands[0];
            }
            if source != value || self.stored[k] || !self.is_write_only(k) {
                continue;
            }
            if let Some(ty) = layout::reshape(&output.layout, &shape.sizes).filter(&fits) {
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

    /// True if no operator reads the memory of output `k`: it can be written at any time.
    fn is_write_only(&self, k: usize) -> bool {
        let overwritten = self.overwritten(k);
        self.graph.nodes.iter().all(|n| match n.op {
            Op::Param { index } if overwritten.contains(&index) => self.uses[n.first.0 as usize] == 0,
            _ => true,
        })
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
        match self.place(value) {
            Some(Place { slot: Slot::Argument { index, .. }, .. }) => params.contains(index),
            Some(_) => false,
            None => self.graph.def(value).operands.iter().any(|v| self.reads(*v, params)),
        }
    }

    /// Whether two arguments are, or may be, the same memory.
    pub(crate) fn same_memory(&self, a: usize, b: usize) -> bool {
        a == b || self.graph.aliases.contains(&(a, b)) || self.graph.aliases.contains(&(b, a))
    }
}
