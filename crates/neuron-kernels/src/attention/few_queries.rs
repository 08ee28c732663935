//! Attention of a few queries, as a decoding step has: keys and values stream by once, with their elements in the lanes.

use super::convert::{dense_rows, load_rows, store_rows};
use super::forward::Launch;
use super::problem::{Block, Operand, Problem};
use super::real::Real;
use super::scratch::{self, Scratch};

/// Up to this many queries leave most lanes of a tile empty.
pub(super) const MOST: usize = 4;

/// Keys per step.
const KEYS: usize = 128;

/// One block of at most [`MOST`] queries.
///
/// # Safety
/// The launch's buffers are valid for the problem; no other thread writes this block's outputs.
pub(super) unsafe fn attend<T: Real>(problem: &Problem, [out, lse]: [&Operand; 2], launch: &Launch, block: &Block) {
    let Problem { e, ev, .. } = *problem;
    let rows = block.len;
    let lens = [rows * e, rows * ev, rows * KEYS, KEYS, KEYS * e.max(ev)];
    let bytes = lens.iter().map(|&len| Scratch::size::<T>(len)).sum();
    let visible = problem.visible(block);
    scratch::with(bytes, |mut scratch| {
        let [queries, output, scores, extra, staging] = lens.map(|len| scratch.take::<T>(len));
        let mut max = [T::NEG_INFINITY; MOST];
        let mut sum = [T::ZERO; MOST];
        let query = |row: usize| problem.q.at(launch.q, block.index(row)).cast_const();
        // SAFETY: the scratch pieces have the lengths announced; operands are valid for the problem's sizes.
        unsafe {
            load_rows(problem.q.dtype, query, problem.q.strides[3], rows, e, queries, e);
            std::slice::from_raw_parts_mut(output, rows * ev).fill(T::ZERO);
            let scale = T::from_f64(problem.options.scale);
            std::slice::from_raw_parts_mut(queries, rows * e).iter_mut().for_each(|x| *x *= scale);
            for first in (0..visible).step_by(KEYS) {
                let keys = KEYS.min(visible - first);
                let at = [block.batch, block.kv_head, first, 0];
                let k = dense_rows(&problem.k, problem.k.at(launch.k, at), keys, e, staging);
                for row in 0..rows {
                    T::dots(queries.add(row * e), e, k, keys, scores.add(row * KEYS));
                }
                for row in 0..rows {
                    let index = block.index(row);
                    let scores = std::slice::from_raw_parts_mut(scores.add(row * KEYS), keys);
                    if let Some(bias) = &problem.bias {
                        let [b, h, l, _] = index;
                        let from = bias.at(launch.bias, [b, h, l, first]).cast_const();
                        load_rows(bias.dtype, |_| from, bias.strides[3], 1, keys, extra, keys);
                        add(scores, std::slice::from_raw_parts(extra, keys));
                    }
                    if problem.options.causal {
                        let hidden = (block.position(row) + 1).saturating_sub(first).min(keys);
                        scores[hidden..].fill(T::NEG_INFINITY);
                    }
                    let largest = scores.iter().fold(max[row], |max, x| if *x > max { *x } else { max });
                    let base = if largest == T::NEG_INFINITY { T::ZERO } else { largest };
                    let rescale = (max[row] - base).exp();
                    sum[row] = sum[row] * rescale + T::exp_sum(scores.as_mut_ptr(), keys, base);
                    max[row] = largest;
                    if first > 0 {
                        let output = std::slice::from_raw_parts_mut(output.add(row * ev), ev);
                        output.iter_mut().for_each(|x| *x *= rescale);
                    }
                    if let Some(dropout) = launch.dropout {
                        dropout.row(problem, index, first, keys, extra, 1);
                        super::scores::multiply(scores.as_mut_ptr(), extra, keys);
                    }
                }
                let v = dense_rows(&problem.v, problem.v.at(launch.v, at), keys, ev, staging);
                T::weigh(scores, KEYS, rows, v, keys, ev, output);
            }
            for row in 0..rows {
                let index = block.index(row);
                let factor = if sum[row] == T::ZERO { T::ONE } else { T::ONE / sum[row] };
                let to = out.at(launch.out, index);
                store_rows(out.dtype, output.add(row * ev), ev, factor, |_| to, out.strides[3], 1, ev);
                *lse.at(launch.lse, index).cast::<T>() = max[row] + sum[row].ln();
            }
        }
    });
}

fn add<T: Real>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
}
