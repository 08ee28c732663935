//! Folding elementwise operators into the kernels that store their results.

use crate::plan::{Place, Planner};
use crate::program::Slot;
use neuron_ir::{Dims, Op, Value};
use neuron_kernels::KernelError;
use neuron_kernels::pointwise::{Builder, Reg};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// For each dimension of a value, the dimension of the iteration it runs along; `None` where it is repeated.
type Along = SmallVec<[Option<usize>; 6]>;

/// A pointwise kernel under construction.
struct Fusion<'p, 'g> {
    planner: &'p mut Planner<'g>,
    builder: Builder,
    sizes: Dims,
    buffers: Vec<Slot>,
    /// Registers that hold a value along given dimensions already.
    done: FxHashMap<(Value, Along), Reg>,
    /// Arguments read: which, from which byte on, and along which strides.
    loads: Vec<(usize, usize, Dims)>,
    /// Only to see what it loads.
    dry: bool,
}

/// Stores output `k` with one kernel. False, and nothing done, where its memory is also read in another layout: then the
/// value has to be complete before it is stored.
pub(crate) fn store(p: &mut Planner, k: usize) -> Result<bool, KernelError> {
    let to = p.destination(k);
    let value = p.graph.outputs[k].value;
    prepare(p, value, &to.ty.sizes)?;
    if p.is_stored(k) {
        return Ok(true); // on the way
    }
    if p.overwrites_what_is_read(k) {
        let mut f = Fusion::new(p, &to.ty.sizes);
        f.dry = true;
        f.root(value)?;
        let Slot::Argument { index, .. } = to.slot else { unreachable!("outputs are arguments of the launch") };
        let conflict = f.loads.iter().any(|(from, offset, strides)| {
            f.planner.same_memory(*from, index) && (*offset > 0 || !same_walk(&to.ty.sizes, strides, &to.ty.strides))
        });
        if conflict {
            return Ok(false);
        }
    }
    let whole_launch = p.graph.outputs.len() == 1 && p.is_first_step();
    let mut f = Fusion::new(p, &to.ty.sizes);
    if whole_launch {
        // The launch's buffers as they come: the program then needs no buffer table.
        f.buffers = (0..f.planner.buffers()).map(Slot::argument).collect();
    }
    let reg = f.root(value)?;
    f.store(reg, &to);
    f.finish()?;
    Ok(true)
}

/// True if both strides visit the same elements in the same order.
fn same_walk(sizes: &[i64], a: &[i64], b: &[i64]) -> bool {
    sizes.iter().zip(a.iter().zip(b)).all(|(size, (x, y))| *size == 1 || x == y)
}

/// Computes a value into an output that takes it, or a row-major temporary.
pub(crate) fn into_memory(p: &mut Planner, value: Value) -> Result<Place, KernelError> {
    let sizes = p.graph.shape(value).sizes.clone();
    prepare(p, value, &sizes)?;
    if let Some(place) = p.place(value) {
        return Ok(place.clone()); // another kernel has made it on the way
    }
    let mut f = Fusion::new(p, &sizes);
    let reg = f.root(value)?;
    let to = f.planner.result(value);
    f.store(reg, &to);
    f.finish()?;
    Ok(to)
}

/// Brings into memory what the kernel of `value` can only read: what it takes part of, and what has memory of its own but
/// is not computed along with it.
fn prepare(p: &mut Planner, value: Value, sizes: &[i64]) -> Result<(), KernelError> {
    let identity: Along = (0..sizes.len()).map(Some).collect();
    let mut seen = FxHashSet::default();
    let mut stack = vec![(value, identity.clone())];
    let mut read = Vec::new();
    while let Some((v, along)) = stack.pop() {
        if p.place(v).is_some() || !seen.insert((v, along.clone())) {
            continue;
        }
        let computed_here = along == identity && p.graph.shape(v).sizes.as_slice() == sizes;
        if v != value && (p.product(v).is_some() || (p.facts.is_kept(v) && !computed_here)) {
            read.push(v);
            continue;
        }
        let node = p.graph.def(v);
        match &node.op {
            Op::Slice { .. } => read.push(v),
            Op::Reshape if unit_reshape(p, v, &along).is_none() => read.push(v),
            _ => stack.extend(node.operands.iter().enumerate().map(|(i, o)| (*o, operand_along(p, v, i, &along)))),
        }
    }
    // Deepest first: what one of them computes on the way the others find in memory.
    read.sort_unstable();
    read.dedup();
    for v in read {
        p.realize(v)?;
    }
    Ok(())
}

/// How operand `i` of an elementwise operator or a view runs where its result runs `along`.
fn operand_along(p: &Planner, value: Value, i: usize, along: &Along) -> Along {
    let node = p.graph.def(value);
    let result = &node.results[0];
    match &node.op {
        Op::Broadcast => {
            let inner = p.graph.shape(node.operands[0]);
            let missing = result.rank() - inner.rank();
            (0..inner.rank())
                .map(|d| if inner.sizes[d] == result.sizes[d + missing] { along[d + missing] } else { None })
                .collect()
        }
        Op::Transpose { permutation } => {
            let mut inner = Along::from_elem(None, permutation.len());
            for (i, p) in permutation.iter().enumerate() {
                inner[*p as usize] = along[i];
            }
            inner
        }
        Op::Reshape => unit_reshape(p, value, along).unwrap_or_default(),
        _ => {
            debug_assert!(i < node.operands.len());
            along.clone()
        }
    }
}

/// Copies memory to memory of the same sizes.
pub(crate) fn copy(p: &mut Planner, from: &Place, to: &Place) -> Result<(), KernelError> {
    let mut f = Fusion::new(p, &to.ty.sizes);
    let from = match crate::layout::reshape(&from.ty, &to.ty.sizes) {
        Some(ty) => Place { slot: from.slot, ty },
        None => from.clone(),
    };
    let (source, target) = (f.buffer(from.slot), f.buffer(to.slot));
    let reg = f.builder.load(source, from.ty.dtype, &from.ty.strides);
    let reg = f.builder.convert(reg, to.ty.dtype);
    f.builder.store(target, reg, to.ty.dtype, &to.ty.strides);
    f.finish()
}

impl<'p, 'g> Fusion<'p, 'g> {
    fn new(planner: &'p mut Planner<'g>, sizes: &[i64]) -> Self {
        Fusion {
            planner,
            builder: Builder::new(sizes),
            sizes: Dims::from_slice(sizes),
            buffers: Vec::new(),
            done: FxHashMap::default(),
            loads: Vec::new(),
            dry: false,
        }
    }

    fn identity(&self) -> Along {
        (0..self.sizes.len()).map(Some).collect()
    }

    fn store(&mut self, reg: Reg, to: &Place) {
        let buffer = self.buffer(to.slot);
        self.builder.store(buffer, reg, to.ty.dtype, &to.ty.strides);
    }

    fn finish(self) -> Result<(), KernelError> {
        let kernel = self.builder.finish()?;
        self.planner.push(Box::new(kernel), &self.buffers);
        Ok(())
    }

    fn buffer(&mut self, slot: Slot) -> usize {
        self.buffers.iter().position(|s| *s == slot).unwrap_or_else(|| {
            self.buffers.push(slot);
            self.buffers.len() - 1
        })
    }

    fn load(&mut self, place: &Place, along: &Along) -> Reg {
        let mut strides = Dims::from_elem(0, self.sizes.len());
        for (d, at) in along.iter().enumerate() {
            if let Some(at) = at {
                strides[*at] = place.ty.strides[d];
            }
        }
        let buffer = self.buffer(place.slot);
        let reg = self.builder.load(buffer, place.ty.dtype, &strides);
        if let Slot::Argument { index, offset } = place.slot {
            self.loads.push((index, offset, strides));
        }
        reg
    }

    /// The value that the kernel is for.
    fn root(&mut self, value: Value) -> Result<Reg, KernelError> {
        let along = self.identity();
        match self.planner.place(value).cloned() {
            Some(place) => Ok(self.load(&place, &along)),
            None => self.compute(value, &along),
        }
    }

    fn value(&mut self, value: Value, along: &Along) -> Result<Reg, KernelError> {
        let key = (value, along.clone());
        if let Some(reg) = self.done.get(&key) {
            return Ok(*reg);
        }
        let reg = match self.planner.place(value).cloned() {
            Some(place) => self.load(&place, along),
            None => {
                let reg = self.compute(value, along)?;
                if !self.dry && self.planner.facts.is_kept(value) && self.is_whole(value, along) {
                    // Others want it too: it is stored on the way.
                    let to = self.planner.result(value);
                    self.store(reg, &to);
                }
                reg
            }
        };
        self.done.insert(key, reg);
        Ok(reg)
    }

    /// True if the value is elementwise what the kernel runs over.
    fn is_whole(&self, value: Value, along: &Along) -> bool {
        let node = self.planner.graph.def(value);
        node.op.is_pointwise() && node.results[0].sizes == self.sizes && *along == self.identity()
    }

    fn compute(&mut self, value: Value, along: &Along) -> Result<Reg, KernelError> {
        let node = self.planner.graph.def(value);
        let result = &node.results[0];
        let mut operands: SmallVec<[Reg; 3]> = SmallVec::new();
        for (i, operand) in node.operands.iter().enumerate() {
            let along = operand_along(self.planner, value, i, along);
            operands.push(self.value(*operand, &along)?);
        }
        Ok(match &node.op {
            Op::ScalarParam { index } => self.builder.scalar(*index, result.dtype.compute()),
            Op::Constant(c) => self.builder.constant(result.dtype.compute(), *c),
            Op::Iota { dim } => match along[*dim] {
                Some(at) => self.builder.iota(at),
                None => self.builder.constant(neuron_ir::DType::I64, neuron_ir::Scalar::I64(0)),
            },
            Op::Unary(op) => self.builder.unary(*op, operands[0]),
            Op::Binary(op) => self.builder.binary(*op, operands[0], operands[1]),
            Op::Select => self.builder.select(operands[0], operands[1], operands[2]),
            Op::Convert => self.builder.convert(operands[0], result.dtype),
            Op::Broadcast | Op::Transpose { .. } | Op::Reshape => operands[0],
            other => unreachable!("{} has been given a place", other.name()),
        })
    }
}

/// How the operand of a reshape runs, if the reshape only adds or removes extents of 1.
fn unit_reshape(p: &Planner, value: Value, along: &Along) -> Option<Along> {
    let node = p.graph.def(value);
    let (from, to) = (&p.graph.shape(node.operands[0]).sizes, &node.results[0].sizes);
    let mut kept = to.iter().zip(along).filter(|(size, _)| **size != 1);
    let inner = from
        .iter()
        .map(|size| match size {
            1 => Some(None),
            _ => kept.next().filter(|(s, _)| *s == size).map(|(_, at)| *at),
        })
        .collect::<Option<Along>>()?;
    kept.next().is_none().then_some(inner)
}
