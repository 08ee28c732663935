use super::*;
use crate::reduce::testing::{Rng, Tensor, assert_close, epsilon, run};

struct Case {
    rows: usize,
    length: usize,
    dtype: DType,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    x: Tensor,
    grad: Tensor,
    stats: DType,
    dims: usize,
}

fn dense(rng: &mut Rng, dtype: DType, sizes: &[i64]) -> Tensor {
    Tensor::of(TensorType::contiguous(dtype, sizes)).randn(rng)
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][rng.below(4)];
        let rows = [0, 1, 3, 20, 70][rng.below(5)];
        let length = [0, 1, 5, 16, 64, 200, 777, 3000][rng.below(8)];
        let (sizes, dims) = match rng.below(3) {
            0 => (vec![rows as i64, length as i64], 1),
            1 => (vec![rows as i64, 1, length as i64], 2),
            _ => (vec![1, rows as i64, length as i64], 1),
        };
        let affine = if rng.below(3) == 0 { DType::F32 } else { dtype };
        let maybe = |rng: &mut Rng| (rng.below(3) > 0).then(|| dense(rng, affine, &[length as i64]));
        let (weight, bias) = (maybe(rng), maybe(rng));
        let stats = if dtype == DType::F64 { DType::F64 } else { [dtype, DType::F32][rng.below(2)] };
        Case {
            rows,
            length,
            dtype,
            weight,
            bias,
            x: dense(rng, dtype, &sizes),
            grad: dense(rng, dtype, &sizes),
            stats,
            dims,
        }
    }

    fn weight(&self, i: usize) -> f64 {
        self.weight.as_ref().map_or(1.0, |w| w.get(i))
    }

    fn stats(&self) -> Tensor {
        Tensor::of(TensorType::contiguous(self.stats, &[self.rows as i64]))
    }

    fn row(&self, r: usize) -> Vec<f64> {
        (0..self.length).map(|i| self.x.get(r * self.length + i)).collect()
    }

    fn tolerance(&self) -> f64 {
        epsilon(self.dtype).max(if self.dtype == DType::F64 { 1e-11 } else { 2e-5 })
    }
}

#[test]
fn forward_of_any_type() {
    let mut rng = Rng(21);
    for _ in 0..100 {
        for center in [true, false] {
            let mut case = Case::random(&mut rng);
            let eps = 1e-3;
            if !center {
                case.bias = None;
            }
            let (w, b) = (case.weight.as_ref().map(|t| t.ty.dtype), case.bias.as_ref().map(|t| t.ty.dtype));
            let mut out = Tensor::of(case.x.ty.clone());
            let (mut mean, mut rstd) = (case.stats(), case.stats());
            let kernel: Box<dyn Kernel> = if center {
                Box::new(LayerNorm::new(&case.x.ty, case.dims, eps, w, b, &out.ty, case.stats).unwrap())
            } else {
                Box::new(RmsNorm::new(&case.x.ty, case.dims, eps, w, &out.ty, case.stats).unwrap())
            };
            let mut tensors = vec![&mut case.x];
            tensors.extend(case.weight.as_mut());
            tensors.extend(case.bias.as_mut());
            tensors.push(&mut out);
            if center {
                tensors.push(&mut mean);
            }
            tensors.push(&mut rstd);
            run(&*kernel, &mut tensors);
            for r in 0..case.rows {
                let row = case.row(r);
                let n = row.len() as f64;
                let m = if center && !row.is_empty() { row.iter().sum::<f64>() / n } else { 0.0 };
                let s = 1.0 / (row.iter().map(|v| (v - m).powi(2)).sum::<f64>() / n + eps).sqrt();
                let tolerance = epsilon(case.stats).max(1e-6);
                assert_close(mean.get(r), m, tolerance, "mean");
                assert_close(rstd.get(r), s, tolerance, "rstd");
                for (i, v) in row.iter().enumerate() {
                    let bias = case.bias.as_ref().map_or(0.0, |b| b.get(i));
                    let want = (v - m) * s * case.weight(i) + bias;
                    assert_close(out.get(r * case.length + i), want, case.tolerance(), &format!("{}", case.x.ty));
                }
            }
        }
    }
}

#[test]
fn gradients_of_any_type() {
    let mut rng = Rng(22);
    for _ in 0..100 {
        for center in [true, false] {
            let mut case = Case::random(&mut rng);
            let w = case.weight.as_ref().map(|t| t.ty.dtype);
            let (mut mean, mut rstd) = (case.stats(), case.stats());
            for r in 0..case.rows {
                let row = case.row(r);
                let n = row.len().max(1) as f64;
                let m = if center { row.iter().sum::<f64>() / n } else { 0.0 };
                mean.set(r, m);
                rstd.set(r, 1.0 / (row.iter().map(|v| (v - m).powi(2)).sum::<f64>() / n + 1e-2).sqrt());
            }
            let want = [rng.below(3) > 0, rng.below(3) > 0, center && rng.below(3) > 0];
            let kernel: Box<dyn Kernel> = if center {
                let kernel = LayerNormBackward::new(&case.grad.ty, &case.x.ty, case.dims, w, case.stats, want);
                Box::new(kernel.unwrap())
            } else {
                let want = [want[0], want[1]];
                let kernel = RmsNormBackward::new(&case.grad.ty, &case.x.ty, case.dims, w, case.stats, want);
                Box::new(kernel.unwrap())
            };
            let affine = TensorType::contiguous(w.unwrap_or(case.dtype), &[case.length as i64]);
            let mut grad_x = Tensor::of(case.x.ty.clone());
            let (mut grad_w, mut grad_b) = (Tensor::of(affine.clone()), Tensor::of(affine));
            let mut tensors = vec![&mut case.grad, &mut case.x];
            if center {
                tensors.push(&mut mean);
            }
            tensors.push(&mut rstd);
            tensors.extend(case.weight.as_mut());
            for (tensor, want) in [&mut grad_x, &mut grad_w, &mut grad_b].into_iter().zip(want) {
                if want {
                    tensors.push(tensor);
                }
            }
            run(&*kernel, &mut tensors);

            let n = case.length as f64;
            let (mut sum_w, mut sum_b) = (vec![0.0; case.length], vec![0.0; case.length]);
            for r in 0..case.rows {
                let m = if center { mean.get(r) } else { 0.0 };
                let s = rstd.get(r);
                let hat: Vec<f64> = case.row(r).iter().map(|v| (v - m) * s).collect();
                let g: Vec<f64> = (0..case.length).map(|i| case.grad.get(r * case.length + i)).collect();
                let scaled: Vec<f64> = (0..case.length).map(|i| g[i] * case.weight(i)).collect();
                let along = scaled.iter().zip(&hat).map(|(a, b)| a * b).sum::<f64>() / n;
                let offset = if center { scaled.iter().sum::<f64>() / n } else { 0.0 };
                for i in 0..case.length {
                    sum_w[i] += g[i] * hat[i];
                    sum_b[i] += g[i];
                    if want[0] {
                        let expected = s * (scaled[i] - offset - hat[i] * along);
                        assert_close(grad_x.get(r * case.length + i), expected, 4.0 * case.tolerance(), "grad_x");
                    }
                }
            }
            let tolerance = epsilon(grad_w.ty.dtype).max(case.tolerance());
            for i in 0..case.length {
                if want[1] {
                    assert_close(grad_w.get(i), sum_w[i], tolerance * 4.0, "grad_weight");
                }
                if want[2] {
                    assert_close(grad_b.get(i), sum_b[i], tolerance * 4.0, "grad_bias");
                }
            }
        }
    }
}

#[test]
fn a_large_mean_costs_no_precision() {
    let mut rng = Rng(23);
    let mut x = Tensor::of(TensorType::contiguous(DType::F32, &[4, 5000])).fill(|| 1000.0 + rng.normal());
    let mut out = Tensor::of(x.ty.clone());
    let (mut mean, mut rstd) =
        (Tensor::of(TensorType::contiguous(DType::F32, &[4])), Tensor::of(TensorType::contiguous(DType::F32, &[4])));
    let kernel = LayerNorm::new(&x.ty, 1, 0.0, None, None, &out.ty, DType::F32).unwrap();
    run(&kernel, &mut [&mut x, &mut out, &mut mean, &mut rstd]);
    for r in 0..4 {
        let row: Vec<f64> = (0..5000).map(|i| x.get(r * 5000 + i)).collect();
        let m = row.iter().sum::<f64>() / 5000.0;
        let v = row.iter().map(|v| (v - m).powi(2)).sum::<f64>() / 5000.0;
        assert!((rstd.get(r) * v.sqrt() - 1.0).abs() < 1e-6);
        assert!((mean.get(r) - m).abs() < 1e-3);
    }
}

#[test]
fn other_layouts_are_refused() {
    let x = TensorType::strided(DType::F32, &[3, 4], &[1, 3]);
    assert!(LayerNorm::new(&x, 1, 1e-5, None, None, &x, DType::F32).is_err());
    let x = TensorType::contiguous(DType::I32, &[3, 4]);
    assert!(RmsNorm::new(&x, 1, 1e-5, None, &x, DType::F32).is_err());
}
