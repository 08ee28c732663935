//! Attention as the textbook has it, in `f64`, on tensors of any layout: what the tests compare with.

use super::AttentionOptions;
use crate::random::philox;
use half::{bf16, f16};
use neuron_ir::{DType, TensorType};

/// xorshift64*: enough for test data.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// Roughly normal.
    pub fn normal(&mut self) -> f64 {
        (0..6).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() * 1.4 - 4.2
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A tensor with its memory.
pub(super) struct Tensor {
    pub ty: TensorType,
    data: Vec<u8>,
}

impl Tensor {
    /// Zeros; with a generator, of a random layout without overlap: permuted, with gaps.
    pub fn zeros(dtype: DType, sizes: &[usize], layout: Option<&mut Random>) -> Tensor {
        let sizes: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
        let mut ty = TensorType::contiguous(dtype, &sizes);
        let mut len = ty.numel();
        if let Some(random) = layout {
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            if random.chance(50) {
                (1..sizes.len()).for_each(|i| order.swap(i, random.below(i + 1)));
            }
            len = 1;
            for &dim in order.iter().rev() {
                ty.strides[dim] = len;
                len = len * sizes[dim].max(1) + if random.chance(30) { random.below(5) as i64 } else { 0 };
            }
        }
        Tensor { ty, data: vec![0; len.max(1) as usize * dtype.size()] }
    }

    pub fn filled(mut self, mut value: impl FnMut() -> f64) -> Tensor {
        for i in self.indices() {
            self.set(&i, value());
        }
        self
    }

    /// The tensor with the given dimensions, of extent 1, repeated.
    pub fn expanded(mut self, sizes: &[usize]) -> Tensor {
        for (dim, &size) in sizes.iter().enumerate() {
            if self.ty.sizes[dim] != size as i64 {
                self.ty.sizes[dim] = size as i64;
                self.ty.strides[dim] = 0;
            }
        }
        self
    }

    pub fn ptr(&self) -> *mut u8 {
        self.data.as_ptr().cast_mut()
    }

    pub fn sizes(&self) -> Vec<usize> {
        self.ty.sizes.iter().map(|&n| n as usize).collect()
    }

    pub fn indices(&self) -> Vec<Vec<usize>> {
        let sizes = self.sizes();
        let numel: usize = sizes.iter().product();
        let index = |mut i: usize| {
            let mut at = vec![0; sizes.len()];
            for dim in (0..sizes.len()).rev() {
                at[dim] = i % sizes[dim];
                i /= sizes[dim];
            }
            at
        };
        (0..numel).map(index).collect()
    }

    fn offset(&self, index: &[usize]) -> usize {
        let elements: i64 = index.iter().zip(&self.ty.strides).map(|(&i, stride)| i as i64 * stride).sum();
        elements as usize * self.ty.dtype.size()
    }

    pub fn get(&self, index: &[usize]) -> f64 {
        let at = self.offset(index);
        let bytes = &self.data[at..at + self.ty.dtype.size()];
        match self.ty.dtype {
            DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            _ => f64::from(bytes[0]),
        }
    }

    pub fn set(&mut self, index: &[usize], value: f64) {
        let at = self.offset(index);
        let to = &mut self.data[at..at + self.ty.dtype.size()];
        match self.ty.dtype {
            DType::F32 => to.copy_from_slice(&(value as f32).to_le_bytes()),
            DType::F64 => to.copy_from_slice(&value.to_le_bytes()),
            DType::F16 => to.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
            DType::BF16 => to.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            _ => to[0] = u8::from(value != 0.0),
        }
    }
}

/// The operands of a case.
pub(super) struct Case {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub bias: Option<Tensor>,
    pub options: AttentionOptions,
    pub seed: u64,
    pub offset: u64,
}

impl Case {
    /// `[b, h, l, s, e, ev]` and the queries per key head.
    pub fn dims(&self) -> ([usize; 6], usize) {
        let (q, k, v) = (self.q.sizes(), self.k.sizes(), self.v.sizes());
        ([q[0], q[1], q[2], k[2], q[3], v[3]], q[1] / k[1].max(1))
    }

    /// The scores of one query.
    fn scores(&self, at: [usize; 3]) -> Vec<f64> {
        let ([.., s, e, _], group) = self.dims();
        let [b, h, l] = at;
        let score = |j: usize| {
            let dot: f64 = (0..e).map(|x| self.q.get(&[b, h, l, x]) * self.k.get(&[b, h / group, j, x])).sum();
            let bias = self.bias.as_ref().map_or(0.0, |bias| match bias.ty.dtype {
                DType::Bool if bias.get(&[b, h, l, j]) == 0.0 => f64::NEG_INFINITY,
                DType::Bool => 0.0,
                _ => bias.get(&[b, h, l, j]),
            });
            if self.options.causal && j > l { f64::NEG_INFINITY } else { dot * self.options.scale + bias }
        };
        (0..s).map(score).collect()
    }

    /// The softmax of one query and its log-sum-exp.
    pub fn weights(&self, at: [usize; 3]) -> (Vec<f64>, f64) {
        let scores = self.scores(at);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            return (vec![0.0; scores.len()], max);
        }
        let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
        (scores.iter().map(|x| (x - max).exp() / sum).collect(), max + sum.ln())
    }

    /// What dropout multiplies a weight with.
    pub fn keep(&self, [b, h, l]: [usize; 3], j: usize) -> f64 {
        if self.options.dropout == 0.0 {
            return 1.0;
        }
        let ([_, heads, rows, s, ..], _) = self.dims();
        let index = (((b * heads + h) * rows + l) * s + j) as u64;
        let word = philox(self.seed, self.offset, index / 4)[(index % 4) as usize];
        let keep = 1.0 - self.options.dropout;
        if f64::from(word >> 8) / f64::from(1u32 << 24) < keep { 1.0 / keep } else { 0.0 }
    }

    fn queries(&self) -> Vec<[usize; 3]> {
        let ([b, h, l, ..], _) = self.dims();
        (0..b * h * l).map(|i| [i / l / h, i / l % h, i % l]).collect()
    }

    /// `out` and `lse`.
    pub fn forward(&self) -> [Tensor; 2] {
        let ([b, h, l, s, _, ev], group) = self.dims();
        let mut out = Tensor::zeros(DType::F64, &[b, h, l, ev], None);
        let mut lse = Tensor::zeros(DType::F64, &[b, h, l], None);
        for at in self.queries() {
            let (weights, log) = self.weights(at);
            let [b, h, l] = at;
            lse.set(&at, log);
            for x in 0..ev {
                let sum = (0..s).map(|j| weights[j] * self.keep(at, j) * self.v.get(&[b, h / group, j, x])).sum();
                out.set(&[b, h, l, x], sum);
            }
        }
        [out, lse]
    }

    /// Gradients of `q`, `k`, `v`, and of the bias as far as `bias_sizes` keeps its dimensions.
    pub fn backward(&self, grad_out: &Tensor, bias_sizes: &[usize]) -> [Tensor; 4] {
        let ([_, _, _, s, e, ev], group) = self.dims();
        let mut grads = [self.q.sizes(), self.k.sizes(), self.v.sizes(), bias_sizes.to_vec()]
            .map(|sizes| Tensor::zeros(DType::F64, &sizes, None));
        let mut add = |which: usize, index: &[usize], value: f64| {
            let old = grads[which].get(index);
            grads[which].set(index, old + value);
        };
        for at in self.queries() {
            let [b, h, l] = at;
            let (weights, _) = self.weights(at);
            let grad = |j: usize| -> f64 {
                let dot: f64 = (0..ev).map(|x| grad_out.get(&[b, h, l, x]) * self.v.get(&[b, h / group, j, x])).sum();
                dot * self.keep(at, j)
            };
            let grad_weights: Vec<f64> = (0..s).map(grad).collect();
            let delta: f64 = (0..s).map(|j| weights[j] * grad_weights[j]).sum();
            for j in 0..s {
                let score = weights[j] * (grad_weights[j] - delta);
                let keep = self.keep(at, j);
                for x in 0..ev {
                    add(2, &[b, h / group, j, x], weights[j] * keep * grad_out.get(&[b, h, l, x]));
                }
                for x in 0..e {
                    add(0, &[b, h, l, x], self.options.scale * score * self.k.get(&[b, h / group, j, x]));
                    add(1, &[b, h / group, j, x], self.options.scale * score * self.q.get(&[b, h, l, x]));
                }
                let full = [b, h, l, j];
                let index: Vec<usize> = (0..4).map(|dim| full[dim].min(bias_sizes[dim].max(1) - 1)).collect();
                add(3, &index, score);
            }
        }
        grads
    }
}
