//! Operators over windows and planes: pooling, resampling, padding, unfolding, sampling at a grid, bags of embeddings.
//!
//! Unless said otherwise tensors are `[n, c, d, h, w]`; a lowering gives the dimensions that ATen's operator lacks an
//! extent of 1. Positions within a plane, as the indices of pooling are, count through `[d, h, w]` row-major.

/// How the windows of one dimension follow from positions of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// Elements `o * stride - padding + k * dilation` for `k` below `kernel`, as far as they exist.
    Strided {
        /// Elements of a window.
        kernel: i64,
        /// Distance between windows.
        stride: i64,
        /// Positions before the first element.
        padding: i64,
        /// Distance between elements of a window.
        dilation: i64,
    },
    /// The input divided among the outputs: from `floor(o * in / out)` to `ceil((o + 1) * in / out)`.
    Adaptive,
}

/// What an average is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// Elements of the window that exist.
    Existing,
    /// Elements of the window that exist or are padding.
    Padded,
    /// Extents of the window one after the other, height before width: adaptive pooling.
    Extents,
    /// This number.
    Fixed(i64),
}

/// What result position `o` of one dimension takes from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taps {
    /// The element at `o`.
    Same,
    /// The element at `floor(o * scale)`; `scale` is `1 / factor`, or the ratio of the extents where that is absent.
    Nearest {
        /// The user's scale factor.
        factor: Option<f64>,
        /// Where the result has the extent of the input, or twice it, a factor that says otherwise is ignored, and
        /// `scale` is an `f32` whatever the type: PyTorch's kernels differ in this.
        shortcuts: bool,
    },
    /// The element at `floor((o + 0.5) * scale)`.
    NearestExact {
        /// The user's scale factor.
        factor: Option<f64>,
    },
    /// A weighted sum of neighbours.
    Filter {
        /// Weights.
        filter: Filter,
        /// First and last elements of input and result lie upon each other.
        align_corners: bool,
        /// The user's scale factor.
        factor: Option<f64>,
        /// The filter is stretched where the result is smaller.
        antialias: bool,
    },
    /// The element at `o - before`, mirrored at the edges without repeating them.
    Reflect {
        /// Positions before the first element; negative where elements are cut off.
        before: i64,
    },
    /// The element at `o - before`, the edge where there is none.
    Replicate {
        /// Positions before the first element; negative where elements are cut off.
        before: i64,
    },
}

/// An interpolation filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Two neighbours.
    Linear,
    /// Four neighbours.
    Cubic,
    /// Six neighbours; with antialiasing only.
    Lanczos,
}

/// Where a sample falls outside of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outside {
    /// Zeros.
    Zeros,
    /// The nearest edge.
    Border,
    /// Mirrored back.
    Reflection,
}

/// How a sample between elements is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampling {
    /// From the two nearest along each dimension.
    Linear,
    /// The nearest, halves to even.
    Nearest,
    /// From four along each of two dimensions.
    Cubic,
}

/// How the rows of a bag are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BagMode {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Largest of each column.
    Max,
}

/// Sliding blocks of `torch.nn.Unfold`, height before width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// Extents of a block.
    pub kernel: [i64; 2],
    /// Distance between blocks.
    pub stride: [i64; 2],
    /// Zeros around the input.
    pub padding: [i64; 2],
    /// Distance between elements of a block.
    pub dilation: [i64; 2],
}

/// An operator over windows and planes.
#[derive(Clone, Debug, PartialEq)]
pub enum SpatialOp {
    /// `(x)`: results the largest element of each window, NaN counting as largest, and its `i64` position in the plane:
    /// that of the first largest, or of the last NaN.
    MaxPool {
        /// Depth, height, width.
        windows: [Window; 3],
    },
    /// `(x, samples[n, c, 3])`: as [`SpatialOp::MaxPool`], windows starting where the samples, of `x`'s type, say;
    /// theirs are in the order of ATen's: width first, depth last.
    FractionalMaxPool {
        /// Extents of a window: depth, height, width.
        kernel: [i64; 3],
    },
    /// `(x, positions)`: a plane of zeros with element `i` of `x` added, or put, at position `i` of the plane. Added in
    /// order, each sum rounded. Positions outside are an error of the launch.
    ToPositions {
        /// Add, do not replace.
        accumulate: bool,
    },
    /// `(x)`: the mean of each window, summed in the compute type (`i64` for `i64`), rounded once
    AvgPool {
        /// Depth, height, width.
        windows: [Window; 3],
        /// What sums are divided by.
        divisor: Divisor,
    },
    /// `(grad)`: gradient of [`SpatialOp::AvgPool`], windows added in order, each sum rounded
    AvgPoolBackward {
        /// As in the forward.
        windows: [Window; 3],
        /// As in the forward.
        divisor: Divisor,
    },
    /// `(x)`: each dimension resampled, width first, in the compute type; rounded once
    Resample {
        /// Depth, height, width.
        taps: [Taps; 3],
    },
    /// `(grad)`: gradient of [`SpatialOp::Resample`]
    ResampleBackward {
        /// Depth, height, width.
        taps: [Taps; 3],
    },
    /// `(x, grid[n, d, h, w, 2 or 3])`: `x` at the positions of the grid, which runs from -1 to 1 along each dimension,
    /// width first
    GridSample {
        /// Between elements.
        sampling: Sampling,
        /// Outside of the input.
        outside: Outside,
        /// -1 and 1 are the centres of the outermost elements, not their edges.
        align_corners: bool,
    },
    /// `(grad, x, grid)`: gradients of [`SpatialOp::GridSample`] for `x` and grid
    GridSampleBackward {
        /// As in the forward.
        sampling: Sampling,
        /// As in the forward.
        outside: Outside,
        /// As in the forward.
        align_corners: bool,
    },
    /// `(x[n, c, h, w])`: `[n, c * kernel height * kernel width, blocks]`
    Unfold(Blocks),
    /// `(x[n, c * kernel height * kernel width, blocks])`: blocks summed into `[n, c, h, w]`, each sum rounded
    Fold(Blocks),
    /// `(table[rows, e], index[k], offsets[..], weights?[k])`: results `out[bags, e]`; the bag of each index; indices in
    /// each bag without `padding`, 0 past the last bag; the row each maximum comes from, `[bags, e]` or empty
    EmbeddingBag {
        /// How rows combine.
        mode: BagMode,
        /// The last offset is the number of indices.
        include_last_offset: bool,
        /// Row left out, or -1.
        padding: i64,
        /// A weight per index is present.
        weights: bool,
    },
}

impl SpatialOp {
    /// The name in the text form of the IR.
    pub fn name(&self) -> &'static str {
        match self {
            SpatialOp::MaxPool { .. } => "max_pool",
            SpatialOp::FractionalMaxPool { .. } => "fractional_max_pool",
            SpatialOp::ToPositions { .. } => "to_positions",
            SpatialOp::AvgPool { .. } => "avg_pool",
            SpatialOp::AvgPoolBackward { .. } => "avg_pool_backward",
            SpatialOp::Resample { .. } => "resample",
            SpatialOp::ResampleBackward { .. } => "resample_backward",
            SpatialOp::GridSample { .. } => "grid_sample",
            SpatialOp::GridSampleBackward { .. } => "grid_sample_backward",
            SpatialOp::Unfold(_) => "unfold",
            SpatialOp::Fold(_) => "fold",
            SpatialOp::EmbeddingBag { .. } => "embedding_bag",
        }
    }
}
