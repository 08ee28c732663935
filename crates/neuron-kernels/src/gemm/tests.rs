//! Products of random layouts against sums in `f64` and `i64`.

use super::*;
use half::{bf16, f16};
use std::panic::{RefUnwindSafe, UnwindSafe};

/// A small generator: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// Between -1 and 1, of 8 significant bits: exact in every float type.
    fn value(&mut self) -> f64 {
        self.below(257) as f64 / 128.0 - 1.0
    }
}

/// A buffer of any dtype, with the tensor laid out in it.
struct Tensor {
    ty: TensorType,
    bytes: Vec<u64>,
}

impl Tensor {
    fn at(&self, i: [usize; 3]) -> usize {
        (0..3).map(|d| if self.ty.sizes[d] == 1 { 0 } else { i[d] * self.ty.strides[d] as usize }).sum()
    }

    fn address(&self) -> *mut u8 {
        self.bytes.as_ptr().cast_mut().cast()
    }

    fn get(&self, i: [usize; 3]) -> f64 {
        let at = self.at(i);
        let p = self.address();
        // SAFETY: the buffer covers the layout.
        unsafe {
            match self.ty.dtype {
                DType::F32 => f64::from(*p.cast::<f32>().add(at)),
                DType::F64 => *p.cast::<f64>().add(at),
                DType::BF16 => (*p.cast::<bf16>().add(at)).to_f64(),
                DType::F16 => (*p.cast::<f16>().add(at)).to_f64(),
                _ => self.int(at) as f64,
            }
        }
    }

    fn int(&self, at: usize) -> i64 {
        let p = self.address();
        // SAFETY: the buffer covers the layout.
        unsafe {
            match self.ty.dtype {
                DType::U8 => i64::from(*p.add(at)),
                DType::I8 => i64::from(*p.cast::<i8>().add(at)),
                DType::I16 => i64::from(*p.cast::<i16>().add(at)),
                DType::I32 => i64::from(*p.cast::<i32>().add(at)),
                _ => *p.cast::<i64>().add(at),
            }
        }
    }

    fn set(&mut self, at: usize, random: &mut Random) {
        let p = self.address();
        let v = random.value();
        // SAFETY: the buffer covers the layout.
        unsafe {
            match self.ty.dtype {
                DType::F32 => *p.cast::<f32>().add(at) = v as f32,
                DType::F64 => *p.cast::<f64>().add(at) = v,
                DType::BF16 => *p.cast::<bf16>().add(at) = bf16::from_f64(v),
                DType::F16 => *p.cast::<f16>().add(at) = f16::from_f64(v),
                DType::U8 | DType::I8 => *p.add(at) = random.next() as u8,
                DType::I16 => *p.cast::<u16>().add(at) = random.next() as u16,
                DType::I32 => *p.cast::<u32>().add(at) = random.next() as u32,
                _ => *p.cast::<u64>().add(at) = random.next(),
            }
        }
    }
}

/// A tensor whose dimensions lie in a random order in memory, with gaps or a repeated batch.
fn tensor(dtype: DType, sizes: [usize; 3], random: &mut Random, repeat: bool) -> Tensor {
    let mut order = [0, 1, 2];
    if random.below(2) == 0 {
        order.swap(1, 2);
    }
    if random.below(6) == 0 {
        order.swap(0, 2);
    }
    let gap = [1, 1, 1, 2][random.below(4)];
    let pad = [0, 0, 3][random.below(3)];
    let mut strides = [0i64; 3];
    let mut step = gap;
    for &d in order.iter().rev() {
        strides[d] = step as i64;
        step *= sizes[d].max(1);
        step += pad;
    }
    if repeat && random.below(3) == 0 {
        strides[0] = 0;
    }
    for d in 0..3 {
        if sizes[d] == 1 && random.below(2) == 0 {
            strides[d] = 77;
        }
    }
    let ty = TensorType::strided(dtype, &sizes.map(|s| s as i64), &strides);
    let mut t = Tensor { ty, bytes: vec![0; (step + 8) * dtype.size() / 8 + 2] };
    for at in 0..step {
        t.set(at, random);
    }
    t
}

fn check(sizes: [usize; 4], dtype: DType, out: DType, random: &mut Random) {
    let [batch, m, n, k] = sizes;
    let a = tensor(dtype, [if random.below(8) == 0 { 1 } else { batch }, m, k], random, true);
    let b = tensor(dtype, [if random.below(4) == 0 { 1 } else { batch }, k, n], random, true);
    let c = tensor(out, [batch, m, n], random, false);
    let bias = (random.below(2) == 0).then(|| {
        let sizes = [batch, m, n].map(|s| if random.below(3) == 0 { 1 } else { s });
        tensor(if random.below(2) == 0 { out } else { dtype }, sizes, random, false)
    });
    let scalars = [Scalar::F64(-1.5), Scalar::F64([0.0, 2.0, 0.5][random.below(3)])];
    let scalars = if dtype.is_float() { scalars } else { [Scalar::I64(-3), Scalar::I64(random.below(3) as i64)] };
    let mut factor = |i| if random.below(2) == 0 { ScaleFactor::One } else { ScaleFactor::Scalar(i) };
    let (alpha, beta) = (factor(0), factor(1));
    let epilogue = Epilogue { bias: bias.as_ref().map(|t| t.ty.clone()), alpha, beta };
    let gemm = Gemm::new(&a.ty, &b.ty, &c.ty, epilogue).expect("supported");
    let before = c.bytes.clone();
    let buffers: Vec<_> =
        [Some(&a), Some(&b), bias.as_ref(), Some(&c)].into_iter().flatten().map(Tensor::address).collect();
    // SAFETY: the buffers cover their layouts.
    unsafe { gemm.run(&buffers, &scalars) }.expect("no error depends on values");

    let scale = |f, v: Scalar| if f == ScaleFactor::One { Scalar::I64(1) } else { v };
    let (alpha, beta) = (scale(alpha, scalars[0]), scale(beta, scalars[1]));
    let context = || format!("{batch} {m} {n} {k}: {} @ {} -> {} {gemm:?}", a.ty, b.ty, c.ty);
    let first = |t: &Tensor, i: [usize; 3]| [0, 1, 2].map(|d| if t.ty.sizes[d] == 1 { 0 } else { i[d] });
    let mut written = vec![false; before.len() * 8 / out.size()];
    for i in 0..batch {
        for r in 0..m {
            for s in 0..n {
                let at = c.at([i, r, s]);
                written[at] = true;
                let pairs = (0..k).map(|p| (first(&a, [i, r, p]), first(&b, [i, p, s])));
                if dtype.is_float() {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (x, y) in pairs {
                        let v = a.get(x) * b.get(y);
                        sum += v;
                        size += v.abs();
                    }
                    let added = bias.as_ref().map_or(0.0, |t| beta.to_f64() * t.get(first(t, [i, r, s])));
                    let want = alpha.to_f64() * sum + added;
                    let sums = if out == DType::F64 { 1e-15 } else { 1e-6 };
                    let rounding = match out {
                        DType::BF16 => 0.004,
                        DType::F16 => 0.0005,
                        _ => 0.0,
                    };
                    let tolerance = sums * (size * 2.0 + added.abs() + 1e-3) + rounding * want.abs();
                    let got = c.get([i, r, s]);
                    assert!((got - want).abs() <= tolerance, "[{i},{r},{s}] got {got} want {want}; {}", context());
                } else {
                    let sum =
                        pairs.fold(0i64, |sum, (x, y)| sum.wrapping_add(a.int(a.at(x)).wrapping_mul(b.int(b.at(y)))));
                    let added =
                        bias.as_ref().map_or(0, |t| t.int(t.at(first(t, [i, r, s]))).wrapping_mul(beta.to_i64()));
                    let want = sum.wrapping_mul(alpha.to_i64()).wrapping_add(added);
                    let shift = 64 - 8 * out.size() as u32;
                    let low = |v: i64| v << shift;
                    assert_eq!(low(c.int(at)), low(want), "[{i},{r},{s}] {}", context());
                }
            }
        }
    }
    for (at, written) in written.iter().enumerate() {
        let size = out.size();
        // SAFETY: both buffers hold that many elements.
        let (now, then) = unsafe {
            let old = before.as_ptr().cast::<u8>().add(at * size);
            (
                std::slice::from_raw_parts(c.address().add(at * size).cast_const(), size),
                std::slice::from_raw_parts(old, size),
            )
        };
        assert!(*written || now == then, "element {at} beyond the output was written; {}", context());
    }
}

const TYPES: [(DType, DType); 11] = [
    (DType::F32, DType::F32),
    (DType::F64, DType::F64),
    (DType::BF16, DType::BF16),
    (DType::BF16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::U8, DType::U8),
    (DType::I8, DType::I8),
    (DType::I16, DType::I16),
    (DType::I32, DType::I32),
    (DType::I64, DType::I64),
];

#[test]
fn random_products_of_every_dtype() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..600 {
        let (dtype, out) = TYPES[round % TYPES.len()];
        let extent = |random: &mut Random| match random.below(6) {
            0 => random.below(3),
            1 => 1,
            2 => 16 * random.below(5),
            _ => random.below(70),
        };
        let batch = [1, 1, 2, 3, 5, 0][random.below(6)];
        let sizes = [batch, extent(&mut random), extent(&mut random), extent(&mut random)];
        check(sizes, dtype, out, &mut random);
    }
}

#[test]
fn products_of_several_blocks() {
    let mut random = Random(7);
    for (dtype, out) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F64, DType::F64)] {
        for sizes in [
            [1, 150, 130, 600],
            [1, 1, 900, 700],
            [1, 1100, 40, 260],
            [2, 3, 500, 300],
            [1, 2, 70, 5000],
            [3, 65, 129, 257],
        ] {
            check(sizes, dtype, out, &mut random);
        }
    }
}

/// Runs `f` alone on this thread, as with one thread in all.
fn on_one_thread<R: Send + Default>(f: impl Fn() -> R + Sync + RefUnwindSafe + UnwindSafe) -> R {
    let result = parking_lot::Mutex::new(R::default());
    // Within a task a job runs in place.
    parallel_for(2, |i| {
        if i == 0 {
            *result.lock() = f();
        }
    });
    result.into_inner()
}

#[test]
fn threads_do_not_show() {
    let mut random = Random(99);
    for (dtype, out) in TYPES {
        for [m, n, k] in [[200, 300, 700], [1, 3000, 700], [1000, 1, 600], [130, 64, 4000]] {
            let a = tensor(dtype, [1, m, k], &mut random, false);
            let b = tensor(dtype, [1, k, n], &mut random, false);
            let c = TensorType::contiguous(out, &[1, m as i64, n as i64]);
            let gemm = Gemm::new(&a.ty, &b.ty, &c, Epilogue::NONE).expect("supported");
            let (pa, pb) = (a.address() as usize, b.address() as usize);
            let run = || {
                let mut c = vec![0u8; m * n * out.size() + 8];
                // SAFETY: the buffers cover their layouts.
                unsafe { gemm.run(&[pa as *mut u8, pb as *mut u8, c.as_mut_ptr()], &[]) }.expect("no error");
                c
            };
            assert!(run() == on_one_thread(run), "{m} {n} {k} {dtype}");
        }
    }
}

#[test]
fn a_zero_beta_hides_nan() {
    let f = |s: &[i64]| TensorType::contiguous(DType::F32, s);
    let epilogue = Epilogue { bias: Some(f(&[1, 1, 2])), alpha: ScaleFactor::One, beta: ScaleFactor::Scalar(0) };
    let gemm = Gemm::new(&f(&[1, 2, 1]), &f(&[1, 1, 2]), &f(&[1, 2, 2]), epilogue).expect("supported");
    let (a, b, bias, mut c) = ([1f32, 2.0], [3f32, 4.0], [f32::NAN; 2], [0f32; 4]);
    let buffers = [a.as_ptr() as *mut u8, b.as_ptr() as *mut u8, bias.as_ptr() as *mut u8, c.as_mut_ptr().cast()];
    // SAFETY: the buffers cover their layouts.
    unsafe { gemm.run(&buffers, &[Scalar::F64(0.0)]) }.expect("no error");
    assert_eq!(c, [3.0, 4.0, 6.0, 8.0]);
}

#[test]
fn an_output_may_be_its_bias() {
    let ty = TensorType::contiguous(DType::F32, &[1, 40, 40]);
    let one = TensorType::contiguous(DType::F32, &[1, 40, 600]);
    let other = TensorType::contiguous(DType::F32, &[1, 600, 40]);
    let epilogue = Epilogue { bias: Some(ty.clone()), alpha: ScaleFactor::One, beta: ScaleFactor::One };
    let gemm = Gemm::new(&one, &other, &ty, epilogue).expect("supported");
    let (a, b, mut c) = (vec![1f32; 24000], vec![1f32; 24000], vec![5f32; 1600]);
    let p = c.as_mut_ptr().cast::<u8>();
    // SAFETY: the buffers cover their layouts.
    unsafe { gemm.run(&[a.as_ptr() as *mut u8, b.as_ptr() as *mut u8, p, p], &[]) }.expect("no error");
    assert!(c.iter().all(|&v| v == 605.0));
}

#[test]
fn unsupported_arguments_are_refused() {
    let t = |d, s: &[i64]| TensorType::contiguous(d, s);
    let refused = |a: &TensorType, b: &TensorType, c: &TensorType| {
        matches!(Gemm::new(a, b, c, Epilogue::NONE), Err(KernelError::Unsupported { .. }))
    };
    let f = |s: &[i64]| t(DType::F32, s);
    assert!(refused(&t(DType::Bool, &[1, 2, 2]), &t(DType::Bool, &[1, 2, 2]), &t(DType::Bool, &[1, 2, 2])));
    assert!(refused(&f(&[1, 2, 3]), &f(&[1, 2, 2]), &f(&[1, 2, 2])));
    assert!(refused(&f(&[2, 2]), &f(&[2, 2]), &f(&[2, 2])));
    assert!(refused(&f(&[1, 2, 2]), &t(DType::F64, &[1, 2, 2]), &f(&[1, 2, 2])));
    assert!(refused(&f(&[3, 2, 2]), &f(&[2, 2, 2]), &f(&[3, 2, 2])));
}

#[test]
fn blocks_of_any_stride() {
    let mut random = Random(5);
    for round in 0..300 {
        let [m, n, k] = [70, 70, if round % 10 == 0 { 600 } else { 70 }].map(|most| random.below(most));
        let a = tensor(DType::F32, [1, m, k], &mut random, false);
        let b = tensor(DType::F32, [1, k, n], &mut random, false);
        let c = tensor(DType::F32, [1, m, n], &mut random, false);
        let before = Tensor { ty: c.ty.clone(), bytes: c.bytes.clone() };
        let (alpha, accumulate) = (0.5, round % 2 == 0);
        let [sa, sb, sc] = [&a, &b, &c].map(|t| [t.ty.strides[1] as isize, t.ty.strides[2] as isize]);
        // SAFETY: the buffers cover their layouts.
        unsafe {
            let (a, b, c) = (a.address().cast(), b.address().cast(), c.address().cast());
            f32_block(m, n, k, a, sa[0], sa[1], b, sb[0], sb[1], c, sc[0], sc[1], alpha, accumulate);
        }
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|p| a.get([0, i, p]) * b.get([0, p, j])).sum();
                let want = sum * f64::from(alpha) + if accumulate { before.get([0, i, j]) } else { 0.0 };
                let got = c.get([0, i, j]);
                assert!((got - want).abs() < 1e-4, "[{i},{j}] got {got} want {want}: {m} {n} {k}");
            }
        }
    }
}
