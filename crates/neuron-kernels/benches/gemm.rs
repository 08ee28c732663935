//! Speed of matrix products, and the fraction of the processor's multiply-add peak each reaches.
//!
//! ```text
//! OMP_NUM_THREADS=1 cargo bench -p neuron-kernels --bench gemm [-- filter]
//! ```
//!
//! The peak is measured beside each product, on as many threads, because a shared or throttling processor's drifts.

use neuron_ir::{DType, TensorType};
use neuron_kernels::gemm::{Epilogue, Gemm, f32_block};
use neuron_kernels::{Kernel, pool};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Layout of an operand: row-major, or its transpose.
type Layout = bool;
const N: Layout = false;
const T: Layout = true;

#[rustfmt::skip]
const PRODUCTS: &[(usize, usize, usize, usize, Layout, Layout)] = &[
    (1, 512, 512, 512, N, N),
    (1, 1024, 1024, 1024, N, N),
    (1, 128, 2048, 8192, N, N),
    (1, 1, 4096, 4096, N, N),
    (1, 1, 4096, 4096, N, T),
    (1, 4, 4096, 4096, N, N),
    (1, 4, 4096, 4096, N, T),
    (1, 4096, 4096, 1, N, N),
    (1, 256, 512, 512, N, T),
    (1, 256, 512, 1408, N, T),
    (1, 256, 512, 8192, N, T),
    (1, 1, 512, 512, N, T),
    (1, 1, 512, 1408, N, T),
    (1, 1, 512, 8192, N, T),
    (1, 512, 1408, 512, N, N),
    (1, 512, 512, 1408, T, N),
    (1, 512, 8192, 512, N, N),
    (1, 8192, 512, 512, T, N),
    (1, 16, 16, 16, N, N),
    (1, 32, 32, 32, N, N),
    (1, 32, 32, 32, N, T),
    (64, 64, 64, 64, N, N),
    (64, 128, 64, 128, N, T),
];

/// Median and shortest time of a call: on a shared processor the shortest is what the kernel can do.
fn time(budget: Duration, mut f: impl FnMut()) -> (Duration, Duration) {
    f();
    f();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (start.elapsed() < budget && times.len() < 10_000) {
        let t = Instant::now();
        f();
        times.push(t.elapsed());
    }
    times.sort();
    (times[times.len() / 2], times[0])
}

#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Multiply-adds of `steps` times 24 vectors; returns the operations done.
    pub fn work(steps: usize) -> f64 {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature.
            unsafe { avx512(steps) };
            steps as f64 * 24.0 * 32.0
        } else {
            // SAFETY: every processor this bench is meant for has them.
            unsafe { avx2(steps) };
            steps as f64 * 12.0 * 16.0
        }
    }

    #[target_feature(enable = "avx512f")]
    fn avx512(steps: usize) {
        let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.5)));
        let mut v = [x; 24];
        for _ in 0..steps {
            v.iter_mut().for_each(|v| *v = _mm512_fmadd_ps(*v, x, y));
        }
        black_box(v);
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2(steps: usize) {
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.5)));
        let mut v = [x; 12];
        for _ in 0..steps {
            v.iter_mut().for_each(|v| *v = _mm256_fmadd_ps(*v, x, y));
        }
        black_box(v);
    }
}

/// Best f32 operations per nanosecond of all threads over short bursts.
#[cfg(target_arch = "x86_64")]
fn peak() -> f64 {
    let threads = pool::threads();
    let best = std::sync::Mutex::new(vec![0f64; threads]);
    pool::parallel_for(threads, |i| {
        for _ in 0..200 {
            let t = Instant::now();
            let done = peak::work(4000);
            let rate = done / t.elapsed().as_nanos() as f64;
            let mut best = best.lock().expect("no panic while locked");
            best[i] = best[i].max(rate);
        }
    });
    best.into_inner().expect("no panic while locked").iter().sum()
}

#[cfg(not(target_arch = "x86_64"))]
fn peak() -> f64 {
    f64::NAN
}

fn buffer(elements: usize, dtype: DType) -> Vec<u64> {
    let pattern = match dtype {
        DType::F32 => 0x3f00_0000_3e80_0000,
        DType::F64 => 0x3fe0_0000_0000_0000,
        DType::BF16 => 0x3f00_3e80_3f00_3e80,
        _ => 0x3400_3800_3400_3800,
    };
    vec![pattern; elements * dtype.size() / 8 + 1]
}

fn product(dtype: DType, (batch, m, k, n, ta, tb): (usize, usize, usize, usize, Layout, Layout)) {
    let ty = |rows: usize, cols: usize, transposed: Layout| {
        let strides = if transposed { [rows * cols, 1, rows] } else { [rows * cols, cols, 1] };
        TensorType::strided(dtype, &[batch, rows, cols].map(|s| s as i64), &strides.map(|s| s as i64))
    };
    let (a, b, c) = (ty(m, k, ta), ty(k, n, tb), ty(m, n, N));
    let mut buffers = [&a, &b, &c].map(|t| buffer(t.numel() as usize, dtype));
    let addresses: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
    let gemm = Gemm::new(&a, &b, &c, Epilogue::NONE).expect("a supported product");
    let peak = peak();
    let (median, t) = time(Duration::from_millis(400), || {
        // SAFETY: the buffers cover their layouts.
        unsafe { gemm.run(black_box(&addresses), &[]) }.expect("no error depends on values");
    });
    let rate = 2.0 * (batch * m * n * k) as f64 / t.as_nanos() as f64;
    let bytes = ((m * k + k * n + m * n) * batch * dtype.size()) as f64 / t.as_nanos() as f64;
    let layout = |t: Layout| if t { 'T' } else { 'N' };
    println!(
        "{:<5} {:>3} x {m:>4} x {k:>4} x {n:>4} {}{} {:>10.1} us, best {:>10.1} us {rate:>7.1} GF/s {:>4.0} % of {peak:.0} {bytes:>6.1} GB/s",
        dtype.name(),
        batch,
        layout(ta),
        layout(tb),
        median.as_nanos() as f64 / 1e3,
        t.as_nanos() as f64 / 1e3,
        100.0 * rate / peak,
    );
}

fn block(s: usize, transposed: bool) {
    let (a, b, mut c) = (vec![0.5f32; s * s], vec![0.25f32; s * s], vec![0f32; s * s]);
    let n = s as isize;
    let (rsb, csb) = if transposed { (1, n) } else { (n, 1) };
    let peak = peak() / pool::threads() as f64;
    let calls = 1 + 100_000 / (s * s);
    let (_, t) = time(Duration::from_millis(200), || {
        for _ in 0..calls {
            // SAFETY: the vectors hold `s` by `s` values.
            unsafe {
                f32_block(s, s, s, black_box(a.as_ptr()), n, 1, b.as_ptr(), rsb, csb, c.as_mut_ptr(), n, 1, 1.0, false);
            }
        }
    });
    let ns = t.as_nanos() as f64 / calls as f64;
    let rate = 2.0 * (s * s * s) as f64 / ns;
    println!(
        "block {s}^3 N{} {ns:.0} ns {rate:.1} GF/s {:.0} % of {peak:.0}",
        if transposed { 'T' } else { 'N' },
        100.0 * rate / peak
    );
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    println!("{} threads", pool::threads());
    for dtype in [DType::F32, DType::BF16] {
        if dtype.name().contains(&filter) || filter.is_empty() {
            PRODUCTS.iter().for_each(|&p| product(dtype, p));
        }
    }
    for dtype in [DType::F16, DType::F64, DType::I64, DType::I8] {
        if dtype.name().contains(&filter) || filter.is_empty() {
            product(dtype, (1, 512, 512, 512, N, N));
        }
    }
    if "block".contains(&filter) {
        for s in [16, 32, 64, 128] {
            block(s, false);
            block(s, true);
        }
    }
}
