//! Distances between the rows of two matrices, and their gradient: `torch.cdist`.

use crate::pool::parallel_for;
use crate::reduce::element::Float;
use crate::simd::vectorized;
use crate::{Kernel, KernelError};
use neuron_ir::{DType, Scalar, TensorType};

/// Differences of one task.
const PIECE: usize = 32 << 10;

/// Sums side by side.
const LANES: usize = 16;

/// A norm by its order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norm {
    Zero,
    One,
    Two,
    Infinity,
    Other(f64),
}

impl Norm {
    fn of(kernel: &'static str, order: f64) -> Result<Norm, KernelError> {
        Ok(match order {
            0.0 => Norm::Zero,
            1.0 => Norm::One,
            2.0 => Norm::Two,
            p if p == f64::INFINITY => Norm::Infinity,
            p if p > 0.0 => Norm::Other(p),
            p => return Err(KernelError::Unsupported { kernel, what: format!("order {p}") }),
        })
    }
}

/// Sizes: batches, rows of the first and of the second, columns.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batches: usize,
    rows: usize,
    others: usize,
    columns: usize,
}

impl Sizes {
    fn of(kernel: &'static str, x1: &TensorType, x2: &TensorType, all: &[&TensorType]) -> Result<Sizes, KernelError> {
        let unsupported = || KernelError::Unsupported { kernel, what: format!("rows of {x1} and {x2}") };
        let ([b, rows, columns], [b2, others, columns2]) = (&x1.sizes[..], &x2.sizes[..]) else {
            return Err(unsupported());
        };
        let plain = |t: &&TensorType| t.is_contiguous() && t.dtype == x1.dtype;
        let float = matches!(x1.dtype, DType::F32 | DType::F64);
        if b != b2 || columns != columns2 || !float || !all.iter().all(plain) {
            return Err(unsupported());
        }
        let [batches, rows, others, columns] = [*b, *rows, *others, *columns].map(|n| n as usize);
        Ok(Sizes { batches, rows, others, columns })
    }

    /// Rows of one task.
    fn rows_piece(&self) -> usize {
        (PIECE / (self.others * self.columns).max(1)).max(1)
    }
}

#[derive(Clone, Copy)]
struct Addresses<const N: usize>([*mut u8; N]);
// SAFETY: tasks write disjoint rows.
unsafe impl<const N: usize> Send for Addresses<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Addresses<N> {}

impl<const N: usize> Addresses<N> {
    /// Row `at` of buffer `k`, which has rows of `width` elements.
    ///
    /// # Safety
    /// The row exists.
    unsafe fn row<C>(&self, k: usize, at: usize, width: usize) -> &'static [C] {
        // SAFETY: the caller's contract; the slice is dropped before the kernel returns.
        unsafe { std::slice::from_raw_parts(self.0[k].cast::<C>().add(at * width), width) }
    }
}

/// `torch.cdist`. Buffers: x1, x2, distances.
#[derive(Debug)]
pub struct Distance {
    dtype: DType,
    norm: Norm,
    sizes: Sizes,
}

impl Distance {
    /// `x1` of `[b, p, m]`, `x2` of `[b, r, m]`, `distances` of `[b, p, r]`, all row-major and of `f32` or `f64`.
    ///
    /// # Errors
    /// Layouts other than those, negative orders.
    pub fn new(order: f64, x1: &TensorType, x2: &TensorType, distances: &TensorType) -> Result<Self, KernelError> {
        let sizes = Sizes::of("distance", x1, x2, &[x1, x2, distances])?;
        Ok(Distance { dtype: x1.dtype, norm: Norm::of("distance", order)?, sizes })
    }

    /// # Safety
    /// As [`Kernel::run`]; `C` is the element type.
    unsafe fn all<C: Power>(&self, at: Addresses<3>) {
        let Sizes { batches, rows, others, columns } = self.sizes;
        let piece = self.sizes.rows_piece();
        let total = batches * rows;
        parallel_for(total.div_ceil(piece), |t| {
            let at: Addresses<3> = at;
            for row in t * piece..total.min((t + 1) * piece) {
                // SAFETY: rows that exist, of which this task writes its own.
                unsafe {
                    let x = at.row::<C>(0, row, columns);
                    let out = std::slice::from_raw_parts_mut(at.0[2].cast::<C>().add(row * others), others);
                    for (j, out) in out.iter_mut().enumerate() {
                        let y = at.row::<C>(1, row / rows * others + j, columns);
                        *out = vectorized(
                            #[inline(always)]
                            || distance(self.norm, x, y),
                        );
                    }
                }
            }
        });
    }
}

/// Floats that can be raised to a power.
trait Power: Float {
    fn power(self, p: Self) -> Self;
    fn magnitude(self) -> Self;
}
macro_rules! power {
    ($($t:ty),*) => {$(
        impl Power for $t {
            fn power(self, p: Self) -> Self {
                self.powf(p)
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
        }
    )*};
}
power!(f32, f64);

#[inline(always)]
fn distance<C: Power>(norm: Norm, x: &[C], y: &[C]) -> C {
    match norm {
        Norm::Zero => sum(x, y, |d| if d == C::ZERO { C::ZERO } else { C::of(1.0) }),
        Norm::One => sum(x, y, |d| d),
        Norm::Two => sum(x, y, |d| d * d).sqrt(),
        Norm::Infinity => {
            let mut most = C::ZERO;
            for (a, b) in x.iter().zip(y) {
                let d = (*a - *b).magnitude();
                most = if d > most || d.is_nan() { d } else { most };
            }
            most
        }
        Norm::Other(p) => {
            let p = C::of(p);
            sum(x, y, |d| d.power(p)).power(C::of(1.0) / p)
        }
    }
}

/// The sum of `map(|x - y|)`.
#[inline(always)]
fn sum<C: Power>(x: &[C], y: &[C], map: impl Fn(C) -> C) -> C {
    let mut lanes = [C::ZERO; LANES];
    let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let mut rest = C::ZERO;
    for (a, b) in xs.remainder().iter().zip(ys.remainder()) {
        rest += map((*a - *b).magnitude());
    }
    for (x, y) in xs.zip(ys) {
        for l in 0..LANES {
            lanes[l] += map((x[l] - y[l]).magnitude());
        }
    }
    lanes.iter().fold(rest, |sum, lane| sum + *lane)
}

impl Kernel for Distance {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[2]]);
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F64 => self.all::<f64>(at),
                _ => self.all::<f32>(at),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        cost(self.norm, self.sizes)
    }
}

fn cost(norm: Norm, sizes: Sizes) -> u64 {
    let differences = (sizes.batches * sizes.rows * sizes.others * sizes.columns) as u64;
    60 + if matches!(norm, Norm::Other(_)) { 15 * differences } else { differences / 2 }
}

/// Gradient of [`Distance`] with respect to `x1`. Buffers: grad, x1, x2, distances, out.
#[derive(Debug)]
pub struct DistanceBackward {
    dtype: DType,
    norm: Norm,
    sizes: Sizes,
}

impl DistanceBackward {
    /// `grad` and `distances` of `[b, p, r]`, `x1` and `out` of `[b, p, m]`, `x2` of `[b, r, m]`, all row-major.
    ///
    /// # Errors
    /// Layouts other than those, negative orders.
    pub fn new(
        order: f64,
        grad: &TensorType,
        x1: &TensorType,
        x2: &TensorType,
        distances: &TensorType,
        out: &TensorType,
    ) -> Result<Self, KernelError> {
        let sizes = Sizes::of("distance_backward", x1, x2, &[grad, x1, x2, distances, out])?;
        Ok(DistanceBackward { dtype: x1.dtype, norm: Norm::of("distance_backward", order)?, sizes })
    }

    /// # Safety
    /// As [`Kernel::run`]; `C` is the element type.
    unsafe fn all<C: Power>(&self, at: Addresses<5>) {
        let Sizes { batches, rows, others, columns } = self.sizes;
        let piece = self.sizes.rows_piece();
        let total = batches * rows;
        parallel_for(total.div_ceil(piece), |t| {
            let at: Addresses<5> = at;
            for row in t * piece..total.min((t + 1) * piece) {
                // SAFETY: rows that exist, of which this task writes its own.
                unsafe {
                    let (grad, distances) = (at.row::<C>(0, row, others), at.row::<C>(3, row, others));
                    let x = at.row::<C>(1, row, columns);
                    let out = std::slice::from_raw_parts_mut(at.0[4].cast::<C>().add(row * columns), columns);
                    out.fill(C::ZERO);
                    for j in 0..others {
                        let y = at.row::<C>(2, row / rows * others + j, columns);
                        vectorized(
                            #[inline(always)]
                            || accumulate(self.norm, grad[j], distances[j], x, y, out),
                        );
                    }
                }
            }
        });
    }
}

/// Adds the gradient of one distance.
#[inline(always)]
fn accumulate<C: Power>(norm: Norm, grad: C, distance: C, x: &[C], y: &[C], out: &mut [C]) {
    let one = C::of(1.0);
    // NaN has no sign: the gradient is NaN.
    let signed = |d: C, v: C| {
        if d > C::ZERO {
            v
        } else if d < C::ZERO {
            C::ZERO - v
        } else {
            d
        }
    };
    let mut each = |f: &dyn Fn(C) -> C| {
        for ((out, a), b) in out.iter_mut().zip(x).zip(y) {
            *out += f(*a - *b);
        }
    };
    match norm {
        Norm::Zero => {}
        Norm::One => {
            for ((out, a), b) in out.iter_mut().zip(x).zip(y) {
                let d = *a - *b;
                *out += if d == C::ZERO { C::ZERO } else { signed(d, grad) };
            }
        }
        Norm::Infinity => each(&|d| if d == C::ZERO || d.magnitude() != distance { C::ZERO } else { signed(d, grad) }),
        _ if distance == C::ZERO => {}
        Norm::Two => {
            let factor = grad / distance;
            for ((out, a), b) in out.iter_mut().zip(x).zip(y) {
                *out += (*a - *b) * factor;
            }
        }
        Norm::Other(p) => {
            let below = C::of(p - 1.0);
            let scale = distance.power(below);
            each(&|d| {
                if d == C::ZERO {
                    return C::ZERO;
                }
                signed(d, one) * d.magnitude().power(below) * grad / scale
            });
        }
    }
}

impl Kernel for DistanceBackward {
    unsafe fn run(&self, buffers: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        let at = Addresses([buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]]);
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F64 => self.all::<f64>(at),
                _ => self.all::<f32>(at),
            }
        }
        Ok(())
    }

    fn cost(&self) -> u64 {
        2 * cost(self.norm, self.sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f32; 4] = [0.0, 1.0, 3.0, 5.0];
    const Y: [f32; 6] = [0.0, 1.0, 3.0, 5.0, 3.0, -1.0];

    fn ty(rows: i64, columns: i64) -> TensorType {
        TensorType::contiguous(DType::F32, &[1, rows, columns])
    }

    fn distances(order: f64) -> [f32; 6] {
        let (mut x, mut y, mut out) = (X, Y, [0f32; 6]);
        let kernel = Distance::new(order, &ty(2, 2), &ty(3, 2), &ty(2, 3)).unwrap();
        // SAFETY: the buffers have the layouts the kernel was made for.
        unsafe {
            kernel.run(&[x.as_mut_ptr().cast(), y.as_mut_ptr().cast(), out.as_mut_ptr().cast()], &[]).unwrap();
        }
        out
    }

    #[test]
    fn orders() {
        assert_eq!(distances(0.0), [0.0, 2.0, 2.0, 2.0, 0.0, 1.0]);
        assert_eq!(distances(1.0), [0.0, 7.0, 5.0, 7.0, 0.0, 6.0]);
        assert_eq!(distances(2.0), [0.0, 5.0, 13f32.sqrt(), 5.0, 0.0, 6.0]);
        assert_eq!(distances(f64::INFINITY), [0.0, 4.0, 3.0, 4.0, 0.0, 6.0]);
        assert!((distances(3.0)[1] - 91f32.cbrt()).abs() < 1e-5);
    }

    #[test]
    fn gradients_are_differences() {
        for order in [1.0, 1.5, 2.0, 3.0] {
            let (mut x, mut y, mut d, mut grad, mut out) = (X, Y, distances(order), [1f32; 6], [0f32; 4]);
            let kernel = DistanceBackward::new(order, &ty(2, 3), &ty(2, 2), &ty(3, 2), &ty(2, 3), &ty(2, 2)).unwrap();
            let buffers = [&mut grad[..], &mut x, &mut y, &mut d, &mut out].map(|b| b.as_mut_ptr().cast());
            // SAFETY: as above.
            unsafe { kernel.run(&buffers, &[]).unwrap() };
            // By the first column of the first row: to the other two.
            let slope = |a: f64, b: f64| {
                let norm = |a: f64, b: f64| (a.abs().powf(order) + b.abs().powf(order)).powf(1.0 / order);
                (norm(a + 1e-5, b) - norm(a - 1e-5, b)) / 2e-5
            };
            let expected = slope(-3.0, -4.0) + slope(-3.0, 2.0);
            assert!((f64::from(out[0]) - expected).abs() < 1e-4, "{order}: {out:?}, {expected}");
        }
    }
}
