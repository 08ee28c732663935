//! Random shapes, layouts, masks and dropout against the reference.

use super::reference::{Case, Random, Tensor};
use super::{Attention, AttentionBackward, AttentionOptions};
use crate::Kernel;
use neuron_ir::{DType, Scalar, TensorType};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

fn case(random: &mut Random, dtype: DType, small: bool) -> Case {
    let lens: &[usize] = if small { &[1, 2, 3, 5] } else { &[0, 1, 2, 4, 5, 17, 33, 64, 70, 130, 200] };
    let sizes: &[usize] = if small { &[1, 2, 3] } else { &[1, 3, 8, 16, 20, 32, 64, 65, 270] };
    let (b, hk, group, l, s, e, ev) = loop {
        let mut pick = |choices: &[usize]| choices[random.below(choices.len())];
        let (b, hk, group) = (pick(&[1, 2, 3]), pick(&[1, 2, 3]), pick(&[1, 1, 2, 4]));
        let (l, s, e, ev) = (pick(lens), pick(lens), pick(sizes), pick(sizes));
        // The reference takes its time.
        if b * hk * group * l * s * (e + ev) < 2_000_000 {
            break (b, hk, group, l, s, e, ev);
        }
    };
    let full = [b, hk * group, l, s];
    let mut operand = |sizes: &[usize]| {
        let tensor = Tensor::zeros(dtype, sizes, Some(random));
        tensor.filled(|| random.normal())
    };
    let (q, k, v) = (operand(&[b, hk * group, l, e]), operand(&[b, hk, s, e]), operand(&[b, hk, s, ev]));
    let bias = random.chance(60).then(|| {
        let sizes = full.map(|n| if random.chance(40) { 1 } else { n });
        let masked = random.chance(50);
        let ty = if masked { DType::Bool } else { [dtype, DType::F32][random.below(2)] };
        let hidden = [0, 20, 90][random.below(3)];
        let tensor = Tensor::zeros(ty, &sizes, Some(random));
        let value = || match (masked, random.chance(hidden)) {
            (true, hidden) => f64::from(u8::from(!hidden)),
            (false, true) => f64::NEG_INFINITY,
            (false, false) => random.normal(),
        };
        tensor.filled(value).expanded(&full)
    });
    let options = AttentionOptions {
        causal: random.chance(40),
        scale: [0.125, 1.0 / (e as f64).sqrt(), -0.3][random.below(3)],
        dropout: [0.0, 0.0, 0.25, 1.0][random.below(4)],
    };
    Case { q, k, v, bias, options, seed: random.next(), offset: random.next() & !3 }
}

fn scalars(case: &Case) -> Vec<Scalar> {
    vec![Scalar::F64(9.0), Scalar::I64(case.seed as i64), Scalar::I64(case.offset as i64)]
}

fn forward(case: &Case, random: &mut Random) -> [Tensor; 2] {
    let ([b, h, l, _, _, ev], _) = case.dims();
    let dtype = case.q.ty.dtype;
    let out = Tensor::zeros(dtype, &[b, h, l, ev], Some(random)).filled(|| f64::NAN);
    let lse = Tensor::zeros(dtype.compute(), &[b, h, l], Some(random)).filled(|| f64::NAN);
    let bias = case.bias.as_ref();
    let kernel =
        Attention::new(&case.q.ty, &case.k.ty, &case.v.ty, bias.map(|t| &t.ty), case.options, &out.ty, &lse.ty)
            .unwrap();
    let mut buffers = vec![case.q.ptr(), case.k.ptr(), case.v.ptr()];
    buffers.extend(bias.map(Tensor::ptr));
    buffers.extend([out.ptr(), lse.ptr()]);
    // SAFETY: the buffers are those of the types given.
    unsafe { kernel.run(&buffers, &scalars(case)).unwrap() };
    [out, lse]
}

/// Gradients of `q`, `k`, `v`, and of the bias in `bias_sizes`.
fn backward(
    case: &Case,
    grad_out: &Tensor,
    results: &[Tensor; 2],
    bias_sizes: &[usize],
    random: &mut Random,
) -> Vec<Tensor> {
    let dtype = case.q.ty.dtype;
    let bias = case.bias.as_ref();
    let mut grad = |sizes: &[usize]| Tensor::zeros(dtype, sizes, Some(random)).filled(|| f64::NAN);
    let mut grads = vec![grad(&case.q.sizes()), grad(&case.k.sizes()), grad(&case.v.sizes())];
    if bias.is_some() {
        grads.push(grad(bias_sizes));
    }
    let [out, lse] = results;
    let kernel = AttentionBackward::new(
        &grad_out.ty,
        &case.q.ty,
        &case.k.ty,
        &case.v.ty,
        bias.map(|t| &t.ty),
        &out.ty,
        &lse.ty,
        case.options,
        &grads[0].ty,
        &grads[1].ty,
        &grads[2].ty,
        grads.get(3).map(|t| &t.ty),
    )
    .unwrap();
    let mut buffers = vec![grad_out.ptr(), case.q.ptr(), case.k.ptr(), case.v.ptr()];
    buffers.extend(bias.map(Tensor::ptr));
    buffers.extend([out.ptr(), lse.ptr()]);
    buffers.extend(grads.iter().map(Tensor::ptr));
    // SAFETY: the buffers are those of the types given.
    unsafe { kernel.run(&buffers, &scalars(case)).unwrap() };
    grads
}

/// Compares with an error relative to the largest element, as sums of many terms have it.
fn close(got: &Tensor, want: &Tensor, tolerance: f64, what: &str) {
    let largest = want.indices().iter().map(|i| want.get(i).abs()).filter(|x| x.is_finite()).fold(1.0, f64::max);
    for i in want.indices() {
        let (got, want) = (got.get(&i), want.get(&i));
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * largest;
        assert!(same, "{what} at {i:?}: {got}, not {want} (largest {largest})");
    }
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-5,
        DType::F16 => 2e-3,
        _ => 1.5e-2,
    }
}

#[test]
fn forward_matches_the_reference() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..120 {
        let dtype = FLOATS[round % 4];
        let case = case(&mut random, dtype, false);
        let [out, lse] = forward(&case, &mut random);
        let [want, want_lse] = case.forward();
        let what = format!("round {round}, {dtype}, {:?}, {:?}", case.dims(), case.options);
        close(&lse, &want_lse, if dtype == DType::F64 { 1e-12 } else { 1e-5 }, &format!("{what}, lse"));
        close(&out, &want, tolerance(dtype), &what);
    }
}

#[test]
fn backward_matches_the_reference() {
    let mut random = Random(0xfeed_beef_1234_5671);
    for round in 0..100 {
        let dtype = FLOATS[round % 4];
        let case = case(&mut random, dtype, false);
        let ([b, h, l, s, _, ev], _) = case.dims();
        let mut grad_out = Tensor::zeros(dtype, &[b, h, l, ev], Some(&mut random)).filled(|| random.normal());
        if random.chance(20) {
            grad_out = Tensor::zeros(dtype, &[1; 4], None).filled(|| 1.0).expanded(&[b, h, l, ev]);
        }
        let bias_sizes = [b, h, l, s].map(|n| if random.chance(50) { 1 } else { n });
        // The results as the forward rounds them: the dot product of output and gradient has that error too.
        let results = forward(&case, &mut random);
        let got = backward(&case, &grad_out, &results, &bias_sizes, &mut random);
        let want = case.backward(&grad_out, &bias_sizes);
        for (name, (got, want)) in ["q", "k", "v", "bias"].iter().zip(got.iter().zip(&want)) {
            let what = format!("round {round}, {dtype}, {:?}, {:?}, grad of {name}", case.dims(), case.options);
            // The rounding of the outputs enters by a sum over the value head.
            close(got, want, tolerance(dtype) * (ev as f64).sqrt().max(2.0), &what);
        }
    }
}

#[test]
fn reference_gradients_are_the_differences() {
    let mut random = Random(77);
    for _ in 0..6 {
        let mut case = case(&mut random, DType::F64, true);
        let ([b, h, l, s, _, ev], _) = case.dims();
        let grad_out = Tensor::zeros(DType::F64, &[b, h, l, ev], None).filled(|| random.normal());
        let value = |case: &Case| -> f64 {
            let [out, _] = case.forward();
            out.indices().iter().map(|i| out.get(i) * grad_out.get(i)).sum()
        };
        let grads = case.backward(&grad_out, &[b, h, l, s]);
        for (which, grad) in grads.iter().enumerate().take(3) {
            for i in grad.indices() {
                let mut shifted = |by: f64| {
                    let tensor = [&mut case.q, &mut case.k, &mut case.v].into_iter().nth(which).unwrap();
                    let old = tensor.get(&i);
                    tensor.set(&i, old + by);
                    let value = value(&case);
                    let tensor = [&mut case.q, &mut case.k, &mut case.v].into_iter().nth(which).unwrap();
                    tensor.set(&i, old);
                    value
                };
                let difference = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
                assert!((difference - grad.get(&i)).abs() < 1e-7, "{which} {i:?}");
            }
        }
    }
}

#[test]
fn queries_without_keys_give_zeros() {
    let mut random = Random(5);
    let operand =
        |sizes: &[usize], random: &mut Random| Tensor::zeros(DType::F32, sizes, None).filled(|| random.normal());
    for l in [2, 40] {
        let options = AttentionOptions { causal: false, scale: 0.5, dropout: 0.0 };
        let mut mask = Tensor::zeros(DType::Bool, &[1, 1, l, 5], None).filled(|| 1.0);
        (0..5).for_each(|j| mask.set(&[0, 0, 1, j], 0.0));
        let [q, k, v] = [l, 5, 5].map(|n| operand(&[1, 1, n, 4], &mut random));
        let case = Case { q, k, v, bias: Some(mask), options, seed: 0, offset: 0 };
        let results = forward(&case, &mut random);
        assert_eq!(results[1].get(&[0, 0, 1]), f64::NEG_INFINITY);
        assert!((0..4).all(|x| results[0].get(&[0, 0, 1, x]) == 0.0));
        let ones = Tensor::zeros(DType::F32, &[1, 1, l, 4], None).filled(|| 1.0);
        let grads = backward(&case, &ones, &results, &[1, 1, l, 5], &mut random);
        assert!((0..4).all(|x| grads[0].get(&[0, 0, 1, x]) == 0.0));
    }
}

#[test]
fn largest_negative_bias_is_not_a_mask() {
    // Libraries fill masks with the smallest finite number: a row of it is uniform, as PyTorch has it.
    let mut random = Random(6);
    for l in [1, 20] {
        let options = AttentionOptions { causal: false, scale: 0.5, dropout: 0.0 };
        let [q, k, v] = [l, 5, 5].map(|n| Tensor::zeros(DType::F32, &[1, 1, n, 4], None).filled(|| random.normal()));
        let bias = Tensor::zeros(DType::F32, &[1; 4], None).filled(|| f64::from(f32::MIN)).expanded(&[1, 1, l, 5]);
        let case = Case { q, k, v, bias: Some(bias), options, seed: 0, offset: 0 };
        let [out, _] = forward(&case, &mut random);
        let mean: f64 = (0..5).map(|j| case.v.get(&[0, 0, j, 0])).sum::<f64>() / 5.0;
        assert!((out.get(&[0, 0, 0, 0]) - mean).abs() < 1e-6);
    }
}

#[test]
fn not_a_number_spreads_as_far_as_pytorch_lets_it() {
    let options = AttentionOptions { causal: false, scale: 0.5, dropout: 0.0 };
    let mut random = Random(7);
    for l in [3, 20] {
        let [mut q, k, v] =
            [l, 5, 5].map(|n| Tensor::zeros(DType::F32, &[1, 1, n, 4], None).filled(|| random.normal()));
        q.set(&[0, 0, 1, 2], f64::NAN);
        let case = Case { q, k, v, bias: None, options, seed: 0, offset: 0 };
        let [out, _] = forward(&case, &mut random);
        for i in out.indices() {
            assert_eq!(out.get(&i).is_nan(), i[2] == 1, "{i:?}");
        }
    }
}

#[test]
fn a_bias_of_extent_one_is_broadcast() {
    let mut random = Random(8);
    let options = AttentionOptions { causal: true, scale: 0.5, dropout: 0.0 };
    for l in [1, 20] {
        let [q, k, v] = [l, 5, 5].map(|n| Tensor::zeros(DType::F32, &[2, 2, n, 4], None).filled(|| random.normal()));
        let bias = Tensor::zeros(DType::F32, &[2, 1, 1, 5], None).filled(|| random.normal());
        let mut case = Case { q, k, v, bias: Some(bias), options, seed: 0, offset: 0 };
        let [got, _] = forward(&case, &mut random);
        case.bias = case.bias.map(|bias| bias.expanded(&[2, 2, l, 5]));
        let [want, _] = case.forward();
        close(&got, &want, tolerance(DType::F32), "broadcast bias");
    }
}

#[test]
fn what_is_not_attention_is_refused() {
    let options = AttentionOptions { causal: false, scale: 0.5, dropout: 0.0 };
    let ty = |dtype, sizes: &[i64]| TensorType::contiguous(dtype, sizes);
    let attempt = |dtype, heads: i64, out: &[i64]| {
        let (q, k) = (ty(dtype, &[1, 4, 3, 8]), ty(dtype, &[1, heads, 3, 8]));
        Attention::new(&q, &k, &k, None, options, &ty(dtype, out), &ty(DType::F32, &[1, 4, 3])).is_ok()
    };
    assert!(attempt(DType::F32, 2, &[1, 4, 3, 8]));
    assert!(!attempt(DType::F32, 3, &[1, 4, 3, 8]));
    assert!(!attempt(DType::F32, 2, &[1, 4, 3, 7]));
    assert!(!attempt(DType::I32, 2, &[1, 4, 3, 8]));
}
