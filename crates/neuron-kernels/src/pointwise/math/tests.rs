//! The error of every `f32` function in units in the last place, against `f64`.

use crate::pointwise::ops;
use crate::simd::{Level, level};
use neuron_ir::{BinaryOp, DType, UnaryOp};

/// Distance of `got` from the exact `want`, in ulps of the result; infinite where one is NaN or the wrong infinity.
fn ulps(got: f32, want: f64) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if (want as f32) == got {
        return if got == 0.0 && got.is_sign_negative() != (want as f32).is_sign_negative() {
            f64::INFINITY
        } else {
            0.5
        };
    }
    if got.is_infinite() || (want as f32).is_infinite() {
        // One step from the largest finite number is one ulp.
        let near = got.abs() == f32::MAX || want.abs() < f32::MAX as f64 * (1.0 + 1.0 / 8_388_608.0);
        return if near { 1.0 } else { f64::INFINITY };
    }
    let exponent = want.abs().max(f32::MIN_POSITIVE as f64).log2().floor();
    (got as f64 - want).abs() / (exponent - 23.0).exp2()
}

/// Numbers over all exponents, dense ones around 0 and 1, and the special ones.
fn samples() -> Vec<f32> {
    let mut x: Vec<f32> = (0..u32::MAX / 9973).map(|i| f32::from_bits(i * 9973 + i % 7)).collect();
    x.extend((-40_000..=40_000).map(|i| i as f32 * 2.7e-4));
    x.extend((-40_000..=40_000).map(|i| i as f32 * 2.9e-3));
    x.extend((-4000..=4000).map(|i| f32::from_bits((1f32.to_bits() as i32 + i) as u32)));
    x.extend((1..4000).map(|i| (i as f64 * std::f64::consts::FRAC_PI_2) as f32));
    x.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX, f32::MIN]);
    x.extend([f32::from_bits(1), -f32::from_bits(1), f32::from_bits(0x007f_ffff), 1e6, 1_000_001.0, -1e10]);
    x
}

fn levels() -> impl Iterator<Item = Level> {
    [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().filter(|l| *l <= level())
}

fn apply(op: UnaryOp, level: Level, x: &[f32]) -> Vec<f32> {
    let pass = ops::unary(op, DType::F32, level).expect("the operator has an f32 form").pass;
    let mut y = vec![0f32; x.len()];
    // SAFETY: both have `x.len()` elements, and the processor has the level.
    unsafe { pass(y.as_mut_ptr().cast(), x.as_ptr().cast(), x.len()) };
    y
}

#[test]
fn unary_functions_are_within_two_ulps() {
    use super::special;
    type Reference = fn(f64) -> f64;
    let table: &[(UnaryOp, Reference)] = &[
        (UnaryOp::Exp, f64::exp),
        (UnaryOp::Exp2, f64::exp2),
        (UnaryOp::Expm1, f64::exp_m1),
        (UnaryOp::Log, f64::ln),
        (UnaryOp::Log2, f64::log2),
        (UnaryOp::Log10, f64::log10),
        (UnaryOp::Log1p, f64::ln_1p),
        (UnaryOp::Sqrt, f64::sqrt),
        (UnaryOp::Rsqrt, |x| 1.0 / x.sqrt()),
        (UnaryOp::Reciprocal, |x| 1.0 / x),
        (UnaryOp::Sin, f64::sin),
        (UnaryOp::Cos, f64::cos),
        (UnaryOp::Tan, f64::tan),
        (UnaryOp::Asin, f64::asin),
        (UnaryOp::Acos, f64::acos),
        (UnaryOp::Atan, f64::atan),
        (UnaryOp::Sinh, f64::sinh),
        (UnaryOp::Cosh, f64::cosh),
        (UnaryOp::Tanh, f64::tanh),
        (UnaryOp::Asinh, special::asinh),
        (UnaryOp::Acosh, special::acosh),
        (UnaryOp::Atanh, special::atanh),
        (UnaryOp::Erf, special::erf),
        (UnaryOp::Erfc, special::erfc),
        (UnaryOp::Sigmoid, special::sigmoid),
    ];
    let x = samples();
    let mut wrong = Vec::new();
    for &(op, reference) in table {
        for level in levels() {
            let y = apply(op, level, &x);
            let worst = x.iter().zip(&y).map(|(x, y)| (ulps(*y, reference(*x as f64)), *x, *y));
            let (error, x, y) = worst.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are samples");
            println!("{op:>10} {level:?}: {error:.3} ulp at {x:e} ({y:e})");
            if error > 2.0 {
                wrong.push(format!(
                    "{op} on {level:?}: {error} ulp, {op}({x:e}) = {y:e}, not {:e}",
                    reference(x as f64)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn binary_functions_are_within_two_ulps() {
    type Reference = fn(f64, f64) -> f64;
    let table: &[(BinaryOp, Reference)] =
        &[(BinaryOp::Pow, f64::powf), (BinaryOp::Atan2, f64::atan2), (BinaryOp::Hypot, f64::hypot)];
    let mut x: Vec<f32> = Vec::new();
    let mut y: Vec<f32> = Vec::new();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for i in 0..300_000 {
        let scale = [1.0, 4.0, 100.0][i % 3];
        x.push(if i % 2 == 0 { f32::from_bits(random() << 1) } else { random() as f32 / 2.0f32.powi(30) * scale });
        y.push(if i % 5 == 0 {
            f32::from_bits(random() << 1)
        } else {
            (random() as f32 / 2.0f32.powi(30) - 1.0) * scale
        });
    }
    let special =
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -3.0, -2.5, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    for a in special {
        for b in special {
            x.push(a);
            y.push(b);
        }
    }
    for &(op, reference) in table {
        for level in levels() {
            let shape = ops::Shape { level, a: false, b: false };
            let pass = ops::binary(op, DType::F32, shape).expect("the operator has an f32 form").pass;
            let mut z = vec![0f32; x.len()];
            // SAFETY: all have `x.len()` elements, and the processor has the level.
            unsafe { pass(z.as_mut_ptr().cast(), x.as_ptr().cast(), y.as_ptr().cast(), x.len()) };
            let errors = (0..x.len()).map(|i| (ulps(z[i], reference(x[i] as f64, y[i] as f64)), i));
            let (error, i) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are samples");
            println!("{op:>10} {level:?}: {error:.3} ulp at {:e}, {:e} ({:e})", x[i], y[i], z[i]);
            assert!(error <= 2.0, "{op}({:e}, {:e}) = {:e} on {level:?}", x[i], y[i], z[i]);
        }
    }
}

#[test]
fn erfinv_inverts_erf() {
    use super::special::{erf, erfc, erfinv};
    for i in 1..2000 {
        let x = i as f64 * 0.0025;
        let back = erfinv(erf(x));
        // 1 - erf(x) is known to half an ulp of 1 only.
        let slack = 1e-14 + 2e-16 / erfc(x);
        assert!((back - x).abs() < x * slack, "{x}: {back}");
    }
    assert!(erfinv(1.0) == f64::INFINITY && erfinv(-1.0) == f64::NEG_INFINITY && erfinv(1.5).is_nan());
    assert!((erfinv(1e-12) / 1e-12 - std::f64::consts::PI.sqrt() / 2.0).abs() < 1e-15);
}
