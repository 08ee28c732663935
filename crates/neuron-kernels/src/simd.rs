//! Run-time choice of the instruction set.

use pulp::Arch;
use std::sync::LazyLock;

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs `body` compiled for the widest vectors the processor has.
///
/// `body` must be `#[inline(always)]` all the way down, or its loops are compiled for the baseline.
#[inline(always)]
pub fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    ARCH.dispatch(body)
}
