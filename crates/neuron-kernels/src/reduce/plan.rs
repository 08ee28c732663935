//! How a reduction walks over memory.

use crate::KernelError;
use crate::pool::parallel_for;
use neuron_ir::TensorType;
use smallvec::SmallVec;
use std::fmt::Debug;
use std::mem::MaybeUninit;

/// Most results one unit of work makes: a tile of accumulators of this length stays in the first-level cache.
pub(crate) const TILE: usize = 1024;

/// Elements worth handing to another thread.
pub(crate) const GRAIN: usize = 32 * 1024;

/// A dimension, or several that are one in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Number of positions.
    pub(crate) extent: usize,
    /// Elements between neighbours: in the first tensor, in the second, in the third.
    pub(crate) strides: [isize; 3],
}

impl Axis {
    /// One position.
    pub(crate) const UNIT: Axis = Axis { extent: 1, strides: [0; 3] };
}

/// Axes, outermost first.
pub(crate) type Axes = SmallVec<[Axis; 4]>;

/// The given dimensions of up to three tensors, extents of 1 dropped and neighbours merged where memory allows.
///
/// With `sort` the axes come in order of the first tensor's strides, broadcast ones outermost; else in given order.
pub(crate) fn axes(tensors: &[&TensorType], dims: impl Iterator<Item = usize>, sort: bool) -> Axes {
    let mut all: Axes = dims
        .filter(|&d| tensors[0].sizes[d] != 1)
        .map(|d| {
            let mut strides = [0; 3];
            for (s, t) in strides.iter_mut().zip(tensors) {
                *s = t.strides[d] as isize;
            }
            Axis { extent: tensors[0].sizes[d] as usize, strides }
        })
        .collect();
    if sort {
        all.sort_by_key(|a| std::cmp::Reverse(distance(a)));
    }
    let mut merged = Axes::new();
    for axis in all {
        match merged.last_mut() {
            Some(outer) if (0..3).all(|i| outer.strides[i] == axis.strides[i] * axis.extent as isize) => {
                *outer = Axis { extent: outer.extent * axis.extent, strides: axis.strides };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// How far apart in memory neighbours are; a broadcast axis counts as farthest, since walking it loads nothing new.
fn distance(axis: &Axis) -> usize {
    match axis.strides[0] {
        0 => usize::MAX,
        s => s.unsigned_abs(),
    }
}

/// Offsets of position `index`, counted row-major over `axes`.
#[inline(always)]
pub(crate) fn offsets(axes: &[Axis], mut index: usize) -> [isize; 3] {
    let mut at = [0; 3];
    for axis in axes.iter().rev() {
        let i = (index % axis.extent) as isize;
        index /= axis.extent;
        for (a, s) in at.iter_mut().zip(axis.strides) {
            *a += i * s;
        }
    }
    at
}

/// The walk of one reduction, made once from its layouts.
///
/// The results along the innermost kept axis are made `chunk` at a time. Within a chunk either each result is reduced
/// along its own run of memory, or, in *columns*, runs of memory are combined element by element into all results at
/// once. All decisions follow from sizes and strides alone, so that results are the same for any number of threads.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    kept: Axes,
    /// Innermost kept axis.
    pub(crate) inner: Axis,
    reduced: Axes,
    /// Innermost reduced axis.
    pub(crate) run: Axis,
    /// Elements reduced to one result.
    pub(crate) count: usize,
    /// Combine runs element by element.
    pub(crate) columns: bool,
    /// In columns, so many neighbouring positions of `run` are one row: a narrow tensor fills the vectors, too.
    pub(crate) fold: usize,
    chunk: usize,
    chunks: usize,
    units: usize,
    /// Parts the reduced elements are split into where there are too few results to occupy the threads.
    splits: usize,
    step: usize,
    /// Bytes of an input element.
    item: usize,
}

impl Plan {
    /// A plan to reduce `dims` of `input` to `outputs`, whose reduced extents are 1.
    ///
    /// `ordered` keeps the reduced elements in row-major order and counts them so, for the sake of indices.
    pub(crate) fn new(
        kernel: &'static str,
        input: &TensorType,
        dims: &[i64],
        outputs: &[&TensorType],
        ordered: bool,
    ) -> Result<Plan, KernelError> {
        let rank = input.rank();
        let is_reduced = |d: usize| dims.contains(&(d as i64));
        let fits = |o: &&TensorType| {
            o.rank() == rank && (0..rank).all(|d| o.sizes[d] == if is_reduced(d) { 1 } else { input.sizes[d] })
        };
        if dims.iter().any(|&d| d < 0 || d >= rank as i64) || !outputs.iter().all(fits) {
            return Err(KernelError::Unsupported { kernel, what: format!("{input} reduced over {dims:?}") });
        }
        let mut tensors: SmallVec<[&TensorType; 3]> = SmallVec::from_slice(&[input]);
        tensors.extend_from_slice(outputs);
        let mut kept = axes(&tensors, (0..rank).filter(|&d| !is_reduced(d)), true);
        let mut reduced = axes(&tensors[..1], (0..rank).filter(|&d| is_reduced(d)), !ordered);
        let results: usize = kept.iter().map(|a| a.extent).product();
        let count: usize = reduced.iter().map(|a| a.extent).product();
        // Nothing to make, or nothing to make it from: one axis that says so, and no division by its extent.
        if results == 0 {
            kept.clear();
        }
        if count == 0 {
            reduced = Axes::from_slice(&[Axis { extent: 0, ..Axis::UNIT }]);
        }
        let inner = kept.pop().unwrap_or(Axis::UNIT);
        let run = reduced.pop().unwrap_or(Axis::UNIT);

        let narrow = distance(&inner) < distance(&run);
        let fold = if narrow
            && !ordered
            && inner.extent <= TILE / 8
            && run.strides[0] == inner.strides[0] * inner.extent as isize
            && run.extent >= 4 * (TILE / 4 / inner.extent)
        {
            TILE / 4 / inner.extent
        } else {
            1
        };
        let columns = if narrow { inner.extent >= 4 || fold > 1 } else { count < 16 && inner.extent >= 16 };
        let fold = if columns { fold } else { 1 };

        let total = results * count;
        let few = results <= 16 && total >= 4 * GRAIN;
        let chunk = if columns {
            inner.extent.clamp(1, TILE)
        } else if few {
            1
        } else {
            (GRAIN / count.max(1)).clamp(1, TILE).min(inner.extent)
        };
        let chunks = inner.extent.div_ceil(chunk);
        let units = if results == 0 { 0 } else { kept.iter().map(|a| a.extent).product::<usize>() * chunks };
        // Every part is long enough to hide the hand-over, and a multiple of the blocks of the summation.
        let (splits, step) = if units == 0 || units >= 8 || count < 128 {
            (1, count)
        } else {
            let wanted = (16 / units).min(chunk * count / (2 * GRAIN)).max(1);
            let unit = 64 * fold;
            let step = count.div_ceil(wanted).next_multiple_of(unit);
            (count.div_ceil(step), step)
        };
        Ok(Plan {
            kept,
            inner,
            reduced,
            run,
            count,
            columns,
            fold,
            chunk,
            chunks,
            units,
            splits,
            step,
            item: input.dtype.size(),
        })
    }

    /// Elements read in all.
    pub(crate) fn elements(&self) -> usize {
        self.units * self.chunk * self.count
    }

    /// The longest run of reduced elements from number `at` to before `end` that lies along [`Plan::run`]: the offset
    /// of its first element, and its length.
    #[inline(always)]
    pub(crate) fn next_run(&self, at: usize, end: usize) -> (isize, usize) {
        if self.reduced.is_empty() {
            return (at as isize * self.run.strides[0], end - at);
        }
        let (outer, i) = (at / self.run.extent, at % self.run.extent);
        let start = offsets(&self.reduced, outer)[0] + i as isize * self.run.strides[0];
        (start, (self.run.extent - i).min(end - at))
    }

    #[inline(always)]
    fn unit(&self, unit: usize) -> ([isize; 3], usize) {
        let (outer, chunk) = if self.chunks == 1 { (unit, 0) } else { (unit / self.chunks, unit % self.chunks) };
        let first = chunk * self.chunk;
        let mut at = offsets(&self.kept, outer);
        for (a, s) in at.iter_mut().zip(self.inner.strides) {
            *a += first as isize * s;
        }
        (at, self.chunk.min(self.inner.extent - first))
    }
}

/// What a reduction does with the elements its [`Plan`] brings.
pub(crate) trait Engine: Send + Sync + Debug {
    /// A result before it is rounded and stored.
    type Partial: Copy + Send;

    /// The walk.
    fn plan(&self) -> &Plan;

    /// Reduces the elements from number `start` to before `end` of `width` results, the first of which starts at
    /// `input`.
    ///
    /// # Safety
    /// `input` is the address of an element the plan names, `out` has room for `width` partial results.
    unsafe fn reduce(&self, input: *const u8, width: usize, start: usize, end: usize, out: *mut Self::Partial);

    /// Combines the partial results of two successive parts.
    fn merge(a: Self::Partial, b: Self::Partial) -> Self::Partial;

    /// Stores `width` results at the given offsets in elements.
    ///
    /// # Safety
    /// The outputs are those the plan was made for.
    unsafe fn finish(&self, results: *const Self::Partial, width: usize, outputs: [*mut u8; 2], at: [isize; 2]);
}

#[derive(Clone, Copy)]
struct Addresses {
    input: *const u8,
    outputs: [*mut u8; 2],
}
// SAFETY: threads write to disjoint elements.
unsafe impl Sync for Addresses {}
// SAFETY: as above.
unsafe impl Send for Addresses {}

struct Shared<P>(*mut P);
// SAFETY: threads write to disjoint elements.
unsafe impl<P> Sync for Shared<P> {}

/// Runs a reduction.
///
/// # Safety
/// The buffers are those the plan was made for; the second output is not looked at where the plan has one.
pub(crate) unsafe fn drive<E: Engine>(engine: &E, input: *const u8, outputs: [*mut u8; 2]) {
    let plan = engine.plan();
    let splits = plan.splits;
    let memory = Addresses { input, outputs };
    // Where there are few results, the parts of each are reduced in parallel, then merged in order.
    let mut parts: Vec<MaybeUninit<E::Partial>> =
        Vec::with_capacity(if splits > 1 { plan.units * splits * plan.chunk } else { 0 });
    let parts = Shared(parts.as_mut_ptr().cast::<E::Partial>());
    let group = if splits > 1 { 1 } else { (GRAIN / (plan.chunk * plan.count).max(1)).max(1) };
    let pieces = plan.units * splits;
    parallel_for(pieces.div_ceil(group), |task| {
        let (memory, parts) = (&memory, &parts);
        let mut buffer = [const { MaybeUninit::<E::Partial>::uninit() }; TILE];
        for piece in task * group..((task + 1) * group).min(pieces) {
            let (unit, split) = if splits == 1 { (piece, 0) } else { (piece / splits, piece % splits) };
            let (at, width) = plan.unit(unit);
            let start = split * plan.step;
            let end = if splits == 1 { plan.count } else { (start + plan.step).min(plan.count) };
            // SAFETY: the offsets are those of elements of the tensors; every piece has its part of `parts`, and
            // `width <= chunk <= TILE`.
            unsafe {
                let results = if splits == 1 {
                    buffer.as_mut_ptr().cast::<E::Partial>()
                } else {
                    parts.0.add(piece * plan.chunk)
                };
                let from = memory.input.offset(at[0] * plan.item as isize);
                engine.reduce(from, width, start, end, results);
                if splits == 1 {
                    engine.finish(results, width, memory.outputs, [at[1], at[2]]);
                }
            }
        }
    });
    for unit in 0..if splits > 1 { plan.units } else { 0 } {
        let (at, width) = plan.unit(unit);
        // SAFETY: the tasks have written `width` results for each part.
        unsafe {
            let first = parts.0.add(unit * splits * plan.chunk);
            for i in 0..width {
                for split in 1..splits {
                    *first.add(i) = E::merge(*first.add(i), *first.add(split * plan.chunk + i));
                }
            }
            engine.finish(first, width, outputs, [at[1], at[2]]);
        }
    }
}
