use super::testing::{Rng, Tensor, assert_close, epsilon, groups, kept, run};
use super::*;

fn better(max: bool, x: f64, best: f64) -> bool {
    (if max { x > best } else { x < best }) || x.is_nan() && !best.is_nan()
}

fn position_of(max: bool, values: &[f64]) -> usize {
    let mut best = 0;
    for i in 1..values.len() {
        if better(max, values[i], values[best]) {
            best = i;
        }
    }
    best
}

fn random_dims(rng: &mut Rng, rank: usize) -> Vec<i64> {
    if rng.below(4) == 0 {
        (0..rank as i64).collect()
    } else {
        (0..rank as i64).filter(|_| rng.below(2) == 0).collect()
    }
}

/// Some NaN, infinities, signed zeros and repeated values.
fn special(rng: &mut Rng, t: Tensor) -> Tensor {
    if !t.ty.dtype.is_float() {
        return t;
    }
    let rare = 1 + rng.below(300);
    let mut i = 0;
    let values = t.values();
    t.fill(|| {
        i += 1;
        match rng.below(8 * rare) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            3..=6 => -0.0,
            _ => values[i - 1],
        }
    })
}

#[test]
fn sums_and_products_of_any_layout() {
    let mut rng = Rng(1);
    for round in 0..500 {
        let dtype = DType::ALL[rng.below(10)];
        let sizes = rng.sizes();
        let dims = random_dims(&mut rng, sizes.len());
        let out_dtype = if dtype.is_float() { [dtype, DType::F32, DType::F64][rng.below(3)] } else { DType::I64 };
        let mut x = Tensor::strided(&mut rng, dtype, &sizes, true).randn(&mut rng);
        let mut y = Tensor::strided(&mut rng, out_dtype, &kept(&sizes, &dims), false);
        let product = round % 3 == 0;
        if product {
            x = if dtype.is_float() {
                x.fill(|| 1.0 + 0.01 * rng.normal())
            } else {
                x.fill(|| 1.0 + rng.below(2) as f64)
            };
        }
        let op = if product { ReduceOp::Prod } else { ReduceOp::Sum };
        run(&Reduce::new(op, &x.ty, &dims, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        for (i, group) in groups(&sizes, &dims).iter().enumerate() {
            let values: Vec<f64> = group.iter().map(|&j| x.get(j)).collect();
            let what = format!("{op:?} {} over {dims:?} to {}", x.ty, y.ty);
            if !dtype.is_float() && product {
                let want = values.iter().fold(1i64, |a, &v| a.wrapping_mul(v as i64));
                assert_eq!(y.get(i), want as f64, "{what}");
            } else {
                let want = if product { values.iter().product() } else { values.iter().sum::<f64>() };
                let scale = if product { values.len() as f64 } else { values.iter().map(|v| v.abs()).sum() };
                let compute = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                let error =
                    if dtype.is_float() { epsilon(compute) * (1.0 + scale) + 2.0 * epsilon(out_dtype) } else { 0.0 };
                assert_close(y.get(i), want, error, &what);
            }
        }
    }
}

#[test]
fn extremes_and_positions_of_any_layout() {
    let mut rng = Rng(2);
    for _ in 0..500 {
        let dtype = DType::ALL[rng.below(10)];
        let sizes = rng.sizes();
        let max = rng.below(2) == 0;
        let x = Tensor::strided(&mut rng, dtype, &sizes, true).randn(&mut rng);
        let mut x = special(&mut rng, x);

        let dims = random_dims(&mut rng, sizes.len());
        let mut y = Tensor::strided(&mut rng, dtype, &kept(&sizes, &dims), false);
        let op = if max { ReduceOp::Max } else { ReduceOp::Min };
        run(&Reduce::new(op, &x.ty, &dims, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        for (i, group) in groups(&sizes, &dims).iter().enumerate().filter(|(_, g)| !g.is_empty()) {
            let values: Vec<f64> = group.iter().map(|&j| x.get(j)).collect();
            let want = values[position_of(max, &values)];
            assert_close(y.get(i), want, 0.0, &format!("{op:?} {} over {dims:?}", x.ty));
        }

        let dims: Vec<i64> = if rng.below(3) == 0 || sizes.is_empty() {
            (0..sizes.len() as i64).collect()
        } else {
            vec![rng.below(sizes.len()) as i64]
        };
        let mut at = Tensor::strided(&mut rng, DType::I64, &kept(&sizes, &dims), false);
        let op = if max { ReduceOp::ArgMax } else { ReduceOp::ArgMin };
        run(&Reduce::new(op, &x.ty, &dims, &at.ty).unwrap(), &mut [&mut x, &mut at]);
        let mut values = Tensor::strided(&mut rng, dtype, &kept(&sizes, &dims), false);
        let mut indices = Tensor::strided(&mut rng, DType::I64, &kept(&sizes, &dims), false);
        let one = dims.len() == 1;
        if one {
            let kernel = MinMaxDim::new(max, &x.ty, dims[0] as usize, &values.ty, &indices.ty).unwrap();
            run(&kernel, &mut [&mut x, &mut values, &mut indices]);
        }
        for (i, group) in groups(&sizes, &dims).iter().enumerate().filter(|(_, g)| !g.is_empty()) {
            let elements: Vec<f64> = group.iter().map(|&j| x.get(j)).collect();
            let want = position_of(max, &elements);
            let what = format!("{op:?} {} over {dims:?}", x.ty);
            assert_eq!(at.get(i), want as f64, "{what}");
            if one {
                assert_eq!(indices.get(i), want as f64, "{what}");
                assert_close(values.get(i), elements[want], 0.0, &what);
                assert!(elements[want] != 0.0 || values.get(i).is_sign_negative() == elements[want].is_sign_negative());
            }
        }
    }
}

#[test]
fn any_and_all_of_any_layout() {
    let mut rng = Rng(3);
    for _ in 0..250 {
        let dtype = DType::ALL[rng.below(10)];
        let sizes = rng.sizes();
        let dims = random_dims(&mut rng, sizes.len());
        let any = rng.below(2) == 0;
        let rare = 1 + rng.below(400);
        let mut x = Tensor::strided(&mut rng, dtype, &sizes, true).fill(|| {
            let other = if dtype.is_float() { [f64::NAN, -0.0][rng.below(2)] } else { 3.0 };
            let usual = if any { 0.0 } else { 1.0 };
            if rng.below(rare) == 0 { other * (1.0 - usual) } else { usual }
        });
        let out_dtype = [DType::Bool, DType::U8][rng.below(2)];
        let mut y = Tensor::strided(&mut rng, out_dtype, &kept(&sizes, &dims), false);
        let op = if any { ReduceOp::Any } else { ReduceOp::All };
        run(&Reduce::new(op, &x.ty, &dims, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        for (i, group) in groups(&sizes, &dims).iter().enumerate() {
            let mut truths = group.iter().map(|&j| x.get(j) != 0.0);
            let want = if any { truths.any(|t| t) } else { truths.all(|t| t) };
            assert_eq!(y.get(i), want as u8 as f64, "{op:?} {} over {dims:?}", x.ty);
        }
    }
}

#[test]
fn variance_of_any_layout() {
    let mut rng = Rng(4);
    for _ in 0..250 {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][rng.below(4)];
        let sizes = rng.sizes();
        let dims = random_dims(&mut rng, sizes.len());
        let shift = [0.0, 100.0][rng.below(2)];
        let correction = rng.below(3) as f64;
        let mut x = Tensor::strided(&mut rng, dtype, &sizes, true).fill(|| shift + rng.normal());
        let mut var = Tensor::strided(&mut rng, dtype, &kept(&sizes, &dims), false);
        let mut mean = Tensor::strided(&mut rng, dtype, &kept(&sizes, &dims), false);
        let kernel = Variance::new(&x.ty, &dims, correction, &var.ty, &mean.ty).unwrap();
        run(&kernel, &mut [&mut x, &mut var, &mut mean]);
        for (i, group) in groups(&sizes, &dims).iter().enumerate() {
            let n = group.len() as f64;
            let m = group.iter().map(|&j| x.get(j)).sum::<f64>() / n;
            let v = group.iter().map(|&j| (x.get(j) - m).powi(2)).sum::<f64>() / (n - correction).max(0.0);
            let what = format!("{} over {dims:?} less {correction}", x.ty);
            assert_close(mean.get(i), m, epsilon(dtype), &what);
            assert_close(var.get(i), v, epsilon(dtype).max(1e-10), &what);
        }
    }
}

/// Long enough for every level of the summation, for parts in parallel, and for folded columns.
#[test]
fn long_sums_are_precise() {
    let mut rng = Rng(5);
    for (sizes, dims) in [
        (vec![3_000_001], vec![0]),
        (vec![1_000_003, 3], vec![0]),
        (vec![40_001, 50], vec![0]),
        (vec![2, 600_000], vec![1]),
        (vec![5, 700, 700], vec![0, 2]),
        (vec![700, 5, 700], vec![0, 2]),
    ] {
        let mut x = Tensor::of(TensorType::contiguous(DType::F32, &sizes)).fill(|| 0.1 + 1e-3 * rng.normal());
        let mut y = Tensor::of(TensorType::contiguous(DType::F32, &kept(&sizes, &dims)));
        run(&Reduce::new(ReduceOp::Sum, &x.ty, &dims, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        let mut var = Tensor::of(y.ty.clone());
        let mut mean = Tensor::of(y.ty.clone());
        run(&Variance::new(&x.ty, &dims, 1.0, &var.ty, &mean.ty).unwrap(), &mut [&mut x, &mut var, &mut mean]);
        for (i, group) in groups(&sizes, &dims).iter().enumerate() {
            let n = group.len() as f64;
            let want = group.iter().map(|&j| x.get(j)).sum::<f64>();
            assert!((y.get(i) - want).abs() < 1e-6 * want, "{sizes:?}: {} {want}", y.get(i));
            let v = group.iter().map(|&j| (x.get(j) - want / n).powi(2)).sum::<f64>() / (n - 1.0);
            assert!((var.get(i) - v).abs() < 1e-6 * v && (mean.get(i) - want / n).abs() < 1e-7);
        }
    }
}

#[test]
fn positions_in_long_rows() {
    let mut rng = Rng(6);
    for (sizes, dims) in [(vec![1_000_000], vec![0]), (vec![100_000, 20], vec![0]), (vec![700, 700], vec![0, 1])] {
        let mut x = Tensor::of(TensorType::contiguous(DType::F32, &sizes)).fill(|| rng.below(1000) as f64);
        let mut y = Tensor::of(TensorType::contiguous(DType::I64, &kept(&sizes, &dims)));
        for nan in [false, true] {
            if nan {
                let n = x.ty.numel() as usize;
                (0..50).for_each(|_| x.set(n / 2 + rng.below(n / 2), f64::NAN));
            }
            run(&Reduce::new(ReduceOp::ArgMax, &x.ty, &dims, &y.ty).unwrap(), &mut [&mut x, &mut y]);
            for (i, group) in groups(&sizes, &dims).iter().enumerate() {
                let values: Vec<f64> = group.iter().map(|&j| x.get(j)).collect();
                assert_eq!(y.get(i), position_of(true, &values) as f64);
            }
        }
    }
}

#[test]
fn integers_wrap() {
    let mut x = [i64::MAX, 1, 5];
    let mut y = 0i64;
    let ty = TensorType::contiguous(DType::I64, &[3]);
    let sum = Reduce::new(ReduceOp::Sum, &ty, &[0], &TensorType::contiguous(DType::I64, &[1])).unwrap();
    // SAFETY: the buffers are those the kernel was made for.
    unsafe { sum.run(&[x.as_mut_ptr().cast(), (&raw mut y).cast()], &[]).unwrap() };
    assert_eq!(y, i64::MIN + 5);
}

#[test]
fn mean_of_an_infinite_sample_is_infinite() {
    let mut x = Tensor::of(TensorType::contiguous(DType::F32, &[3]));
    for place in 0..3 {
        (0..3).for_each(|i| x.set(i, if i == place { f64::INFINITY } else { 1.0 }));
        let mut var = Tensor::of(TensorType::contiguous(DType::F32, &[1]));
        let mut mean = Tensor::of(TensorType::contiguous(DType::F32, &[1]));
        run(&Variance::new(&x.ty, &[0], 1.0, &var.ty, &mean.ty).unwrap(), &mut [&mut x, &mut var, &mut mean]);
        assert!(mean.get(0) == f64::INFINITY && var.get(0).is_nan());
    }
}

#[test]
fn layouts_that_do_not_belong_together_are_refused() {
    let ty = |sizes: &[i64]| TensorType::contiguous(DType::F32, sizes);
    assert!(Reduce::new(ReduceOp::Sum, &ty(&[3, 4]), &[1], &ty(&[3, 4])).is_err());
    assert!(Reduce::new(ReduceOp::Sum, &ty(&[3, 4]), &[2], &ty(&[3, 4])).is_err());
    assert!(Reduce::new(ReduceOp::ArgMax, &ty(&[3, 4]), &[1], &ty(&[3, 1])).is_err(), "positions are i64");
    let i64s = TensorType::contiguous(DType::I64, &[1, 1, 2]);
    assert!(Reduce::new(ReduceOp::ArgMax, &ty(&[3, 4, 2]), &[0, 1], &i64s).is_err());
}
