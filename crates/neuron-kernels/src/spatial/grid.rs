//! Sampling at the positions of a grid.

use super::element::{Element, Real};
use super::planes::Shared;
use super::taps::cubic_weights;
use crate::pool::parallel_for;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Outside, Sampling, Scalar, TensorType};

/// Samples computed together.
const BLOCK: usize = 64;

/// Elements a sample takes at most.
pub(super) const MOST: usize = 16;

/// What a sample takes from a plane, and how that changes with its position.
#[derive(Clone, Copy)]
pub(super) struct Point<R> {
    pub count: usize,
    /// Position in the plane; negative for what lies outside, which is 0.
    pub at: [i32; MOST],
    pub weights: [R; MOST],
    /// Derivatives of the weights by width, height and depth of the input.
    pub slopes: [[R; MOST]; 3],
    /// Derivatives of these by those of the grid.
    pub factor: [R; 3],
}

impl<R: Real> Point<R> {
    pub fn new() -> Self {
        Point { count: 0, at: [0; MOST], weights: [R::ZERO; MOST], slopes: [[R::ZERO; MOST]; 3], factor: [R::ZERO; 3] }
    }

    #[inline(always)]
    fn push<const SLOPES: bool>(&mut self, at: Option<usize>, weight: R, slopes: impl FnOnce() -> [R; 3]) {
        let k = self.count;
        self.at[k] = at.map_or(-1, |at| at as i32);
        self.weights[k] = weight;
        if SLOPES {
            for (to, slope) in self.slopes.iter_mut().zip(slopes()) {
                to[k] = slope;
            }
        }
        self.count += 1;
    }
}

/// From a position of the grid to elements of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locator {
    /// Extents of the input: width, height, depth.
    size: [i64; 3],
    /// 2 or 3.
    pub dims: usize,
    sampling: Sampling,
    outside: Outside,
    align_corners: bool,
}

/// Extents and types that both directions check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub locator: Locator,
    pub batch: usize,
    pub channels: usize,
    /// Pixels of a plane of the input, and of the result.
    pub input: usize,
    pub output: usize,
    pub dtype: DType,
}

impl Geometry {
    pub fn new(
        kernel: &'static str,
        x: &TensorType,
        grid: &TensorType,
        out: &TensorType,
        (sampling, outside, align_corners): (Sampling, Outside, bool),
    ) -> Result<Self, KernelError> {
        let dims = grid.sizes.last().map_or(0, |d| *d as usize);
        let fits = [x, grid, out].iter().all(|t| t.rank() == 5 && t.is_contiguous() && t.dtype == x.dtype)
            && x.dtype.is_float()
            && (dims == 3 && sampling != Sampling::Cubic || dims == 2)
            && x.sizes[2..].iter().product::<i64>() < i64::from(i32::MAX);
        if !fits {
            return Err(KernelError::Unsupported { kernel, what: format!("{x} at {grid} into {out}") });
        }
        let locator = Locator { size: [x.sizes[4], x.sizes[3], x.sizes[2]], dims, sampling, outside, align_corners };
        Ok(Geometry {
            locator,
            batch: x.sizes[0] as usize,
            channels: x.sizes[1] as usize,
            input: x.sizes[2..].iter().product::<i64>() as usize,
            output: out.sizes[2..].iter().product::<i64>() as usize,
            dtype: x.dtype,
        })
    }
}

impl Locator {
    /// A position of the grid in elements of dimension `i`, and its derivative. Planes and volumes round differently,
    /// as PyTorch's kernels for them do.
    #[inline(always)]
    fn unnormalize<R: Real>(&self, at: R, i: usize) -> (R, R) {
        let size = R::of(self.size[i]);
        let two = R::of(2);
        let by = if self.align_corners { (size - R::ONE) / two } else { size / two };
        let at = match (self.align_corners, self.dims) {
            (true, 2) => (at + R::ONE) * by,
            (true, _) => (at + R::ONE) / two * (size - R::ONE),
            (false, 2) => (at + R::ONE) * by - R::from_f64(0.5),
            (false, _) => ((at + R::ONE) * size - R::ONE) / two,
        };
        (at, by)
    }

    /// A position brought inside, and the derivative of doing so.
    #[inline(always)]
    fn inside<R: Real, const SLOPES: bool>(&self, at: R, i: usize) -> (R, R) {
        let (at, slope) = match self.outside {
            Outside::Zeros => return (at, R::ONE),
            Outside::Border => (at, R::ONE),
            Outside::Reflection => self.reflected(at, i),
        };
        let last = R::of(self.size[i] - 1);
        if at <= R::ZERO {
            (R::ZERO, R::ZERO)
        } else if at >= last {
            (last, R::ZERO)
        } else if at > R::ZERO {
            (at, slope)
        } else if self.dims == 2 {
            (R::ZERO, R::ZERO) // no number
        } else if SLOPES {
            (at, R::ONE) // outside, as all that is no number
        } else {
            (last, R::ZERO)
        }
    }

    fn reflected<R: Real>(&self, at: R, i: usize) -> (R, R) {
        let half = R::from_f64(0.5);
        let (low, span) = match self.align_corners {
            true => (R::ZERO, R::of(self.size[i] - 1)),
            false => (R::ZERO - half, R::of(self.size[i])),
        };
        if span == R::ZERO {
            return (R::ZERO, R::ZERO);
        }
        let from = at - low;
        let sign = if from < R::ZERO { -R::ONE } else { R::ONE };
        let from = from.abs();
        let twice = span + span;
        let extra = from - R::from_f64((from / twice).to_f64().trunc()) * twice;
        if extra > span { (twice - extra + low, -sign) } else { (extra + low, sign) }
    }

    fn within(&self, at: [i64; 3]) -> Option<usize> {
        let inside = at.iter().zip(&self.size).all(|(at, size)| *at >= 0 && at < size);
        inside.then(|| ((at[2] * self.size[1] + at[1]) * self.size[0] + at[0]) as usize)
    }

    /// Samples are constant between positions, so that the grid has no gradient.
    pub fn is_constant(&self) -> bool {
        self.sampling == Sampling::Nearest
    }

    /// Elements a sample takes at most.
    fn taps(&self) -> usize {
        match self.sampling {
            Sampling::Nearest => 1,
            Sampling::Linear => 1 << self.dims,
            Sampling::Cubic => 16,
        }
    }

    /// What the sample at this position of the grid takes, and with `SLOPES` its derivatives.
    #[inline(always)]
    pub fn point<R: Real, const SLOPES: bool>(&self, grid: [R; 3], point: &mut Point<R>) {
        point.count = 0;
        if self.sampling == Sampling::Cubic {
            return self.cubic::<R, SLOPES>(grid, point);
        }
        let mut at = [R::ZERO; 3];
        let mut slope = [R::ZERO; 3];
        for i in 0..self.dims {
            let (position, by) = self.unnormalize(grid[i], i);
            let (position, kept) = self.inside::<R, SLOPES>(position, i);
            (at[i], slope[i]) = (position, by * kept);
        }
        point.factor = slope;
        if self.sampling == Sampling::Nearest {
            let nearest = self.within(at.map(|v| v.round_even().to_index()));
            return point.push::<SLOPES>(nearest, R::ONE, || [R::ZERO; 3]);
        }
        let base = at.map(Real::floor);
        let first = base.map(Real::to_index);
        let far: [R; 3] = std::array::from_fn(|i| at[i] - base[i]);
        let near: [R; 3] = std::array::from_fn(|i| R::ONE - far[i]);
        for corner in 0..1 << self.dims {
            let next = |i: usize| corner >> i & 1;
            let position = std::array::from_fn(|i| first[i] + next(i) as i64);
            let by: [R; 3] = std::array::from_fn(|i| if next(i) == 1 { far[i] } else { near[i] });
            let sign = |i: usize| if next(i) == 1 { R::ONE } else { -R::ONE };
            let within = self.within(position);
            if self.dims == 2 {
                let slopes = || [sign(0) * by[1], sign(1) * by[0], R::ZERO];
                point.push::<SLOPES>(within, by[0] * by[1], slopes);
            } else if within.is_some() {
                let slopes = || [sign(0) * by[1] * by[2], sign(1) * by[0] * by[2], sign(2) * by[0] * by[1]];
                point.push::<SLOPES>(within, by[0] * by[1] * by[2], slopes);
            }
        }
    }

    #[inline(always)]
    fn cubic<R: Real, const SLOPES: bool>(&self, grid: [R; 3], point: &mut Point<R>) {
        let mut at = [[0; 4]; 2];
        let mut weights = [[R::ZERO; 4]; 2];
        let mut slopes = [[R::ZERO; 4]; 2];
        for i in 0..2 {
            let (position, by) = self.unnormalize(grid[i], i);
            let base = position.floor();
            let t = position - base;
            weights[i] = cubic_weights(t);
            slopes[i] = cubic_slopes(t);
            point.factor[i] = by;
            for (k, at) in at[i].iter_mut().enumerate() {
                *at = self.inside::<R, SLOPES>(base + R::of(k as i64 - 1), i).0.to_index();
            }
        }
        for y in 0..4 {
            for x in 0..4 {
                let slopes = || [slopes[0][x] * weights[1][y], weights[0][x] * slopes[1][y], R::ZERO];
                let within = self.within([at[0][x], at[1][y], 0]);
                point.push::<SLOPES>(within, weights[0][x] * weights[1][y], slopes);
            }
        }
    }
}

/// Derivatives of [`cubic_weights`].
fn cubic_slopes<R: Real>(t: R) -> [R; 4] {
    let a = R::from_f64(-0.75);
    let (two, three, eight, ten) = (R::of(2), R::of(3), R::of(8), R::of(10));
    let outer = |x: R| (three * a * x - ten * a) * x + eight * a;
    let inner = |x: R| (three * (a + two) * x - two * (a + three)) * x;
    let rest = R::ONE - t;
    [outer(t + R::ONE), inner(t), -inner(rest), -outer(rest + R::ONE)]
}

/// A half float that is computed with as it is: PyTorch's kernels round positions, weights and sums of half floats at
/// every step.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Rounded<T>(T);

macro_rules! rounded {
    ($t:ty) => {
        impl Element for Rounded<$t> {
            type Wide = $t;

            #[inline(always)]
            fn widen(self) -> $t {
                self.0
            }
            #[inline(always)]
            fn narrow(value: $t) -> Self {
                Rounded(value)
            }
        }
    };
}
rounded!(half::f16);
rounded!(half::bf16);

/// As `by_float`, half floats as [`Rounded`].
macro_rules! by_sampled {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            neuron_ir::DType::F16 => {
                type $t = crate::spatial::grid::Rounded<half::f16>;
                $body
            }
            neuron_ir::DType::BF16 => {
                type $t = crate::spatial::grid::Rounded<half::bf16>;
                $body
            }
            neuron_ir::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(super) use by_sampled;

/// The input at the positions of a grid. Buffers: input, grid, output.
#[derive(Debug)]
pub struct GridSample {
    geometry: Geometry,
}

impl GridSample {
    /// `x[n, c, d, h, w]`, `grid[n, d, h, w, 2 or 3]`, `out` as `x` with the grid's extents; floats of one type,
    /// row-major. Positions are computed in the wide type.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] for other types and layouts, and for cubic sampling of volumes.
    pub fn new(
        x: &TensorType,
        grid: &TensorType,
        sampling: Sampling,
        outside: Outside,
        align_corners: bool,
        out: &TensorType,
    ) -> Result<GridSample, KernelError> {
        let options = (sampling, outside, align_corners);
        Ok(GridSample { geometry: Geometry::new("grid_sample", x, grid, out, options)? })
    }

    /// Samples `first..end` of image `n`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `T` is the element type.
    #[inline(always)]
    unsafe fn block<T, R>(&self, at: &Shared<3>, n: usize, first: usize, end: usize)
    where
        T: Element<Wide = R>,
        R: Real,
    {
        let g = &self.geometry;
        let mut offsets = [[0i32; BLOCK]; MOST];
        let mut weights = [[R::ZERO; BLOCK]; MOST];
        // SAFETY: samples exist, and their elements lie within a plane.
        unsafe {
            let taps = g.locator.taps();
            let mut point = Point::new();
            for (j, sample) in (first..end).enumerate() {
                let position = position::<T, R>(at.at(1), g.locator.dims, n * g.output + sample);
                g.locator.point::<R, false>(position, &mut point);
                for k in 0..point.count {
                    offsets[k][j] = point.at[k];
                    weights[k][j] = point.weights[k];
                }
                for k in point.count..taps {
                    offsets[k][j] = -1;
                    weights[k][j] = R::ZERO;
                }
            }
            for c in 0..g.channels {
                let plane = n * g.channels + c;
                let x = at.at::<T>(0).add(plane * g.input).cast_const();
                let mut sums = [R::ZERO; BLOCK];
                for k in 0..taps {
                    for j in 0..BLOCK {
                        let (offset, weight) = (offsets[k][j], weights[k][j]);
                        let value = if offset < 0 { R::ZERO } else { (*x.add(offset.max(0) as usize)).widen() };
                        sums[j] = if k == 0 { value * weight } else { sums[j] + value * weight };
                    }
                }
                let out = at.at::<T>(2).add(plane * g.output + first);
                for (j, sum) in sums[..end - first].iter().enumerate() {
                    *out.add(j) = T::narrow(*sum);
                }
            }
        }
    }
}

/// Position number `i` of a grid.
///
/// # Safety
/// `grid` is a row-major grid of `dims` numbers per position that has this one.
#[inline(always)]
pub(super) unsafe fn position<T, R>(grid: *const T, dims: usize, i: usize) -> [R; 3]
where
    T: Element<Wide = R>,
    R: Real,
{
    // SAFETY: the caller's promise.
    std::array::from_fn(|d| if d < dims { unsafe { (*grid.add(i * dims + d)).widen() } } else { R::ZERO })
}

impl Kernel for GridSample {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Shared::<3>::of(buffers);
        let g = &self.geometry;
        let blocks = g.output.div_ceil(BLOCK);
        parallel_for(g.batch * blocks, |t| {
            let at = &at;
            let first = t % blocks * BLOCK;
            by_sampled!(g.dtype, T => vectorized(
                #[inline(always)]
                // SAFETY: samples of an image.
                || unsafe { self.block::<T, _>(at, t / blocks, first, g.output.min(first + BLOCK)) },
            ));
        });
        Ok(())
    }

    fn cost(&self) -> u64 {
        let g = &self.geometry;
        100 + (g.batch * g.output * (g.channels * 4 + 16)) as u64
    }
}
