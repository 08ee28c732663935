use super::*;
use crate::reduce::testing::{Rng, Tensor, assert_close, epsilon, groups, run};

#[test]
fn running_sums_and_products_of_any_layout() {
    let mut rng = Rng(31);
    for _ in 0..400 {
        let dtype = DType::ALL[rng.below(10)];
        let out_dtype = if dtype.is_float() { dtype } else { DType::I64 };
        let sizes = rng.sizes();
        let dim = rng.below(sizes.len().max(1));
        let product = rng.below(2) == 0;
        let mut x = Tensor::strided(&mut rng, dtype, &sizes, true);
        x = if product && dtype.is_float() {
            x.fill(|| if rng.below(400) == 0 { 0.0 } else { 1.0 + 0.01 * rng.normal() })
        } else {
            x.randn(&mut rng)
        };
        let mut y = Tensor::strided(&mut rng, out_dtype, &sizes, false);
        let op = if product { ReduceOp::Prod } else { ReduceOp::Sum };
        run(&Cumulative::new(op, &x.ty, dim, &y.ty).unwrap(), &mut [&mut x, &mut y]);
        let dims: Vec<i64> = if sizes.is_empty() { vec![] } else { vec![dim as i64] };
        for group in groups(&sizes, &dims) {
            let (mut float, mut int) = (if product { 1.0 } else { 0.0 }, product as i64);
            for &j in &group {
                let v = x.get(j);
                float = if product { float * v } else { float + v };
                int = if product { int.wrapping_mul(v as i64) } else { int.wrapping_add(v as i64) };
                let what = format!("{op:?} {} along {dim}", x.ty);
                if dtype.is_float() {
                    assert_close(y.get(j), float, epsilon(dtype).max(1e-11), &what);
                } else {
                    assert_eq!(y.get(j), int as f64, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_product_stays_zero() {
    let mut x = Tensor::of(TensorType::contiguous(DType::F32, &[200])).fill(|| 1e30);
    x.set(0, 0.0);
    let mut y = Tensor::of(x.ty.clone());
    run(&Cumulative::new(ReduceOp::Prod, &x.ty, 0, &y.ty).unwrap(), &mut [&mut x, &mut y]);
    assert!(y.values().iter().all(|v| *v == 0.0), "1e30^20 overflows, but 0 comes first");
}

#[test]
fn runs_in_place() {
    let mut rng = Rng(32);
    for (sizes, dim) in [([3, 5000], 1), ([500, 40], 0)] {
        let mut x = Tensor::of(TensorType::contiguous(DType::F32, &sizes)).randn(&mut rng);
        let mut y = Tensor::of(x.ty.clone());
        let kernel = Cumulative::new(ReduceOp::Sum, &x.ty, dim, &x.ty).unwrap();
        run(&kernel, &mut [&mut x, &mut y]);
        let address = x.address();
        // SAFETY: one buffer for both, as the kernel allows.
        unsafe { kernel.run(&[address, address], &[]).unwrap() };
        assert_eq!(x.values(), y.values());
    }
}
