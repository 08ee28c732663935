//! Tensors of random layout for comparisons with naive references.

use super::element::{Element, with_element};
use crate::Kernel;
use neuron_ir::{DType, TensorType};

/// A small generator: a test names its seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..4).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum::<f64>() * 1.7
    }

    /// Sizes of up to five dimensions, mostly small, some long, some empty.
    pub(crate) fn sizes(&mut self) -> Vec<i64> {
        let rank = self.below(6);
        let mut budget = 30_000;
        (0..rank)
            .map(|_| {
                let size = match self.below(20) {
                    0 => 0,
                    1 | 2 => 1,
                    3..=5 => self.below(budget.min(3000)) + 1,
                    6..=9 => self.below(budget.min(100)) + 1,
                    _ => self.below(7) + 1,
                };
                let size = size.min(budget.max(1));
                budget = (budget / size.max(1)).max(1);
                size as i64
            })
            .collect()
    }
}

/// A tensor that owns its memory.
pub(crate) struct Tensor {
    pub(crate) ty: TensorType,
    memory: Vec<u64>,
}

impl Tensor {
    /// Zeros, laid out with a random order of dimensions, gaps, and (`expand`) broadcast dimensions.
    pub(crate) fn strided(rng: &mut Rng, dtype: DType, sizes: &[i64], expand: bool) -> Tensor {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        if rng.below(2) == 0 {
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i + 1));
            }
        }
        let gaps = rng.below(3) == 0;
        let mut strides = vec![0i64; sizes.len()];
        let mut span = 1 + (gaps && rng.below(2) == 0) as i64;
        for &d in order.iter().rev() {
            if expand && rng.below(12) == 0 {
                continue;
            }
            strides[d] = span;
            span *= sizes[d].max(1);
            span += if gaps { rng.below(3) as i64 } else { 0 };
        }
        for d in 0..sizes.len() {
            if sizes[d] == 1 && rng.below(3) == 0 {
                strides[d] = 77;
            }
        }
        Tensor::of(TensorType::strided(dtype, sizes, &strides))
    }

    /// Zeros of the given layout.
    pub(crate) fn of(ty: TensorType) -> Tensor {
        let last: i64 = ty.sizes.iter().zip(&ty.strides).map(|(n, s)| (n - 1).max(0) * s).sum();
        let memory = vec![0; ((last + 1) as usize * ty.dtype.size()).div_ceil(8)];
        Tensor { ty, memory }
    }

    pub(crate) fn fill(mut self, mut value: impl FnMut() -> f64) -> Tensor {
        for i in 0..self.ty.numel() as usize {
            self.set(i, value());
        }
        self
    }

    pub(crate) fn randn(self, rng: &mut Rng) -> Tensor {
        let dtype = self.ty.dtype;
        self.fill(|| {
            let v = rng.normal() * if dtype.is_float() { 1.0 } else { 20.0 };
            if dtype == DType::U8 { v.abs() } else { v }
        })
    }

    pub(crate) fn address(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast()
    }

    /// Offset of element `index`, counted row-major.
    fn place(&self, mut index: usize) -> usize {
        let mut at = 0;
        for (&n, &s) in self.ty.sizes.iter().zip(&self.ty.strides).rev() {
            at += (index as i64 % n) * s;
            index /= n as usize;
        }
        at as usize
    }

    pub(crate) fn get(&self, index: usize) -> f64 {
        let p = self.memory.as_ptr();
        // SAFETY: `place` is inside of the memory.
        with_element!(any: self.ty.dtype, T => unsafe { (*p.cast::<T>().add(self.place(index))).to_f64() }).unwrap()
    }

    pub(crate) fn set(&mut self, index: usize, value: f64) {
        let (at, p) = (self.place(index), self.memory.as_mut_ptr());
        // SAFETY: `place` is inside of the memory.
        with_element!(any: self.ty.dtype, T => unsafe { *p.cast::<T>().add(at) = T::from_f64(value) }).unwrap()
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        (0..self.ty.numel() as usize).map(|i| self.get(i)).collect()
    }
}

pub(crate) fn run(kernel: &dyn Kernel, tensors: &mut [&mut Tensor]) {
    let buffers: Vec<*mut u8> = tensors.iter_mut().map(|t| t.address()).collect();
    // SAFETY: tests pass the tensors whose types they made the kernel for.
    unsafe { kernel.run(&buffers, &[]).unwrap() };
}

/// For every kept position, in row-major order, the row-major indices of the elements reduced to it.
pub(crate) fn groups(sizes: &[i64], dims: &[i64]) -> Vec<Vec<usize>> {
    let results =
        sizes.iter().enumerate().filter(|(d, _)| !dims.contains(&(*d as i64))).map(|(_, n)| *n).product::<i64>();
    let mut groups = vec![Vec::new(); results as usize];
    for index in 0..sizes.iter().product::<i64>() as usize {
        let (mut rest, mut to, mut scale) = (index, 0, 1);
        for (d, &n) in sizes.iter().enumerate().rev() {
            if !dims.contains(&(d as i64)) {
                to += rest % n as usize * scale;
                scale *= n as usize;
            }
            rest /= n as usize;
        }
        groups[to].push(index);
    }
    groups
}

/// The sizes with those of `dims` replaced by 1.
pub(crate) fn kept(sizes: &[i64], dims: &[i64]) -> Vec<i64> {
    sizes.iter().enumerate().map(|(d, &n)| if dims.contains(&(d as i64)) { 1 } else { n }).collect()
}

/// Relative precision of a type.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        DType::F32 => 1e-6,
        _ => 1e-13,
    }
}

#[track_caller]
pub(crate) fn assert_close(got: f64, want: f64, tolerance: f64, what: &str) {
    let same = got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= tolerance * (1.0 + want.abs());
    assert!(same, "{what}: got {got}, want {want}");
}
