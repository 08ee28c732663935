//! Programs against a naive evaluation, one element at a time.

use super::{Builder, convert};
use crate::{Kernel, KernelError};
use half::{bf16, f16};
use neuron_ir::{BinaryOp, DType, Scalar, UnaryOp};

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// One element of memory as a number.
fn read(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::U8 | DType::Bool => bytes[0] as f64,
        DType::I8 => bytes[0] as i8 as f64,
        DType::I16 => i16::from_ne_bytes([bytes[0], bytes[1]]) as f64,
        DType::I32 => i32::from_ne_bytes(bytes[..4].try_into().unwrap()) as f64,
        DType::I64 => i64::from_ne_bytes(bytes[..8].try_into().unwrap()) as f64,
        DType::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::BF16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::F32 => f32::from_ne_bytes(bytes[..4].try_into().unwrap()) as f64,
        DType::F64 => f64::from_ne_bytes(bytes[..8].try_into().unwrap()),
        other => unreachable!("{other} has no arithmetic"),
    }
}

fn write(dtype: DType, bytes: &mut [u8], v: f64) {
    match dtype {
        DType::U8 | DType::Bool => bytes[0] = v as u8,
        DType::I8 => bytes[0] = v as i8 as u8,
        DType::I16 => bytes[..2].copy_from_slice(&(v as i16).to_ne_bytes()),
        DType::I32 => bytes[..4].copy_from_slice(&(v as i32).to_ne_bytes()),
        DType::I64 => bytes[..8].copy_from_slice(&(v as i64).to_ne_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(v).to_ne_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&bf16::from_f64(v).to_ne_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&(v as f32).to_ne_bytes()),
        DType::F64 => bytes[..8].copy_from_slice(&v.to_ne_bytes()),
        other => unreachable!("{other} has no arithmetic"),
    }
}

/// Elements that strides reach.
fn span(sizes: &[i64], strides: &[i64]) -> usize {
    1 + sizes.iter().zip(strides).map(|(n, s)| (n - 1).max(0) * s).sum::<i64>() as usize
}

fn coordinates(sizes: &[i64]) -> Vec<Vec<i64>> {
    let numel: i64 = sizes.iter().product();
    (0..numel)
        .map(|mut i| {
            let mut c = vec![0; sizes.len()];
            for d in (0..sizes.len()).rev() {
                c[d] = i % sizes[d];
                i /= sizes[d];
            }
            c
        })
        .collect()
}

fn offset(c: &[i64], strides: &[i64]) -> usize {
    c.iter().zip(strides).map(|(c, s)| c * s).sum::<i64>() as usize
}

/// Strides of a random permutation of the dimensions, possibly with gaps.
fn random_strides(r: &mut Random, sizes: &[i64], gaps: bool) -> Vec<i64> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, r.below(i as u64 + 1) as usize);
    }
    if r.below(3) == 0 {
        order = (0..sizes.len()).rev().collect();
    }
    let mut strides = vec![0; sizes.len()];
    let mut step = if gaps && r.below(4) == 0 { 2 } else { 1 };
    for d in order {
        strides[d] = step;
        step *= sizes[d];
        if gaps && r.below(4) == 0 {
            step += 3;
        }
    }
    strides
}

#[test]
fn any_layout_and_type() {
    let mut r = Random(7);
    for round in 0..1500 {
        let rank = r.below(5) as usize;
        let limit = [1, 3000, 70, 20, 9][rank];
        let sizes: Vec<i64> = (0..rank)
            .map(|_| match r.below(6) {
                0 => 1,
                1 => 1 + r.below(4) as i64,
                _ => 1 + r.below(limit) as i64,
            })
            .collect();
        let types = [DType::ALL[r.below(10) as usize], DType::ALL[r.below(10) as usize]];
        let to = DType::ALL[r.below(10) as usize];
        let mut b = Builder::new(&sizes);
        let mut memory = Vec::new();
        let mut strides = Vec::new();
        let mut regs = Vec::new();
        for (k, dtype) in types.iter().enumerate() {
            let mut s = random_strides(&mut r, &sizes, true);
            for s in s.iter_mut() {
                if r.below(4) == 0 {
                    *s = 0;
                }
            }
            let mut bytes = vec![0u8; span(&sizes, &s) * dtype.size()];
            for e in bytes.chunks_mut(dtype.size()) {
                let v = if *dtype == DType::Bool { r.below(2) } else { r.below(100) };
                write(*dtype, e, v as f64);
            }
            regs.push(b.load(k, *dtype, &s));
            memory.push(bytes);
            strides.push(s);
        }
        // a + b, converted to f64; also a alone, as it is; also a coordinate.
        let (x, y) = (b.convert(regs[0], DType::F64), b.convert(regs[1], DType::F64));
        let sum = b.binary(BinaryOp::Add, x, y);
        let out = random_strides(&mut r, &sizes, true);
        let out_b = random_strides(&mut r, &sizes, false);
        b.store(2, sum, to, &out);
        b.store(3, regs[0], types[0], &out_b);
        if rank > 0 {
            let c = b.iota(round % rank);
            b.store(4, c, DType::I32, &out);
        }
        memory.push(vec![0xaa; span(&sizes, &out) * to.size()]);
        memory.push(vec![0xaa; span(&sizes, &out_b) * types[0].size()]);
        memory.push(vec![0xaa; span(&sizes, &out) * 4]);
        let kernel = b.finish().unwrap();
        let pointers: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr()).collect();
        // SAFETY: each buffer spans its strides.
        unsafe { kernel.run(&pointers, &[]).unwrap() };
        let at = |k: usize, dtype: DType, o: usize| read(dtype, &memory[k][o * dtype.size()..]);
        let mut written = vec![false; span(&sizes, &out)];
        for c in coordinates(&sizes) {
            let a = at(0, types[0], offset(&c, &strides[0]));
            let v = a + at(1, types[1], offset(&c, &strides[1]));
            let o = offset(&c, &out);
            written[o] = true;
            let mut want = [0u8; 8];
            match to {
                DType::Bool => want[0] = (v != 0.0) as u8,
                DType::I8 => want[0] = v as i64 as u8,
                _ => write(to, &mut want, v),
            }
            assert_eq!(at(2, to, o), read(to, &want), "{types:?} {to} {sizes:?} {strides:?} -> {out:?} at {c:?}");
            assert_eq!(at(3, types[0], offset(&c, &out_b)), a, "{types:?} {sizes:?} {strides:?} -> {out_b:?} at {c:?}");
            if rank > 0 {
                assert_eq!(at(4, DType::I32, o), c[round % rank] as f64, "coordinate {sizes:?} {out:?} at {c:?}");
            }
        }
        for (o, w) in written.iter().enumerate() {
            assert!(*w || memory[2][o * to.size()] == 0xaa, "wrote a gap: {sizes:?} {out:?}");
        }
    }
}

fn run_f32(kernel: &super::Pointwise, buffers: &mut [Vec<f32>], scalars: &[Scalar]) {
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
    // SAFETY: the tests make buffers of the extent of the program.
    unsafe { kernel.run(&pointers, scalars).unwrap() };
}

#[test]
fn long_programs_reuse_registers() {
    let n = 5000;
    let mut b = Builder::new(&[n]);
    let (x, y) = (b.load(0, DType::F32, &[1]), b.load(1, DType::F32, &[1]));
    let mut v = vec![x, y];
    for i in 0..20 {
        let z = b.binary([BinaryOp::Add, BinaryOp::Mul, BinaryOp::Maximum][i % 3], v[i], v[i + 1]);
        v.push(z);
    }
    let c = b.binary(BinaryOp::Lt, v[3], v[7]);
    let z = b.select(c, v[5], v[21]);
    let half = b.scalar(0, DType::F32);
    let z = b.binary(BinaryOp::Mul, half, z);
    b.store(2, z, DType::F32, &[1]);
    b.store(3, v[10], DType::F32, &[1]);
    let kernel = b.finish().unwrap();
    let data: Vec<f32> = (0..n).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect();
    let other: Vec<f32> = (0..n).map(|i| (i % 89) as f32 / 89.0 - 0.5).collect();
    let naive = |x: f32, y: f32| {
        let mut v = vec![x, y];
        for i in 0..20 {
            let (a, b) = (v[i], v[i + 1]);
            v.push([a + b, a * b, a.max(b)][i % 3]);
        }
        (0.5 * if v[3] < v[7] { v[5] } else { v[21] }, v[10])
    };
    // Separate, and in place.
    let mut buffers = vec![data.clone(), other.clone(), vec![0.0; n as usize], vec![0.0; n as usize]];
    run_f32(&kernel, &mut buffers, &[Scalar::F64(0.5)]);
    let (mut p, mut q) = (data.clone(), other.clone());
    let (pp, qp) = (p.as_mut_ptr().cast(), q.as_mut_ptr().cast());
    // SAFETY: all buffers hold `n` elements; stores have the strides of the loads.
    unsafe { kernel.run(&[pp, qp, pp, qp], &[Scalar::F64(0.5)]).unwrap() };
    for i in 0..n as usize {
        let want = naive(data[i], other[i]);
        assert_eq!((buffers[2][i], buffers[3][i]), want);
        assert_eq!((p[i], q[i]), want, "in place at {i}");
    }
}

#[test]
fn swap_in_place() {
    let mut b = Builder::new(&[3000]);
    let (x, y) = (b.load(0, DType::F32, &[1]), b.load(1, DType::F32, &[1]));
    b.store(2, y, DType::F32, &[1]);
    b.store(3, x, DType::F32, &[1]);
    let kernel = b.finish().unwrap();
    let (mut p, mut q) = (vec![1f32; 3000], vec![2f32; 3000]);
    let (pp, qp) = (p.as_mut_ptr().cast(), q.as_mut_ptr().cast());
    // SAFETY: all buffers hold 3000 elements.
    unsafe { kernel.run(&[pp, qp, pp, qp], &[]).unwrap() };
    assert!(p.iter().all(|v| *v == 2.0) && q.iter().all(|v| *v == 1.0));
}

#[test]
fn large_launches_are_shared() {
    let (rows, cols) = (700i64, 900i64);
    let mut b = Builder::new(&[rows, cols]);
    let x = b.load(0, DType::F32, &[1, rows]);
    let bias = b.load(1, DType::F32, &[0, 1]);
    let y = b.binary(BinaryOp::Add, x, bias);
    let y = b.unary(UnaryOp::Neg, y);
    b.store(2, y, DType::F32, &[cols, 1]);
    let kernel = b.finish().unwrap();
    let n = (rows * cols) as usize;
    let mut buffers =
        vec![(0..n).map(|i| i as f32).collect(), (0..cols).map(|i| i as f32 * 0.5).collect(), vec![0.0; n]];
    run_f32(&kernel, &mut buffers, &[]);
    for r in 0..rows as usize {
        for c in 0..cols as usize {
            assert_eq!(buffers[2][r * cols as usize + c], -((c * rows as usize + r) as f32 + c as f32 * 0.5));
        }
    }
}

#[test]
fn splats_and_constants() {
    let mut b = Builder::new(&[2, 3]);
    let s = b.scalar(0, DType::BF16);
    let two = b.constant(DType::F32, Scalar::I64(2));
    let v = b.binary(BinaryOp::Mul, s, two);
    b.store(0, v, DType::F32, &[3, 1]);
    let yes = b.binary(BinaryOp::Gt, v, two);
    b.store(1, yes, DType::Bool, &[1, 2]);
    let z = b.select(yes, v, two);
    b.store(2, z, DType::I16, &[4, 1]);
    let kernel = b.finish().unwrap();
    let (mut f, mut t, mut i) = ([0f32; 6], [7u8; 6], [9i16; 7]);
    let buffers = [f.as_mut_ptr().cast(), t.as_mut_ptr().cast(), i.as_mut_ptr().cast()];
    // SAFETY: the buffers span the strides.
    unsafe { kernel.run(&buffers, &[Scalar::F64(1.0 / 3.0)]).unwrap() };
    let third = bf16::from_f32(1.0 / 3.0).to_f32();
    assert_eq!(f, [2.0 * third; 6]);
    assert_eq!(t, [0; 6]);
    assert_eq!(i, [2, 2, 2, 9, 2, 2, 2]);
    // SAFETY: as above.
    unsafe { kernel.run(&buffers, &[Scalar::F64(-5.0)]).unwrap() };
    assert_eq!(f, [-10.0; 6]);
    // SAFETY: a launch short of scalars is refused before memory is touched.
    assert!(unsafe { kernel.run(&buffers, &[]) }.is_err());
}

#[test]
fn empty_and_zero_dimensional() {
    let mut b = Builder::new(&[4, 0]);
    let x = b.load(0, DType::I64, &[0, 1]);
    b.store(1, x, DType::I64, &[1, 1]);
    // SAFETY: nothing is accessed.
    unsafe { b.finish().unwrap().run(&[std::ptr::null_mut(); 2], &[]).unwrap() };

    let mut b = Builder::new(&[]);
    let x = b.load(0, DType::F32, &[]);
    let y = b.unary(UnaryOp::Exp, x);
    b.store(1, y, DType::F64, &[]);
    let (mut x, mut y) = (1f32, 0f64);
    // SAFETY: one element each.
    unsafe { b.finish().unwrap().run(&[(&raw mut x).cast(), (&raw mut y).cast()], &[]).unwrap() };
    assert_eq!(y, 1f32.exp() as f64);
}

fn integers(op: BinaryOp, a: &[i64], b: &[i64]) -> Result<Vec<i64>, KernelError> {
    let n = a.len() as i64;
    let mut p = Builder::new(&[n]);
    let (x, y) = (p.load(0, DType::I64, &[1]), p.load(1, DType::I64, &[1]));
    let z = p.binary(op, x, y);
    p.store(2, z, DType::I64, &[1]);
    let kernel = p.finish()?;
    let mut out = vec![0i64; a.len()];
    let buffers = [a.as_ptr().cast_mut().cast(), b.as_ptr().cast_mut().cast(), out.as_mut_ptr().cast()];
    // SAFETY: `n` elements each.
    unsafe { kernel.run(&buffers, &[])? };
    Ok(out)
}

#[test]
fn integer_operators_follow_pytorch() {
    const MIN: i64 = i64::MIN;
    let (a, b) = ([MIN, MIN, 5, -5, 5, -5, MIN], [-1, 2, 3, 3, -3, -3, MIN]);
    assert_eq!(integers(BinaryOp::FloorDiv, &a, &b).unwrap(), [MIN, MIN / 2, 1, -2, -2, 1, 1]);
    assert_eq!(integers(BinaryOp::Div, &a, &b).unwrap(), [MIN, MIN / 2, 1, -1, -1, 1, 1]);
    assert_eq!(integers(BinaryOp::Remainder, &a, &b).unwrap(), [0, 0, 2, 1, -1, -2, 0]);
    assert_eq!(integers(BinaryOp::Fmod, &a, &b).unwrap(), [0, 0, 2, -2, 2, -2, 0]);
    let (a, b) = ([2, -1, 1, 0, -1, 3, -1, 3], [-1, -3, -2, -1, -2, -5, -4, 100]);
    assert_eq!(integers(BinaryOp::Pow, &a, &b).unwrap(), [0, -1, 1, 0, 1, 0, 1, -2984622845537545263]);
    assert_eq!(integers(BinaryOp::Shl, &[5; 6], &[-1, 64, 70, 63, 3, 62]).unwrap(), [0, 0, 0, MIN, 40, 1 << 62]);
    assert_eq!(integers(BinaryOp::Shr, &[-5; 5], &[-1, 64, 70, 63, 3]).unwrap(), [-1; 5]);
    for op in [BinaryOp::Div, BinaryOp::FloorDiv, BinaryOp::Remainder, BinaryOp::Fmod] {
        assert_eq!(integers(op, &[1, 2], &[1, 0]), Err(KernelError::ZeroDivision));
    }
    assert!(matches!(integers(BinaryOp::Atan2, &[1], &[1]), Err(KernelError::Unsupported { .. })));
}

fn floats(op: BinaryOp, a: &[f32], b: &[f32]) -> Vec<f32> {
    let n = a.len() as i64;
    let mut p = Builder::new(&[n]);
    let (x, y) = (p.load(0, DType::F32, &[1]), p.load(1, DType::F32, &[1]));
    let z = p.binary(op, x, y);
    p.store(2, z, DType::F32, &[1]);
    let mut buffers = vec![a.to_vec(), b.to_vec(), vec![0.0; a.len()]];
    run_f32(&p.finish().unwrap(), &mut buffers, &[]);
    buffers.pop().unwrap()
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

#[test]
fn float_operators_follow_pytorch() {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    // Results of PyTorch 2 on the CPU.
    let a = [5., -5., 5., -5., NAN, INF, 1., -1., 0., -0., 1., INF, 5.3, -0., 0.];
    let b = [3., 3., -3., -3., 1., 2., INF, INF, 0., 1., 0., -INF, -0.1, -1., -1.];
    let floor = [1., -2., -2., 1., NAN, NAN, 0., -1., NAN, -0., INF, NAN, -54., 0., -0.];
    let remainder = [2., 1., -1., -2., NAN, NAN, 1., INF, NAN, -0., NAN, NAN, -0.099_999_89, -0., 0.];
    let fmod = [2., -2., 2., -2., NAN, NAN, 1., -1., NAN, -0., NAN, NAN, 1.117_587_1e-7, -0., 0.];
    assert!(same(&floats(BinaryOp::FloorDiv, &a, &b), &floor), "{:?}", floats(BinaryOp::FloorDiv, &a, &b));
    assert!(same(&floats(BinaryOp::Remainder, &a, &b), &remainder), "{:?}", floats(BinaryOp::Remainder, &a, &b));
    assert!(same(&floats(BinaryOp::Fmod, &a, &b), &fmod), "{:?}", floats(BinaryOp::Fmod, &a, &b));
    let (a, b) = ([NAN, 1., -0., 0.], [1., NAN, 0., -0.]);
    assert!(same(&floats(BinaryOp::Maximum, &a, &b), &[NAN, NAN, -0., 0.]));
    assert!(same(&floats(BinaryOp::Minimum, &a, &b), &[NAN, NAN, -0., 0.]));
    assert!(same(&floats(BinaryOp::Fmax, &a, &b), &[1., 1., -0., 0.]));
    assert!(same(&floats(BinaryOp::Fmin, &a, &b), &[1., 1., -0., 0.]));
}

#[test]
fn powers_by_a_scalar() {
    let mut b = Builder::new(&[100]);
    let x = b.load(0, DType::F32, &[1]);
    let e = b.scalar(0, DType::F32);
    let y = b.binary(BinaryOp::Pow, x, e);
    b.store(1, y, DType::F32, &[1]);
    let kernel = b.finish().unwrap();
    let mut buffers: Vec<Vec<f32>> = vec![(0..100).map(|i| i as f32 * 0.37 - 18.0).collect(), vec![0.0; 100]];
    for (e, f) in [(2.0, (|x| x * x) as fn(f32) -> f32), (3.0, |x| x * x * x), (-1.0, |x| 1.0 / x), (0.0, |_| 1.0)] {
        run_f32(&kernel, &mut buffers, &[Scalar::F64(e)]);
        assert!(buffers[0].iter().zip(&buffers[1]).all(|(x, y)| *y == f(*x)), "exponent {e}");
    }
}

#[test]
fn float_to_integer_follows_pytorch() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 3e9, -3e9, 300.5, -1.5];
    let to = |dtype: DType| {
        let mut b = Builder::new(&[8]);
        let v = b.load(0, DType::F32, &[1]);
        let v = b.convert(v, dtype);
        b.store(1, v, DType::I64, &[1]);
        let mut out = [0i64; 8];
        let buffers = [x.as_ptr().cast_mut().cast(), out.as_mut_ptr().cast()];
        // SAFETY: eight elements each.
        unsafe { b.finish().unwrap().run(&buffers, &[]).unwrap() };
        out
    };
    const MIN: i64 = i32::MIN as i64;
    assert_eq!(to(DType::I8), [0, 0, 0, 0, 0, 0, 44, -1]);
    assert_eq!(to(DType::U8), [0, 0, 0, 0, 0, 0, 44, 255]);
    assert_eq!(to(DType::I16), [0, 0, 0, 0, 0, 0, 300, -1]);
    assert_eq!(to(DType::I32), [MIN, MIN, MIN, MIN, MIN, MIN, 300, -1]);
    const LOW: i64 = i64::MIN;
    assert_eq!(to(DType::I64), [LOW, LOW, LOW, LOW, 3_000_000_000, -3_000_000_000, 300, -1]);
    assert_eq!(to(DType::Bool), [1; 8]);
    assert_eq!(convert::splat(Scalar::F64(3e9), DType::I32), i32::MIN as i64 as u64);
}

#[test]
fn rounding_between_operators_is_kept() {
    // 1 + 2^-9 rounds to 1 in bf16, so the difference is 0 where it would be 2^-9 in f32.
    let mut b = Builder::new(&[100]);
    let x = b.load(0, DType::BF16, &[1]);
    let one = b.constant(DType::F32, Scalar::F64(1.0));
    let y = b.binary(BinaryOp::Add, x, one);
    let y = b.convert(y, DType::BF16);
    let y = b.binary(BinaryOp::Sub, y, one);
    b.store(1, y, DType::BF16, &[1]);
    let mut x = [bf16::from_f32(0.001953125); 100];
    let mut y = [bf16::NAN; 100];
    // SAFETY: a hundred elements each.
    unsafe { b.finish().unwrap().run(&[x.as_mut_ptr().cast(), y.as_mut_ptr().cast()], &[]).unwrap() };
    assert!(y.iter().all(|v| v.to_f32() == 0.0));
}

#[test]
fn mistakes_are_reported() {
    let mut b = Builder::new(&[4]);
    let x = b.load(0, DType::F32, &[1]);
    let t = b.load(1, DType::Bool, &[1]);
    b.binary(BinaryOp::Add, x, t);
    assert!(matches!(b.finish(), Err(KernelError::Unsupported { .. })));
    let mut b = Builder::new(&[4]);
    let x = b.load(0, DType::F32, &[1]);
    b.store(1, x, DType::F32, &[0]);
    assert!(b.finish().is_err());
    let mut b = Builder::new(&[4]);
    b.load(0, DType::F32, &[1, 2]);
    assert!(b.finish().is_err());
    let mut b = Builder::new(&[4]);
    let t = b.load(0, DType::Bool, &[1]);
    b.unary(UnaryOp::Exp, t);
    assert!(b.finish().is_err());
}
