//! Special functions, and the elementwise operators built of a handful of simple ones.

use super::binary::common_float;
use super::unary::float_type;
use super::{Row, overloads};
use crate::call::Arg;
use crate::lower::{Lower, LowerError, Lowered, Typed};
use neuron_ir::{BinaryOp, DType, UnaryOp, Value};

/// The functional and `out=` overloads of an operator without an in-place one.
macro_rules! pure {
    ($name:literal) => {
        &[concat!("aten::", $name), concat!("aten::", $name, ".out")]
    };
}

pub(super) const ROWS: &[Row] = &[
    (overloads!("digamma"), |l| unary(l, UnaryOp::Digamma)),
    (&["aten::polygamma", "aten::polygamma_", "aten::polygamma.out"], polygamma),
    (overloads!("mvlgamma"), mvlgamma),
    (overloads!("i0"), |l| unary(l, UnaryOp::I0)),
    (pure!("special_i0e"), |l| unary(l, UnaryOp::I0e)),
    (pure!("special_i1"), |l| unary(l, UnaryOp::I1)),
    (pure!("special_i1e"), |l| unary(l, UnaryOp::I1e)),
    (pure!("special_bessel_j0"), |l| whole_unary(l, UnaryOp::BesselJ0)),
    (pure!("special_bessel_j1"), |l| whole_unary(l, UnaryOp::BesselJ1)),
    (pure!("special_bessel_y0"), |l| whole_unary(l, UnaryOp::BesselY0)),
    (pure!("special_bessel_y1"), |l| whole_unary(l, UnaryOp::BesselY1)),
    (pure!("special_modified_bessel_i0"), |l| whole_unary(l, UnaryOp::I0)),
    (pure!("special_modified_bessel_i1"), |l| whole_unary(l, UnaryOp::I1)),
    (pure!("special_modified_bessel_k0"), |l| whole_unary(l, UnaryOp::K0)),
    (pure!("special_modified_bessel_k1"), |l| whole_unary(l, UnaryOp::K1)),
    (pure!("special_scaled_modified_bessel_k0"), |l| whole_unary(l, UnaryOp::K0e)),
    (pure!("special_scaled_modified_bessel_k1"), |l| whole_unary(l, UnaryOp::K1e)),
    (pure!("special_spherical_bessel_j0"), |l| whole_unary(l, UnaryOp::SphericalBesselJ0)),
    (pure!("special_airy_ai"), |l| whole_unary(l, UnaryOp::AiryAi)),
    (pure!("special_ndtri"), |l| whole_unary(l, UnaryOp::Ndtri)),
    (pure!("special_log_ndtr"), |l| whole_unary(l, UnaryOp::LogNdtr)),
    (pure!("special_erfcx"), |l| whole_unary(l, UnaryOp::Erfcx)),
    (pure!("special_entr"), entr),
    (overloads!("sinc"), sinc),
    (&["aten::logit", "aten::logit_", "aten::logit.out"], logit),
    (&["aten::logit_backward", "aten::logit_backward.grad_input"], logit_backward),
    (&["aten::frexp.Tensor", "aten::frexp.Tensor_out"], frexp),
    (&["aten::nan_to_num", "aten::nan_to_num_", "aten::nan_to_num.out"], nan_to_num),
    (&["aten::round.decimals", "aten::round_.decimals", "aten::round.decimals_out"], round_decimals),
    (pure!("isposinf"), |l| is_infinity(l, f64::INFINITY)),
    (pure!("isneginf"), |l| is_infinity(l, f64::NEG_INFINITY)),
    (pure!("angle"), angle),
    (&["aten::conj_physical.out", "aten::conj_physical_"], conj_physical),
    (&["aten::xlogy.Tensor", "aten::xlogy_.Tensor", "aten::xlogy.OutTensor"], |l| x_log(l, UnaryOp::Log)),
    (pure!("special_xlog1py"), |l| x_log(l, UnaryOp::Log1p)),
    (pure!("special_zeta"), |l| whole_binary(l, BinaryOp::Zeta)),
    (overloads!("igamma"), |l| same_floats(l, BinaryOp::Igamma)),
    (overloads!("igammac"), |l| same_floats(l, BinaryOp::Igammac)),
    (pure!("logaddexp"), |l| log_sum(l, UnaryOp::Exp, UnaryOp::Log1p, 1.0)),
    (pure!("logaddexp2"), |l| log_sum(l, UnaryOp::Exp2, UnaryOp::Log1p, std::f64::consts::LOG2_E)),
    (overloads!("nextafter"), nextafter),
    (overloads!("gcd"), |l| integers(l, BinaryOp::Gcd)),
    (overloads!("lcm"), |l| integers(l, BinaryOp::Lcm)),
    (overloads!("heaviside"), heaviside),
    (pure!("special_chebyshev_polynomial_t"), |l| whole_binary(l, BinaryOp::ChebyshevT)),
    (pure!("special_chebyshev_polynomial_u"), |l| whole_binary(l, BinaryOp::ChebyshevU)),
    (pure!("special_chebyshev_polynomial_v"), |l| whole_binary(l, BinaryOp::ChebyshevV)),
    (pure!("special_chebyshev_polynomial_w"), |l| whole_binary(l, BinaryOp::ChebyshevW)),
    (pure!("special_shifted_chebyshev_polynomial_t"), |l| whole_binary(l, BinaryOp::ShiftedChebyshevT)),
    (pure!("special_shifted_chebyshev_polynomial_u"), |l| whole_binary(l, BinaryOp::ShiftedChebyshevU)),
    (pure!("special_shifted_chebyshev_polynomial_v"), |l| whole_binary(l, BinaryOp::ShiftedChebyshevV)),
    (pure!("special_shifted_chebyshev_polynomial_w"), |l| whole_binary(l, BinaryOp::ShiftedChebyshevW)),
    (pure!("special_hermite_polynomial_h"), |l| whole_binary(l, BinaryOp::HermiteH)),
    (pure!("special_hermite_polynomial_he"), |l| whole_binary(l, BinaryOp::HermiteHe)),
    (pure!("special_laguerre_polynomial_l"), |l| whole_binary(l, BinaryOp::LaguerreL)),
    (pure!("special_legendre_polynomial_p"), |l| whole_binary(l, BinaryOp::LegendreP)),
];

/// PyTorch has no kernel for half floats here and says so: the CPU raises the error.
fn not_half(dtype: DType) -> Lowered {
    match dtype {
        DType::F16 | DType::BF16 => Err(LowerError::unsupported(format!("{dtype}, as on the CPU"))),
        _ => Ok(()),
    }
}

fn unary(l: &mut Lower, op: UnaryOp) -> Lowered {
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let value = l.un(op, x);
    l.store(Typed { value, dtype })
}

fn whole_unary(l: &mut Lower, op: UnaryOp) -> Lowered {
    not_half(l.ty(0)?.dtype)?;
    unary(l, op)
}

fn binary(l: &mut Lower, op: BinaryOp, dtype: DType) -> Lowered {
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let value = l.bin(op, a, b);
    l.store(Typed { value, dtype })
}

fn whole_binary(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = common_float(l)?;
    not_half(dtype)?;
    binary(l, op, dtype)
}

/// Floats only: PyTorch does not take integers to floats here.
fn same_floats(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    if !dtype.is_float() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    binary(l, op, dtype)
}

fn integers(l: &mut Lower, op: BinaryOp) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    if !dtype.is_int() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    binary(l, op, dtype)
}

/// Derivative number `n` of the digamma function: `(-1)^(n + 1) n! zeta(n + 1, x)`. The arguments of the functional
/// overload come the other way round.
fn polygamma(l: &mut Lower) -> Lowered {
    let (n, at) = match l.arg(0) {
        Arg::Tensor(_) => (l.int(1)?, 0),
        _ => (l.int(0)?, 1),
    };
    if n < 0 {
        return Err(LowerError::unsupported("a negative order, as on the CPU"));
    }
    let dtype = match l.ty(at)?.dtype {
        d if d.is_float() => d,
        _ => DType::F32,
    };
    let x = l.operand(at, dtype)?;
    let value = match n {
        0 => l.un(UnaryOp::Digamma, x),
        1 => l.un(UnaryOp::Trigamma, x),
        _ => {
            let order = l.constant(dtype.compute(), n as f64 + 1.0);
            let shape = l.g.shape(x).sizes.clone();
            let order = l.g.broadcast(order, &shape);
            let zeta = l.bin(BinaryOp::Zeta, order, x);
            let factorial: f64 = (1..=n.min(200)).map(|k| k as f64).product();
            l.with_constant(BinaryOp::Mul, zeta, if n % 2 == 0 { -factorial } else { factorial })
        }
    };
    l.store(Typed { value, dtype })
}

/// `log(pi) p (p - 1) / 4 + sum of lgamma(x - j / 2)` for `j` below `p`.
fn mvlgamma(l: &mut Lower) -> Lowered {
    let p = l.int(1)?;
    if !(1..=256).contains(&p) {
        return Err(LowerError::unsupported("an order that is not positive, or large"));
    }
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let mut sum = l.un(UnaryOp::Lgamma, x);
    for j in 1..p {
        let shifted = l.with_constant(BinaryOp::Sub, x, j as f64 / 2.0);
        let term = l.un(UnaryOp::Lgamma, shifted);
        sum = l.bin(BinaryOp::Add, sum, term);
    }
    let constant = (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln();
    let value = l.with_constant(BinaryOp::Add, sum, constant);
    l.store(Typed { value, dtype })
}

/// `-x log(x)`, 0 at 0, minus infinity below.
fn entr(l: &mut Lower) -> Lowered {
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let log = l.un(UnaryOp::Log, x);
    let product = l.bin(BinaryOp::Mul, x, log);
    let inside = l.un(UnaryOp::Neg, product);
    let zero = l.constant(dtype.compute(), 0.0);
    let is_zero = l.bin(BinaryOp::Eq, x, zero);
    let value = l.g.select(is_zero, zero, inside);
    let below = l.constant(dtype.compute(), f64::NEG_INFINITY);
    let negative = l.bin(BinaryOp::Lt, x, zero);
    let value = l.g.select(negative, below, value);
    l.store(Typed { value, dtype })
}

/// `sin(pi x) / (pi x)`, 1 at 0.
fn sinc(l: &mut Lower) -> Lowered {
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let angle = l.with_constant(BinaryOp::Mul, x, std::f64::consts::PI);
    let sine = l.un(UnaryOp::Sin, angle);
    let quotient = l.bin(BinaryOp::Div, sine, angle);
    let is_zero = l.with_constant(BinaryOp::Eq, x, 0.0);
    let one = l.constant(dtype.compute(), 1.0);
    let value = l.g.select(is_zero, one, quotient);
    l.store(Typed { value, dtype })
}

/// The clamp of `logit`, where there is one.
fn margin(l: &Lower, i: usize) -> Option<f64> {
    let eps = l.float_or(i, -1.0);
    (eps >= 0.0).then_some(eps)
}

/// `log(x / (1 - x))`, `x` between `eps` and `1 - eps`.
fn logit(l: &mut Lower) -> Lowered {
    let dtype = float_type(l)?;
    let mut x = l.operand(0, dtype)?;
    let one = l.constant(dtype.compute(), 1.0);
    if let Some(eps) = margin(l, 1) {
        // The bounds are rounded to the tensor's type, the upper one after the subtraction.
        let low = l.constant(dtype.compute(), eps);
        let low = l.round(low, dtype);
        let high = l.bin(BinaryOp::Sub, one, low);
        let high = l.round(high, dtype);
        let above = l.bin(BinaryOp::Gt, x, high);
        let below = l.bin(BinaryOp::Lt, x, low);
        x = l.g.select(above, high, x);
        x = l.g.select(below, low, x);
    }
    let rest = l.bin(BinaryOp::Sub, one, x);
    let odds = l.bin(BinaryOp::Div, x, rest);
    let value = l.un(UnaryOp::Log, odds);
    l.store(Typed { value, dtype })
}

/// `grad / (x (1 - x))`, infinite at 0 and 1; 0 outside the margin, NaN outside [0, 1] where there is none.
fn logit_backward(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let (grad, x) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let one = l.constant(dtype.compute(), 1.0);
    let rest = l.bin(BinaryOp::Sub, one, x);
    let slope = l.bin(BinaryOp::Mul, x, rest);
    let inside = l.bin(BinaryOp::Div, grad, slope);
    // Whatever the sign of a 0.
    let infinite = l.with_constant(BinaryOp::Mul, grad, f64::INFINITY);
    let is_zero = l.with_constant(BinaryOp::Eq, slope, 0.0);
    let inside = l.g.select(is_zero, infinite, inside);
    let (low, outside) = match margin(l, 2) {
        Some(eps) => (eps, 0.0),
        None => (0.0, f64::NAN),
    };
    let low = l.constant(dtype.compute(), low);
    let high = l.bin(BinaryOp::Sub, one, low);
    let outside = l.constant(dtype.compute(), outside);
    let below = l.bin(BinaryOp::Lt, x, low);
    let above = l.bin(BinaryOp::Gt, x, high);
    let is_outside = l.bin(BinaryOp::Or, below, above);
    let value = l.g.select(is_outside, outside, inside);
    l.store(Typed { value, dtype })
}

/// Results mantissa, exponent (`int32`).
fn frexp(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    if !dtype.is_float() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    let x = l.operand(0, dtype)?;
    let value = l.un(UnaryOp::FrexpMantissa, x);
    l.store(Typed { value, dtype })?;
    let exponent = l.un(UnaryOp::FrexpExponent, x);
    let value = l.g.convert(exponent, DType::I32);
    l.store(Typed { value, dtype: DType::I32 })
}

/// The largest finite number of a float type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f32::from_bits(0x7F7F_0000) as f64,
        DType::F64 => f64::MAX,
        _ => f32::MAX as f64,
    }
}

/// `(self, nan, posinf, neginf)`
fn nan_to_num(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let x = l.operand(0, dtype)?;
    if !dtype.is_float() {
        return l.store(Typed { value: x, dtype });
    }
    let replacements = [l.float_or(1, 0.0), l.float_or(2, largest(dtype)), l.float_or(3, -largest(dtype))];
    let is_nan = l.un(UnaryOp::IsNan, x);
    let is_high = l.with_constant(BinaryOp::Eq, x, f64::INFINITY);
    let is_low = l.with_constant(BinaryOp::Eq, x, f64::NEG_INFINITY);
    let mut value = x;
    for (condition, replacement) in [is_nan, is_high, is_low].into_iter().zip(replacements) {
        let replacement = l.constant(dtype.compute(), replacement);
        value = l.g.select(condition, replacement, value);
    }
    l.store(Typed { value, dtype })
}

/// `round(x 10^decimals) / 10^decimals`
fn round_decimals(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let decimals = l.int(1)?;
    if !dtype.is_float() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    let x = l.operand(0, dtype)?;
    let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    let power = l.constant(dtype.compute(), power);
    let (there, back) = if decimals < 0 { (BinaryOp::Div, BinaryOp::Mul) } else { (BinaryOp::Mul, BinaryOp::Div) };
    let scaled = l.bin(there, x, power);
    let whole = l.un(UnaryOp::Round, scaled);
    let value = l.bin(back, whole, power);
    l.store(Typed { value, dtype })
}

fn is_infinity(l: &mut Lower, infinity: f64) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let value = if dtype.is_float() {
        let x = l.operand(0, dtype)?;
        l.with_constant(BinaryOp::Eq, x, infinity)
    } else {
        l.constant(DType::Bool, 0.0)
    };
    l.store(Typed { value, dtype: DType::Bool })
}

/// Of a real number: 0, or pi where it is negative. NaN stays.
fn angle(l: &mut Lower) -> Lowered {
    let dtype = float_type(l)?;
    let x = l.operand(0, dtype)?;
    let negative = l.with_constant(BinaryOp::Lt, x, 0.0);
    let (pi, zero) = (l.constant(dtype.compute(), std::f64::consts::PI), l.constant(dtype.compute(), 0.0));
    let value = l.g.select(negative, pi, zero);
    let is_nan = l.un(UnaryOp::IsNan, x);
    let value = l.g.select(is_nan, x, value);
    l.store(Typed { value, dtype })
}

fn conj_physical(l: &mut Lower) -> Lowered {
    let dtype = l.ty(0)?.dtype;
    let value = l.tensor(0)?;
    l.store(Typed { value, dtype })
}

/// `x log(y)`: 0 where `x` is 0, whatever the logarithm, but NaN where `y` is.
fn x_log(l: &mut Lower, log: UnaryOp) -> Lowered {
    let dtype = common_float(l)?;
    let (x, y) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let log = l.un(log, y);
    let product = l.bin(BinaryOp::Mul, x, log);
    let zero = l.constant(dtype.compute(), 0.0);
    let is_zero = l.bin(BinaryOp::Eq, x, zero);
    let value = l.g.select(is_zero, zero, product);
    let is_nan = l.un(UnaryOp::IsNan, y);
    let value = l.g.select(is_nan, y, value);
    l.store(Typed { value, dtype })
}

/// `max + log(1 + exp(-|a - b|))`, in the base of `exp`; two equal infinities are the result.
fn log_sum(l: &mut Lower, exp: UnaryOp, log1p: UnaryOp, per_unit: f64) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    if !dtype.is_float() {
        return Err(LowerError::unsupported(format!("{dtype}, as on the CPU")));
    }
    let (a, b) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let largest = l.bin(BinaryOp::Maximum, a, b);
    let difference = l.bin(BinaryOp::Sub, a, b);
    let distance = l.un(UnaryOp::Abs, difference);
    let distance = l.un(UnaryOp::Neg, distance);
    let power = l.un(exp, distance);
    let mut log = l.un(log1p, power);
    if per_unit != 1.0 {
        log = l.with_constant(BinaryOp::Mul, log, per_unit);
    }
    let sum = l.bin(BinaryOp::Add, largest, log);
    let infinite = l.un(UnaryOp::IsInf, a);
    let equal = l.bin(BinaryOp::Eq, a, b);
    let both = l.bin(BinaryOp::And, infinite, equal);
    let value = l.g.select(both, a, sum);
    l.store(Typed { value, dtype })
}

fn nextafter(l: &mut Lower) -> Lowered {
    let op = match l.common(&[0, 1])? {
        DType::BF16 => BinaryOp::NextafterBf16,
        DType::F16 => BinaryOp::NextafterF16,
        _ => BinaryOp::Nextafter,
    };
    same_floats(l, op)
}

/// 0 below 0, 1 above, the second operand at 0; 0 for NaN.
fn heaviside(l: &mut Lower) -> Lowered {
    let dtype = l.common(&[0, 1])?;
    if l.standing(0)?.0 != l.standing(1)?.0 {
        return Err(LowerError::unsupported("operands of different types, as on the CPU"));
    }
    let (x, at_zero) = (l.operand(0, dtype)?, l.operand(1, dtype)?);
    let zero = l.constant(dtype.compute(), 0.0);
    let positive: Value = l.bin(BinaryOp::Gt, x, zero);
    let step = l.g.convert(positive, dtype.compute());
    let is_zero = l.bin(BinaryOp::Eq, x, zero);
    let value = l.g.select(is_zero, at_zero, step);
    l.store(Typed { value, dtype })
}
