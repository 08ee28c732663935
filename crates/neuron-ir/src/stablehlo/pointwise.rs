//! Elementwise operators.

use super::text::{El, Text, V};
use super::{Call, Written, polynomials, reasons, special};
use crate::{BinaryOp, DType, Op, UnaryOp};

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    let result = c.result();
    let value = match &c.node.op {
        Op::Constant(value) => t.splat(result.dtype.into(), &[], *value),
        Op::Iota { dim } => t.iota(El::I64, &result.sizes, *dim),
        Op::Once => c.args[0].clone(),
        Op::Select => t.select(&c.args[0], &c.args[1], &c.args[2]),
        Op::Convert => convert(t, &c.args[0], result.dtype),
        Op::Unary(op) => unary(t, *op, &c.args[0])?,
        Op::Binary(op) => binary(t, *op, &c.args[0], &c.args[1])?,
        other => unreachable!("{} is not elementwise", other.name()),
    };
    Ok(vec![value])
}

/// As the processor's own conversions have it: a float that no `i32` (no `i64` for `i64`) holds becomes the smallest
/// integer, which then wraps.
pub(super) fn convert(t: &mut Text, a: &V, to: DType) -> V {
    let el = El::from(to);
    let float_to_integer = a.el.is_float() && to.is_int();
    if to == DType::Bool && a.el != El::I1 {
        return t.compare_num("NE", a, 0.0);
    }
    if matches!(to, DType::F16 | DType::BF16) || to.is_float8() {
        // Through f32, as the kernels round.
        let single = t.convert(a, El::F32);
        return if to == DType::F8E4M3 { saturate(t, &single) } else { t.convert(&single, el) };
    }
    if !float_to_integer {
        return t.convert(a, el);
    }
    let wide = a.el.compute();
    let a = t.convert(a, wide);
    let (bound, smallest) = match to {
        DType::I64 => (9_223_372_036_854_775_808.0, i64::MIN),
        _ => (2_147_483_648.0, i64::from(i32::MIN)),
    };
    let above = t.compare_num("GE", &a, -bound);
    let below = t.compare_num("LT", &a, bound);
    let fits = t.and(&above, &below);
    let safe = t.select_num(&fits, &a, 0.0);
    let whole = t.convert(&safe, El::I64);
    let least = t.like_int(&whole, smallest);
    let whole = t.select(&fits, &whole, &least);
    t.convert(&whole, el)
}

/// To the 8-bit float without infinity: what is too large is its largest number.
fn saturate(t: &mut Text, a: &V) -> V {
    let (most, least) = (t.like(a, 448.0), t.like(a, -448.0));
    let high = t.compare("GT", a, &most);
    let a1 = t.select(&high, &most, a);
    let low = t.compare("LT", &a1, &least);
    let a2 = t.select(&low, &least, &a1);
    t.convert(&a2, El::F8E4M3)
}

/// The integer type that the bits of a float are handled in.
fn word(el: El) -> El {
    if el == El::F64 { El::I64 } else { El::I32 }
}

fn sign_mask(el: El) -> i64 {
    if el == El::F64 { i64::MIN } else { i64::from(i32::MIN) }
}

pub(super) fn unary(t: &mut Text, op: UnaryOp, a: &V) -> Result<V, &'static str> {
    use UnaryOp::*;
    let float = a.el.is_float();
    Ok(match op {
        Neg => t.un("negate", a),
        Abs => t.un("abs", a),
        // 0 for NaN, unlike StableHLO's.
        Sign if float => {
            let above = t.compare_num("GT", a, 0.0);
            let below = t.compare_num("LT", a, 0.0);
            let (above, below) = (t.convert(&above, a.el), t.convert(&below, a.el));
            t.sub(&above, &below)
        }
        Sign => t.un("sign", a),
        Not => t.not(a),
        Floor | Ceil | Trunc | Round if !float => a.clone(),
        Floor => t.un("floor", a),
        Ceil => t.un("ceil", a),
        Trunc => trunc(t, a),
        Round => t.un("round_nearest_even", a),
        IsNan => t.is_nan(a),
        IsInf if !float => t.splat(El::I1, &a.dims, crate::Scalar::I64(0)),
        IsInf => {
            let magnitude = t.un("abs", a);
            t.compare_num("EQ", &magnitude, f64::INFINITY)
        }
        Signbit if float => {
            let bits = t.bitcast(a, word(a.el));
            t.compare_int("LT", &bits, 0)
        }
        Signbit => t.compare_int("LT", a, 0),
        _ if !float => return Err(reasons::INTEGER_FLOAT),
        Exp => t.un("exponential", a),
        Exp2 => {
            let two = t.like(a, 2.0);
            t.bin("power", &two, a)
        }
        Expm1 => t.un("exponential_minus_one", a),
        Log => t.un("log", a),
        Log2 => {
            let log = t.un("log", a);
            t.bin_num("divide", &log, std::f64::consts::LN_2)
        }
        Log10 => {
            let log = t.un("log", a);
            t.bin_num("divide", &log, std::f64::consts::LN_10)
        }
        Log1p => t.un("log_plus_one", a),
        Sqrt => t.un("sqrt", a),
        Rsqrt => {
            let root = t.un("sqrt", a);
            reciprocal(t, &root)
        }
        Reciprocal => reciprocal(t, a),
        Sin => t.un("sine", a),
        Cos => t.un("cosine", a),
        Tan => t.un("tan", a),
        Tanh => t.un("tanh", a),
        Sigmoid => t.un("logistic", a),
        Asin => t.chlo("asin", &[a]),
        Acos => t.chlo("acos", &[a]),
        Atan => t.chlo("atan", &[a]),
        Sinh => t.chlo("sinh", &[a]),
        Cosh => t.chlo("cosh", &[a]),
        Asinh => t.chlo("asinh", &[a]),
        Acosh => t.chlo("acosh", &[a]),
        Atanh => t.chlo("atanh", &[a]),
        Erf => t.chlo("erf", &[a]),
        Erfc => t.chlo("erfc", &[a]),
        Erfinv => t.chlo("erf_inv", &[a]),
        Lgamma => {
            // In f64: near its zeros the series for f32 has no digit right.
            let wide = t.convert(a, El::F64);
            let value = t.chlo("lgamma", &[&wide]);
            t.convert(&value, a.el)
        }
        _ => return special::unary(t, op, a),
    })
}

pub(super) fn reciprocal(t: &mut Text, a: &V) -> V {
    let one = t.like(a, 1.0);
    t.div(&one, a)
}

fn trunc(t: &mut Text, a: &V) -> V {
    let below = t.compare_num("LT", a, 0.0);
    let (floor, ceil) = (t.un("floor", a), t.un("ceil", a));
    t.select(&below, &ceil, &floor)
}

pub(super) fn binary(t: &mut Text, op: BinaryOp, a: &V, b: &V) -> Result<V, &'static str> {
    use BinaryOp::*;
    let comparison = match op {
        Eq => Some("EQ"),
        Ne => Some("NE"),
        Lt => Some("LT"),
        Le => Some("LE"),
        Gt => Some("GT"),
        Ge => Some("GE"),
        _ => None,
    };
    if let Some(direction) = comparison {
        return Ok(t.compare(direction, a, b));
    }
    if a.el == El::I1 {
        return Ok(match op {
            Add | Or | Maximum | Fmax => t.or(a, b),
            Mul | And | Minimum | Fmin => t.and(a, b),
            Xor => t.bin("xor", a, b),
            _ => return Err("not defined on bool"),
        });
    }
    let float = a.el.is_float();
    Ok(match op {
        Add => t.add(a, b),
        Sub => t.sub(a, b),
        Mul => t.mul(a, b),
        Div => t.div(a, b),
        FloorDiv if float => floor_div(t, a, b),
        FloorDiv => {
            let q = t.div(a, b);
            let m = t.bin("remainder", a, b);
            let down = opposite(t, &m, b);
            let down = t.convert(&down, El::I64);
            t.sub(&q, &down)
        }
        Remainder => {
            let m = t.bin("remainder", a, b);
            let down = opposite(t, &m, b);
            let shifted = t.add(&m, b);
            t.select(&down, &shifted, &m)
        }
        Fmod => t.bin("remainder", a, b),
        Pow if float => t.bin("power", a, b),
        Pow => integer_power(t, a, b),
        Maximum => t.bin("maximum", a, b),
        Minimum => t.bin("minimum", a, b),
        Fmax | Fmin if !float => t.bin(if op == Fmax { "maximum" } else { "minimum" }, a, b),
        Fmax | Fmin => {
            let better = t.compare(if op == Fmax { "GT" } else { "LT" }, b, a);
            let nan = t.is_nan(a);
            let take = t.or(&better, &nan);
            t.select(&take, b, a)
        }
        And => t.and(a, b),
        Or => t.or(a, b),
        Xor => t.bin("xor", a, b),
        Shl | Shr => shift(t, op, a, b),
        Gcd => gcd(t, a, b),
        Lcm => {
            let g = gcd(t, a, b);
            let none = t.compare_int("EQ", &g, 0);
            let one = t.like_int(&g, 1);
            let divisor = t.select(&none, &one, &g);
            let part = t.div(a, &divisor);
            let product = t.mul(&part, b);
            let size = t.un("abs", &product);
            let zero = t.like_int(&g, 0);
            t.select(&none, &zero, &size)
        }
        _ if !float => return Err(reasons::INTEGER_FLOAT),
        Atan2 => t.bin("atan2", a, b),
        Copysign => copysign(t, a, b),
        Hypot => hypot(t, a, b),
        Nextafter => t.chlo("next_after", &[a, b]),
        NextafterBf16 | NextafterF16 => {
            let el = if op == NextafterBf16 { El::BF16 } else { El::F16 };
            next_after_half(t, a, b, el)
        }
        Zeta => special::zeta(t, a, b),
        Igamma | Igammac => return Err(reasons::SERIES),
        _ => return Ok(polynomials::write(t, op, a, b)),
    })
}

/// True where `m` is not 0 and of the other sign than `b`.
fn opposite(t: &mut Text, m: &V, b: &V) -> V {
    let rest = t.compare_num("NE", m, 0.0);
    let (m_below, b_below) = (t.compare_num("LT", m, 0.0), t.compare_num("LT", b, 0.0));
    let differ = t.compare("NE", &m_below, &b_below);
    t.and(&rest, &differ)
}

/// PyTorch's: exact where `floor(a / b)` is off by a rounding.
fn floor_div(t: &mut Text, a: &V, b: &V) -> V {
    let m = t.bin("remainder", a, b);
    let whole = t.sub(a, &m);
    let d = t.div(&whole, b);
    let down = opposite(t, &m, b);
    let less = t.bin_num("subtract", &d, 1.0);
    let d = t.select(&down, &less, &d);
    let f = t.un("floor", &d);
    let gap = t.sub(&d, &f);
    let up = t.compare_num("GT", &gap, 0.5);
    let more = t.bin_num("add", &f, 1.0);
    let f = t.select(&up, &more, &f);
    let ratio = t.div(a, b);
    let zero = t.like(a, 0.0);
    let signed = copysign(t, &zero, &ratio);
    let none = t.compare_num("EQ", &d, 0.0);
    let f = t.select(&none, &signed, &f);
    let by_zero = t.compare_num("EQ", b, 0.0);
    t.select(&by_zero, &ratio, &f)
}

pub(super) fn copysign(t: &mut Text, a: &V, b: &V) -> V {
    let (el, sign) = (word(a.el), sign_mask(a.el));
    let (x, y) = (t.bitcast(a, el), t.bitcast(b, el));
    let magnitude = t.bin_int("and", &x, !sign);
    let sign = t.bin_int("and", &y, sign);
    let bits = t.or(&magnitude, &sign);
    t.bitcast(&bits, a.el)
}

/// In `f64` for `f32`, which then cannot overflow; else with the larger taken out.
fn hypot(t: &mut Text, a: &V, b: &V) -> V {
    let wide = |t: &mut Text, v: &V| {
        let v = t.convert(v, El::F64);
        t.un("abs", &v)
    };
    let (x, y) = (wide(t, a), wide(t, b));
    let h = if a.el == El::F64 {
        let (large, small) = (t.bin("maximum", &x, &y), t.bin("minimum", &x, &y));
        let zero = t.compare_num("EQ", &large, 0.0);
        let one = t.like(&large, 1.0);
        let divisor = t.select(&zero, &one, &large);
        let ratio = t.div(&small, &divisor);
        let square = t.mul(&ratio, &ratio);
        let sum = t.bin_num("add", &square, 1.0);
        let root = t.un("sqrt", &sum);
        t.mul(&large, &root)
    } else {
        let (x2, y2) = (t.mul(&x, &x), t.mul(&y, &y));
        let sum = t.add(&x2, &y2);
        t.un("sqrt", &sum)
    };
    let x_infinite = t.compare_num("EQ", &x, f64::INFINITY);
    let y_infinite = t.compare_num("EQ", &y, f64::INFINITY);
    let infinite = t.or(&x_infinite, &y_infinite);
    let infinity = t.like(&h, f64::INFINITY);
    let h = t.select(&infinite, &infinity, &h);
    t.convert(&h, a.el)
}

/// By squaring; negative exponents leave what is not 1 or -1 as 0.
fn integer_power(t: &mut Text, a: &V, b: &V) -> V {
    let odd_bit = t.bin_int("and", b, 1);
    let one = t.like_int(a, 1);
    let (mut base, mut result) = (a.clone(), one.clone());
    let exponent = t.bitcast(b, El::U64);
    let state = [&base, &result, &exponent].map(Clone::clone);
    let state: Vec<&V> = state.iter().collect();
    let out = t.while_loop(
        &state,
        |t, s| {
            let left = t.compare_int("NE", &s[2], 0);
            any(t, &left)
        },
        |t, s| {
            let bit = t.bin_int("and", &s[2], 1);
            let set = t.compare_int("NE", &bit, 0);
            let product = t.mul(&s[1], &s[0]);
            let result = t.select(&set, &product, &s[1]);
            let square = t.mul(&s[0], &s[0]);
            let rest = t.bin_int("shift_right_logical", &s[2], 1);
            vec![square, result, rest]
        },
    );
    (base, result) = (a.clone(), out[1].clone());
    let negative = t.compare_int("LT", b, 0);
    let is_one = t.compare_int("EQ", &base, 1);
    let is_minus = t.compare_int("EQ", &base, -1);
    let zero = t.like_int(a, 0);
    let doubled = t.add(&odd_bit, &odd_bit);
    let alternating = t.sub(&one, &doubled);
    let small = t.select(&is_minus, &alternating, &zero);
    let small = t.select(&is_one, &one, &small);
    t.select(&negative, &small, &result)
}

/// True, 0-dimensional, if any element is.
pub(super) fn any(t: &mut Text, a: &V) -> V {
    let all: Vec<i64> = (0..a.rank() as i64).collect();
    t.reduce("or", a, crate::Scalar::I64(0), &all)
}

fn shift(t: &mut Text, op: BinaryOp, a: &V, b: &V) -> V {
    let distance = t.bitcast(b, El::U64);
    let inside = t.compare_int("LT", &distance, 64);
    if op == BinaryOp::Shl {
        let safe = t.select_num(&inside, b, 0.0);
        let shifted = t.bin("shift_left", a, &safe);
        return t.select_num(&inside, &shifted, 0.0);
    }
    let safe = t.select_num(&inside, b, 63.0);
    t.bin("shift_right_arithmetic", a, &safe)
}

/// Euclid's algorithm on all elements at once, of magnitudes.
fn gcd(t: &mut Text, a: &V, b: &V) -> V {
    let (x, y) = (t.un("abs", a), t.un("abs", b));
    // The smallest integer has no other magnitude than itself: as unsigned it is right.
    let (x, y) = (t.bitcast(&x, El::U64), t.bitcast(&y, El::U64));
    let out = t.while_loop(
        &[&x, &y],
        |t, s| {
            let left = t.compare_int("NE", &s[0], 0);
            any(t, &left)
        },
        |t, s| {
            let left = t.compare_int("NE", &s[0], 0);
            let one = t.like_int(&s[0], 1);
            let divisor = t.select(&left, &s[0], &one);
            let rest = t.bin("remainder", &s[1], &divisor);
            let zero = t.like_int(&s[0], 0);
            vec![t.select(&left, &rest, &zero), t.select(&left, &s[0], &s[1])]
        },
    );
    t.bitcast(&out[1], El::I64)
}

/// Neighbours in a half type: a step of its bits, which order as integers do.
fn next_after_half(t: &mut Text, a: &V, b: &V, el: El) -> V {
    let (x, y) = (t.convert(a, el), t.convert(b, el));
    let next = t.chlo("next_after", &[&x, &y]);
    t.convert(&next, a.el)
}
