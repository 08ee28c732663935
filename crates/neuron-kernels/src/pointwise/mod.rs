//! Pointwise programs: the tile interpreter.
//!
//! A chain of elementwise operators runs as one pass over memory. About a thousand elements are in work at a time: each
//! instruction makes one vector pass over registers that stay in the first-level cache, the first instruction reads its
//! operand and the last one writes its result straight from and to memory where layout and type allow it. Everything
//! that depends on shapes is decided in [`Builder::finish`].
//!
//! ```
//! use neuron_ir::{BinaryOp, DType, Scalar, UnaryOp};
//! use neuron_kernels::{Kernel, pointwise::Builder};
//!
//! // tanh(2 x) of a transposed matrix
//! let mut b = Builder::new(&[3, 2]);
//! let x = b.load(0, DType::F32, &[1, 3]);
//! let two = b.constant(DType::F32, Scalar::F64(2.0));
//! let y = b.binary(BinaryOp::Mul, x, two);
//! let y = b.unary(UnaryOp::Tanh, y);
//! b.store(1, y, DType::F32, &[2, 1]);
//! let kernel = b.finish()?;
//!
//! let mut x = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
//! let mut y = [0f32; 6];
//! // SAFETY: both buffers hold the six elements that the strides reach.
//! unsafe { kernel.run(&[x.as_mut_ptr().cast(), y.as_mut_ptr().cast()], &[])? };
//! assert!((y[1] - 6f32.tanh()).abs() < 1e-6);
//! # Ok::<(), neuron_kernels::KernelError>(())
//! ```

mod convert;
mod functions;
mod layout;
mod map;
mod math;
mod ops;
mod program;
mod run;

#[cfg(test)]
mod tests;
mod transfer;
mod transpose;

use crate::KernelError;
use neuron_ir::{BinaryOp, DType, Dims, Scalar, UnaryOp};
use program::Program;

const NAME: &str = "pointwise";

/// A value of the program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg(u32);

/// How a program reaches a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    buffer: usize,
    dtype: DType,
    /// In elements.
    strides: Dims,
}

#[derive(Clone, Debug, PartialEq)]
enum Inst {
    Load(Place),
    Scalar { index: usize, dtype: DType },
    Constant { bits: u64 },
    Iota { dim: usize },
    Unary(UnaryOp, Reg),
    Binary(BinaryOp, Reg, Reg),
    Select(Reg, Reg, Reg),
    Convert(Reg, DType),
}

impl Inst {
    fn operands(&self) -> impl Iterator<Item = Reg> {
        let (a, b, c) = match *self {
            Inst::Unary(_, a) | Inst::Convert(a, _) => (Some(a), None, None),
            Inst::Binary(_, a, b) => (Some(a), Some(b), None),
            Inst::Select(a, b, c) => (Some(a), Some(b), Some(c)),
            _ => (None, None, None),
        };
        [a, b, c].into_iter().flatten()
    }
}

/// Writes a pointwise program.
///
/// Mistakes are collected and reported by [`Builder::finish`]; a register is always returned.
#[derive(Debug)]
pub struct Builder {
    sizes: Dims,
    insts: Vec<Inst>,
    /// Compute type of each register.
    types: Vec<DType>,
    stores: Vec<(Place, Reg)>,
    error: Option<KernelError>,
}

impl Builder {
    /// A program over an iteration space of these sizes.
    pub fn new(sizes: &[i64]) -> Builder {
        Builder {
            sizes: Dims::from_slice(sizes),
            insts: Vec::new(),
            types: Vec::new(),
            stores: Vec::new(),
            error: None,
        }
    }

    /// The elements of `buffer`, of type `dtype`, at `strides` in elements (0 broadcasts). The register holds
    /// `dtype.compute()`. All loads see memory as it was before the launch.
    pub fn load(&mut self, buffer: usize, dtype: DType, strides: &[i64]) -> Reg {
        let place = self.place(buffer, dtype, strides);
        self.push(Inst::Load(place), dtype.compute())
    }

    /// Scalar number `index` of the launch, rounded to `dtype`. The register holds `dtype.compute()`.
    pub fn scalar(&mut self, index: usize, dtype: DType) -> Reg {
        self.push(Inst::Scalar { index, dtype }, dtype.compute())
    }

    /// A constant, rounded to `dtype`. The register holds `dtype.compute()`.
    pub fn constant(&mut self, dtype: DType, value: Scalar) -> Reg {
        self.push(Inst::Constant { bits: convert::splat(value, dtype) }, dtype.compute())
    }

    /// The coordinate along `dim`, as `i64`.
    pub fn iota(&mut self, dim: usize) -> Reg {
        if dim >= self.sizes.len() {
            self.fail(format!("coordinate {dim} of {} dimensions", self.sizes.len()));
        }
        self.push(Inst::Iota { dim }, DType::I64)
    }

    /// `op(a)`
    pub fn unary(&mut self, op: UnaryOp, a: Reg) -> Reg {
        let class = self.class(a);
        if ops::unary(op, class, crate::simd::Level::Baseline).is_none() {
            self.fail(format!("{op} of {class}"));
        }
        self.push(Inst::Unary(op, a), if op.is_predicate() { DType::Bool } else { class })
    }

    /// `op(a, b)` of two registers of one type
    pub fn binary(&mut self, op: BinaryOp, a: Reg, b: Reg) -> Reg {
        let (class, other) = (self.class(a), self.class(b));
        let shape = ops::Shape { level: crate::simd::Level::Baseline, a: false, b: false };
        if class != other || ops::binary(op, class, shape).is_none() {
            self.fail(format!("{op} of {class} and {other}"));
        }
        self.push(Inst::Binary(op, a, b), if op.is_comparison() { DType::Bool } else { class })
    }

    /// `a` where `c` (a `bool` register) is true, else `b`
    pub fn select(&mut self, c: Reg, a: Reg, b: Reg) -> Reg {
        let (x, y, z) = (self.class(c), self.class(a), self.class(b));
        if x != DType::Bool || y != z {
            self.fail(format!("select by {x} of {y} and {z}"));
        }
        self.push(Inst::Select(c, a, b), y)
    }

    /// `a` rounded or wrapped to `to`, as PyTorch converts on the CPU. The register holds `to.compute()`.
    pub fn convert(&mut self, a: Reg, to: DType) -> Reg {
        if self.class(a) == to {
            return a;
        }
        self.push(Inst::Convert(a, to), to.compute())
    }

    /// Writes `value`, converted to `dtype`, to `buffer` at `strides` in elements.
    ///
    /// The elements are distinct. The buffer may be one that is loaded from, with the same address, strides and type.
    pub fn store(&mut self, buffer: usize, value: Reg, dtype: DType, strides: &[i64]) {
        let place = self.place(buffer, dtype, strides);
        let empty = self.sizes.contains(&0);
        if !empty && self.sizes.iter().zip(strides).any(|(n, s)| *n > 1 && *s == 0) {
            self.fail("a store to an expanded dimension".into());
        }
        let mut value = value;
        if self.class(value) != dtype.compute() {
            value = self.convert(value, dtype);
        }
        // The store rounds by itself.
        if let Some(&Inst::Convert(from, to)) = self.insts.get(value.0 as usize)
            && to == dtype
            && self.class(from) == dtype.compute()
        {
            value = from;
        }
        self.stores.push((place, value));
    }

    /// The kernel.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for an operator without meaning for its operands, or a malformed program.
    pub fn finish(self) -> Result<Pointwise, KernelError> {
        match self.error {
            Some(error) => Err(error),
            None => Pointwise::new(&self),
        }
    }

    fn place(&mut self, buffer: usize, dtype: DType, strides: &[i64]) -> Place {
        if strides.len() != self.sizes.len() || self.sizes.iter().any(|s| *s < 0) {
            self.fail(format!("strides {strides:?} for sizes {:?}", self.sizes));
        }
        Place { buffer, dtype, strides: Dims::from_slice(strides) }
    }

    /// Equal instructions are one; operators have no effect besides their value.
    fn push(&mut self, inst: Inst, class: DType) -> Reg {
        let known = self.insts.iter().zip(&self.types).position(|(i, t)| *i == inst && *t == class);
        let index = known.unwrap_or_else(|| {
            self.insts.push(inst);
            self.types.push(class);
            self.insts.len() - 1
        });
        Reg(index as u32)
    }

    fn class(&mut self, r: Reg) -> DType {
        match self.types.get(r.0 as usize) {
            Some(class) => *class,
            None => {
                self.fail(format!("register {} of another program", r.0));
                DType::F32
            }
        }
    }

    fn fail(&mut self, what: String) {
        self.error.get_or_insert(KernelError::Unsupported { kernel: NAME, what });
    }
}

/// A pointwise program for one iteration space.
#[derive(Debug)]
pub struct Pointwise {
    layout: layout::Layout,
    /// Buffer of each view, `None` for coordinates.
    view_buffers: Vec<Option<usize>>,
    /// Buffers loaded from and stored to.
    loaded: Vec<usize>,
    stored: Vec<usize>,
    /// How many buffers and scalars a launch has to bring.
    buffers: usize,
    scalars: usize,
    /// For stores to memory that nothing is loaded from: results go straight there.
    separate: Program,
    /// For in-place launches: stores come last.
    in_place: Program,
    /// Tiles per task, for launches worth sharing.
    tiles_per_task: usize,
    /// Nanoseconds.
    cost: u64,
}

impl Pointwise {
    fn new(b: &Builder) -> Result<Pointwise, KernelError> {
        program::compile(b)
    }
}
