//! What happens to a tile of scores besides the products and the softmax: bias, causality, dropout.

use super::convert::{load_rows, load_transposed};
use super::problem::{Block, Problem, QUERIES};
use super::real::Real;
use crate::random::philox;
use crate::simd::vectorized;

/// Adds the bias of keys `first ..` to the scores.
///
/// # Safety
/// `base` is the bias's buffer; `tile` and `staging` are valid for `keys * block.width()` elements each, `line` for the
/// same.
pub(super) unsafe fn add_bias<T: Real>(
    problem: &Problem,
    base: *mut u8,
    block: &Block,
    first: usize,
    keys: usize,
    tile: *mut T,
    [staging, line]: [*mut T; 2],
) {
    let Some(bias) = &problem.bias else { return };
    let width = block.width();
    let row = |r: usize| {
        let [b, h, l, _] = block.index(r);
        bias.at(base, [b, h, l, first]).cast_const()
    };
    let one_for_all = bias.strides[2] == 0 && (bias.strides[1] == 0 || block.is_one_head());
    // SAFETY: the caller's contract.
    unsafe {
        if one_for_all {
            load_rows(bias.dtype, row, bias.strides[3], 1, keys, line, keys);
        } else {
            load_transposed(bias, row, block.len, width, keys, T::ONE, staging, line);
        }
    }
    vectorized(
        #[inline(always)]
        || {
            // SAFETY: the caller's contract.
            unsafe {
                for key in 0..keys {
                    let scores = std::slice::from_raw_parts_mut(tile.add(key * width), width);
                    if one_for_all {
                        let add = *line.add(key);
                        scores.iter_mut().for_each(|score| *score += add);
                    } else {
                        let add = std::slice::from_raw_parts(staging.add(key * width), width);
                        scores.iter_mut().zip(add).for_each(|(score, add)| *score += *add);
                    }
                }
            }
        },
    );
}

/// Hides from each query the keys behind its position, where causality asks for it.
///
/// # Safety
/// `tile` is valid for `keys * block.width()` elements.
pub(super) unsafe fn hide_future<T: Real>(problem: &Problem, block: &Block, first: usize, keys: usize, tile: *mut T) {
    if !problem.options.causal || first + keys <= block.first_position() + 1 {
        return;
    }
    let width = block.width();
    // SAFETY: the caller's contract.
    let rows = unsafe { std::slice::from_raw_parts_mut(tile, keys * width) }.chunks_mut(width).enumerate();
    if block.is_one_head() {
        for (key, scores) in rows {
            let hidden = (first + key).saturating_sub(block.first_position()).min(block.len);
            scores[..hidden].fill(T::NEG_INFINITY);
        }
        return;
    }
    let mut positions = [u32::MAX; QUERIES];
    for (row, position) in positions.iter_mut().enumerate().take(block.len) {
        *position = block.position(row) as u32;
    }
    vectorized(
        #[inline(always)]
        || {
            for (key, scores) in rows {
                let key = (first + key) as u32;
                for (score, position) in scores.iter_mut().zip(&positions) {
                    *score = if key > *position { T::NEG_INFINITY } else { *score };
                }
            }
        },
    );
}

/// The random state of a launch with dropout.
#[derive(Clone, Copy)]
pub(super) struct Dropout {
    pub seed: u64,
    pub offset: u64,
}

impl Dropout {
    /// What element `index` of the row-major `[b, h, l, s]` probabilities is multiplied with: 0 or `1 / (1 - p)`.
    ///
    /// Element `index` takes word `index % 4` of Philox block `index / 4`, and is kept if the word's upper 24 bits, as a
    /// fraction, are below `1 - p`.
    fn factors<T: Real>(self, p: f64, index: u64, count: usize, mut set: impl FnMut(usize, T)) {
        let keep = 1.0 - p;
        let threshold = (keep * f64::from(1u32 << 24)).ceil() as u32;
        let scale = if keep > 0.0 { T::from_f64(1.0 / keep) } else { T::ZERO };
        let mut done = 0;
        while done < count {
            let at = index + done as u64;
            let words = philox(self.seed, self.offset, at / 4);
            for word in &words[(at % 4) as usize..] {
                if done == count {
                    break;
                }
                set(done, if word >> 8 < threshold { scale } else { T::ZERO });
                done += 1;
            }
        }
    }

    /// The factors of one query and keys `first .. first + keys`.
    ///
    /// # Safety
    /// `dst` is valid for `(keys - 1) * step + 1` elements.
    pub unsafe fn row<T: Real>(
        self,
        problem: &Problem,
        [b, h, l, _]: [usize; 4],
        first: usize,
        keys: usize,
        dst: *mut T,
        step: usize,
    ) {
        let row = ((b * problem.heads + h) * problem.l + l) as u64;
        let index = row * problem.s as u64 + first as u64;
        // SAFETY: the caller's contract.
        self.factors(problem.options.dropout, index, keys, |key, factor| unsafe { *dst.add(key * step) = factor });
    }

    /// The factors of a tile.
    ///
    /// # Safety
    /// `tile` is valid for `keys * block.width()` elements.
    pub unsafe fn tile<T: Real>(self, problem: &Problem, block: &Block, first: usize, keys: usize, tile: *mut T) {
        let width = block.width();
        // SAFETY: the caller's contract.
        unsafe {
            std::slice::from_raw_parts_mut(tile, keys * width).fill(T::ONE);
            for row in 0..block.len {
                self.row(problem, block.index(row), first, keys, tile.add(row), width);
            }
        }
    }
}

/// `tile *= factors`, element by element.
///
/// # Safety
/// Both are valid for `len` elements.
pub(super) unsafe fn multiply<T: Real>(tile: *mut T, factors: *const T, len: usize) {
    // SAFETY: the caller's contract.
    let (tile, factors) =
        unsafe { (std::slice::from_raw_parts_mut(tile, len), std::slice::from_raw_parts(factors, len)) };
    vectorized(
        #[inline(always)]
        || tile.iter_mut().zip(factors).for_each(|(x, factor)| *x *= *factor),
    );
}
