//! The operators of a graph.

use crate::{BinaryOp, Dims, OptimizerOp, OrderingOp, SpatialOp, UnaryOp};

/// A constant as a graph or a launch carries it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A Python float.
    F64(f64),
    /// A Python int, or a bool as 0 or 1.
    I64(i64),
}

impl Scalar {
    /// The value as a float; integers round to nearest.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::F64(v) => v,
            Scalar::I64(v) => v as f64,
        }
    }

    /// The value as an integer; floats truncate and saturate.
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::F64(v) => v as i64,
            Scalar::I64(v) => v,
        }
    }
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum; pairwise over blocks of fixed size, so that the thread count never shows.
    Sum,
    /// Product.
    Prod,
    /// Largest; NaN if any is.
    Max,
    /// Smallest; NaN if any is.
    Min,
    /// Index of the first largest element, NaN counting as largest; one dimension, or all flattened. `i64` result.
    ArgMax,
    /// Index of the first smallest element, NaN counting as smallest. `i64` result.
    ArgMin,
    /// Logical or of `bool`.
    Any,
    /// Logical and of `bool`.
    All,
}

/// How a scatter combines an update with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterOp {
    /// The update replaces; the last in index order wins.
    Set,
    /// The update is added, in index order: deterministic.
    Add,
    /// Multiplied.
    Prod,
    /// Larger kept.
    Max,
    /// Smaller kept.
    Min,
}

/// How a random tensor is distributed. Parameters are operands of the operator; see [`Op::Random`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RandomOp {
    /// Uniform in [0, 1): 24 random bits for `f32`, 53 for `f64`.
    Uniform,
    /// Standard normal, by Box-Muller.
    Normal,
    /// Raw 64-bit words as `i64`.
    Bits,
}

/// How a window moves over the input of a convolution; an entry per spatial dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionWindows {
    /// Steps between output positions.
    pub stride: Dims,
    /// Zeros before and after the input.
    pub padding: Dims,
    /// Steps between kernel positions.
    pub dilation: Dims,
    /// Groups of channels that see each other.
    pub groups: i64,
}

/// The convolutions. Sums of half floats are `f32`, rounded once to the result's type; sums of integers wrap.
#[derive(Clone, Debug, PartialEq)]
pub enum ConvolutionOp {
    /// `(x[n, c, ..], weight[o, c / groups, ..], bias[o]?)`: result `[n, o, ..]`, all of one type. Transposed, the weight is
    /// `[c, o / groups, ..]` and the result is what such a convolution of the result's gradient has as its own.
    Forward {
        /// How the window moves.
        windows: ConvolutionWindows,
        /// Gradient of a convolution.
        transposed: bool,
        /// A bias operand is present.
        bias: bool,
    },
    /// `(x[n, c, ..], grad[n, o, ..])`: gradient `[o, c / groups, ..]` of the weight of a convolution of `x`
    WeightGradient {
        /// How the window moves.
        windows: ConvolutionWindows,
    },
}

/// Connectionist temporal classification, in `f32` or `f64`, with the lengths of inputs and targets as constants.
#[derive(Clone, Debug, PartialEq)]
pub struct CtcOp {
    /// Steps of each sample.
    pub input_lengths: Vec<i64>,
    /// Labels of each sample.
    pub target_lengths: Vec<i64>,
    /// Class of the blank.
    pub blank: i64,
    /// Backward: an infinite loss has no gradient.
    pub zero_infinity: bool,
    /// `(grad[n], log_probs[t, n, c], targets, loss[n], alpha[n, t, s])`: gradient of `log_probs`; else
    /// `(log_probs, targets)`: results `loss, alpha`
    pub backward: bool,
}

/// A distribution whose parameters are tensors. An element takes its words from a stream of its own, as many as it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleOp {
    /// `(weights[.., n])`: for each row as many `i64` positions as the result's last extent, drawn with replacement in
    /// proportion to the weights.
    Multinomial,
    /// `(rate)`: Poisson.
    Poisson,
    /// `(alpha)`: gamma with rate 1; never 0.
    Gamma,
}

/// What the elements of a tensor of floats have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckOp {
    /// Not negative, and finite: weights of `multinomial`.
    Weight,
    /// Positive: sums of such weights.
    Total,
    /// In [0, 1]: probabilities of `bernoulli`.
    Probability,
    /// In [0, 1]: predictions of `binary_cross_entropy`.
    Prediction,
    /// Not negative: standard deviations of `normal`.
    Deviation,
    /// Not negative: rates of `poisson`.
    Rate,
    /// In [0, 1]: targets of `binary_cross_entropy`.
    Target,
    /// Negative: classes of a loss, less the number of classes.
    Class,
    /// 0: what the lengths of segments are more than the dimension.
    Excess,
}

/// An operator. Operands are listed as `(a, b, ...)`; unless said otherwise there is one result.
///
/// Pointwise operators want operands of one shape: [`Op::Broadcast`] makes it so.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Tensor argument number `index`. No operands.
    Param {
        /// Position among the tensor arguments.
        index: usize,
    },
    /// Scalar argument number `index`, a 0-dimensional value whose content is known at launch. No operands.
    ScalarParam {
        /// Position among the scalar arguments.
        index: usize,
    },
    /// A constant, 0-dimensional. No operands.
    Constant(Scalar),
    /// Position along dimension `dim`, as `i64`, of an element of the result. No operands.
    Iota {
        /// Dimension counted along.
        dim: usize,
    },
    /// `(a)`
    Unary(UnaryOp),
    /// `(a, b)` of one type
    Binary(BinaryOp),
    /// `(condition, a, b)`: `a` where true
    Select,
    /// `(a)` converted to the result's element type
    Convert,
    /// `(a)`: result dimension `i` is operand dimension `i - (rank - operand rank)`, extents of 1 expanded
    Broadcast,
    /// `(a)` with the same elements in row-major order
    Reshape,
    /// `(a)`: result dimension `i` is operand dimension `permutation[i]`
    Transpose {
        /// Source dimension of each result dimension.
        permutation: Dims,
    },
    /// `(a)`: every `step`-th position along `dim` from `start` on, as many as the result has
    Slice {
        /// Dimension sliced.
        dim: usize,
        /// First position, not negative.
        start: i64,
        /// Distance between positions, at least 1.
        step: i64,
    },
    /// `(a)`: `dims` are reduced to extent 1
    Reduce {
        /// What combines.
        op: ReduceOp,
        /// Dimensions reduced, ascending.
        dims: Dims,
    },
    /// `(a)`: largest or smallest along `dim`, kept as extent 1. Results: values, `i64` positions
    MinMax {
        /// Largest.
        max: bool,
        /// Dimension reduced.
        dim: usize,
    },
    /// `(a)`: variance over `dims`, kept as extent 1. Results: variance, mean
    Variance {
        /// Dimensions reduced, ascending.
        dims: Dims,
        /// Taken off the number of elements divided by: 1 for the unbiased variance.
        correction: f64,
    },
    /// `(a[batch.., m, k], b[batch.., k, n])`: result `[batch.., m, n]`, accumulated in the compute type
    Dot,
    /// `(a)`: softmax or its logarithm along `dim`
    Softmax {
        /// Dimension normalised.
        dim: usize,
        /// Logarithm of the softmax.
        log: bool,
    },
    /// `(grad, output)`: gradient of [`Op::Softmax`]
    SoftmaxBackward {
        /// Dimension normalised.
        dim: usize,
        /// Gradient of the logarithm.
        log: bool,
    },
    /// `(x, weight?, bias?)`, eps a scalar constant: results `out, mean, rstd` over the last `dims` dimensions
    LayerNorm {
        /// Trailing dimensions normalised.
        dims: usize,
        /// Added to the variance.
        eps: f64,
        /// A weight operand is present.
        weight: bool,
        /// A bias operand is present.
        bias: bool,
    },
    /// `(grad, x, mean, rstd, weight?)`: results `grad_x, grad_weight, grad_bias`
    LayerNormBackward {
        /// Trailing dimensions normalised.
        dims: usize,
        /// A weight operand is present.
        weight: bool,
    },
    /// `(x, weight?)`: results `out, rstd`: `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions
    RmsNorm {
        /// Trailing dimensions normalised.
        dims: usize,
        /// Added to the mean square.
        eps: f64,
        /// A weight operand is present.
        weight: bool,
    },
    /// `(grad, x, rstd, weight?)`: results `grad_x, grad_weight`
    RmsNormBackward {
        /// Trailing dimensions normalised.
        dims: usize,
        /// A weight operand is present.
        weight: bool,
    },
    /// `(q[b,h,l,e], k[b,hk,s,e], v[b,hk,s,ev], bias?)`: results `out[b,h,l,ev], logsumexp[b,h,l]`; `h` a multiple of `hk`
    Attention {
        /// Query `i` sees keys up to `i` only.
        causal: bool,
        /// Multiplies the scores.
        scale: f64,
        /// An additive bias (float) or a mask (`bool`, true = visible) is present, broadcast to `[b,h,l,s]`.
        bias: bool,
        /// Probability of dropping; above 0 two scalar operands `(seed, offset)` follow the bias.
        dropout: f64,
    },
    /// `(grad_out, q, k, v, bias?, out, logsumexp)`: results `grad_q, grad_k, grad_v, grad_bias?`
    AttentionBackward {
        /// As in the forward.
        causal: bool,
        /// As in the forward.
        scale: f64,
        /// As in the forward.
        bias: bool,
        /// As in the forward; `(seed, offset)` come last.
        dropout: f64,
        /// The gradient of the bias is wanted.
        grad_bias: bool,
    },
    /// Connectionist temporal classification or its gradient
    Ctc(CtcOp),
    /// A convolution or a gradient of one
    Convolution(ConvolutionOp),
    /// `(a)` as it is, computed once and row-major in memory: elementwise operators otherwise happen anew in each that uses
    /// them, and views stay views
    Once,
    /// `(grad[o, c, i], x[o, c, i], mean[c]?)`: results `[c]`, sums over `o` and `i` of `grad` and of `grad * (x - mean)`, in the
    /// compute type, which is also that of the mean
    ChannelSums {
        /// A mean operand is present.
        mean: bool,
    },
    /// `(a, b, ...)` joined along `dim`
    Concat {
        /// Dimension joined.
        dim: usize,
    },
    /// `(table, index)`: rows of `table` along `dim` named by the 1-dimensional or arbitrary-rank `index`, whose
    /// dimensions replace `dim`. Indices out of range are an error of the launch.
    IndexSelect {
        /// Dimension indexed.
        dim: usize,
    },
    /// `(a, index)`: `torch.gather`
    Gather {
        /// Dimension indexed.
        dim: usize,
    },
    /// `(a, index, updates)`: `a` with `torch.scatter` applied
    Scatter {
        /// Dimension indexed.
        dim: usize,
        /// How updates combine.
        op: ScatterOp,
    },
    /// `(a, index, updates, alpha?)`: `a` with `alpha` times slice `i` of `updates` added to slice `index[i]`
    IndexAdd {
        /// Dimension indexed.
        dim: usize,
        /// A 0-dimensional factor is present.
        alpha: bool,
    },
    /// `(a, index...)`: advanced indexing. `dims[i]` is the dimension that index `i` names; indices have been
    /// broadcast to one shape, negative ones count from the end. `result_dim` is where the index dimensions go.
    Index {
        /// Dimension of `a` each index names, ascending.
        dims: Dims,
        /// First dimension of the result that belongs to the indices.
        result_dim: usize,
    },
    /// `(a, updates, index...)`: `a` with `updates` written or added where [`Op::Index`] would have read
    IndexPut {
        /// Dimension of `a` each index names, ascending.
        dims: Dims,
        /// First dimension of the updates that belongs to the indices.
        result_dim: usize,
        /// Add instead of replace, in index order.
        accumulate: bool,
    },
    /// `(grad[.., e], index)`: gradient of an embedding table of `rows` rows; rows equal to `padding` get nothing
    EmbeddingBackward {
        /// Rows of the table.
        rows: i64,
        /// Row without gradient, or -1.
        padding: i64,
        /// Divide by how often a row was looked up.
        scale_by_frequency: bool,
    },
    /// `(log_prob[n, c] or [c], target[n] or [], weight?[c])`: results `loss, total_weight`
    NllLoss {
        /// 0 none, 1 mean, 2 sum, as `at::Reduction`.
        reduction: i64,
        /// Target value without loss.
        ignore_index: i64,
        /// A class weight operand is present.
        weight: bool,
    },
    /// `(grad, target, total_weight, weight?)`: gradient of [`Op::NllLoss`] for `classes` classes
    NllLossBackward {
        /// As in the forward.
        reduction: i64,
        /// As in the forward.
        ignore_index: i64,
        /// As in the forward.
        weight: bool,
    },
    /// `(mask)`, `bool`: how many elements are true before each [`Op::TRUE_BLOCK`] elements in row-major order, and, last,
    /// in all. `i64` result of one dimension.
    TrueCounts,
    /// `(mask, counts)`: coordinates of the true elements, `i64[rank, true elements]`; `counts` as [`Op::TrueCounts`] gives
    TruePositions,
    /// `(seed, offset)`, 0-dimensional `i64`: element `i` of the row-major result depends on seed, offset and `i` alone
    Random(RandomOp),
    /// `(a)`: an error of the launch unless all elements are what they have to be. The result, a 0-dimensional `bool`, has
    /// no content.
    Check(CheckOp),
    /// The operands of the distribution, then `(seed, offset)`, 0-dimensional `i64`
    Sample(SampleOp),
    /// One step of an optimizer
    Optimizer(OptimizerOp),
    /// `(a)`: running sum or product along `dim`
    Cumulative {
        /// [`ReduceOp::Sum`] or [`ReduceOp::Prod`].
        op: ReduceOp,
        /// Dimension run along.
        dim: usize,
    },
    /// `(a)`: results sorted values and `i64` positions along `dim`, stable, NaN largest
    Sort {
        /// Dimension sorted.
        dim: usize,
        /// Largest first.
        descending: bool,
        /// Keep only the first `k`; the extent of `dim` for a full sort.
        k: i64,
    },
    /// Pooling, resampling, padding and their like; operands and results are those of the [`SpatialOp`]
    Spatial(SpatialOp),
    /// Moves, orders, searches or counts: see [`OrderingOp`].
    Ordering(OrderingOp),
}

impl Op {
    /// Elements of a mask that [`Op::TrueCounts`] counts together.
    pub const TRUE_BLOCK: i64 = 4096;

    /// True where result element `i` depends on element `i` of each operand alone.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Convert | Op::Iota { .. })
    }

    /// True for operators without operands.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Param { .. } | Op::ScalarParam { .. } | Op::Constant(_) | Op::Iota { .. })
    }

    /// The name in the text form of the IR.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Param { .. } => "param",
            Op::ScalarParam { .. } => "scalar",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Select => "select",
            Op::Convert => "convert",
            Op::Broadcast => "broadcast",
            Op::Reshape => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Slice { .. } => "slice",
            Op::Reduce { .. } => "reduce",
            Op::MinMax { .. } => "min_max",
            Op::Variance { .. } => "variance",
            Op::Dot => "dot",
            Op::Softmax { .. } => "softmax",
            Op::SoftmaxBackward { .. } => "softmax_backward",
            Op::LayerNorm { .. } => "layer_norm",
            Op::LayerNormBackward { .. } => "layer_norm_backward",
            Op::RmsNorm { .. } => "rms_norm",
            Op::RmsNormBackward { .. } => "rms_norm_backward",
            Op::Attention { .. } => "attention",
            Op::AttentionBackward { .. } => "attention_backward",
            Op::Convolution(ConvolutionOp::Forward { .. }) => "convolution",
            Op::Convolution(ConvolutionOp::WeightGradient { .. }) => "convolution_weight_gradient",
            Op::Ctc(CtcOp { backward: false, .. }) => "ctc_loss",
            Op::Ctc(CtcOp { backward: true, .. }) => "ctc_loss_backward",
            Op::ChannelSums { .. } => "channel_sums",
            Op::Once => "once",
            Op::Concat { .. } => "concat",
            Op::IndexSelect { .. } => "index_select",
            Op::Gather { .. } => "gather",
            Op::Scatter { .. } => "scatter",
            Op::IndexAdd { .. } => "index_add",
            Op::Index { .. } => "index",
            Op::IndexPut { .. } => "index_put",
            Op::EmbeddingBackward { .. } => "embedding_backward",
            Op::NllLoss { .. } => "nll_loss",
            Op::NllLossBackward { .. } => "nll_loss_backward",
            Op::TrueCounts => "true_counts",
            Op::TruePositions => "true_positions",
            Op::Random(_) => "random",
            Op::Check(_) => "check",
            Op::Sample(_) => "sample",
            Op::Optimizer(_) => "optimizer",
            Op::Cumulative { .. } => "cumulative",
            Op::Sort { .. } => "sort",
            Op::Spatial(op) => op.name(),
            Op::Ordering(o) => o.name(),
        }
    }
}
