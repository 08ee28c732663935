//! Attention, backward.

use super::AttentionOptions;
use super::bias_gradient::BiasGradient;
use super::convert::{store_rows, store_transposed};
use super::forward::random_state;
use super::gradient_tile::{Inputs, Sources, Tile};
use super::problem::{Operand, Problem, QUERIES};
use super::real::{Init, Real, Scale, Strided};
use super::scratch::{self, Scratch};
use crate::{Kernel, KernelError, pool};
use neuron_ir::{DType, Scalar, TensorType};
use std::ops::Range;

const NAME: &str = "attention_backward";

/// Multiplications a task should have at least: some microseconds.
const GRAIN: usize = 200_000;

/// With so many heads they alone keep the threads busy, and one visit per tile serves all gradients.
const ENOUGH_HEADS: usize = 4;

/// What the gradients of one head's keys and values may take to be accumulated in one go, in bytes.
const ACCUMULATORS: usize = 8 << 20;

/// Keys per task where a head is divided.
const CHUNK: usize = 256;

/// The gradients of [`Attention`](super::Attention).
///
/// Probabilities are recomputed from the log-sum-exp. Every sum has a fixed order: results are the same in every run and
/// for every number of threads.
#[derive(Debug)]
pub struct AttentionBackward {
    inputs: Inputs,
    grad_q: Operand,
    grad_k: Operand,
    grad_v: Operand,
    grad_bias: Option<BiasGradient>,
}

struct Launch {
    sources: Sources,
    grad_q: *mut u8,
    grad_k: *mut u8,
    grad_v: *mut u8,
    grad_bias: *mut u8,
}

// SAFETY: the threads write disjoint parts of the outputs and only read the inputs.
unsafe impl Sync for Launch {}

/// The share of a head that a task computes gradients of.
struct Share {
    batch: usize,
    kv_head: usize,
    blocks: Range<usize>,
    keys: Range<usize>,
    /// Whether it has all keys of its queries, all queries of its keys.
    queries_wanted: bool,
    keys_wanted: bool,
}

impl AttentionBackward {
    /// Gradients from `grad_out[b, h, l, ev]`, the forward's operands, and its results `out` and `lse`.
    ///
    /// `grad_q`, `grad_k` and `grad_v` have the sizes of `q`, `k` and `v`. `grad_bias` has for each dimension of
    /// `[b, h, l, s]` its extent or 1; over the latter it is summed. Buffers: `grad_out`, `q`, `k`, `v`, `bias` if
    /// present, `out`, `lse`, `grad_q`, `grad_k`, `grad_v`, `grad_bias` if present. Any strides, but no two elements of
    /// an output share memory.
    ///
    /// # Errors
    /// As [`Attention::new`](super::Attention::new); also for `grad_bias` without `bias`.
    #[expect(clippy::too_many_arguments, reason = "the operands of the operator")]
    pub fn new(
        grad_out: &TensorType,
        q: &TensorType,
        k: &TensorType,
        v: &TensorType,
        bias: Option<&TensorType>,
        out: &TensorType,
        lse: &TensorType,
        options: AttentionOptions,
        grad_q: &TensorType,
        grad_k: &TensorType,
        grad_v: &TensorType,
        grad_bias: Option<&TensorType>,
    ) -> Result<AttentionBackward, KernelError> {
        let problem = Problem::new(NAME, q, k, v, bias, options)?;
        let Problem { batch, heads, kv_heads, l, s, e, ev, .. } = problem;
        let operand = |name, tensor, sizes: &[usize]| Operand::new(NAME, name, tensor, q.dtype, sizes);
        Ok(AttentionBackward {
            grad_q: operand("query gradient", grad_q, &[batch, heads, l, e])?,
            grad_k: operand("key gradient", grad_k, &[batch, kv_heads, s, e])?,
            grad_v: operand("value gradient", grad_v, &[batch, kv_heads, s, ev])?,
            grad_bias: grad_bias.map(|t| BiasGradient::new(NAME, &problem, t)).transpose()?,
            inputs: Inputs {
                grad_out: operand("output gradient", grad_out, &[batch, heads, l, ev])?,
                out: operand("output", out, &[batch, heads, l, ev])?,
                lse: Operand::new(NAME, "log-sum-exp", lse, problem.compute(), &[batch, heads, l])?,
                problem,
            },
        })
    }

    unsafe fn launch<T: Real>(&self, launch: &Launch) {
        let problem = &self.inputs.problem;
        let Problem { batch, kv_heads, s, e, ev, .. } = *problem;
        let (heads, blocks) = (batch * kv_heads, problem.blocks());
        let run = |units: usize, products: usize, share: &(dyn Fn(usize) -> Share + Sync)| {
            let work = problem.pairs() * (e + ev) / 2 * products / units.max(1);
            let per_task = (GRAIN / work.max(1)).clamp(1, units.max(1));
            pool::parallel_for(units.div_ceil(per_task), |task| {
                for unit in task * per_task..units.min((task + 1) * per_task) {
                    // SAFETY: the caller's contract; no two shares write the same gradients.
                    unsafe { self.share::<T>(launch, &share(unit)) };
                }
            });
        };
        let whole = |unit: usize| Share {
            batch: unit / kv_heads,
            kv_head: unit % kv_heads,
            blocks: 0..blocks,
            keys: 0..s,
            queries_wanted: true,
            keys_wanted: true,
        };
        if heads >= ENOUGH_HEADS && s * (e + ev) * size_of::<T>() <= ACCUMULATORS {
            run(heads, 5, &whole);
        } else {
            let chunks = s.div_ceil(CHUNK);
            run(heads * chunks, 4, &|unit| {
                let first = unit % chunks * CHUNK;
                Share { keys: first..s.min(first + CHUNK), queries_wanted: false, ..whole(unit / chunks) }
            });
            run(heads * blocks, 3, &|unit| {
                let block = unit % blocks;
                Share { blocks: block..block + 1, keys_wanted: false, ..whole(unit / blocks) }
            });
        }
        if let Some(grad_bias) = &self.grad_bias {
            // SAFETY: the caller's contract.
            unsafe { grad_bias.launch::<T>(&self.inputs, &launch.sources, launch.grad_bias) };
        }
    }

    unsafe fn share<T: Real>(&self, launch: &Launch, share: &Share) {
        let problem = &self.inputs.problem;
        let Problem { e, ev, .. } = *problem;
        let accumulated = if share.keys_wanted { share.keys.len() } else { 0 };
        let lens = [QUERIES * e, accumulated * e, accumulated * ev];
        let bytes = lens.iter().map(|&len| Scratch::size::<T>(len)).sum::<usize>() + Tile::<T>::size(problem);
        scratch::with(bytes, |mut scratch| {
            let [grad_q, grad_k, grad_v] = lens.map(|len| scratch.take::<T>(len));
            let tile = Tile::<T>::new(problem, &mut scratch);
            // SAFETY: the scratch pieces have the lengths announced; operands are valid for the problem's sizes.
            unsafe {
                std::slice::from_raw_parts_mut(grad_k, accumulated * e).fill(T::ZERO);
                std::slice::from_raw_parts_mut(grad_v, accumulated * ev).fill(T::ZERO);
                for index in share.blocks.clone() {
                    let block = problem.block(share.batch, share.kv_head, index);
                    let (rows, width) = (block.len, block.width());
                    let end = problem.visible(&block).min(share.keys.end);
                    if share.keys.start >= end && !share.queries_wanted {
                        continue;
                    }
                    self.inputs.load(&launch.sources, &block, &tile);
                    std::slice::from_raw_parts_mut(grad_q, e * width).fill(T::ZERO);
                    let mut first = share.keys.start;
                    while first < end {
                        let keys = problem.keys(&block, first, end);
                        let skipped = problem.skipped(&block, first);
                        let k = self.inputs.compute(&launch.sources, &block, skipped, first, keys, &tile);
                        let (rows, seen) = (rows - skipped, width - skipped);
                        if share.keys_wanted {
                            let at = first - share.keys.start;
                            let left = |ptr: *mut T| Strided { ptr: ptr.cast_const(), row: seen as isize, col: 1 };
                            let (weights, grads) = (left(tile.weights), left(tile.score_grads));
                            let right = tile.grad_rows.add(skipped * ev);
                            T::gemm(keys, ev, rows, weights, right, ev, grad_v.add(at * ev), ev, Init::Keep);
                            let right = tile.query_rows.add(skipped * e);
                            T::gemm(keys, e, rows, grads, right, e, grad_k.add(at * e), e, Init::Keep);
                        }
                        if share.queries_wanted {
                            let (k, to) = (k.transposed(), grad_q.add(skipped));
                            T::gemm(e, seen, keys, k, tile.score_grads, seen, to, width, Init::Keep);
                        }
                        first += keys;
                    }
                    if share.queries_wanted {
                        store_transposed(
                            &self.grad_q,
                            grad_q,
                            width,
                            e,
                            rows,
                            Scale::Uniform(T::from_f64(problem.options.scale)),
                            |row| self.grad_q.at(launch.grad_q, block.index(row)),
                            tile.staging,
                        );
                    }
                }
                if share.keys_wanted {
                    let at = [share.batch, share.kv_head, share.keys.start, 0];
                    let scale = T::from_f64(problem.options.scale);
                    store(&self.grad_k, self.grad_k.at(launch.grad_k, at), grad_k, scale, accumulated, e);
                    store(&self.grad_v, self.grad_v.at(launch.grad_v, at), grad_v, T::ONE, accumulated, ev);
                }
            }
        });
    }
}

unsafe fn store<T: Real>(to: &Operand, base: *mut u8, from: *const T, scale: T, rows: usize, cols: usize) {
    let row = |row: usize| base.wrapping_offset(row as isize * to.step(2));
    // SAFETY: the caller's extents.
    unsafe { store_rows(to.dtype, from, cols, scale, row, to.strides[3], rows, cols) };
}

impl Kernel for AttentionBackward {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let mut next = buffers.iter().copied();
        let mut take = || next.next().unwrap_or(std::ptr::null_mut());
        let problem = &self.inputs.problem;
        let launch = Launch {
            sources: Sources {
                grad_out: take(),
                q: take(),
                k: take(),
                v: take(),
                bias: if problem.bias.is_some() { take() } else { std::ptr::null_mut() },
                out: take(),
                lse: take(),
                dropout: random_state(&problem.options, scalars),
            },
            grad_q: take(),
            grad_k: take(),
            grad_v: take(),
            grad_bias: take(),
        };
        // SAFETY: the caller's contract.
        unsafe {
            match problem.compute() {
                DType::F64 => self.launch::<f64>(&launch),
                _ => self.launch::<f32>(&launch),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        let problem = &self.inputs.problem;
        (problem.pairs() * (3 * (problem.e + problem.ev) + 16)) as u64 / 40
    }
}
