//! Operators that move, order, search and count elements.

use crate::Dims;

/// An operator of [`crate::Op::Ordering`]. Operands are listed as `(a, b, ...)`; unless said otherwise there is one
/// result, of the type of the first operand.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderingOp {
    /// `(a)` with the order along `dims` reversed
    Flip {
        /// Dimensions reversed.
        dims: Dims,
    },
    /// `(a)`: element `i` goes to `i + shift` modulo the extent
    Roll {
        /// Shift of each dimension, from 0 to below the extent.
        shifts: Dims,
    },
    /// `(a, index, updates)`: `a` with slice `i` of `updates` in place of slice `index[i]`, the last of equal ones
    IndexCopy {
        /// Dimension indexed.
        dim: usize,
    },
    /// `(a)`: running maximum or minimum along `dim`; NaN once met stays. Results: values, `i64` positions, the last of
    /// equals
    RunningExtreme {
        /// Dimension run along.
        dim: usize,
        /// The maximum.
        max: bool,
    },
    /// `(a)`: logarithm of the running sum of exponentials along `dim`, carried in `f64`
    LogCumSumExp {
        /// Dimension run along.
        dim: usize,
    },
    /// `(a)`: elements picked or ordered along `dim` as [`Selection`] says. Results: values, `i64` positions
    Select {
        /// Dimension picked from.
        dim: usize,
        /// Which elements, in which order.
        selection: Selection,
    },
    /// `(sequence[.., n], values[.., m])`, both of one type: where in the ascending sequence each value belongs. A
    /// 1-dimensional sequence serves all values. `i64` result of the shape of the values
    Search {
        /// After equal elements instead of before.
        right: bool,
    },
    /// `(x1[b, p, m], x2[b, r, m])`: distances `[b, p, r]` of order `p`
    Distance {
        /// Order of the norm: 0, infinity or any other that is not negative.
        order: f64,
    },
    /// `(grad[b, p, r], x1[b, p, m], x2[b, r, m], distances[b, p, r])`: gradient `[b, p, m]` of [`OrderingOp::Distance`]
    /// with respect to `x1`
    DistanceBackward {
        /// As in the forward.
        order: f64,
    },
    /// `(a[s.., n, i..], offsets[s.., k + 1], initial?)`: reduces segments of the dimension after `offsets.rank() - 1`
    /// leading ones
    SegmentReduce {
        /// What becomes of a segment.
        op: SegmentOp,
        /// What an empty segment or the start is, where given; NaN where it is not.
        initial: Option<f64>,
    },
    /// `(grad, output, a, offsets)`: gradient of [`OrderingOp::SegmentReduce`] with respect to `a`
    SegmentReduceBackward {
        /// As in the forward.
        op: SegmentOp,
        /// As in the forward.
        initial: Option<f64>,
    },
}

/// What [`OrderingOp::Select`] picks along a dimension. NaN counts as the largest, zeros of both signs as equal.
///
/// Where equal elements leave a choice it is the one that C++'s standard algorithms make as GCC implements them: CPU
/// PyTorch uses them, and the experts that a router of equal scores picks are then the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// All, in the order of `std::sort`.
    Sort {
        /// Largest first.
        descending: bool,
    },
    /// The first `k`, as `torch.topk` picks them.
    TopK {
        /// How many.
        k: i64,
        /// The largest instead of the smallest.
        largest: bool,
        /// In order.
        sorted: bool,
    },
    /// The `k`-th smallest, counted from 0, by quickselect with the median of three as its pivot.
    Kth {
        /// Rank.
        k: i64,
    },
    /// The lower median, the first of equals; the first NaN if there is one.
    Median {
        /// Leave NaN out of account, unless there is nothing else.
        ignore_nan: bool,
    },
    /// The most frequent, the smallest of those; the last of equals in the order of `std::sort`.
    Mode,
}

/// How a segment becomes one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentOp {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Largest, or NaN.
    Max,
    /// Smallest, or NaN.
    Min,
    /// Product.
    Prod,
}

impl OrderingOp {
    /// The name in the text form of the IR.
    pub fn name(&self) -> &'static str {
        match self {
            OrderingOp::Flip { .. } => "flip",
            OrderingOp::Roll { .. } => "roll",
            OrderingOp::IndexCopy { .. } => "index_copy",
            OrderingOp::RunningExtreme { .. } => "running_extreme",
            OrderingOp::LogCumSumExp { .. } => "logcumsumexp",
            OrderingOp::Select { .. } => "select_along",
            OrderingOp::Search { .. } => "search",
            OrderingOp::Distance { .. } => "distance",
            OrderingOp::DistanceBackward { .. } => "distance_backward",
            OrderingOp::SegmentReduce { .. } => "segment_reduce",
            OrderingOp::SegmentReduceBackward { .. } => "segment_reduce_backward",
        }
    }
}
