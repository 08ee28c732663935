use super::*;
use crate::reduce::testing::{Rng, Tensor, assert_close, epsilon, groups, run};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

fn reference(values: &[f64], log: bool) -> Vec<f64> {
    let max = values.iter().fold(f64::NEG_INFINITY, |a, &v| if v > a || v.is_nan() { v } else { a });
    let total: f64 = values.iter().map(|v| (v - max).exp()).sum();
    values.iter().map(|v| if log { v - max - total.ln() } else { (v - max).exp() / total }).collect()
}

#[test]
fn softmax_of_any_layout() {
    let mut rng = Rng(11);
    for round in 0..400 {
        let dtype = FLOATS[rng.below(4)];
        let out_dtype = if rng.below(4) == 0 && dtype != DType::F64 { DType::F32 } else { dtype };
        let sizes = rng.sizes();
        let dim = rng.below(sizes.len().max(1));
        let log = rng.below(2) == 0;
        let spread = [1.0, 5.0, 100.0][rng.below(3)];
        let mut x = Tensor::strided(&mut rng, dtype, &sizes, true).fill(|| match rng.below(60_000) {
            0 if round % 2 == 0 => f64::NEG_INFINITY,
            1 if round % 4 == 0 => f64::NAN,
            _ => spread * rng.normal(),
        });
        let mut y = Tensor::strided(&mut rng, out_dtype, &sizes, false);
        run(&Softmax::new(&x.ty, dim, log, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        let dims: Vec<i64> = if sizes.is_empty() { vec![] } else { vec![dim as i64] };
        for group in groups(&sizes, &dims) {
            let values: Vec<f64> = group.iter().map(|&j| x.get(j)).collect();
            let want = reference(&values, log);
            for (&j, want) in group.iter().zip(want) {
                let tolerance = epsilon(out_dtype).max(if dtype == DType::F64 { 1e-12 } else { 2e-6 });
                assert_close(y.get(j), want, tolerance, &format!("{} along {dim}, log {log}", x.ty));
            }
        }
    }
}

#[test]
fn gradients_of_any_layout() {
    let mut rng = Rng(12);
    for _ in 0..300 {
        let dtype = FLOATS[rng.below(4)];
        let sizes = rng.sizes();
        let dim = rng.below(sizes.len().max(1));
        let log = rng.below(2) == 0;
        let mut grad = Tensor::strided(&mut rng, dtype, &sizes, true).randn(&mut rng);
        let mut out = Tensor::strided(&mut rng, dtype, &sizes, false).fill(|| -rng.normal().abs());
        let mut grad_in = Tensor::strided(&mut rng, dtype, &sizes, false);
        let kernel = SoftmaxBackward::new(&grad.ty, &out.ty, dim, log, &grad_in.ty).unwrap();
        run(&kernel, &mut [&mut grad, &mut out, &mut grad_in]);
        let dims: Vec<i64> = if sizes.is_empty() { vec![] } else { vec![dim as i64] };
        for group in groups(&sizes, &dims) {
            let at = |j: usize| (grad.get(j), out.get(j));
            let terms = group.iter().map(|&j| at(j)).map(|(g, o)| if log { g } else { g * o });
            let total: f64 = terms.clone().sum();
            let scale = 1.0 + terms.map(f64::abs).sum::<f64>();
            for &j in &group {
                let (g, o) = at(j);
                let want = if log { g - o.exp() * total } else { o * (g - total) };
                let compute = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                let tolerance = epsilon(dtype) + scale * epsilon(compute);
                assert_close(grad_in.get(j), want, tolerance, &format!("{} along {dim}, log {log}", grad.ty));
            }
        }
    }
}

#[test]
fn runs_in_place() {
    let mut rng = Rng(13);
    for (dtype, sizes, dim) in [
        (DType::F32, [40, 3000], 1),
        (DType::F32, [300, 40], 0),
        (DType::BF16, [40, 300], 1),
        (DType::BF16, [300, 40], 0),
    ] {
        let mut x = Tensor::of(TensorType::contiguous(dtype, &sizes)).randn(&mut rng);
        let mut y = Tensor::of(x.ty.clone());
        let kernel = Softmax::new(&x.ty, dim, false, &x.ty).unwrap();
        run(&kernel, &mut [&mut x, &mut y]);
        let address = x.address();
        // SAFETY: one buffer for both, as the kernel allows.
        unsafe { kernel.run(&[address, address], &[]).unwrap() };
        assert_eq!(x.values(), y.values());
    }
}

#[test]
fn a_row_without_finite_values_is_nan() {
    for log in [false, true] {
        for value in [f64::NEG_INFINITY, f64::INFINITY] {
            let mut x = Tensor::of(TensorType::contiguous(DType::F32, &[2, 5])).fill(|| value);
            let mut y = Tensor::of(x.ty.clone());
            run(&Softmax::new(&x.ty, 1, log, &y.ty).unwrap(), &mut [&mut x, &mut y]);
            assert!(y.values().iter().all(|v| v.is_nan()), "as PyTorch has it");
        }
    }
}
