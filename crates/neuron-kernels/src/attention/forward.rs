//! Attention, forward.

use super::convert::{load_transposed, matrix, store_transposed};
use super::problem::{Block, KEYS, Operand, Problem, QUERIES};
use super::real::{Init, Real, Running, Scale};
use super::scores::{Dropout, add_bias, hide_future, multiply};
use super::scratch::{self, Scratch};
use super::{AttentionOptions, few_queries};
use crate::{Kernel, KernelError, pool};
use neuron_ir::{DType, Scalar, TensorType};

const NAME: &str = "attention";

/// Multiplications a task should have at least: some microseconds.
const GRAIN: usize = 200_000;

/// `softmax(scale * q k^T + bias) v` with the log-sum-exp of each query's scores, which the backward wants.
///
/// Any strides. `h` is a multiple of `hk`: query head `i` looks at key head `i / (h / hk)`.
#[derive(Debug)]
pub struct Attention {
    problem: Problem,
    out: Operand,
    lse: Operand,
}

/// Addresses and random state of a launch.
pub(super) struct Launch {
    pub q: *mut u8,
    pub k: *mut u8,
    pub v: *mut u8,
    pub bias: *mut u8,
    pub out: *mut u8,
    pub lse: *mut u8,
    pub dropout: Option<Dropout>,
}

// SAFETY: the threads write disjoint parts of the outputs and only read the inputs.
unsafe impl Sync for Launch {}

/// The random state, which a launch carries last in its scalars.
pub(super) fn random_state(options: &AttentionOptions, scalars: &[Scalar]) -> Option<Dropout> {
    match scalars {
        [.., seed, offset] if options.dropout > 0.0 => {
            Some(Dropout { seed: seed.to_i64() as u64, offset: offset.to_i64() as u64 })
        }
        _ => None,
    }
}

impl Attention {
    /// Attention of `q[b, h, l, e]`, `k[b, hk, s, e]`, `v[b, hk, s, ev]` into `out[b, h, l, ev]` and `lse[b, h, l]`.
    ///
    /// `bias` has the sizes `[b, h, l, s]`, with strides of 0 or extents of 1 where it is broadcast; a float is added to
    /// the scores, a `bool` says which keys are visible. `lse` is `f32`, or `f64` for `f64` operands. Buffers: `q`, `k`,
    /// `v`, `bias` if present, `out`, `lse`.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for element types other than floats, or mixed ones, and for sizes that do not match.
    pub fn new(
        q: &TensorType,
        k: &TensorType,
        v: &TensorType,
        bias: Option<&TensorType>,
        options: AttentionOptions,
        out: &TensorType,
        lse: &TensorType,
    ) -> Result<Attention, KernelError> {
        let problem = Problem::new(NAME, q, k, v, bias, options)?;
        let Problem { batch, heads, l, ev, .. } = problem;
        Ok(Attention {
            out: Operand::new(NAME, "output", out, q.dtype, &[batch, heads, l, ev])?,
            lse: Operand::new(NAME, "log-sum-exp", lse, problem.compute(), &[batch, heads, l])?,
            problem,
        })
    }

    unsafe fn launch<T: Real>(&self, launch: &Launch) {
        let Problem { batch, kv_heads, e, ev, .. } = self.problem;
        let blocks = self.problem.blocks();
        let units = batch * kv_heads * blocks;
        let work = self.problem.pairs() * (e + ev) / units.max(1);
        let per_task = (GRAIN / work.max(1)).clamp(1, units.max(1));
        pool::parallel_for(units.div_ceil(per_task), |task| {
            for unit in task * per_task..units.min((task + 1) * per_task) {
                let (head, index) = (unit / blocks, unit % blocks);
                // Under causality the last blocks have the most keys: they go first, so that the threads end together.
                let index = if self.problem.options.causal { blocks - 1 - index } else { index };
                let block = self.problem.block(head / kv_heads, head % kv_heads, index);
                // SAFETY: the caller's contract; no two blocks have a query in common.
                unsafe {
                    if block.len <= few_queries::MOST {
                        few_queries::attend::<T>(&self.problem, [&self.out, &self.lse], launch, &block);
                    } else {
                        self.attend::<T>(launch, &block);
                    }
                }
            }
        });
    }

    /// One block of queries, with the queries in the lanes of the tiles.
    unsafe fn attend<T: Real>(&self, launch: &Launch, block: &Block) {
        let problem = &self.problem;
        let Problem { e, ev, .. } = *problem;
        let width = block.width();
        let staging_len = (KEYS * e.max(ev)).max(QUERIES * e.max(ev)).max(KEYS * QUERIES);
        let lens = [e * width, ev * width, KEYS * width, KEYS * width, staging_len, width, width, width];
        let bytes = lens.iter().map(|&len| Scratch::size::<T>(len)).sum();
        scratch::with(bytes, |mut scratch| {
            let [queries, output, tile, extra, staging, max, sum, rescale] = lens.map(|len| scratch.take::<T>(len));
            let running = Running { max, sum, rescale };
            // SAFETY: the scratch pieces have the lengths announced; operands are valid for the problem's sizes.
            unsafe {
                load_transposed(
                    &problem.q,
                    |row| problem.q.at(launch.q, block.index(row)),
                    block.len,
                    width,
                    e,
                    T::from_f64(problem.options.scale),
                    queries,
                    staging,
                );
                std::slice::from_raw_parts_mut(max, width).fill(T::NEG_INFINITY);
                std::slice::from_raw_parts_mut(sum, width).fill(T::ZERO);
                let visible = problem.visible(block);
                if visible == 0 {
                    std::slice::from_raw_parts_mut(output, ev * width).fill(T::ZERO);
                }
                let mut first = 0;
                while first < visible {
                    let keys = problem.keys(block, first, visible);
                    let skipped = problem.skipped(block, first);
                    let block = &block.tail(skipped);
                    let (seen, running) = (block.width(), running.tail(skipped));
                    let at = [block.batch, block.kv_head, first, 0];
                    let k = matrix(&problem.k, problem.k.at(launch.k, at), keys, e, staging);
                    T::gemm(keys, seen, e, k, queries.add(skipped), width, tile, seen, Init::Zero);
                    add_bias(problem, launch.bias, block, first, keys, tile, [extra, staging]);
                    hide_future(problem, block, first, keys, tile);
                    T::softmax(tile, keys, seen, running);
                    if let Some(dropout) = launch.dropout {
                        dropout.tile(problem, block, first, keys, extra);
                        multiply(tile, extra, keys * seen);
                    }
                    let v = matrix(&problem.v, problem.v.at(launch.v, at), keys, ev, staging).transposed();
                    let init = if first == 0 { Init::Zero } else { Init::Scaled(running.rescale.cast_const()) };
                    T::gemm(ev, seen, keys, v, tile, seen, output.add(skipped), width, init);
                    first += keys;
                }
                self.finish(launch, block, running, output, staging);
            }
        });
    }

    /// Divides by the sums and writes the block's outputs.
    unsafe fn finish<T: Real>(
        &self,
        launch: &Launch,
        block: &Block,
        running: Running<T>,
        output: *mut T,
        staging: *mut T,
    ) {
        let (width, ev) = (block.width(), self.problem.ev);
        // SAFETY: the lengths of `attend`.
        unsafe {
            let factors = std::slice::from_raw_parts_mut(running.rescale, width);
            for (row, factor) in factors.iter_mut().enumerate() {
                let (max, sum) = (*running.max.add(row), *running.sum.add(row));
                // Without a visible key the output is a sum of zeros, which stays.
                *factor = if sum == T::ZERO { T::ONE } else { T::ONE / sum };
                if row < block.len {
                    *self.lse.at(launch.lse, block.index(row)).cast::<T>() = max + sum.ln();
                }
            }
            store_transposed(
                &self.out,
                output,
                width,
                ev,
                block.len,
                Scale::Columns(running.rescale),
                |row| self.out.at(launch.out, block.index(row)),
                staging,
            );
        }
    }
}

impl Kernel for Attention {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        let (bias, rest) = match &self.problem.bias {
            Some(_) => (buffers[3], &buffers[4..]),
            None => (std::ptr::null_mut(), &buffers[3..]),
        };
        let launch = Launch {
            q: buffers[0],
            k: buffers[1],
            v: buffers[2],
            bias,
            out: rest[0],
            lse: rest[1],
            dropout: random_state(&self.problem.options, scalars),
        };
        // SAFETY: the caller's contract.
        unsafe {
            match self.problem.compute() {
                DType::F64 => self.launch::<f64>(&launch),
                _ => self.launch::<f32>(&launch),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        (self.problem.pairs() * (self.problem.e + self.problem.ev + 16)) as u64 / 40
    }
}
