//! The passes of special functions: one element at a time, in `f64` or the precision PyTorch's definition wants.

use super::map::{Pass1, Pass2};
use super::math::polynomials::{double, single};
use super::math::{bessel, gamma, normal};
use super::ops::{Found, Shape};
use half::f16;
use neuron_ir::{BinaryOp, DType, UnaryOp};

/// Picoseconds per element: the middle of a wide range.
const COST: u32 = 60_000;

/// A function of one element, not worth a copy for each instruction set.
trait One {
    /// Operand and result.
    type T: Copy;
    /// The function.
    fn eval(a: Self::T) -> Self::T;
}

/// As [`One`], of two elements.
trait Two {
    /// Operands and result.
    type T: Copy;
    /// The function.
    fn eval(a: Self::T, b: Self::T) -> Self::T;
}

/// # Safety
/// As for [`Pass1`].
unsafe fn each1<O: One>(d: *mut u8, a: *const u8, n: usize) {
    let (d, a) = (d.cast::<O::T>(), a.cast::<O::T>());
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { d.add(i).write(O::eval(a.add(i).read())) };
    }
}

/// # Safety
/// As for [`Pass2`]; an operand whose step is 0 is one element.
unsafe fn each2<O: Two, const STEP_A: usize, const STEP_B: usize>(d: *mut u8, a: *const u8, b: *const u8, n: usize) {
    let (d, a, b) = (d.cast::<O::T>(), a.cast::<O::T>(), b.cast::<O::T>());
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { d.add(i).write(O::eval(a.add(i * STEP_A).read(), b.add(i * STEP_B).read())) };
    }
}

macro_rules! table1 {
    ($op:expr, $t:ty, { $($variant:ident => $f:expr,)* }) => {
        match $op {
            $(UnaryOp::$variant => {
                struct Op;
                impl One for Op {
                    type T = $t;
                    fn eval(a: $t) -> $t {
                        ($f)(a)
                    }
                }
                Some(Found { pass: each1::<Op> as Pass1, cost: COST })
            })*
            _ => None,
        }
    };
}

macro_rules! table2 {
    ($shape:expr, $op:expr, $t:ty, { $($variant:ident => $f:expr,)* }) => {
        match $op {
            $(BinaryOp::$variant => {
                struct Op;
                impl Two for Op {
                    type T = $t;
                    #[inline(never)]
                    fn eval(a: $t, b: $t) -> $t {
                        ($f)(a, b)
                    }
                }
                let pass: Pass2 = match ($shape.a, $shape.b) {
                    (true, false) => each2::<Op, 0, 1>,
                    (false, true) => each2::<Op, 1, 0>,
                    // Two splats are tiles of one element.
                    _ => each2::<Op, 1, 1>,
                };
                Some(Found { pass, cost: COST })
            })*
            _ => None,
        }
    };
}

/// A function of `f64` on `f32`: the result is rounded once.
macro_rules! wide {
    ($f:path) => {
        |a: f32| $f(a as f64) as f32
    };
    ($f:path, 2) => {
        |a: f32, b: f32| $f(a as f64, b as f64) as f32
    };
}

/// The pass of a special function of one operand on compute type `class`.
pub fn unary(op: UnaryOp, class: DType) -> Option<Found<Pass1>> {
    match class {
        DType::F32 => table1!(op, f32, {
            Digamma => wide!(gamma::digamma),
            Trigamma => gamma::trigamma_f32,
            I0 => bessel::i0_f32,
            I0e => wide!(bessel::i0e),
            I1 => bessel::i1_f32,
            I1e => wide!(bessel::i1e),
            K0 => wide!(bessel::k0),
            K0e => wide!(bessel::k0e),
            K1 => wide!(bessel::k1),
            K1e => wide!(bessel::k1e),
            BesselJ0 => wide!(bessel::j0),
            BesselJ1 => wide!(bessel::j1),
            BesselY0 => wide!(bessel::y0),
            BesselY1 => wide!(bessel::y1),
            SphericalBesselJ0 => wide!(bessel::spherical_j0),
            AiryAi => wide!(bessel::airy_ai),
            Ndtri => wide!(normal::ndtri),
            LogNdtr => wide!(normal::log_ndtr),
            Erfcx => wide!(normal::erfcx),
            FrexpMantissa => |a: f32| frexp(a as f64).0 as f32,
            FrexpExponent => |a: f32| frexp(a as f64).1 as f32,
        }),
        DType::F64 => table1!(op, f64, {
            Digamma => gamma::digamma,
            Trigamma => gamma::trigamma_f64,
            I0 => bessel::i0_f64,
            I0e => bessel::i0e,
            I1 => bessel::i1_f64,
            I1e => bessel::i1e,
            K0 => bessel::k0,
            K0e => bessel::k0e,
            K1 => bessel::k1,
            K1e => bessel::k1e,
            BesselJ0 => bessel::j0,
            BesselJ1 => bessel::j1,
            BesselY0 => bessel::y0,
            BesselY1 => bessel::y1,
            SphericalBesselJ0 => bessel::spherical_j0,
            AiryAi => bessel::airy_ai,
            Ndtri => normal::ndtri,
            LogNdtr => normal::log_ndtr,
            Erfcx => normal::erfcx,
            FrexpMantissa => |a: f64| frexp(a).0,
            FrexpExponent => |a: f64| frexp(a).1,
        }),
        _ => None,
    }
}

/// The pass of a special function of two operands on compute type `class`.
pub fn binary(op: BinaryOp, class: DType, shape: Shape) -> Option<Found<Pass2>> {
    match class {
        DType::F32 => table2!(shape, op, f32, {
            Igamma => wide!(gamma::igamma, 2),
            Igammac => wide!(gamma::igammac, 2),
            Zeta => wide!(gamma::zeta, 2),
            ChebyshevT => single::chebyshev_t,
            ChebyshevU => single::chebyshev_u,
            ChebyshevV => single::chebyshev_v,
            ChebyshevW => single::chebyshev_w,
            ShiftedChebyshevT => |x: f32, n| single::chebyshev_t(x + x - 1.0, n),
            ShiftedChebyshevU => |x: f32, n| single::chebyshev_u(x + x - 1.0, n),
            ShiftedChebyshevV => |x: f32, n| single::chebyshev_v(x + x - 1.0, n),
            ShiftedChebyshevW => |x: f32, n| single::chebyshev_w(x + x - 1.0, n),
            HermiteH => single::hermite_h,
            HermiteHe => single::hermite_he,
            LaguerreL => single::laguerre_l,
            LegendreP => single::legendre_p,
            Nextafter => nextafter_f32,
            NextafterBf16 => nextafter_bf16,
            NextafterF16 => nextafter_f16,
        }),
        DType::F64 => table2!(shape, op, f64, {
            Igamma => gamma::igamma,
            Igammac => gamma::igammac,
            Zeta => gamma::zeta,
            ChebyshevT => double::chebyshev_t,
            ChebyshevU => double::chebyshev_u,
            ChebyshevV => double::chebyshev_v,
            ChebyshevW => double::chebyshev_w,
            ShiftedChebyshevT => |x: f64, n| double::chebyshev_t(x + x - 1.0, n),
            ShiftedChebyshevU => |x: f64, n| double::chebyshev_u(x + x - 1.0, n),
            ShiftedChebyshevV => |x: f64, n| double::chebyshev_v(x + x - 1.0, n),
            ShiftedChebyshevW => |x: f64, n| double::chebyshev_w(x + x - 1.0, n),
            HermiteH => double::hermite_h,
            HermiteHe => double::hermite_he,
            LaguerreL => double::laguerre_l,
            LegendreP => double::legendre_p,
            Nextafter => nextafter_f64,
        }),
        DType::I64 => table2!(shape, op, i64, {
            Gcd => gamma::gcd,
            Lcm => gamma::lcm,
        }),
        _ => None,
    }
}

/// `x = m 2^e` with `m` in [1/2, 1).
fn frexp(x: f64) -> (f64, f64) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0.0);
    }
    // Subnormal numbers are scaled into the normal range.
    let scale = if x.abs() < f64::MIN_POSITIVE { 64 } else { 0 };
    let bits = (x * (scale as f64).exp2()).to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i64 - 1022 - scale;
    (f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52), exponent as f64)
}

macro_rules! nextafter {
    ($name:ident, $t:ty, $of:expr, $bits:expr, $to:expr) => {
        /// The next number after `a` towards `b`.
        fn $name(a: $t, b: $t) -> $t {
            if a.is_nan() || b.is_nan() {
                return a + b;
            }
            if a == b {
                return b;
            }
            let bits = $bits($of(a));
            if a == 0.0 {
                return $to(1).copysign(b);
            }
            $to(if (b > a) == (a > 0.0) { bits + 1 } else { bits - 1 })
        }
    };
}
nextafter!(nextafter_f32, f32, |a: f32| a, f32::to_bits, f32::from_bits);
nextafter!(nextafter_f64, f64, |a: f64| a, f64::to_bits, f64::from_bits);
nextafter!(nextafter_bf16, f32, |a: f32| a, |a: f32| a.to_bits() >> 16, |b: u32| f32::from_bits(b << 16));
nextafter!(nextafter_f16, f32, f16::from_f32, f16::to_bits, |b: u16| f16::from_bits(b).to_f32());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours() {
        assert_eq!(nextafter_f32(1.0, 2.0), 1.0 + f32::EPSILON);
        assert_eq!(nextafter_f32(-1.0, 2.0), -1.0 + f32::EPSILON / 2.0);
        assert_eq!(nextafter_f32(0.0, -1.0), -f32::from_bits(1));
        assert_eq!(nextafter_f32(f32::MAX, f32::INFINITY), f32::INFINITY);
        assert_eq!(nextafter_bf16(1.0, 2.0), 1.0 + 2f32.powi(-7));
        assert_eq!(nextafter_f16(0.0, 1.0), 2f32.powi(-24));
        assert!(nextafter_f64(f64::NAN, 1.0).is_nan());
    }

    #[test]
    fn mantissa_and_exponent() {
        for x in [1.0, -3.0, 1e-310, f64::MAX, 0.75, -0.0] {
            let (m, e) = frexp(x);
            assert_eq!(m * (e / 2.0).floor().exp2() * (e - (e / 2.0).floor()).exp2(), x);
            assert!(x == 0.0 || (0.5..1.0).contains(&m.abs()));
        }
    }
}
