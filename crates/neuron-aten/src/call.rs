//! One operator call, as the C++ adapter describes it: everything but addresses and scalar values.
//!
//! The description is a sequence of 64-bit words that serves as the key of the plan cache; its layout is documented in
//! `csrc/call.h`, and [`Call::decode`] is the only reader.

use crate::LowerError;
use neuron_ir::{DType, Dims, TensorType, contiguous_strides};

const CONTIGUOUS: u64 = 1;
const HOST_SCALAR: u64 = 2;
const WRAPPED: u64 = 4;

/// What kind of Python number a scalar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// `int`
    Int,
    /// `float`
    Float,
    /// `bool`
    Bool,
}

/// A Python number whose value is known at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarArg {
    /// Position among the scalars of the launch.
    pub index: usize,
    /// Its Python type.
    pub kind: ScalarKind,
    /// The value is 0.
    pub zero: bool,
    /// The value is 1.
    pub one: bool,
    /// The value is 2.
    pub two: bool,
    /// The value as a float, for operators whose key has it.
    pub value: Option<Known>,
}

/// A number that is part of a call's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known(u64);

impl Known {
    /// The number of this value.
    pub fn of(number: f64) -> Known {
        Known(number.to_bits())
    }

    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// A tensor argument.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorArg {
    /// Layout; the element type decides promotion.
    pub ty: TensorType,
    /// Where its content comes from.
    pub source: Source,
    /// A Python number wrapped into a tensor: weak in promotion.
    pub wrapped: bool,
}

/// Where the content of a tensor argument comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Device memory: tensor `index` of the launch, which shares memory with an earlier one if `alias` is set.
    Device {
        /// Position among the tensors of the launch.
        index: usize,
        /// An earlier tensor at the same address.
        alias: Option<usize>,
    },
    /// A 0-dimensional CPU tensor: scalar `index` of the launch.
    Host {
        /// Position among the scalars of the launch.
        index: usize,
    },
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// `None`, an undefined tensor, or something that does not matter to lowering (a generator, a device).
    None,
    /// A tensor.
    Tensor(TensorArg),
    /// A number whose value is known at launch.
    Scalar(ScalarArg),
    /// An `int`, also a dtype, layout or memory format.
    Int(i64),
    /// A `bool`.
    Bool(bool),
    /// A `float`.
    Float(f64),
    /// A list of `int`.
    IntList(Dims),
    /// A list of `float`.
    FloatList(Vec<f64>),
    /// A list of `bool`.
    BoolList(Vec<bool>),
    /// A list of tensors, optional tensors or scalars; also any empty list.
    List(Vec<Arg>),
    /// A string.
    Str(String),
}

impl Arg {
    /// True if this is, or has in it, a tensor of a type for which `of` is true.
    pub fn has_dtype(&self, of: &dyn Fn(DType) -> bool) -> bool {
        match self {
            Arg::Tensor(t) => of(t.ty.dtype),
            Arg::List(list) => list.iter().any(|a| a.has_dtype(of)),
            _ => false,
        }
    }
}

/// A decoded call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Position of the operator in the table.
    pub op: usize,
    /// The arguments in the order of the schema.
    pub args: Vec<Arg>,
    /// How many device tensors there are.
    pub tensors: usize,
    /// How many scalars there are, without the seed and offset of random operators.
    pub scalars: usize,
}

struct Reader<'a> {
    words: &'a [u64],
    at: usize,
    tensors: usize,
    scalars: usize,
}

impl Call {
    /// Decodes a key.
    ///
    /// # Errors
    /// [`LowerError::Unsupported`] for an element type without kernels.
    ///
    /// # Panics
    /// On words the adapter does not write: a bug in this project.
    pub fn decode(words: &[u64]) -> Result<Call, LowerError> {
        let op = (words[0] & 0xffff_ffff) as usize;
        let count = (words[0] >> 32) as usize;
        let mut r = Reader { words, at: 1, tensors: 0, scalars: 0 };
        let args = (0..count).map(|_| r.arg()).collect::<Result<_, _>>()?;
        Ok(Call { op, args, tensors: r.tensors, scalars: r.scalars })
    }
}

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        self.at += 1;
        self.words[self.at - 1]
    }

    fn ints(&mut self, n: usize) -> Dims {
        (0..n).map(|_| self.word() as i64).collect()
    }

    fn arg(&mut self) -> Result<Arg, LowerError> {
        let word = self.word();
        let payload = word >> 8;
        let len = payload as usize;
        Ok(match word & 0xff {
            0 => Arg::None,
            1 => Arg::Tensor(self.tensor(payload)?),
            2 => {
                self.scalars += 1;
                let float = payload & 0xff == 1;
                let value = (payload >> 11 & 1 != 0).then(|| self.word());
                let value = value.map(|bits| Known::of(if float { f64::from_bits(bits) } else { bits as i64 as f64 }));
                Arg::Scalar(ScalarArg {
                    value,
                    index: self.scalars - 1,
                    kind: match payload & 0xff {
                        0 => ScalarKind::Int,
                        1 => ScalarKind::Float,
                        _ => ScalarKind::Bool,
                    },
                    zero: payload >> 8 & 1 != 0,
                    one: payload >> 9 & 1 != 0,
                    two: payload >> 10 & 1 != 0,
                })
            }
            3 => Arg::Int(self.word() as i64),
            4 => Arg::Bool(payload != 0),
            5 => Arg::Float(f64::from_bits(self.word())),
            6 => Arg::IntList(self.ints(len)),
            7 => Arg::FloatList((0..len).map(|_| f64::from_bits(self.word())).collect()),
            8 => Arg::BoolList((0..len).map(|_| self.word() != 0).collect()),
            9 => Arg::List((0..len).map(|_| self.arg()).collect::<Result<_, _>>()?),
            10 => {
                let bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).collect();
                Arg::Str(String::from_utf8_lossy(&bytes[..len]).into_owned())
            }
            tag => panic!("call key: unknown tag {tag}"),
        })
    }

    fn tensor(&mut self, payload: u64) -> Result<TensorArg, LowerError> {
        let code = (payload & 0xff) as u8;
        let rank = (payload >> 8 & 0xff) as usize;
        let flags = payload >> 16 & 0xff;
        let alias = (payload >> 24 & 0xffff_ffff) as usize;
        let dtype = DType::from_c10(code).ok_or_else(|| LowerError::unsupported(format!("dtype number {code}")))?;
        if flags & HOST_SCALAR != 0 {
            self.scalars += 1;
            return Ok(TensorArg {
                ty: TensorType::contiguous(dtype, &[]),
                source: Source::Host { index: self.scalars - 1 },
                wrapped: flags & WRAPPED != 0,
            });
        }
        let sizes = self.ints(rank);
        let strides = if flags & CONTIGUOUS != 0 { contiguous_strides(&sizes) } else { self.ints(rank) };
        self.tensors += 1;
        Ok(TensorArg {
            ty: TensorType { dtype, sizes, strides },
            source: Source::Device { index: self.tensors - 1, alias: alias.checked_sub(1) },
            wrapped: flags & WRAPPED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_the_adapter_writes() {
        // op 7 with (f32[2,3] contiguous, a wrapped double, int list [4, 5], "sum")
        let words = [
            7 | 4 << 32,
            1 | (6 | 2 << 8 | CONTIGUOUS << 16) << 8,
            2,
            3,
            1 | (7 | (HOST_SCALAR | WRAPPED) << 16) << 8,
            6 | 2 << 8,
            4,
            5,
            10 | 3 << 8,
            u64::from_le_bytes(*b"sum\0\0\0\0\0"),
        ];
        let call = Call::decode(&words).unwrap();
        assert_eq!((call.op, call.tensors, call.scalars), (7, 1, 1));
        assert!(matches!(&call.args[0], Arg::Tensor(t) if t.ty == TensorType::contiguous(DType::F32, &[2, 3])));
        assert!(matches!(&call.args[1], Arg::Tensor(t) if t.wrapped && t.source == Source::Host { index: 0 }));
        assert_eq!(call.args[2], Arg::IntList(Dims::from_slice(&[4, 5])));
        assert_eq!(call.args[3], Arg::Str("sum".into()));
    }

    #[test]
    fn unknown_dtype_is_unsupported() {
        assert!(matches!(Call::decode(&[1 << 32, 1 | 9 << 8]), Err(LowerError::Unsupported { .. })));
    }
}
