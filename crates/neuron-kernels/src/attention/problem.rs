//! Sizes, layouts and the division of the queries into blocks, shared by forward and backward.

use super::AttentionOptions;
use super::real::LANES;
use crate::KernelError;
use neuron_ir::{DType, TensorType};

/// Queries per block: with four vectors of scores per key, the products fill the registers.
pub(super) const QUERIES: usize = 4 * LANES;

/// Keys per block: scores, keys, values and outputs of a block with heads of 64 stay in the first-level cache.
pub(super) const KEYS: usize = 64;

/// A tensor's element type and strides, in elements; a missing last dimension has stride 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub dtype: DType,
    pub strides: [isize; 4],
}

impl Operand {
    /// The operand, if it has these sizes.
    pub fn new(
        kernel: &'static str,
        name: &str,
        tensor: &TensorType,
        dtype: DType,
        sizes: &[usize],
    ) -> Result<Operand, KernelError> {
        let expected: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
        if tensor.dtype != dtype || tensor.sizes.as_slice() != expected {
            let what = format!("{name} of {}, expected {dtype}{expected:?}", tensor.shape());
            return Err(KernelError::Unsupported { kernel, what });
        }
        let mut strides = [0; 4];
        for (to, from) in strides.iter_mut().zip(&tensor.strides) {
            *to = *from as isize;
        }
        Ok(Operand { dtype, strides })
    }

    /// Address of an element.
    pub fn at(&self, base: *mut u8, index: [usize; 4]) -> *mut u8 {
        let elements: isize = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
        base.wrapping_offset(elements * self.dtype.size() as isize)
    }

    /// Bytes from an element to its neighbour along a dimension.
    pub fn step(&self, dim: usize) -> isize {
        self.strides[dim] * self.dtype.size() as isize
    }
}

/// Everything about a call but addresses, outputs and the random state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Queries per head.
    pub l: usize,
    /// Keys per head.
    pub s: usize,
    /// Head size of queries and keys.
    pub e: usize,
    /// Head size of values and outputs.
    pub ev: usize,
    pub options: AttentionOptions,
    pub q: Operand,
    pub k: Operand,
    pub v: Operand,
    pub bias: Option<Operand>,
}

impl Problem {
    pub fn new(
        kernel: &'static str,
        q: &TensorType,
        k: &TensorType,
        v: &TensorType,
        bias: Option<&TensorType>,
        options: AttentionOptions,
    ) -> Result<Problem, KernelError> {
        let unsupported = |what: String| Err(KernelError::Unsupported { kernel, what });
        if !q.dtype.is_float() {
            return Err(KernelError::dtype(kernel, q.dtype));
        }
        if q.rank() != 4 || k.rank() != 4 || v.rank() != 4 {
            return unsupported(format!("operands {q}, {k}, {v} that are not of rank 4"));
        }
        let at = |t: &TensorType, dim: usize| t.sizes[dim] as usize;
        let [batch, heads, l, e] = [at(q, 0), at(q, 1), at(q, 2), at(q, 3)];
        let [kv_heads, s, ev] = [at(k, 1), at(k, 2), at(v, 3)];
        if heads % kv_heads.max(1) != 0 || (kv_heads == 0 && heads != 0) {
            return unsupported(format!("{heads} query heads over {kv_heads} key heads"));
        }
        let bias = match bias {
            None => None,
            Some(t) if !t.dtype.is_float() && t.dtype != DType::Bool => {
                return Err(KernelError::dtype(kernel, t.dtype));
            }
            Some(t) => {
                // A dimension of extent 1 is broadcast like one of stride 0.
                let mut expanded = t.clone();
                for (dim, full) in [batch, heads, l, s].into_iter().enumerate().take(t.rank()) {
                    if t.sizes[dim] == 1 {
                        (expanded.sizes[dim], expanded.strides[dim]) = (full as i64, 0);
                    }
                }
                Some(Operand::new(kernel, "bias", &expanded, t.dtype, &[batch, heads, l, s])?)
            }
        };
        Ok(Problem {
            batch,
            heads,
            kv_heads,
            l,
            s,
            e,
            ev,
            options,
            q: Operand::new(kernel, "query", q, q.dtype, &[batch, heads, l, e])?,
            k: Operand::new(kernel, "key", k, q.dtype, &[batch, kv_heads, s, e])?,
            v: Operand::new(kernel, "value", v, q.dtype, &[batch, kv_heads, s, ev])?,
            bias,
        })
    }

    /// Type of the accumulators.
    pub fn compute(&self) -> DType {
        self.q.dtype.compute()
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Query heads as short as a decoding step's share one block, so that their keys are read once.
    fn stacked(&self) -> bool {
        self.l < QUERIES
    }

    /// Number of query blocks of one key head.
    pub fn blocks(&self) -> usize {
        if self.stacked() { (self.group() * self.l).div_ceil(QUERIES) } else { self.group() * self.l.div_ceil(QUERIES) }
    }

    /// Query block `index` of a key head.
    pub fn block(&self, batch: usize, kv_head: usize, index: usize) -> Block {
        let first_head = kv_head * self.group();
        if self.stacked() {
            let row = index * QUERIES;
            let len = QUERIES.min(self.group() * self.l - row);
            self.rows(batch, first_head + row / self.l, row % self.l, len)
        } else {
            let per_head = self.l.div_ceil(QUERIES);
            self.block_of_head(batch, first_head + index / per_head, index % per_head)
        }
    }

    /// Query block `index` of a query head.
    pub fn block_of_head(&self, batch: usize, head: usize, index: usize) -> Block {
        let first = index * QUERIES;
        self.rows(batch, head, first, QUERIES.min(self.l - first))
    }

    /// `len` queries from a position of a head on, continued in the next head.
    fn rows(&self, batch: usize, mut head: usize, mut position: usize, len: usize) -> Block {
        let kv_head = head / self.group();
        let mut block = Block { batch, kv_head, len, rows: [[0; 2]; QUERIES], last: 0, first: usize::MAX };
        for row in &mut block.rows[..len] {
            *row = [head as u32, position as u32];
            block.last = block.last.max(position);
            block.first = block.first.min(position);
            position += 1;
            if position == self.l {
                (head, position) = (head + 1, 0);
            }
        }
        block
    }

    /// How many keys, from the first, the block may look at.
    pub fn visible(&self, block: &Block) -> usize {
        if self.options.causal { self.s.min(block.last + 1) } else { self.s }
    }

    /// From which query on the block sees keys from `first`; what comes before need not be computed.
    ///
    /// Zero, or a multiple of [`LANES`] below the block's length.
    pub fn skipped(&self, block: &Block, first: usize) -> usize {
        if self.options.causal && block.is_one_head() { first.saturating_sub(block.first) / LANES * LANES } else { 0 }
    }

    /// How many keys, from `first` to at most `end`, the block takes next: fewer where causality hides a triangle.
    pub fn keys(&self, block: &Block, first: usize, end: usize) -> usize {
        let diagonal = self.options.causal && first + KEYS > block.first;
        (if diagonal { KEYS / 2 } else { KEYS }).min(end - first)
    }

    /// Multiplications of one product over the scores, counting what causality leaves.
    pub fn pairs(&self) -> usize {
        let keys = if self.options.causal { self.s.min(self.l / 2 + KEYS) } else { self.s };
        self.batch * self.heads * self.l * keys
    }
}

/// Up to [`QUERIES`] queries, of one head or of several heads that share a key head.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub batch: usize,
    pub kv_head: usize,
    pub len: usize,
    /// Head and position of each query.
    rows: [[u32; 2]; QUERIES],
    /// Largest and smallest position.
    last: usize,
    first: usize,
}

impl Block {
    /// The block without its first `skipped` queries.
    pub fn tail(&self, skipped: usize) -> Block {
        let mut tail = *self;
        if skipped > 0 {
            tail.rows.copy_within(skipped..self.len, 0);
            tail.len -= skipped;
            // Only blocks of one head have a tail of their own, and their positions ascend.
            tail.first += skipped;
        }
        tail
    }

    /// Columns of the block's tiles.
    pub fn width(&self) -> usize {
        self.len.next_multiple_of(LANES)
    }

    /// Index of query `row` in a `[b, h, l, ..]` tensor.
    pub fn index(&self, row: usize) -> [usize; 4] {
        let [head, position] = self.rows[row];
        [self.batch, head as usize, position as usize, 0]
    }

    /// Position of a query: the last key it sees under causality.
    pub fn position(&self, row: usize) -> usize {
        self.rows[row][1] as usize
    }

    /// Smallest position.
    pub fn first_position(&self) -> usize {
        self.first
    }

    /// True if all queries are of one head.
    pub fn is_one_head(&self) -> bool {
        self.rows[0][0] == self.rows[self.len - 1][0]
    }
}
