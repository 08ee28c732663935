//! Steps against the formulas in `f64`, and against what PyTorch computed.

use super::*;
use half::{bf16, f16};

/// A parameter's worth of numbers in memory of some type.
struct Numbers {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Numbers {
    fn new(dtype: DType, values: &[f64]) -> Self {
        let bytes = values.iter().flat_map(|&x| match dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
            _ => (x as f32).to_le_bytes().to_vec(),
        });
        Numbers { dtype, bytes: bytes.collect() }
    }

    fn values(&self) -> Vec<f64> {
        let value = |b: &[u8]| match self.dtype {
            DType::F64 => f64::from_le_bytes(b.try_into().unwrap()),
            DType::BF16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            DType::F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            _ => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
        };
        self.bytes.chunks(self.dtype.size()).map(value).collect()
    }
}

fn waves(len: usize, seed: f64) -> Vec<f64> {
    (0..len).map(|i| (i as f64 * 0.37 + seed).sin() * (1.0 + (i % 7) as f64 * 0.2)).collect()
}

fn run(kernel: &dyn Kernel, arrays: &mut [Numbers], scalars: &[f64]) {
    let buffers: Vec<*mut u8> = arrays.iter_mut().map(|a| a.bytes.as_mut_ptr()).collect();
    let scalars: Vec<Scalar> = scalars.iter().map(|&x| Scalar::F64(x)).collect();
    // SAFETY: the buffers are those of the types given.
    unsafe { kernel.run(&buffers, &scalars).unwrap() };
}

fn close(got: &[f64], want: &[f64], dtype: DType, what: &str) {
    let tolerance = match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 1e-6,
        DType::F16 => 2e-3,
        _ => 1e-2,
    };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{what} {dtype} [{i}]: {got}, not {want}");
    }
}

#[test]
fn adam_follows_its_formulas() {
    let [lr, beta1, beta2, weight_decay, eps] = [0.01, 0.9, 0.99, 0.1, 1e-6];
    for form in 0..32u32 {
        let flag = |bit: u32| form >> bit & 1 == 1;
        let options = AdamOptions {
            adamw: flag(0),
            amsgrad: flag(1),
            maximize: flag(2),
            grad_scale: flag(3),
            found_inf: flag(4),
        };
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let len = if form % 5 == 0 { CHUNK + 77 } else { 77 };
            let mut arrays = vec![
                Numbers::new(dtype, &waves(len, 0.0)),
                Numbers::new(dtype, &waves(len, 1.0)),
                Numbers::new(dtype, &waves(len, 2.0)),
                Numbers::new(dtype, &waves(len, 3.0).iter().map(|x| x * x).collect::<Vec<_>>()),
            ];
            if options.amsgrad {
                arrays.push(Numbers::new(dtype, &waves(len, 4.0).iter().map(|x| x * x).collect::<Vec<_>>()));
            }
            let before: Vec<Vec<f64>> = arrays.iter().map(Numbers::values).collect();
            let scale = if options.grad_scale { 4.0 } else { 1.0 };
            arrays.push(Numbers::new(DType::F32, &[3.0]));
            if options.grad_scale {
                arrays.push(Numbers::new(DType::F32, &[scale]));
            }
            if options.found_inf {
                arrays.push(Numbers::new(DType::F32, &[0.0]));
            }
            let kernel = Adam::new(options, scalars(), len, dtype, dtype, dtype).unwrap();
            run(&kernel, &mut arrays, &[lr, beta1, beta2, weight_decay, eps]);
            let mut want = before.clone();
            for i in 0..len {
                let mut g = before[1][i] / scale;
                want[1][i] = g;
                if options.maximize {
                    g = -g;
                }
                let mut p = before[0][i];
                if options.adamw {
                    p *= 1.0 - lr * weight_decay;
                } else {
                    g += weight_decay * p;
                }
                want[2][i] = beta1 * before[2][i] + (1.0 - beta1) * g;
                want[3][i] = beta2 * before[3][i] + (1.0 - beta2) * g * g;
                let mut v = want[3][i];
                if options.amsgrad {
                    v = v.max(before[4][i]);
                    want[4][i] = v;
                }
                let denominator = v.sqrt() / (1.0 - beta2.powi(3)).sqrt() + eps;
                want[0][i] = p - lr / (1.0 - beta1.powi(3)) * want[2][i] / denominator;
            }
            for (i, want) in want.iter().enumerate() {
                close(&arrays[i].values(), want, dtype, &format!("{options:?} buffer {i}"));
            }
        }
    }
}

#[test]
fn sgd_follows_its_formulas() {
    let [weight_decay, momentum, lr, dampening] = [0.1, 0.9, 0.01, 0.2];
    for form in 0..64u32 {
        let flag = |bit: u32| form >> bit & 1 == 1;
        let options = SgdOptions {
            momentum: flag(0),
            first_step: flag(1),
            nesterov: flag(2) && flag(0),
            maximize: flag(3),
            grad_scale: flag(4),
            found_inf: flag(5),
        };
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let len = 77;
            let mut arrays = vec![Numbers::new(dtype, &waves(len, 0.0)), Numbers::new(dtype, &waves(len, 1.0))];
            if options.momentum {
                arrays.push(Numbers::new(dtype, &waves(len, 2.0)));
            }
            let before: Vec<Vec<f64>> = arrays.iter().map(Numbers::values).collect();
            let scale = if options.grad_scale { 4.0 } else { 1.0 };
            if options.grad_scale {
                arrays.push(Numbers::new(DType::F32, &[scale]));
            }
            if options.found_inf {
                arrays.push(Numbers::new(DType::F32, &[0.0]));
            }
            let kernel = Sgd::new(options, scalars(), len, dtype, dtype, dtype).unwrap();
            let factor = if options.momentum { momentum } else { 0.0 };
            run(&kernel, &mut arrays, &[weight_decay, factor, lr, dampening]);
            let mut want = before.clone();
            for i in 0..len {
                let mut g = before[1][i] / scale;
                want[1][i] = g;
                if options.maximize {
                    g = -g;
                }
                g += weight_decay * before[0][i];
                if options.momentum {
                    let m = if options.first_step { g } else { momentum * before[2][i] + (1.0 - dampening) * g };
                    want[2][i] = m;
                    g = if options.nesterov { g + momentum * m } else { m };
                }
                want[0][i] = before[0][i] - lr * g;
            }
            for (i, want) in want.iter().enumerate() {
                close(&arrays[i].values(), want, dtype, &format!("{options:?} buffer {i}"));
            }
        }
    }
}

#[test]
fn a_step_with_overflow_found_changes_nothing() {
    let options = AdamOptions { grad_scale: true, found_inf: true, ..AdamOptions::default() };
    let values = waves(20, 0.0);
    let mut arrays: Vec<Numbers> = (0..4).map(|_| Numbers::new(DType::F32, &values)).collect();
    arrays.extend([3.0, 4.0, 1.0].map(|x| Numbers::new(DType::F32, &[x])));
    run(
        &Adam::new(options, scalars(), 20, DType::F32, DType::F32, DType::F32).unwrap(),
        &mut arrays,
        &[0.1, 0.9, 0.9, 0.0, 0.1],
    );
    let same = Numbers::new(DType::F32, &values).bytes;
    assert!(arrays[..4].iter().all(|a| a.bytes == same));

    let options = SgdOptions { found_inf: true, ..SgdOptions::default() };
    let mut arrays: Vec<Numbers> = (0..2).map(|_| Numbers::new(DType::F32, &values)).collect();
    arrays.push(Numbers::new(DType::F32, &[1.0]));
    run(
        &Sgd::new(options, scalars(), 20, DType::F32, DType::F32, DType::F32).unwrap(),
        &mut arrays,
        &[0.0, 0.0, 0.1, 0.0],
    );
    assert!(arrays[..2].iter().all(|a| a.bytes == same));
}

#[test]
fn empty_parameters_and_mixed_types() {
    let kernel = Adam::new(AdamOptions::default(), scalars(), 0, DType::F32, DType::F32, DType::F32).unwrap();
    let mut arrays: Vec<Numbers> = (0..4).map(|_| Numbers::new(DType::F32, &[])).collect();
    arrays.push(Numbers::new(DType::F32, &[1.0]));
    run(&kernel, &mut arrays, &[0.1, 0.9, 0.9, 0.0, 0.1]);
    assert!(Adam::new(AdamOptions::default(), scalars(), 1, DType::F32, DType::BF16, DType::F32).is_err());
    assert!(Sgd::new(SgdOptions::default(), scalars(), 1, DType::I64, DType::I64, DType::I64).is_err());
}

/// The scalars of a launch in order.
fn scalars<const N: usize>() -> [Number; N] {
    std::array::from_fn(Number::Scalar)
}

#[test]
fn adagrad_divides_by_the_root_of_the_sum() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let options = AdagradOptions { maximize: true, grad_scale: true, found_inf: true };
        let kernel = Adagrad::new(options, scalars(), 3, dtype, dtype, dtype).unwrap();
        let mut arrays: Vec<Numbers> =
            [[1.0, 2.0, -1.0], [4.0, -8.0, 0.0], [0.0, 9.0, 1.0]].iter().map(|x| Numbers::new(dtype, x)).collect();
        arrays.extend([3.0, 2.0, 0.0].map(|x| Numbers::new(DType::F32, &[x])));
        run(&kernel, &mut arrays, &[0.5, 0.5, 1.0, 0.0]);
        // Steps of 0.25 along g = -grad / 2 + param.
        let want = |p: f64, g: f64, s: f64| p - 0.25 * (p - g / 2.0) / (s + (p - g / 2.0).powi(2)).sqrt();
        for (got, want) in
            arrays[0].values().iter().zip([want(1.0, 4.0, 0.0), want(2.0, -8.0, 9.0), want(-1.0, 0.0, 1.0)])
        {
            assert!((got - want).abs() < 1e-2 * want.abs(), "{dtype}: {got} {want}");
        }
    }
}
