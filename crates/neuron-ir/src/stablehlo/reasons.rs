//! What has no StableHLO form, and why: the one table.

pub(super) const REJECTION: &str = "draws an unknown number of random words for each element";
pub(super) const CTC: &str = "a recursion over lattices of its own lengths for each sample";
pub(super) const TIES: &str = "which of equal elements is picked is that of GCC's std::sort; positions follow it";
pub(super) const SERIES: &str = "no StableHLO operation, and no series that is accurate everywhere";
pub(super) const DROPOUT: &str = "drops by the words of the generator in the order of the kernel's tiles";
pub(super) const BAG_MAX: &str = "the largest of a bag, where what NaN does depends on its place";
pub(super) const EMPTY_WINDOWS: &str = "of nothing, which is an error";
pub(super) const INTEGER_FLOAT: &str = "not defined on integers";

/// Operators without StableHLO form, by their name in the text form of the IR, with the reason. An operator may be here
/// for some of its forms only; the reason then says which.
pub const UNSUPPORTED: &[(&str, &str)] = &[
    ("sample", REJECTION),
    ("ctc_loss", CTC),
    ("ctc_loss_backward", CTC),
    ("attention", DROPOUT),
    ("attention_backward", DROPOUT),
    ("select_along", TIES),
    ("bessel_j0", SERIES),
    ("bessel_j1", SERIES),
    ("bessel_y0", SERIES),
    ("bessel_y1", SERIES),
    ("airy_ai", SERIES),
    ("igamma", SERIES),
    ("igammac", SERIES),
    ("max_pool", EMPTY_WINDOWS),
    ("fractional_max_pool", EMPTY_WINDOWS),
    ("embedding_bag", BAG_MAX),
];
