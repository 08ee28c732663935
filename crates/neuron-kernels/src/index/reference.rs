//! Tensors of small integers in any element type and layout, element by element: what tests compare kernels with.

use crate::kernel::{Kernel, KernelError};
use crate::random::philox;
use half::{bf16, f16};
use neuron_ir::{DType, Scalar, TensorType};

/// A source of random test cases.
pub(crate) struct Cases(u64);

impl Cases {
    pub fn new(seed: u64) -> Self {
        Cases(seed << 32)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: i64) -> i64 {
        self.0 += 1;
        (i64::from(philox(42, 0, self.0)[0]) * n) >> 32
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as i64) as usize]
    }

    /// A tensor of these sizes with permuted and padded strides, filled from `value`.
    pub fn tensor(&mut self, dtype: DType, sizes: &[i64], value: impl FnMut(&mut Self) -> i64) -> Tensor {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        let mut strides = vec![0; sizes.len()];
        let mut gap = 1;
        if self.below(2) == 0 {
            for i in (1..order.len()).rev() {
                order.swap(i, self.below(i as i64 + 1) as usize);
            }
            gap = 1 + self.below(2);
        }
        let mut next = gap;
        for &d in order.iter().rev() {
            strides[d] = if sizes[d] == 1 { self.below(100) } else { next };
            next *= sizes[d].max(1) + if gap > 1 { self.below(2) } else { 0 };
        }
        self.strided(TensorType::strided(dtype, sizes, &strides), value)
    }

    /// A tensor of this layout, filled from `value`; of elements that share memory the last value stays.
    pub fn strided(&mut self, tensor: TensorType, mut value: impl FnMut(&mut Self) -> i64) -> Tensor {
        let reach: i64 = tensor.sizes.iter().zip(&tensor.strides).map(|(n, s)| (n - 1).max(0) * s).sum();
        let mut tensor = Tensor { memory: vec![0x5a5a_5a5a_5a5a_5a5a; reach as usize + 1], tensor };
        for at in tensor.coordinates() {
            let v = value(self);
            tensor.set(&at, v);
        }
        tensor
    }
}

/// A tensor with memory of its own: 8 bytes per element, enough for any type.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub tensor: TensorType,
    memory: Vec<u64>,
}

impl Tensor {
    pub fn address(&self) -> *mut u8 {
        self.memory.as_ptr() as *mut u8
    }

    pub fn coordinates(&self) -> Vec<Vec<i64>> {
        coordinates(&self.tensor.sizes)
    }

    fn place(&self, at: &[i64]) -> usize {
        assert_eq!(at.len(), self.tensor.rank());
        at.iter().zip(&self.tensor.strides).map(|(c, s)| c * s).sum::<i64>() as usize
    }

    pub fn get(&self, at: &[i64]) -> i64 {
        let (i, from) = (self.place(at), self.memory.as_ptr());
        // SAFETY: the memory has 8 bytes per element.
        unsafe {
            match self.tensor.dtype {
                DType::U8 | DType::Bool => i64::from(*from.cast::<u8>().add(i)),
                DType::I8 => i64::from(*from.cast::<i8>().add(i)),
                DType::I16 => i64::from(*from.cast::<i16>().add(i)),
                DType::I32 => i64::from(*from.cast::<i32>().add(i)),
                DType::I64 => *from.cast::<i64>().add(i),
                DType::F16 => (*from.cast::<f16>().add(i)).to_f32() as i64,
                DType::BF16 => (*from.cast::<bf16>().add(i)).to_f32() as i64,
                DType::F32 => *from.cast::<f32>().add(i) as i64,
                DType::F64 => *from.cast::<f64>().add(i) as i64,
                other => unreachable!("{other} has no arithmetic"),
            }
        }
    }

    pub fn set(&mut self, at: &[i64], value: i64) {
        let (i, to) = (self.place(at), self.memory.as_mut_ptr());
        // SAFETY: the memory has 8 bytes per element.
        unsafe {
            match self.tensor.dtype {
                DType::U8 | DType::I8 => *to.cast::<u8>().add(i) = value as u8,
                DType::Bool => *to.cast::<bool>().add(i) = value != 0,
                DType::I16 => *to.cast::<i16>().add(i) = value as i16,
                DType::I32 => *to.cast::<i32>().add(i) = value as i32,
                DType::I64 => *to.cast::<i64>().add(i) = value,
                DType::F16 => *to.cast::<f16>().add(i) = f16::from_f32(value as f32),
                DType::BF16 => *to.cast::<bf16>().add(i) = bf16::from_f32(value as f32),
                DType::F32 => *to.cast::<f32>().add(i) = value as f32,
                DType::F64 => *to.cast::<f64>().add(i) = value as f64,
                other => unreachable!("{other} has no arithmetic"),
            }
        }
    }

    /// All elements in row-major order.
    pub fn values(&self) -> Vec<i64> {
        self.coordinates().iter().map(|at| self.get(at)).collect()
    }
}

/// Every coordinate of a tensor of these sizes in row-major order.
pub(crate) fn coordinates(sizes: &[i64]) -> Vec<Vec<i64>> {
    let numel: i64 = sizes.iter().product();
    (0..numel)
        .map(|mut i| {
            let mut at = vec![0; sizes.len()];
            for d in (0..sizes.len()).rev() {
                at[d] = i % sizes[d];
                i /= sizes[d];
            }
            at
        })
        .collect()
}

/// Runs a kernel on tensors.
pub(crate) fn run(kernel: &dyn Kernel, tensors: &[&Tensor], scalars: &[Scalar]) -> Result<(), KernelError> {
    let buffers: Vec<*mut u8> = tensors.iter().map(|t| t.address()).collect();
    // SAFETY: the tensors have the layouts that the kernel was made for.
    unsafe { kernel.run(&buffers, scalars) }
}
