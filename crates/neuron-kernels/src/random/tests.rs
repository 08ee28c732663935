use super::*;
use half::bf16;

const SEED: u64 = 0x0123_4567_89ab_cdef;

fn generate<T: Copy + Default>(op: RandomOp, dtype: DType, numel: usize, offset: i64) -> Vec<T> {
    let kernel = Random::new(op, &TensorType::contiguous(dtype, &[numel as i64])).unwrap();
    let mut out = vec![T::default(); numel];
    let scalars = [Scalar::F64(3.0), Scalar::I64(SEED as i64), Scalar::I64(offset)];
    // SAFETY: a contiguous buffer of `numel` elements.
    unsafe { kernel.run(&[out.as_mut_ptr().cast()], &scalars).unwrap() };
    out
}

#[test]
fn words_are_taken_in_order() {
    let word = |i: usize| philox(SEED, 12, i as u64 / 4)[i % 4];
    let long = |i: usize| u64::from(word(2 * i)) | u64::from(word(2 * i + 1)) << 32;
    for numel in [0, 1, 5, 31, 32, 33, 64, 100, PIECE + 7, 3 * PIECE] {
        let bits: Vec<u64> = generate(RandomOp::Bits, DType::I64, numel, 12);
        assert!(bits.iter().enumerate().all(|(i, v)| *v == long(i)), "{numel}");
        let floats: Vec<f32> = generate(RandomOp::Uniform, DType::F32, numel, 12);
        assert!(floats.iter().enumerate().all(|(i, v)| *v == (word(i) >> 8) as f32 / (1 << 24) as f32), "{numel}");
        let doubles: Vec<f64> = generate(RandomOp::Uniform, DType::F64, numel, 12);
        assert!(doubles.iter().enumerate().all(|(i, v)| *v == (long(i) >> 11) as f64 / (1u64 << 53) as f64), "{numel}");
    }
}

#[test]
fn normal_pairs_are_box_and_mullers() {
    let values: Vec<f32> = generate(RandomOp::Normal, DType::F32, 4096, 0);
    let doubles: Vec<f64> = generate(RandomOp::Normal, DType::F64, 2048, 0);
    for i in 0..2048 {
        let words = philox(SEED, 0, i as u64 / 2);
        let [radius, angle] = [words[i % 2 * 2], words[i % 2 * 2 + 1]].map(|w| f64::from(w) / 2f64.powi(32));
        let (s, c) = (angle * std::f64::consts::TAU).sin_cos();
        let r = (-2.0 * (radius + 2f64.powi(-33)).ln()).sqrt();
        assert!((f64::from(values[2 * i]) - r * c).abs() < 1e-5 && (f64::from(values[2 * i + 1]) - r * s).abs() < 1e-5);
    }
    assert!(doubles.iter().all(|v| v.is_finite()));
}

#[test]
fn moments_are_those_of_the_distribution() {
    let n = 1 << 20;
    let check = |values: Vec<f64>, mean: f64, variance: f64, fourth: f64| {
        let moment = |p: i32| values.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / n as f64;
        assert!((values.iter().sum::<f64>() / n as f64 - mean).abs() < 0.004);
        assert!((moment(2) / variance - 1.0).abs() < 0.01, "{}", moment(2));
        assert!((moment(4) / fourth - 1.0).abs() < 0.03, "{}", moment(4));
    };
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<_>>();
    check(wide(generate(RandomOp::Normal, DType::F32, n, 0)), 0.0, 1.0, 3.0);
    check(generate(RandomOp::Normal, DType::F64, n, 0), 0.0, 1.0, 3.0);
    check(wide(generate(RandomOp::Uniform, DType::F32, n, 0)), 0.5, 1.0 / 12.0, 1.0 / 80.0);
    check(generate(RandomOp::Uniform, DType::F64, n, 0), 0.5, 1.0 / 12.0, 1.0 / 80.0);
}

#[test]
fn halves_follow_the_float_and_stay_below_one() {
    let n = 1 << 18;
    let floats: Vec<f32> = generate(RandomOp::Uniform, DType::F32, n, 4);
    let brain: Vec<bf16> = generate(RandomOp::Uniform, DType::BF16, n, 4);
    let half: Vec<f16> = generate(RandomOp::Uniform, DType::F16, n, 4);
    assert!(brain.iter().all(|v| v.to_f32() < 1.0) && half.iter().all(|v| v.to_f32() < 1.0));
    assert!(floats.iter().zip(&brain).all(|(f, b)| (f - b.to_f32()).abs() <= f / 128.0));
    assert!(floats.iter().zip(&half).all(|(f, h)| (f - h.to_f32()).abs() <= (f / 1024.0).max(6e-8)));
    let floats: Vec<f32> = generate(RandomOp::Normal, DType::F32, n, 4);
    let brain: Vec<bf16> = generate(RandomOp::Normal, DType::BF16, n, 4);
    assert!(floats.iter().zip(&brain).all(|(f, b)| bf16::from_f32(*f) == *b));
}

#[test]
fn strides_do_not_show() {
    let plain: Vec<f32> = generate(RandomOp::Normal, DType::F32, 35 * 1000, 8);
    let kernel = Random::new(RandomOp::Normal, &TensorType::strided(DType::F32, &[35, 1000], &[1, 35])).unwrap();
    let mut out = vec![0f32; 35 * 1000];
    // SAFETY: a transposed buffer of as many elements.
    unsafe { kernel.run(&[out.as_mut_ptr().cast()], &[Scalar::I64(SEED as i64), Scalar::I64(8)]).unwrap() };
    for i in 0..35 {
        for j in 0..1000 {
            assert_eq!(out[i + 35 * j], plain[1000 * i + j]);
        }
    }
}

#[test]
fn an_offset_continues_the_sequence() {
    let whole: Vec<f32> = generate(RandomOp::Normal, DType::F32, 96, 0);
    let rest: Vec<f32> = generate(RandomOp::Normal, DType::F32, 32, 64);
    assert_eq!(whole[64..], rest);
    assert_eq!(values_per_element(RandomOp::Normal, DType::F64), 2);
    assert_eq!(values_per_element(RandomOp::Uniform, DType::BF16), 1);
}

#[test]
fn other_types_are_refused() {
    assert!(Random::new(RandomOp::Uniform, &TensorType::contiguous(DType::I32, &[1])).is_err());
    assert!(Random::new(RandomOp::Bits, &TensorType::contiguous(DType::F32, &[1])).is_err());
}
