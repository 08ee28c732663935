//! What a lowering works with: the call, the outputs PyTorch asks for, and the graph under construction.

use crate::call::{Arg, Call, ScalarArg, ScalarKind, Source, TensorArg};
use crate::promote::{Standing, result_type};
use neuron_ir::{
    BinaryOp, CheckOp, DType, Destination, Dims, Graph, GraphBuilder, Op, Scalar, Shape, TensorType, UnaryOp, Value,
};
use thiserror::Error;

/// Why an operator was not lowered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LowerError {
    /// This combination of arguments has no lowering; the operator runs on the CPU.
    #[error("{what}")]
    Unsupported {
        /// What is not covered.
        what: String,
    },
}

impl LowerError {
    /// No lowering for `what`.
    pub fn unsupported(what: impl Into<String>) -> Self {
        LowerError::Unsupported { what: what.into() }
    }
}

/// A lowering's outcome.
pub type Lowered = Result<(), LowerError>;

/// An output as PyTorch wants it: layout from the meta kernel, memory new or an argument's.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputType {
    /// Layout.
    pub ty: TensorType,
    /// The device tensor argument that is written, or `None` for a new tensor.
    pub argument: Option<usize>,
}

/// A value together with the type PyTorch computes it in: what it is rounded to before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Typed {
    /// The value, in `dtype.compute()` or in `dtype`.
    pub value: Value,
    /// The type of the result before a cast to that of the output.
    pub dtype: DType,
}

/// The context of one lowering.
pub struct Lower<'a> {
    call: &'a Call,
    outputs: &'a [Option<OutputType>],
    /// The graph; its first values are the device tensors in order.
    pub g: GraphBuilder,
    params: Vec<Value>,
    fresh: usize,
    next: usize,
    random: u64,
}

impl<'a> Lower<'a> {
    /// Starts a lowering: every device tensor becomes a parameter of the graph.
    pub fn new(call: &'a Call, outputs: &'a [Option<OutputType>]) -> Self {
        let mut l =
            Lower { call, outputs, g: GraphBuilder::default(), params: Vec::new(), fresh: 0, next: 0, random: 0 };
        for arg in &call.args {
            l.declare(arg);
        }
        l
    }

    fn declare(&mut self, arg: &Arg) {
        match arg {
            Arg::Tensor(TensorArg { ty, source: Source::Device { index, alias }, .. }) => {
                let value = self.g.param(ty.clone());
                self.params.push(value);
                if let Some(earlier) = alias {
                    self.g.alias(*earlier, *index);
                }
            }
            Arg::List(list) => list.iter().for_each(|a| self.declare(a)),
            _ => {}
        }
    }

    /// The finished graph, and how many values of the generator it consumes.
    pub fn finish(self) -> (Graph, u64) {
        (self.g.finish(), self.random)
    }

    // --- arguments -------------------------------------------------------------------------------------------------

    /// Argument `i`; `None` past the end, as for an omitted one.
    pub fn arg(&self, i: usize) -> &'a Arg {
        self.call.args.get(i).unwrap_or(&Arg::None)
    }

    /// The `int` argument `i`.
    pub fn int(&self, i: usize) -> Result<i64, LowerError> {
        match self.arg(i) {
            Arg::Int(v) => Ok(*v),
            Arg::Bool(v) => Ok(i64::from(*v)),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where an int is expected"))),
        }
    }

    /// The `bool` argument `i`; false where absent.
    pub fn flag(&self, i: usize) -> bool {
        matches!(self.arg(i), Arg::Bool(true))
    }

    /// The `float` argument `i`, or `default` where it is `None`.
    pub fn float_or(&self, i: usize, default: f64) -> f64 {
        match self.arg(i) {
            Arg::Float(v) => *v,
            Arg::Int(v) => *v as f64,
            _ => default,
        }
    }

    /// The `int[]` argument `i`, or `None` where it is `None`; a single int counts as a list.
    pub fn ints(&self, i: usize) -> Option<Dims> {
        match self.arg(i) {
            Arg::IntList(v) => Some(v.clone()),
            Arg::List(v) if v.is_empty() => Some(Dims::new()),
            Arg::Int(v) => Some(Dims::from_slice(&[*v])),
            _ => None,
        }
    }

    /// The string argument `i`, empty where absent.
    pub fn str(&self, i: usize) -> &'a str {
        match self.arg(i) {
            Arg::Str(s) => s,
            _ => "",
        }
    }

    /// The list argument `i`.
    pub fn list(&self, i: usize) -> Result<&'a [Arg], LowerError> {
        match self.arg(i) {
            Arg::List(v) => Ok(v),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a list is expected"))),
        }
    }

    /// The tensor argument `i`.
    pub fn tensor_arg(&self, i: usize) -> Result<&'a TensorArg, LowerError> {
        as_tensor(self.arg(i), i)
    }

    /// Layout of tensor argument `i`.
    pub fn ty(&self, i: usize) -> Result<&'a TensorType, LowerError> {
        Ok(&self.tensor_arg(i)?.ty)
    }

    /// True if argument `i` is a tensor.
    pub fn has_tensor(&self, i: usize) -> bool {
        matches!(self.arg(i), Arg::Tensor(_))
    }

    /// The content of tensor argument `i`, in its own type.
    pub fn tensor(&mut self, i: usize) -> Result<Value, LowerError> {
        let t = self.tensor_arg(i)?;
        Ok(self.value_of(t))
    }

    /// The content of a tensor argument, in its own type (a host scalar: in its compute type).
    pub fn value_of(&mut self, t: &TensorArg) -> Value {
        match t.source {
            Source::Device { index, .. } => self.params[index],
            Source::Host { index } => self.g.scalar(index, t.ty.dtype.compute()),
        }
    }

    /// Dimension argument `i` of a tensor of this rank, negative counting from the end.
    pub fn dim(&self, i: usize, rank: usize) -> Result<usize, LowerError> {
        wrap_dim(self.int(i)?, rank)
    }

    /// The dimensions argument `i` names, ascending; all of them where it is `None` or empty.
    pub fn dims(&self, i: usize, rank: usize) -> Result<Dims, LowerError> {
        let given = self.ints(i).unwrap_or_default();
        if given.is_empty() {
            return Ok((0..rank as i64).collect());
        }
        let mut dims: Dims = given.iter().map(|d| wrap_dim(*d, rank).map(|d| d as i64)).collect::<Result<_, _>>()?;
        dims.sort_unstable();
        dims.dedup();
        if rank == 0 {
            dims.clear();
        }
        Ok(dims)
    }

    // --- operands of arithmetic --------------------------------------------------------------------------------------

    /// What argument `i` counts for in type promotion.
    pub fn standing(&self, i: usize) -> Result<(DType, Standing), LowerError> {
        match self.arg(i) {
            Arg::Tensor(t) => Ok(standing_of(t)),
            Arg::Scalar(s) => Ok((
                match s.kind {
                    ScalarKind::Int => DType::I64,
                    ScalarKind::Float => DType::F64,
                    ScalarKind::Bool => DType::Bool,
                },
                Standing::Number,
            )),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a number is expected"))),
        }
    }

    /// The common type of arguments, by PyTorch's promotion.
    pub fn common(&self, args: &[usize]) -> Result<DType, LowerError> {
        let operands = args.iter().map(|i| self.standing(*i)).collect::<Result<Vec<_>, _>>()?;
        Ok(result_type(&operands))
    }

    /// Argument `i`, a tensor or a scalar, rounded to `common` and widened to its compute type.
    pub fn operand(&mut self, i: usize, common: DType) -> Result<Value, LowerError> {
        let value = self.wide_operand(i, common)?;
        let exact = self.standing(i)?.0 == common;
        Ok(if exact { value } else { self.round(value, common) })
    }

    /// Argument `i` in the compute type of `common`. A Python number is not rounded to `common` before: arithmetic with
    /// half floats takes numbers at full precision.
    pub fn wide_operand(&mut self, i: usize, common: DType) -> Result<Value, LowerError> {
        match self.arg(i) {
            Arg::Tensor(t) => {
                let number = matches!(t.source, Source::Host { .. });
                let value = self.value_of(t);
                let value = if number || t.ty.dtype == common { value } else { self.g.convert(value, common) };
                Ok(self.g.convert(value, common.compute()))
            }
            Arg::Scalar(s) => Ok(self.number(*s, common.compute())),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a number is expected"))),
        }
    }

    /// A scalar argument as a 0-dimensional value of `dtype`; 0, 1 and 2 are constants.
    pub fn number(&mut self, s: ScalarArg, dtype: DType) -> Value {
        match (s.zero, s.one, s.two) {
            (true, ..) => self.g.constant(dtype, Scalar::I64(0)),
            (_, true, _) => self.g.constant(dtype, Scalar::I64(1)),
            (.., true) => self.g.constant(dtype, Scalar::I64(2)),
            _ => self.g.scalar(s.index, dtype),
        }
    }

    /// The scalar argument `i`.
    pub fn scalar(&self, i: usize) -> Result<ScalarArg, LowerError> {
        match self.arg(i) {
            Arg::Scalar(s) => Ok(*s),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a Scalar is expected"))),
        }
    }

    /// The value of scalar argument `i` of an operator whose key has it; `default` where it is `None`.
    pub fn known(&self, i: usize, default: f64) -> Result<f64, LowerError> {
        match self.arg(i) {
            Arg::None => Ok(default),
            Arg::Float(v) => Ok(*v),
            Arg::Scalar(ScalarArg { value: Some(value), .. }) => Ok(value.get()),
            other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a known number is expected"))),
        }
    }

    /// Positions `start` to `start + length` of a dimension.
    pub fn slice(&mut self, value: Value, dim: usize, start: i64, length: i64) -> Value {
        let mut shape = self.g.shape(value).clone();
        shape.sizes[dim] = length;
        self.g.op(Op::Slice { dim, start, step: 1 }, &[value], shape)
    }

    /// The numbers from 0 to below `n`, as `i64`.
    pub fn iota(&mut self, n: i64) -> Value {
        self.g.op(Op::Iota { dim: 0 }, &[], Shape::new(DType::I64, &[n]))
    }

    /// A 0-dimensional value as one of one dimension, as operators along a dimension see it.
    pub fn at_least_1d(&mut self, value: Value) -> Value {
        if self.g.shape(value).rank() == 0 { self.g.reshape(value, &[1]) } else { value }
    }

    /// `value * scalar argument i`; nothing is added where that is absent or 1. The factor stays an argument of the launch:
    /// a product takes it up.
    pub fn scaled(&mut self, value: Value, i: usize) -> Result<Value, LowerError> {
        match self.arg(i) {
            Arg::None => Ok(value),
            Arg::Scalar(s) if s.one => Ok(value),
            _ => {
                let s = self.scalar(i)?;
                let dtype = self.g.dtype(value);
                let factor = self.g.scalar(s.index, dtype);
                Ok(self.g.binary(BinaryOp::Mul, value, factor))
            }
        }
    }

    /// A value of a compute type rounded to `dtype` and widened again.
    pub fn round(&mut self, value: Value, dtype: DType) -> Value {
        let rounded = self.g.convert(value, dtype);
        self.g.convert(rounded, dtype.compute())
    }

    /// A constant of `dtype`.
    pub fn constant(&mut self, dtype: DType, value: f64) -> Value {
        self.g.constant(dtype, Scalar::F64(value))
    }

    /// Shorthand for a unary operator.
    pub fn un(&mut self, op: UnaryOp, a: Value) -> Value {
        self.g.unary(op, a)
    }

    /// Shorthand for a binary operator.
    pub fn bin(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.g.binary(op, a, b)
    }

    /// `op(a, constant)`.
    pub fn with_constant(&mut self, op: BinaryOp, a: Value, c: f64) -> Value {
        let dtype = self.g.dtype(a);
        let c = self.constant(dtype, c);
        self.g.binary(op, a, c)
    }

    /// Makes a launch fail where an element of `value` is not what it has to be.
    pub fn require(&mut self, check: CheckOp, value: Value) {
        self.g.op(Op::Check(check), &[value], Shape::new(DType::Bool, &[]));
    }

    // --- outputs -------------------------------------------------------------------------------------------------------

    /// Layout of output `k`.
    pub fn out(&self, k: usize) -> Result<&'a TensorType, LowerError> {
        match self.outputs.get(k) {
            Some(Some(o)) => Ok(&o.ty),
            _ => Err(LowerError::unsupported(format!("output {k} is absent"))),
        }
    }

    /// How many outputs there are.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// True if output `k` is a new tensor, not one the caller gave.
    pub fn is_fresh(&self, k: usize) -> bool {
        matches!(self.outputs.get(k), Some(Some(o)) if o.argument.is_none())
    }

    /// Stores the next output (refused where PyTorch does not cast to the given tensor's type): rounds to the type PyTorch computes in, casts to the output's, broadcasts, reshapes a
    /// reduction's kept dimensions away.
    pub fn store(&mut self, result: Typed) -> Lowered {
        let Some(output) = &self.outputs[self.next] else {
            self.next += 1;
            return Ok(());
        };
        if output.argument.is_some() && !can_cast(result.dtype, output.ty.dtype) {
            let (from, to) = (result.dtype, output.ty.dtype);
            return Err(LowerError::unsupported(format!("a result of {from} stored into {to}")));
        }
        let value = self.g.convert(result.value, result.dtype);
        let value = self.g.convert(value, output.ty.dtype);
        let value = if self.g.shape(value).numel() == output.ty.numel() && self.g.shape(value).sizes != output.ty.sizes
        {
            self.g.reshape(value, &output.ty.sizes)
        } else {
            self.g.broadcast(value, &output.ty.sizes)
        };
        let to = match output.argument {
            Some(i) => Destination::Param(i),
            None => {
                self.fresh += 1;
                Destination::Fresh(self.fresh - 1)
            }
        };
        self.g.output(value, to, output.ty.clone());
        self.next += 1;
        Ok(())
    }

    /// Writes tensor argument `i`, which the schema does not declare as written.
    pub fn write(&mut self, i: usize, result: Typed) -> Lowered {
        let t = self.tensor_arg(i)?;
        let Source::Device { index, .. } = t.source else {
            return Err(LowerError::unsupported("a result written to the host"));
        };
        let value = self.g.convert(result.value, result.dtype);
        let value = self.g.convert(value, t.ty.dtype);
        let value = self.g.reshape(value, &t.ty.sizes);
        self.g.output(value, Destination::Param(index), t.ty.clone());
        Ok(())
    }

    /// Leaves the next output, memory the caller gave, as it is.
    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Stores a value that already has the type PyTorch computes in.
    pub fn store_value(&mut self, value: Value) -> Lowered {
        let dtype = self.g.dtype(value);
        self.store(Typed { value, dtype })
    }

    /// A random tensor of `sizes` from this launch's seed and offset; `values` is what one element consumes.
    ///
    /// Several in one graph draw from disjoint ranges.
    pub fn random(&mut self, op: neuron_ir::RandomOp, dtype: DType, sizes: &[i64], values: u64) -> Value {
        if sizes.contains(&0) {
            let nothing = self.g.constant(dtype, Scalar::I64(0));
            return self.g.broadcast(nothing, sizes);
        }
        let seed = self.g.scalar(self.call.scalars, DType::I64);
        let mut offset = self.g.scalar(self.call.scalars + 1, DType::I64);
        if self.random > 0 {
            let taken = self.g.constant(DType::I64, Scalar::I64(self.random as i64));
            offset = self.g.binary(BinaryOp::Add, offset, taken);
        }
        let shape = Shape::new(dtype, sizes);
        self.random += (shape.numel() as u64 * values).next_multiple_of(4);
        self.g.op(Op::Random(op), &[seed, offset], shape)
    }

    /// Reserves generator values for a kernel that draws by itself; returns `(seed, offset)`.
    pub fn reserve_random(&mut self, values: u64) -> (Value, Value) {
        let seed = self.g.scalar(self.call.scalars, DType::I64);
        let offset = self.g.scalar(self.call.scalars + 1, DType::I64);
        self.random += values.next_multiple_of(4);
        (seed, offset)
    }
}

/// Whether PyTorch stores a result of one type into a given tensor of another: `torch.can_cast`.
fn can_cast(from: DType, to: DType) -> bool {
    match (from, to) {
        (f, t) if f.is_float() => t.is_float(),
        (f, DType::Bool) => f == DType::Bool,
        _ => true,
    }
}

/// A tensor argument, or why it is none.
pub fn as_tensor(arg: &Arg, i: usize) -> Result<&TensorArg, LowerError> {
    match arg {
        Arg::Tensor(t) => Ok(t),
        other => Err(LowerError::unsupported(format!("argument {i}: {other:?} where a tensor is expected"))),
    }
}

/// What a tensor counts for in type promotion.
pub fn standing_of(t: &TensorArg) -> (DType, Standing) {
    let standing = match (t.wrapped, t.ty.rank()) {
        (true, _) => Standing::Number,
        (false, 0) => Standing::ZeroDim,
        _ => Standing::Tensor,
    };
    (t.ty.dtype, standing)
}

/// A dimension, negative counting from the end; a 0-dimensional tensor has dimension 0.
pub fn wrap_dim(dim: i64, rank: usize) -> Result<usize, LowerError> {
    let extent = rank.max(1) as i64;
    let wrapped = if dim < 0 { dim + extent } else { dim };
    if (0..extent).contains(&wrapped) {
        Ok(wrapped as usize)
    } else {
        Err(LowerError::unsupported(format!("dimension {dim} of a tensor with {rank}")))
    }
}
