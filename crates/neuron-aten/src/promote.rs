//! PyTorch's type promotion: `torch.result_type`.

use neuron_ir::DType;

/// The type two tensors of equal standing promote to: `torch.promote_types`.
pub fn promote(a: DType, b: DType) -> DType {
    use DType::{BF16, Bool, F16, F32, I8, I16, U8};
    if a == b {
        return a;
    }
    match (a.is_float(), b.is_float()) {
        (true, false) => return a,
        (false, true) => return b,
        (true, true) => {
            let (small, large) = if a.size() <= b.size() { (a, b) } else { (b, a) };
            return if matches!((small, large), (F16, BF16) | (BF16, F16)) { F32 } else { large };
        }
        (false, false) => {}
    }
    match (a, b) {
        (Bool, x) | (x, Bool) => x,
        (U8, I8) | (I8, U8) => I16,
        // u8 fits every wider signed type; among signed types the wider wins.
        _ if a.size() >= b.size() => a,
        _ => b,
    }
}

/// What an operand counts for in promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A tensor with dimensions.
    Tensor,
    /// A 0-dimensional tensor: decides only if no tensor with dimensions is of its category or above.
    ZeroDim,
    /// A Python number.
    Number,
}

/// The common type of operands: `torch.result_type`. Python floats count as `f32`, PyTorch's default type.
pub fn result_type(operands: &[(DType, Standing)]) -> DType {
    let merge = |standing: Standing| {
        operands
            .iter()
            .filter(|o| o.1 == standing)
            .map(|o| match (standing, o.0) {
                (Standing::Number, d) if d.is_float() => DType::F32,
                (_, d) => d,
            })
            .reduce(promote)
    };
    let category = |d: DType| match d {
        DType::Bool => 0,
        d if d.is_int() => 1,
        _ => 2,
    };
    let combine = |higher: Option<DType>, lower: Option<DType>| match (higher, lower) {
        (Some(h), Some(l)) if category(l) > category(h) => Some(promote(h, l)),
        (Some(h), _) => Some(h),
        (None, l) => l,
    };
    combine(merge(Standing::Tensor), combine(merge(Standing::ZeroDim), merge(Standing::Number))).unwrap_or(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use Standing::*;

    #[test]
    fn pairs() {
        assert_eq!(promote(F16, BF16), F32);
        assert_eq!(promote(U8, I8), I16);
        assert_eq!(promote(U8, I64), I64);
        assert_eq!(promote(I64, F16), F16);
        assert_eq!(promote(Bool, U8), U8);
        assert_eq!(promote(F32, F64), F64);
    }

    #[test]
    fn standing_decides() {
        assert_eq!(result_type(&[(I64, Tensor), (F64, Number)]), F32);
        assert_eq!(result_type(&[(BF16, Tensor), (F32, ZeroDim)]), BF16);
        assert_eq!(result_type(&[(I32, Tensor), (I64, ZeroDim)]), I32);
        assert_eq!(result_type(&[(Bool, Tensor), (I64, Number)]), I64);
        assert_eq!(result_type(&[(F64, ZeroDim), (F64, Number)]), F64);
        assert_eq!(result_type(&[(I64, Tensor), (F64, ZeroDim)]), F64);
    }
}
