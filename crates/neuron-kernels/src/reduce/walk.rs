//! How tensors of one shape are walked row by row along a dimension.

use super::element::{Float, Load, Store, load_float, store_float};
use super::plan::{Axes, Axis, GRAIN, axes, offsets};
use crate::KernelError;
use crate::pool::parallel_for;
use neuron_ir::{DType, TensorType};

/// Most rows walked side by side.
pub(crate) const WIDTH: usize = 256;

/// Elements of a tile of such rows: as many as the second-level cache takes, so that long rows are walked in pieces
/// of several cache lines.
const TILE: usize = 256 * 1024;

/// Rows longer than this are gathered one by one, whatever their stride.
const LONGEST: usize = 64 * 1024;

/// The walk of up to three tensors: rows one by one, or in *columns*, where another dimension lies along memory, a tile
/// of neighbouring rows at once, one vector lane to a row.
#[derive(Debug)]
pub(crate) struct Walk {
    kept: Axes,
    pub(crate) inner: Axis,
    pub(crate) dim: Axis,
    pub(crate) columns: bool,
    chunk: usize,
    chunks: usize,
    units: usize,
}

impl Walk {
    pub(crate) fn new(kernel: &'static str, tensors: &[&TensorType], dim: usize) -> Result<Walk, KernelError> {
        let first = tensors[0];
        let rank = first.rank();
        if dim >= rank.max(1) || tensors.iter().any(|t| t.sizes != first.sizes) {
            return Err(KernelError::Unsupported { kernel, what: format!("{first} along dimension {dim}") });
        }
        let mut kept = axes(tensors, (0..rank).filter(|&d| d != dim), true);
        let mut along = Axis::UNIT;
        if rank > 0 {
            along.extent = first.sizes[dim] as usize;
            for (s, t) in along.strides.iter_mut().zip(tensors) {
                *s = t.strides[dim] as isize;
            }
        }
        let inner = kept.pop().unwrap_or(Axis::UNIT);
        let n = along.extent;
        let narrow = along.strides[0] != 1 && (1..along.strides[0]).contains(&inner.strides[0]);
        let columns = n <= LONGEST && (narrow && inner.extent >= 4 || n < 16 && inner.extent >= 16);
        let chunk = if columns {
            (TILE / n.max(1)).next_multiple_of(16).min(WIDTH).min(inner.extent)
        } else {
            (GRAIN / n.max(1)).clamp(1, WIDTH).min(inner.extent)
        };
        let chunks = inner.extent.div_ceil(chunk.max(1));
        let units =
            if n == 0 || first.numel() == 0 { 0 } else { kept.iter().map(|a| a.extent).product::<usize>() * chunks };
        Ok(Walk { kept, inner, dim: along, columns, chunk, chunks, units })
    }

    /// Calls `body` with the offsets of the first row and the number of rows, for every unit.
    #[inline(always)]
    pub(crate) fn run(&self, body: impl Fn([isize; 3], usize) + Sync) {
        let group = (GRAIN / (self.chunk * self.dim.extent).max(1)).max(1);
        parallel_for(self.units.div_ceil(group), |task| {
            for unit in task * group..((task + 1) * group).min(self.units) {
                let first = unit % self.chunks * self.chunk;
                let mut at = offsets(&self.kept, unit / self.chunks);
                for (a, s) in at.iter_mut().zip(self.inner.strides) {
                    *a += first as isize * s;
                }
                body(at, self.chunk.min(self.inner.extent - first));
            }
        });
    }

    pub(crate) fn elements(&self) -> u64 {
        (self.units * self.chunk * self.dim.extent) as u64
    }
}

/// One operand: how its elements become accumulators and back.
#[derive(Debug)]
pub(crate) struct Operand<C> {
    pub(crate) load: Load<C>,
    pub(crate) store: Store<C>,
    /// Elements have the type asked for and lie side by side along the dimension.
    pub(crate) direct: bool,
    pub(crate) item: isize,
}

impl<C: Float> Operand<C> {
    /// The tensor at a position of the walk.
    pub(crate) fn new(
        tensor: &TensorType,
        element: DType,
        walk: &Walk,
        position: usize,
    ) -> Result<Operand<C>, KernelError> {
        let dense = walk.dim.strides[position] == 1 || walk.dim.extent == 1;
        Ok(Operand {
            load: load_float(tensor.dtype)?,
            store: store_float(tensor.dtype)?,
            direct: tensor.dtype == element && dense,
            item: tensor.dtype.size() as isize,
        })
    }
}

/// Buffers that all threads see.
#[derive(Clone, Copy)]
pub(crate) struct Addresses<const N: usize>(pub(crate) [*mut u8; N]);
// SAFETY: threads write to disjoint rows.
unsafe impl<const N: usize> Sync for Addresses<N> {}
