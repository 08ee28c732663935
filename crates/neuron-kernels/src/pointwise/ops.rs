//! The table of passes: which operator means what on which class of values.

use super::functions;
use super::map::{Map1, Map2, Pass1, Pass2, pass1, pass2};
use super::math::{single, special, widened};
use crate::simd::{Isa, Level, level};
use neuron_ir::{BinaryOp, DType, UnaryOp};

/// A pass with a rough time per element in picoseconds.
pub struct Found<P> {
    /// The pass.
    pub pass: P,
    /// Picoseconds per element.
    pub cost: u32,
}

const CHEAP: u32 = 25;
const WIDE: u32 = 50;
const POLY: u32 = 250;
const POLY64: u32 = 700;
const SCALAR: u32 = 9000;

/// Declares a function object and yields its pass.
macro_rules! map1 {
    ($level:expr, $in:ty => $out:ty, $long:expr, $cost:expr, |$i:ident, $a:ident| $body:expr) => {{
        struct Op;
        impl Map1 for Op {
            type In = $in;
            type Out = $out;
            const LONG: bool = $long;
            #[inline(always)]
            fn eval<$i: Isa>($a: $in) -> $out {
                $body
            }
        }
        Some(Found { pass: pass1::<Op>($level), cost: $cost })
    }};
}

macro_rules! map2 {
    ($s:expr, $in:ty => $out:ty, $long:expr, $cost:expr, |$i:ident, $a:ident, $b:ident| $body:expr) => {{
        struct Op;
        impl Map2 for Op {
            type In = $in;
            type Out = $out;
            const LONG: bool = $long;
            #[inline(always)]
            fn eval<$i: Isa>($a: $in, $b: $in) -> $out {
                $body
            }
        }
        Some(Found { pass: pass2::<Op>($s.level, $s.a, $s.b), cost: $cost })
    }};
}

/// Which operands of a binary pass are splats.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Instruction set.
    pub level: Level,
    /// The first operand is one element.
    pub a: bool,
    /// The second operand is one element.
    pub b: bool,
}

/// The pass of a unary operator on compute type `class`; `None` where it has no meaning.
pub fn unary(op: UnaryOp, class: DType, level: Level) -> Option<Found<Pass1>> {
    match class {
        DType::F32 => unary_f32(op, level).or_else(|| functions::unary(op, class)),
        DType::F64 => unary_f64(op, level).or_else(|| functions::unary(op, class)),
        DType::I64 => unary_i64(op, level),
        _ => match op {
            UnaryOp::Not => map1!(level, u8 => u8, false, CHEAP, |I, a| (a == 0) as u8),
            _ => None,
        },
    }
}

/// Arguments beyond the limit of the vector reduction are redone by the C library, which reduces any argument.
macro_rules! trigonometric {
    ($level:expr, $name:ident) => {{
        unsafe fn with_large(d: *mut u8, a: *const u8, n: usize, pass: Pass1) {
            // SAFETY: the caller's promise to the pass.
            let (d, a) = unsafe {
                pass(d, a, n);
                (std::slice::from_raw_parts_mut(d.cast::<f32>(), n), std::slice::from_raw_parts(a.cast::<f32>(), n))
            };
            if a.iter().fold(false, |any, x| any | (x.abs() > widened::TRIG_LIMIT)) {
                for (d, a) in d.iter_mut().zip(a).filter(|(_, a)| a.abs() > widened::TRIG_LIMIT) {
                    *d = (*a as f64).$name() as f32;
                }
            }
        }
        struct Op;
        impl Map1 for Op {
            type In = f32;
            type Out = f32;
            const LONG: bool = true;
            #[inline(always)]
            fn eval<I: Isa>(a: f32) -> f32 {
                widened::$name::<I>(a)
            }
        }
        unsafe fn avx512(d: *mut u8, a: *const u8, n: usize) {
            // SAFETY: chosen where the processor has the level; else the caller's promise.
            unsafe { with_large(d, a, n, pass1::<Op>(Level::Avx512)) }
        }
        unsafe fn avx2(d: *mut u8, a: *const u8, n: usize) {
            // SAFETY: as above.
            unsafe { with_large(d, a, n, pass1::<Op>(Level::Avx2)) }
        }
        unsafe fn baseline(d: *mut u8, a: *const u8, n: usize) {
            // SAFETY: as above.
            unsafe { with_large(d, a, n, pass1::<Op>(Level::Baseline)) }
        }
        let pass: Pass1 = match $level {
            Level::Avx512 => avx512,
            Level::Avx2 => avx2,
            Level::Baseline => baseline,
        };
        Some(Found { pass, cost: POLY64 })
    }};
}

fn unary_f32(op: UnaryOp, level: Level) -> Option<Found<Pass1>> {
    macro_rules! f {
        ($long:expr, $cost:expr, |$i:ident, $a:ident| $body:expr) => {
            map1!(level, f32 => f32, $long, $cost, |$i, $a| $body)
        };
    }
    macro_rules! p {
        (|$a:ident| $body:expr) => {
            map1!(level, f32 => u8, false, CHEAP, |I, $a| $body)
        };
    }
    match op {
        UnaryOp::Neg => f!(false, CHEAP, |I, a| -a),
        UnaryOp::Abs => f!(false, CHEAP, |I, a| a.abs()),
        // PyTorch gives 0 for NaN.
        UnaryOp::Sign => f!(false, CHEAP, |I, a| (a > 0.0) as u8 as f32 - (a < 0.0) as u8 as f32),
        UnaryOp::Exp => f!(true, POLY, |I, a| single::exp::<I>(a)),
        UnaryOp::Exp2 => f!(true, POLY, |I, a| single::exp2::<I>(a)),
        UnaryOp::Expm1 => f!(true, POLY64, |I, a| widened::expm1::<I>(a)),
        UnaryOp::Log => f!(true, POLY, |I, a| single::log::<I>(a)),
        UnaryOp::Log2 => f!(true, POLY64, |I, a| widened::log2::<I>(a)),
        UnaryOp::Log10 => f!(true, POLY64, |I, a| widened::log10::<I>(a)),
        UnaryOp::Log1p => f!(true, POLY64, |I, a| widened::log1p::<I>(a)),
        UnaryOp::Sqrt => f!(true, 100, |I, a| a.sqrt()),
        UnaryOp::Rsqrt => f!(true, 200, |I, a| 1.0 / a.sqrt()),
        UnaryOp::Reciprocal => f!(true, 100, |I, a| 1.0 / a),
        UnaryOp::Sin => trigonometric!(level, sin),
        UnaryOp::Cos => trigonometric!(level, cos),
        UnaryOp::Tan => trigonometric!(level, tan),
        UnaryOp::Asin => f!(true, POLY64, |I, a| widened::asin::<I>(a)),
        UnaryOp::Acos => f!(true, POLY64, |I, a| widened::acos::<I>(a)),
        UnaryOp::Atan => f!(true, POLY64, |I, a| widened::atan::<I>(a)),
        UnaryOp::Sinh => f!(true, POLY64, |I, a| widened::sinh::<I>(a)),
        UnaryOp::Cosh => f!(true, POLY64, |I, a| widened::cosh::<I>(a)),
        UnaryOp::Tanh => f!(true, POLY, |I, a| single::tanh::<I>(a)),
        UnaryOp::Asinh => f!(true, POLY64, |I, a| widened::asinh::<I>(a)),
        UnaryOp::Acosh => f!(true, POLY64, |I, a| widened::acosh::<I>(a)),
        UnaryOp::Atanh => f!(true, POLY64, |I, a| widened::atanh::<I>(a)),
        UnaryOp::Erf => f!(true, POLY, |I, a| single::erf::<I>(a)),
        UnaryOp::Erfc => f!(true, POLY64, |I, a| widened::erfc::<I>(a)),
        UnaryOp::Erfinv => f!(false, SCALAR * 4, |I, a| special::erfinv(a as f64) as f32),
        UnaryOp::Lgamma => f!(false, SCALAR * 2, |I, a| special::lgamma(a as f64) as f32),
        UnaryOp::Sigmoid => f!(true, POLY, |I, a| single::sigmoid::<I>(a)),
        UnaryOp::Floor => f!(false, CHEAP, |I, a| a.floor()),
        UnaryOp::Ceil => f!(false, CHEAP, |I, a| a.ceil()),
        UnaryOp::Trunc => f!(false, CHEAP, |I, a| a.trunc()),
        UnaryOp::Round => f!(false, CHEAP, |I, a| a.round_ties_even()),
        UnaryOp::IsNan => p!(|a| a.is_nan() as u8),
        UnaryOp::IsInf => p!(|a| a.is_infinite() as u8),
        UnaryOp::Signbit => p!(|a| a.is_sign_negative() as u8),
        _ => None,
    }
}

fn unary_f64(op: UnaryOp, level: Level) -> Option<Found<Pass1>> {
    macro_rules! f {
        ($cost:expr, |$a:ident| $body:expr) => {
            map1!(level, f64 => f64, false, $cost, |I, $a| $body)
        };
    }
    macro_rules! p {
        (|$a:ident| $body:expr) => {
            map1!(level, f64 => u8, false, WIDE, |I, $a| $body)
        };
    }
    match op {
        UnaryOp::Neg => f!(WIDE, |a| -a),
        UnaryOp::Abs => f!(WIDE, |a| a.abs()),
        UnaryOp::Sign => f!(WIDE, |a| (a > 0.0) as u8 as f64 - (a < 0.0) as u8 as f64),
        UnaryOp::Exp => f!(SCALAR, |a| a.exp()),
        UnaryOp::Exp2 => f!(SCALAR, |a| a.exp2()),
        UnaryOp::Expm1 => f!(SCALAR, |a| a.exp_m1()),
        UnaryOp::Log => f!(SCALAR, |a| a.ln()),
        UnaryOp::Log2 => f!(SCALAR, |a| a.log2()),
        UnaryOp::Log10 => f!(SCALAR, |a| a.log10()),
        UnaryOp::Log1p => f!(SCALAR, |a| a.ln_1p()),
        UnaryOp::Sqrt => f!(600, |a| a.sqrt()),
        UnaryOp::Rsqrt => f!(1000, |a| 1.0 / a.sqrt()),
        UnaryOp::Reciprocal => f!(500, |a| 1.0 / a),
        UnaryOp::Sin => f!(SCALAR, |a| a.sin()),
        UnaryOp::Cos => f!(SCALAR, |a| a.cos()),
        UnaryOp::Tan => f!(SCALAR, |a| a.tan()),
        UnaryOp::Asin => f!(SCALAR, |a| a.asin()),
        UnaryOp::Acos => f!(SCALAR, |a| a.acos()),
        UnaryOp::Atan => f!(SCALAR, |a| a.atan()),
        UnaryOp::Sinh => f!(SCALAR, |a| a.sinh()),
        UnaryOp::Cosh => f!(SCALAR, |a| a.cosh()),
        UnaryOp::Tanh => f!(SCALAR, |a| a.tanh()),
        UnaryOp::Asinh => f!(SCALAR * 2, |a| special::asinh(a)),
        UnaryOp::Acosh => f!(SCALAR * 2, |a| special::acosh(a)),
        UnaryOp::Atanh => f!(SCALAR * 2, |a| special::atanh(a)),
        UnaryOp::Erf => f!(SCALAR, |a| special::erf(a)),
        UnaryOp::Erfc => f!(SCALAR, |a| special::erfc(a)),
        UnaryOp::Erfinv => f!(SCALAR * 4, |a| special::erfinv(a)),
        UnaryOp::Lgamma => f!(SCALAR * 2, |a| special::lgamma(a)),
        UnaryOp::Sigmoid => f!(SCALAR, |a| special::sigmoid(a)),
        UnaryOp::Floor => f!(WIDE, |a| a.floor()),
        UnaryOp::Ceil => f!(WIDE, |a| a.ceil()),
        UnaryOp::Trunc => f!(WIDE, |a| a.trunc()),
        UnaryOp::Round => f!(WIDE, |a| a.round_ties_even()),
        UnaryOp::IsNan => p!(|a| a.is_nan() as u8),
        UnaryOp::IsInf => p!(|a| a.is_infinite() as u8),
        UnaryOp::Signbit => p!(|a| a.is_sign_negative() as u8),
        _ => None,
    }
}

fn unary_i64(op: UnaryOp, level: Level) -> Option<Found<Pass1>> {
    macro_rules! f {
        (|$a:ident| $body:expr) => {
            map1!(level, i64 => i64, false, WIDE, |I, $a| $body)
        };
    }
    match op {
        UnaryOp::Neg => f!(|a| a.wrapping_neg()),
        UnaryOp::Abs => f!(|a| a.wrapping_abs()),
        UnaryOp::Sign => f!(|a| a.signum()),
        UnaryOp::Not => f!(|a| !a),
        // An integer is whole already.
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round => f!(|a| a),
        UnaryOp::IsNan | UnaryOp::IsInf => map1!(level, i64 => u8, false, WIDE, |I, _a| 0u8),
        UnaryOp::Signbit => map1!(level, i64 => u8, false, WIDE, |I, a| (a < 0) as u8),
        _ => None,
    }
}

/// The pass of a binary operator on compute type `class`; `None` where it has no meaning.
///
/// Integer division assumes that no divisor is 0.
pub fn binary(op: BinaryOp, class: DType, shape: Shape) -> Option<Found<Pass2>> {
    match class {
        DType::F32 => binary_f32(op, shape).or_else(|| functions::binary(op, class, shape)),
        DType::F64 => binary_f64(op, shape).or_else(|| functions::binary(op, class, shape)),
        DType::I64 => binary_i64(op, shape).or_else(|| functions::binary(op, class, shape)),
        _ => binary_bool(op, shape),
    }
}

/// True where the operator fails on a divisor of 0.
pub fn divides(op: BinaryOp, class: DType) -> bool {
    class == DType::I64 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Remainder | BinaryOp::Fmod)
}

macro_rules! comparisons {
    ($op:expr, $c:ident, $else:expr) => {
        match $op {
            BinaryOp::Eq => $c!(|a, b| (a == b) as u8),
            BinaryOp::Ne => $c!(|a, b| (a != b) as u8),
            BinaryOp::Lt => $c!(|a, b| (a < b) as u8),
            BinaryOp::Le => $c!(|a, b| (a <= b) as u8),
            BinaryOp::Gt => $c!(|a, b| (a > b) as u8),
            BinaryOp::Ge => $c!(|a, b| (a >= b) as u8),
            _ => $else,
        }
    };
}

macro_rules! float_division {
    ($name:ident, $remainder:ident, $t:ty) => {
        /// PyTorch's `div_floor`: exact where `floor(a / b)` is off by a rounding.
        #[inline(always)]
        fn $name(a: $t, b: $t) -> $t {
            let m = a % b;
            let d = (a - m) / b;
            let d = if m != 0.0 && (b < 0.0) != (m < 0.0) { d - 1.0 } else { d };
            let f = d.floor();
            let f = if d - f > 0.5 { f + 1.0 } else { f };
            let f = if d == 0.0 { (0.0 as $t).copysign(a / b) } else { f };
            if b == 0.0 { a / b } else { f }
        }

        /// Python's `%`.
        #[inline(always)]
        fn $remainder(a: $t, b: $t) -> $t {
            let m = a % b;
            if m != 0.0 && (b < 0.0) != (m < 0.0) { m + b } else { m }
        }
    };
}
float_division!(floor_div_f32, remainder_f32, f32);
float_division!(floor_div_f64, remainder_f64, f64);

/// A power with one exponent for all: squares and cubes are products, as PyTorch's are.
macro_rules! power_by_splat {
    ($name:ident, $t:ty, $long:expr, |$i:ident, $x:ident, $y:ident| $pow:expr) => {
        unsafe fn $name(d: *mut u8, a: *const u8, b: *const u8, n: usize) {
            struct Square;
            impl Map1 for Square {
                type In = $t;
                type Out = $t;
                #[inline(always)]
                fn eval<I: Isa>(a: $t) -> $t {
                    a * a
                }
            }
            struct Cube;
            impl Map1 for Cube {
                type In = $t;
                type Out = $t;
                #[inline(always)]
                fn eval<I: Isa>(a: $t) -> $t {
                    a * a * a
                }
            }
            struct Power;
            impl Map2 for Power {
                type In = $t;
                type Out = $t;
                const LONG: bool = $long;
                #[inline(always)]
                fn eval<$i: Isa>($x: $t, $y: $t) -> $t {
                    $pow
                }
            }
            // SAFETY: the level is that of the processor; else the caller's promise.
            unsafe {
                match b.cast::<$t>().read() {
                    2.0 => pass1::<Square>(level())(d, a, n),
                    3.0 => pass1::<Cube>(level())(d, a, n),
                    _ => pass2::<Power>(level(), false, true)(d, a, b, n),
                }
            }
        }
    };
}
power_by_splat!(power_f32, f32, true, |I, x, y| widened::pow::<I>(x, y));
power_by_splat!(power_f64, f64, false, |I, x, y| x.powf(y));

macro_rules! float_binary {
    ($name:ident, $t:ty, $power:expr, $cost:expr, $floor_div:ident, $remainder:ident, $long:expr, $heavy:expr,
     |$i:ident, $x:ident, $y:ident| $pow:expr, $atan2:expr) => {
        fn $name(op: BinaryOp, shape: Shape) -> Option<Found<Pass2>> {
            macro_rules! f {
                ($l:expr, $c:expr, |$a:ident, $b:ident| $body:expr) => {
                    map2!(shape, $t => $t, $l, $c, |I, $a, $b| $body)
                };
            }
            macro_rules! c {
                (|$a:ident, $b:ident| $body:expr) => {
                    map2!(shape, $t => u8, false, $cost, |I, $a, $b| $body)
                };
            }
            match op {
                BinaryOp::Add => f!(false, $cost, |a, b| a + b),
                BinaryOp::Sub => f!(false, $cost, |a, b| a - b),
                BinaryOp::Mul => f!(false, $cost, |a, b| a * b),
                BinaryOp::Div => f!(true, 4 * $cost, |a, b| a / b),
                BinaryOp::FloorDiv => f!(false, SCALAR, |a, b| $floor_div(a, b)),
                BinaryOp::Remainder => f!(false, SCALAR, |a, b| $remainder(a, b)),
                BinaryOp::Fmod => f!(false, SCALAR, |a, b| a % b),
                BinaryOp::Pow if shape.b => Some(Found { pass: $power, cost: $heavy }),
                BinaryOp::Pow => map2!(shape, $t => $t, $long, $heavy, |$i, $x, $y| $pow),
                BinaryOp::Atan2 => map2!(shape, $t => $t, $long, $heavy, |$i, $x, $y| $atan2),
                // The first operand of two equal zeros; the sum of two operands is NaN where either is.
                BinaryOp::Maximum => f!(false, $cost, |a, b| {
                    let m = if b > a { b } else { a };
                    if b.is_nan() { b } else { m }
                }),
                BinaryOp::Minimum => f!(false, $cost, |a, b| {
                    let m = if b < a { b } else { a };
                    if b.is_nan() { b } else { m }
                }),
                BinaryOp::Fmax => f!(false, $cost, |a, b| if b > a || a.is_nan() { b } else { a }),
                BinaryOp::Fmin => f!(false, $cost, |a, b| if b < a || a.is_nan() { b } else { a }),
                BinaryOp::Copysign => f!(false, $cost, |a, b| a.copysign(b)),
                BinaryOp::Hypot => f!(true, 20 * $cost, |a, b| hypot(a as f64, b as f64, <$t>::MAX as f64) as $t),
                _ => comparisons!(op, c, None),
            }
        }
    };
}

/// `f32` operands cannot overflow in `f64`; for `f64` operands it is the C library's.
#[inline(always)]
fn hypot(a: f64, b: f64, max: f64) -> f64 {
    if max == f64::MAX {
        return a.hypot(b);
    }
    let h = (a * a + b * b).sqrt();
    if a.is_infinite() || b.is_infinite() { f64::INFINITY } else { h }
}

float_binary!(
    binary_f32,
    f32,
    power_f32,
    CHEAP,
    floor_div_f32,
    remainder_f32,
    true,
    2 * POLY64,
    |I, x, y| widened::pow::<I>(x, y),
    widened::atan2::<I>(x, y)
);
float_binary!(
    binary_f64,
    f64,
    power_f64,
    WIDE,
    floor_div_f64,
    remainder_f64,
    false,
    2 * SCALAR,
    |_I, x, y| x.powf(y),
    x.atan2(y)
);

fn binary_i64(op: BinaryOp, shape: Shape) -> Option<Found<Pass2>> {
    const DIVISION: u32 = 4000;
    macro_rules! f {
        ($cost:expr, |$a:ident, $b:ident| $body:expr) => {
            map2!(shape, i64 => i64, false, $cost, |I, $a, $b| $body)
        };
    }
    macro_rules! c {
        (|$a:ident, $b:ident| $body:expr) => {
            map2!(shape, i64 => u8, false, WIDE, |I, $a, $b| $body)
        };
    }
    // The divisor 1 stands in for 0, which the check before this pass has reported.
    #[inline(always)]
    fn divisor(b: i64) -> i64 {
        if b == 0 { 1 } else { b }
    }
    match op {
        BinaryOp::Add => f!(WIDE, |a, b| a.wrapping_add(b)),
        BinaryOp::Sub => f!(WIDE, |a, b| a.wrapping_sub(b)),
        BinaryOp::Mul => f!(WIDE, |a, b| a.wrapping_mul(b)),
        BinaryOp::Div => f!(DIVISION, |a, b| a.wrapping_div(divisor(b))),
        BinaryOp::FloorDiv => f!(DIVISION, |a, b| {
            let b = divisor(b);
            let (q, m) = (a.wrapping_div(b), a.wrapping_rem(b));
            q - (m != 0 && (m < 0) != (b < 0)) as i64
        }),
        BinaryOp::Remainder => f!(DIVISION, |a, b| {
            let b = divisor(b);
            let m = a.wrapping_rem(b);
            if m != 0 && (m < 0) != (b < 0) { m + b } else { m }
        }),
        BinaryOp::Fmod => f!(DIVISION, |a, b| a.wrapping_rem(divisor(b))),
        BinaryOp::Pow => f!(DIVISION, |a, b| special::ipow(a, b)),
        BinaryOp::Maximum | BinaryOp::Fmax => f!(WIDE, |a, b| a.max(b)),
        BinaryOp::Minimum | BinaryOp::Fmin => f!(WIDE, |a, b| a.min(b)),
        BinaryOp::And => f!(WIDE, |a, b| a & b),
        BinaryOp::Or => f!(WIDE, |a, b| a | b),
        BinaryOp::Xor => f!(WIDE, |a, b| a ^ b),
        BinaryOp::Shl => f!(WIDE, |a, b| if (b as u64) < 64 { a << (b & 63) } else { 0 }),
        BinaryOp::Shr => f!(WIDE, |a, b| a >> (if (b as u64) < 64 { b } else { 63 })),
        _ => comparisons!(op, c, None),
    }
}

fn binary_bool(op: BinaryOp, shape: Shape) -> Option<Found<Pass2>> {
    macro_rules! c {
        (|$a:ident, $b:ident| $body:expr) => {
            map2!(shape, u8 => u8, false, CHEAP, |I, $a, $b| $body)
        };
    }
    match op {
        BinaryOp::Add | BinaryOp::Or | BinaryOp::Maximum | BinaryOp::Fmax => c!(|a, b| a | b),
        BinaryOp::Mul | BinaryOp::And | BinaryOp::Minimum | BinaryOp::Fmin => c!(|a, b| a & b),
        BinaryOp::Xor => c!(|a, b| a ^ b),
        _ => comparisons!(op, c, None),
    }
}
