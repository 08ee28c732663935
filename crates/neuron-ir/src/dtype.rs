//! Element types, named and numbered as PyTorch's `c10::ScalarType`.

/// An element type.
///
/// Discriminants are those of `c10::ScalarType`, so a dtype crosses the C interface as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// `torch.uint8`
    U8 = 0,
    /// `torch.int8`
    I8 = 1,
    /// `torch.int16`
    I16 = 2,
    /// `torch.int32`
    I32 = 3,
    /// `torch.int64`
    I64 = 4,
    /// `torch.float16`
    F16 = 5,
    /// `torch.float32`
    F32 = 6,
    /// `torch.float64`
    F64 = 7,
    /// `torch.bool`, one byte holding 0 or 1
    Bool = 11,
    /// `torch.bfloat16`
    BF16 = 15,
    /// `torch.float8_e5m2`, see [`DType::FLOAT8`]
    F8E5M2 = 23,
    /// `torch.float8_e4m3fn`, see [`DType::FLOAT8`]
    F8E4M3 = 24,
}

impl DType {
    /// Types that tensors are stored in and converted from and to, without arithmetic: neither [`DType::is_float`] nor
    /// [`DType::is_int`].
    pub const FLOAT8: [DType; 2] = [DType::F8E5M2, DType::F8E4M3];

    /// Every element type with arithmetic.
    pub const ALL: [DType; 10] = [
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::Bool,
        DType::BF16,
    ];

    /// The dtype with this `c10::ScalarType` number, or `None` where the device has no kernels for it.
    pub fn from_c10(code: u8) -> Option<DType> {
        DType::ALL.into_iter().chain(DType::FLOAT8).find(|d| *d as u8 == code)
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::Bool | DType::F8E5M2 | DType::F8E4M3 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// True for `float16`, `bfloat16`, `float32` and `float64`.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// True for the integer types, without `bool`.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// True for the types of 8 bits that are only stored.
    pub const fn is_float8(self) -> bool {
        matches!(self, DType::F8E5M2 | DType::F8E4M3)
    }

    /// The type arithmetic on this type is carried out in: `f32` for the half floats, `i64` for integers.
    ///
    /// Wrap-around of the narrower integers is that of the final conversion, which is exact for every ring operation.
    pub const fn compute(self) -> DType {
        match self {
            DType::F16 | DType::BF16 | DType::F32 | DType::F8E5M2 | DType::F8E4M3 => DType::F32,
            DType::F64 => DType::F64,
            DType::Bool => DType::Bool,
            _ => DType::I64,
        }
    }

    /// The short name used in the text form of the IR.
    pub const fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bool => "bool",
            DType::BF16 => "bf16",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E4M3 => "f8e4m3",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c10_numbers_round_trip() {
        for d in DType::ALL.into_iter().chain(DType::FLOAT8) {
            assert_eq!(DType::from_c10(d as u8), Some(d));
        }
        assert_eq!(DType::from_c10(9), None, "complex64 has no kernels");
    }

    #[test]
    fn compute_types_are_closed() {
        for d in DType::ALL {
            assert_eq!(d.compute().compute(), d.compute());
        }
    }
}
