//! Which elements each output of a resampled dimension takes, and with which weights.

use super::element::Real;
use neuron_ir::{Filter, Taps};

/// The elements that outputs take: output `o` takes `at[starts[o]..starts[o + 1]]`.
#[derive(Clone, Debug)]
pub(super) struct Table<R> {
    pub starts: Vec<u32>,
    pub at: Vec<u32>,
    pub weights: Vec<R>,
    /// Elements of each output, where all take as many.
    pub uniform: Option<usize>,
    /// In that case, first elements of all outputs, then second ones, and so on.
    pub columns: Vec<(Vec<u32>, Vec<R>)>,
}

impl<R: Real> Table<R> {
    pub fn new(taps: Taps, input: i64, output: i64) -> Table<R> {
        let mut table =
            Table { starts: vec![0], at: Vec::new(), weights: Vec::new(), uniform: None, columns: Vec::new() };
        if let Taps::Filter { filter, align_corners, factor, antialias } = taps {
            let scale = scale::<R>(input, output, align_corners, factor);
            for o in 0..output {
                match (antialias, filter) {
                    (true, _) => table.antialiased(filter, scale, o, input),
                    (false, Filter::Linear) => table.linear(scale, o, input, output, align_corners),
                    (false, _) => table.cubic(scale, o, input, align_corners),
                }
                table.starts.push(table.at.len() as u32);
            }
        } else {
            return Table::of(sources::<R>(taps, input, output, false));
        }
        table.finish()
    }

    /// One element for each output.
    pub fn of(at: Vec<u32>) -> Table<R> {
        let weights = vec![R::ONE; at.len()];
        let starts = (0..=at.len() as u32).collect();
        Table { starts, at, weights, uniform: None, columns: Vec::new() }.finish()
    }

    fn finish(mut self) -> Self {
        let count = |w: &[u32]| w[1] - w[0];
        let first = self.starts.windows(2).next().map(count);
        self.uniform = first.filter(|n| self.starts.windows(2).all(|w| count(w) == *n)).map(|n| n as usize);
        if let Some(n) = self.uniform {
            let of = |k: usize| self.at.iter().copied().skip(k).step_by(n).collect();
            let by = |k: usize| self.weights.iter().copied().skip(k).step_by(n).collect();
            self.columns = (0..n).map(|k| (of(k), by(k))).collect();
        }
        self
    }

    /// The table of the gradient: which outputs took each of `input` elements, in order.
    pub fn transposed(&self, input: usize) -> Table<R> {
        let mut counts = vec![0u32; input + 1];
        for &i in &self.at {
            counts[i as usize + 1] += 1;
        }
        for i in 0..input {
            counts[i + 1] += counts[i];
        }
        let starts = counts.clone();
        let mut at = vec![0; self.at.len()];
        let mut weights = vec![R::ZERO; self.at.len()];
        for (o, range) in self.starts.windows(2).enumerate() {
            for k in range[0] as usize..range[1] as usize {
                let next = &mut counts[self.at[k] as usize];
                at[*next as usize] = o as u32;
                weights[*next as usize] = self.weights[k];
                *next += 1;
            }
        }
        Table { starts, at, weights, uniform: None, columns: Vec::new() }.finish()
    }

    pub fn taps(&self, o: usize) -> (&[u32], &[R]) {
        let range = self.starts[o] as usize..self.starts[o + 1] as usize;
        (&self.at[range.clone()], &self.weights[range])
    }

    fn tap(&mut self, at: i64, weight: R) {
        self.at.push(at as u32);
        self.weights.push(weight);
    }

    fn linear(&mut self, scale: R, o: i64, input: i64, output: i64, align_corners: bool) {
        if input == output {
            self.tap(o, R::ONE);
            self.tap(o, R::ZERO);
            return;
        }
        let (first, lambda) = split(source(scale, o, align_corners, false), input);
        self.tap(first, R::ONE - lambda);
        self.tap((first + 1).min(input - 1), lambda);
    }

    fn cubic(&mut self, scale: R, o: i64, input: i64, align_corners: bool) {
        let (first, t) = split(source(scale, o, align_corners, true), input);
        for (k, weight) in cubic_weights(t).into_iter().enumerate() {
            self.tap((first + k as i64 - 1).clamp(0, input - 1), weight);
        }
    }

    fn antialiased(&mut self, filter: Filter, scale: R, o: i64, input: i64) {
        let half = R::from_f64(0.5);
        let size = match filter {
            Filter::Linear => 2,
            Filter::Cubic => 4,
            Filter::Lanczos => 6,
        };
        let stretched = scale >= R::ONE;
        let support = R::of(size) * half * if stretched { scale } else { R::ONE };
        let inverse = if stretched { R::ONE / scale } else { R::ONE };
        let most = support.to_f64().ceil() as i64 * 2 + 1;
        let center = scale * (R::of(o) + half);
        let first = (center - support + half).to_index().max(0);
        let count = ((center + support + half).to_index().min(input) - first).clamp(0, most);
        let mut total = R::ZERO;
        let from = self.weights.len();
        for k in 0..count {
            let weight = kernel(filter, (R::of(k + first) - center + half) * inverse);
            total = total + weight;
            self.tap(first + k, weight);
        }
        if total != R::ZERO {
            self.weights[from..].iter_mut().for_each(|w| *w = *w / total);
        }
    }
}

/// Elements per output: of `R` precision, as PyTorch's CPU kernels.
fn scale<R: Real>(input: i64, output: i64, align_corners: bool, factor: Option<f64>) -> R {
    match factor {
        _ if align_corners && output > 1 => R::of(input - 1) / R::of(output - 1),
        _ if align_corners => R::ZERO,
        Some(factor) if factor > 0.0 => R::from_f64(1.0 / factor),
        _ => R::of(input) / R::of(output),
    }
}

fn source<R: Real>(scale: R, o: i64, align_corners: bool, cubic: bool) -> R {
    let half = R::from_f64(0.5);
    if align_corners {
        return scale * R::of(o);
    }
    let at = scale * (R::of(o) + half) - half;
    if !cubic && at < R::ZERO { R::ZERO } else { at }
}

/// The element at or before a position, by a floor in `f32`, and the distance from it.
fn split<R: Real>(at: R, input: i64) -> (i64, R) {
    let first = ((at.to_f64() as f32).floor() as i64).min(input - 1);
    let distance = at - R::of(first);
    let distance = if distance < R::ZERO { R::ZERO } else { distance };
    (first, if R::ONE < distance { R::ONE } else { distance })
}

/// Weights of four neighbours, the second being `t` away.
pub(super) fn cubic_weights<R: Real>(t: R) -> [R; 4] {
    let a = R::from_f64(-0.75);
    let rest = R::ONE - t;
    [outer(t + R::ONE, a), inner(t, a), inner(rest, a), outer(rest + R::ONE, a)]
}

fn inner<R: Real>(x: R, a: R) -> R {
    ((a + R::of(2)) * x - (a + R::of(3))) * x * x + R::ONE
}

fn outer<R: Real>(x: R, a: R) -> R {
    ((a * x - R::of(5) * a) * x + R::of(8) * a) * x - R::of(4) * a
}

/// The antialiasing filters, which vanish beyond 1, 2 and 3.
fn kernel<R: Real>(filter: Filter, x: R) -> R {
    let x = x.abs();
    match filter {
        Filter::Linear if x < R::ONE => R::ONE - x,
        Filter::Cubic if x < R::ONE => inner(x, R::from_f64(-0.5)),
        Filter::Cubic if x < R::of(2) => outer(x, R::from_f64(-0.5)),
        Filter::Lanczos if x < R::of(3) => {
            let sinc =
                |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
            let x = x.to_f64();
            R::from_f64(sinc(x) * sinc(x / 3.0))
        }
        _ => R::ZERO,
    }
}

/// The one element each output takes, for taps that are no filter; those of the `gradient` of [`Taps::NearestExact`]
/// are rounded in another way, as in PyTorch's kernels.
pub(super) fn sources<R: Real>(taps: Taps, input: i64, output: i64, gradient: bool) -> Vec<u32> {
    let floor = |at: f32| (at.floor() as i64).min(input - 1);
    let at = |o: i64| match taps {
        Taps::Same | Taps::Filter { .. } => o,
        Taps::Nearest { shortcuts: true, .. } if output == input => o,
        Taps::Nearest { shortcuts: true, .. } if output == 2 * input => o / 2,
        Taps::Nearest { factor, shortcuts: true } => floor(o as f32 * scale::<f32>(input, output, false, factor)),
        Taps::Nearest { factor, .. } => floor((R::of(o) * scale::<R>(input, output, false, factor)).to_f64() as f32),
        Taps::NearestExact { factor } if gradient => {
            floor(((o as f64 + 0.5) * f64::from(scale::<f32>(input, output, false, factor))) as f32)
        }
        Taps::NearestExact { factor } => {
            let at = source(scale::<R>(input, output, false, factor), o, false, false) + R::from_f64(0.5);
            floor(at.to_f64() as f32)
        }
        Taps::Reflect { before } => {
            let at = (o - before).abs();
            if at >= input { 2 * (input - 1) - at } else { at }
        }
        Taps::Replicate { before } => (o - before).clamp(0, input - 1),
    };
    (0..output).map(|o| at(o).clamp(0, (input - 1).max(0)) as u32).collect()
}
