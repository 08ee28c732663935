//! The part of the backward that all its results share: probabilities and score gradients of a tile, recomputed.

use super::convert::{load_rows, matrix};
use super::problem::{Block, KEYS, Operand, Problem, QUERIES};
use super::real::{Init, Real, Scale, Strided};
use super::scores::{Dropout, add_bias, hide_future};
use super::scratch::Scratch;
use crate::simd::vectorized;

/// Layouts of what the backward reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    pub problem: Problem,
    pub grad_out: Operand,
    pub out: Operand,
    pub lse: Operand,
}

/// Addresses of what the backward reads, and the random state of the forward.
pub(super) struct Sources {
    pub grad_out: *mut u8,
    pub q: *mut u8,
    pub k: *mut u8,
    pub v: *mut u8,
    pub bias: *mut u8,
    pub out: *mut u8,
    pub lse: *mut u8,
    pub dropout: Option<Dropout>,
}

/// Working memory for one block of queries and one of keys; widths are those of the block.
pub(super) struct Tile<T> {
    /// `[rows, e]` and `[rows, ev]`: the block's queries and output gradients.
    pub query_rows: *mut T,
    pub grad_rows: *mut T,
    /// Transposed, `[e, width]` and `[ev, width]`, the queries times the scale.
    queries: *mut T,
    grads: *mut T,
    /// Per query: log-sum-exp, and the dot product of output and output gradient.
    lse: *mut T,
    delta: *mut T,
    /// `[keys, width]`: what weighs the output gradients in the values' gradient, and the gradient of the scores.
    pub weights: *mut T,
    pub score_grads: *mut T,
    extra: *mut T,
    pub staging: *mut T,
    keys: *mut T,
    values: *mut T,
}

impl<T: Real> Tile<T> {
    fn lens(problem: &Problem) -> [usize; 12] {
        let Problem { e, ev, .. } = *problem;
        let tile = KEYS * QUERIES;
        let [e_tile, ev_tile] = [QUERIES * e, QUERIES * ev];
        let staging = tile.max(e_tile).max(ev_tile);
        [e_tile, ev_tile, e_tile, ev_tile, QUERIES, QUERIES, tile, tile, tile, staging, KEYS * e, KEYS * ev]
    }

    /// Bytes of working memory.
    pub fn size(problem: &Problem) -> usize {
        Self::lens(problem).iter().map(|&len| Scratch::size::<T>(len)).sum()
    }

    pub fn new(problem: &Problem, scratch: &mut Scratch) -> Self {
        let [query_rows, grad_rows, queries, grads, lse, delta, weights, score_grads, extra, staging, keys, values] =
            Self::lens(problem).map(|len| scratch.take::<T>(len));
        Tile { query_rows, grad_rows, queries, grads, lse, delta, weights, score_grads, extra, staging, keys, values }
    }
}

impl Inputs {
    /// Brings in a block of queries.
    ///
    /// # Safety
    /// The sources are valid for the problem.
    pub unsafe fn load<T: Real>(&self, sources: &Sources, block: &Block, tile: &Tile<T>) {
        let Problem { e, ev, q, options, .. } = self.problem;
        let (rows, width) = (block.len, block.width());
        let query = |row: usize| q.at(sources.q, block.index(row)).cast_const();
        let grad = |row: usize| self.grad_out.at(sources.grad_out, block.index(row)).cast_const();
        let out = |row: usize| self.out.at(sources.out, block.index(row)).cast_const();
        // SAFETY: the tile's pieces have the lengths that are used.
        unsafe {
            load_rows(q.dtype, query, q.strides[3], rows, e, tile.query_rows, e);
            load_rows(self.grad_out.dtype, grad, self.grad_out.strides[3], rows, ev, tile.grad_rows, ev);
            load_rows(self.out.dtype, out, self.out.strides[3], rows, ev, tile.staging, ev);
            let lse = std::slice::from_raw_parts_mut(tile.lse, width);
            let delta = std::slice::from_raw_parts_mut(tile.delta, width);
            // What is not a query has no weights; neither has a query that sees no key.
            lse.fill(T::INFINITY);
            delta.fill(T::ZERO);
            for (row, lse) in lse.iter_mut().enumerate().take(rows) {
                let value = *self.lse.at(sources.lse, block.index(row)).cast::<T>();
                *lse = if value == T::NEG_INFINITY { T::INFINITY } else { value };
            }
            vectorized(
                #[inline(always)]
                || {
                    for (row, delta) in delta.iter_mut().enumerate().take(rows) {
                        let out = std::slice::from_raw_parts(tile.staging.add(row * ev), ev);
                        *delta = dot(out, std::slice::from_raw_parts(tile.grad_rows.add(row * ev), ev));
                    }
                },
            );
            let scale = T::from_f64(options.scale);
            let to = |e: usize| tile.queries.add(e * width);
            T::transpose(|row| tile.query_rows.add(row * e).cast_const(), rows, width, e, to, Scale::Uniform(scale));
            let to = |ev: usize| tile.grads.add(ev * width);
            T::transpose(|row| tile.grad_rows.add(row * ev).cast_const(), rows, width, ev, to, Scale::Uniform(T::ONE));
        }
    }

    /// Fills `weights` and `score_grads` for keys `first .. first + keys` and the queries from `skipped` on of the block
    /// loaded last; returns the keys.
    ///
    /// # Safety
    /// As [`load`](Self::load), with `keys <= KEYS` keys that exist.
    pub unsafe fn compute<T: Real>(
        &self,
        sources: &Sources,
        block: &Block,
        skipped: usize,
        first: usize,
        keys: usize,
        tile: &Tile<T>,
    ) -> Strided<T> {
        let problem = &self.problem;
        let ld = block.width();
        let block = &block.tail(skipped);
        let width = block.width();
        let at = [block.batch, block.kv_head, first, 0];
        // SAFETY: the tile's pieces have the lengths that are used.
        unsafe {
            let k = matrix(&problem.k, problem.k.at(sources.k, at), keys, problem.e, tile.keys);
            T::gemm(keys, width, problem.e, k, tile.queries.add(skipped), ld, tile.weights, width, Init::Zero);
            add_bias(problem, sources.bias, block, first, keys, tile.weights, [tile.extra, tile.staging]);
            hide_future(problem, block, first, keys, tile.weights);
            let v = matrix(&problem.v, problem.v.at(sources.v, at), keys, problem.ev, tile.values);
            T::gemm(keys, width, problem.ev, v, tile.grads.add(skipped), ld, tile.score_grads, width, Init::Zero);
            let keep = sources.dropout.map(|dropout| {
                dropout.tile(problem, block, first, keys, tile.extra);
                tile.extra.cast_const()
            });
            let (lse, delta) = (tile.lse.add(skipped), tile.delta.add(skipped));
            T::softmax_backward(tile.weights, tile.score_grads, keys, width, lse, delta, keep);
            k
        }
    }
}

/// The sum of products, in lanes of a fixed number.
#[inline(always)]
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::ZERO; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += *a * *b;
        }
    }
    let mut sum = T::ZERO;
    lanes.into_iter().for_each(|x| sum += x);
    sum
}
