//! Folding elementwise operators into the kernels that store their results.

use crate::plan::{Place, Planner};
use crate::program::Slot;
use neuron_ir::{Dims, Op, Value};
use neuron_kernels::KernelError;
use neuron_kernels::pointwise::{Builder, Reg};
use smallvec::SmallVec;

/// For each dimension of a value, the dimension of the iteration it runs along; `None` where it is repeated.
type Along = SmallVec<[Option<usize>; 6]>;

/// A pointwise kernel under construction.
struct Fusion<'p, 'g> {
    planner: &'p mut Planner<'g>,
    builder: Builder,
    rank: usize,
    buffers: Vec<Slot>,
    /// Registers that hold a value along given dimensions already.
    done: Vec<(Value, Along, Reg)>,
    /// Arguments read: which, from which byte on, and along which strides.
    loads: Vec<(usize, usize, Dims)>,
}

/// Stores output `k` with one kernel. False, and nothing done, where its memory is also read in another layout: then
/// the value has to be complete before it is stored.
pub(crate) fn store(p: &mut Planner, k: usize) -> Result<bool, KernelError> {
    let to = p.destination(k);
    let value = p.graph.outputs[k].value;
    let whole_launch = p.graph.outputs.len() == 1 && p.is_first_step();
    let mut f = Fusion::new(p, &to.ty.sizes);
    if whole_launch {
        // The launch's buffers as they come: the program then needs no buffer table.
        f.buffers = (0..f.planner.buffers()).map(Slot::argument).collect();
    }
    let along: Along = (0..f.rank).map(Some).collect();
    let reg = f.value(value, &along)?;
    let Slot::Argument { index, .. } = to.slot else { unreachable!("outputs are arguments of the launch") };
    let conflict = f.loads.iter().any(|(from, offset, strides)| {
        f.planner.same_memory(*from, index) && (*offset > 0 || !same_walk(&to.ty.sizes, strides, &to.ty.strides))
    });
    if conflict {
        return Ok(false);
    }
    let buffer = f.buffer(to.slot);
    f.builder.store(buffer, reg, to.ty.dtype, &to.ty.strides);
    f.finish()?;
    Ok(true)
}

/// True if both strides visit the same elements in the same order.
fn same_walk(sizes: &[i64], a: &[i64], b: &[i64]) -> bool {
    sizes.iter().zip(a.iter().zip(b)).all(|(size, (x, y))| *size == 1 || x == y)
}

/// Computes a value into a row-major temporary.
pub(crate) fn into_temporary(p: &mut Planner, value: Value) -> Result<Place, KernelError> {
    let shape = p.graph.shape(value).clone();
    let to = p.temporary(shape.dtype, &shape.sizes);
    let mut f = Fusion::new(p, &shape.sizes);
    let along: Along = (0..f.rank).map(Some).collect();
    let reg = f.value(value, &along)?;
    let buffer = f.buffer(to.slot);
    f.builder.store(buffer, reg, to.ty.dtype, &to.ty.strides);
    f.finish()?;
    Ok(to)
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
            rank: sizes.len(),
            buffers: Vec::new(),
            done: Vec::new(),
            loads: Vec::new(),
        }
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
        let mut strides = Dims::from_elem(0, self.rank);
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

    fn value(&mut self, value: Value, along: &Along) -> Result<Reg, KernelError> {
        if let Some((.., reg)) = self.done.iter().find(|(v, a, _)| *v == value && a == along) {
            return Ok(*reg);
        }
        let reg = self.compute(value, along)?;
        self.done.push((value, along.clone(), reg));
        Ok(reg)
    }

    fn compute(&mut self, value: Value, along: &Along) -> Result<Reg, KernelError> {
        if let Some(place) = self.planner.place(value).cloned() {
            return Ok(self.load(&place, along));
        }
        let node = self.planner.graph.def(value);
        let result = &node.results[0];
        let operand = |i: usize| node.operands[i];
        Ok(match &node.op {
            Op::ScalarParam { index } => self.builder.scalar(*index, result.dtype.compute()),
            Op::Constant(c) => self.builder.constant(result.dtype.compute(), *c),
            Op::Iota { dim } => match along[*dim] {
                Some(at) => self.builder.iota(at),
                None => self.builder.constant(neuron_ir::DType::I64, neuron_ir::Scalar::I64(0)),
            },
            Op::Unary(op) => {
                let a = self.value(operand(0), along)?;
                self.builder.unary(*op, a)
            }
            Op::Binary(op) => {
                let (a, b) = (self.value(operand(0), along)?, self.value(operand(1), along)?);
                self.builder.binary(*op, a, b)
            }
            Op::Select => {
                let c = self.value(operand(0), along)?;
                let (a, b) = (self.value(operand(1), along)?, self.value(operand(2), along)?);
                self.builder.select(c, a, b)
            }
            Op::Convert => {
                let a = self.value(operand(0), along)?;
                self.builder.convert(a, result.dtype)
            }
            Op::Broadcast => {
                let inner = self.planner.graph.shape(operand(0));
                let missing = result.rank() - inner.rank();
                let along: Along = (0..inner.rank())
                    .map(|d| if inner.sizes[d] == result.sizes[d + missing] { along[d + missing] } else { None })
                    .collect();
                self.value(operand(0), &along)?
            }
            Op::Transpose { permutation } => {
                let mut inner = Along::from_elem(None, permutation.len());
                for (i, p) in permutation.iter().enumerate() {
                    inner[*p as usize] = along[i];
                }
                self.value(operand(0), &inner)?
            }
            Op::Slice { .. } => {
                let place = self.planner.realize(value)?;
                self.load(&place, along)
            }
            Op::Reshape => match unit_reshape(&self.planner.graph.shape(operand(0)).sizes, &result.sizes, along) {
                Some(inner) => self.value(operand(0), &inner)?,
                None => {
                    let place = self.planner.realize(value)?;
                    self.load(&place, along)
                }
            },
            other => unreachable!("{} has been given a place", other.name()),
        })
    }
}

/// How the operand of a reshape runs, if the reshape only adds or removes extents of 1.
fn unit_reshape(from: &[i64], to: &[i64], along: &Along) -> Option<Along> {
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
