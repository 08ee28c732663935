//! Pointwise programs: medians per launch. `cargo bench -p neuron-kernels --bench pointwise`.
//!
//! With `OMP_NUM_THREADS=1` the time is that of the processor, which other load on the machine disturbs less.

use neuron_ir::{BinaryOp, DType, Scalar, UnaryOp};
use neuron_kernels::pointwise::{Builder, Pointwise, Reg};
use neuron_kernels::{Kernel, pool};
use std::time::Duration;

const N: i64 = 4 << 20;

/// Time on a clock that suits the number of threads.
fn now() -> Duration {
    let clock = if pool::threads() == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` outlives the call.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn median(kernel: &Pointwise, buffers: &[*mut u8], scalars: &[Scalar], runs: usize) -> f64 {
    let mut times: Vec<f64> = (0..runs + 2)
        .map(|_| {
            let start = now();
            // SAFETY: the buffers hold 2048 x 2048 elements of the program's type.
            unsafe { kernel.run(buffers, scalars) }.expect("no program here divides integers");
            (now() - start).as_nanos() as f64
        })
        .skip(2)
        .collect();
    times.sort_by(f64::total_cmp);
    times[runs / 2]
}

fn program(sizes: &[i64], dtype: DType, strides: &[i64], body: impl Fn(&mut Builder, Reg, Reg) -> Reg) -> Pointwise {
    let mut b = Builder::new(sizes);
    let mut contiguous = vec![1; sizes.len()];
    for d in (1..sizes.len()).rev() {
        contiguous[d - 1] = contiguous[d] * sizes[d];
    }
    let x = b.load(0, dtype, strides);
    let y = b.load(1, dtype, &contiguous);
    let z = body(&mut b, x, y);
    b.store(2, z, dtype, &contiguous);
    b.finish().expect("the programs here are well formed")
}

fn chain(b: &mut Builder, x: Reg, y: Reg) -> Reg {
    let v = b.binary(BinaryOp::Mul, x, y);
    let v = b.binary(BinaryOp::Add, v, x);
    let v = b.unary(UnaryOp::Tanh, v);
    let half = b.constant(DType::F32, Scalar::F64(0.5));
    let v = b.binary(BinaryOp::Mul, v, half);
    let v = b.binary(BinaryOp::Add, v, y);
    let v = b.unary(UnaryOp::Sigmoid, v);
    b.binary(BinaryOp::Mul, v, x)
}

fn gelu(b: &mut Builder, x: Reg, _: Reg) -> Reg {
    let c = b.constant(DType::F32, Scalar::F64(std::f64::consts::FRAC_1_SQRT_2));
    let v = b.binary(BinaryOp::Mul, x, c);
    let v = b.unary(UnaryOp::Erf, v);
    let one = b.constant(DType::F32, Scalar::F64(1.0));
    let v = b.binary(BinaryOp::Add, v, one);
    let half = b.constant(DType::F32, Scalar::F64(0.5));
    let w = b.binary(BinaryOp::Mul, x, half);
    b.binary(BinaryOp::Mul, v, w)
}

fn silu(b: &mut Builder, x: Reg, _: Reg) -> Reg {
    let v = b.unary(UnaryOp::Sigmoid, x);
    b.binary(BinaryOp::Mul, x, v)
}

fn main() {
    let values: Vec<f32> = (0..2 * N).map(|i| (i % 1009) as f32 / 200.0 - 2.5).collect();
    let halves: Vec<u16> = values.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let mut memory: Vec<Vec<f32>> = vec![values.clone(), values, vec![0.0; 2 * N as usize]];
    let mut half_memory = [halves.clone(), halves];
    let out: *mut u8 = memory[2].as_mut_ptr().cast();
    let buffers: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let half_buffers: Vec<*mut u8> = half_memory.iter_mut().map(|m| m.as_mut_ptr().cast()).chain([out]).collect();
    println!("{} threads, {:?}", pool::threads(), neuron_kernels::simd::level());
    let report = |name: &str, kernel: &Pointwise| {
        // Bits of other types, read as bf16, would be subnormal, which is slow in itself.
        let buffers = if name.contains("bf16") { &half_buffers } else { &buffers };
        let ns = median(kernel, buffers, &[], 41);
        println!("{name:32} {:9.3} ms   (estimate for one thread {:.3})", ns / 1e6, kernel.cost() as f64 / 1e6);
    };
    let add = |b: &mut Builder, x, y| b.binary(BinaryOp::Add, x, y);
    report("add f32 4M", &program(&[N], DType::F32, &[1], add));
    report("add bf16 4M", &program(&[N], DType::BF16, &[1], add));
    report("add i32 4M", &program(&[N], DType::I32, &[1], add));
    report("7-op chain f32 4M", &program(&[N], DType::F32, &[1], chain));
    report("7-op chain bf16 4M", &program(&[N], DType::BF16, &[1], chain));
    report("gelu f32 4M", &program(&[N], DType::F32, &[1], gelu));
    report("silu f32 4M", &program(&[N], DType::F32, &[1], silu));
    report("gelu bf16 4M", &program(&[N], DType::BF16, &[1], gelu));
    let copy = |_: &mut Builder, x, _| x;
    for dtype in [DType::F32, DType::BF16, DType::F64, DType::U8] {
        report(&format!("transposed copy {dtype} 2048^2"), &program(&[2048, 2048], dtype, &[1, 2048], copy));
    }
    report("copy f32 4M", &program(&[N], DType::F32, &[1], copy));
    report("transposed add f32 2048^2", &program(&[2048, 2048], DType::F32, &[1, 2048], add));
    report("add [4096,1024] + [1024]", &program(&[4096, 1024], DType::F32, &[0, 1], add));
    report("add [4096,1024] + [4096,1]", &program(&[4096, 1024], DType::F32, &[1, 0], add));
    report("add [1M,4] + [4]", &program(&[N / 4, 4], DType::F32, &[0, 1], add));
    report("add [1M,4] + [1M,1]", &program(&[N / 4, 4], DType::F32, &[1, 0], add));
    report("add [512k,8] strided", &program(&[N / 8, 8], DType::F32, &[16, 1], add));
    report("permute [64,256,256] 2,0,1", &program(&[64, 256, 256], DType::F32, &[256, 1, 16384], copy));
    report("nhwc to nchw [16,64,64,64]", &program(&[16, 64, 64, 64], DType::F32, &[262144, 1, 4096, 64], copy));
    report("rgb nchw to nhwc [16,256,256,3]", &program(&[16, 256, 256, 3], DType::F32, &[196608, 256, 1, 65536], copy));
    for op in UnaryOp::ALL {
        let mut b = Builder::new(&[N / 8]);
        let x = b.load(0, DType::F32, &[1]);
        let y = b.unary(*op, x);
        b.store(2, y, if op.is_predicate() { DType::Bool } else { DType::F32 }, &[1]);
        if let Ok(kernel) = b.finish() {
            let ns = median(&kernel, &buffers, &[], 15) / (N / 8) as f64;
            println!("{op:>12} f32: {ns:6.3} ns an element ({:.3})", kernel.cost() as f64 / (N / 8) as f64);
        }
    }
    for n in [1, 16, 256, 4096] {
        let kernel = program(&[n], DType::F32, &[1], add);
        let mut times: Vec<f64> = (0..50)
            .map(|_| {
                let start = now();
                for _ in 0..1000 {
                    // SAFETY: as above.
                    unsafe { kernel.run(&buffers, &[]) }.expect("additions do not fail");
                }
                (now() - start).as_nanos() as f64 / 1000.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("add f32 of {n}: {:.1} ns", times[25]);
    }
}
