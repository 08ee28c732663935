//! Pooling, sliding blocks, and what else there is of windows and planes.

use super::index::scatter_into;
use super::pointwise::convert;
use super::resample;
use super::sampling::{Options, embedding_bag, grid_sample, grid_sample_backward};
use super::text::{El, Text, V, WindowDim};
use super::{Call, Written, reasons};
use crate::{Blocks, DType, Divisor, ReduceOp, Scalar, ScatterOp, SpatialOp, Window};

pub(super) fn write(t: &mut Text, c: &Call, op: &SpatialOp) -> Written {
    let to = &c.result().sizes;
    if c.result().numel() == 0 || c.args[0].numel() == 0 {
        return match op {
            SpatialOp::EmbeddingBag { .. } => Err(reasons::EMPTY_WINDOWS),
            SpatialOp::MaxPool { .. } | SpatialOp::FractionalMaxPool { .. } if c.result().numel() > 0 => {
                Err(reasons::EMPTY_WINDOWS)
            }
            _ => Ok(c.node.results.iter().map(|r| t.splat(r.dtype.into(), &r.sizes, Scalar::I64(0))).collect()),
        };
    }
    match op {
        SpatialOp::MaxPool { windows } => Ok(max_pool(t, &c.args[0], windows, to)),
        SpatialOp::ToPositions { accumulate } => {
            let (x, at) = (&c.args[0], &c.args[1]);
            let planes = to[0] * to[1];
            let (inner, outer) = (x.numel() / planes, c.result().numel() / planes);
            let (x, at) = (t.reshape(x, &[planes, inner]), t.reshape(at, &[planes, inner]));
            let zero = t.splat(x.el, &[planes, outer], Scalar::I64(0));
            let op = if *accumulate { ScatterOp::Add } else { ScatterOp::Set };
            Ok(vec![scatter_into(t, &zero, &at, &x, 1, op)])
        }
        SpatialOp::AvgPool { windows, divisor } => {
            let mut x = c.wide(t, 0);
            for (d, window) in windows.iter().enumerate().rev() {
                x = along(t, &[x], &[Scalar::I64(0)], d + 2, *window, to[d + 2], add).remove(0);
            }
            Ok(vec![divided(t, &x, windows, &c.args[0].dims, to, *divisor)])
        }
        SpatialOp::AvgPoolBackward { windows, divisor } => {
            let grad = c.wide(t, 0);
            let from = grad.dims.clone();
            let mut g = divided(t, &grad, windows, to, &from, *divisor);
            for (d, window) in windows.iter().enumerate() {
                g = spread(t, &g, d + 2, *window, to[d + 2]);
            }
            Ok(vec![g])
        }
        SpatialOp::Resample { taps } => {
            let mut x = c.wide(t, 0);
            for (d, taps) in taps.iter().enumerate().rev() {
                x = resample::forward(t, &x, d + 2, *taps, to[d + 2]);
            }
            Ok(vec![x])
        }
        SpatialOp::ResampleBackward { taps } => {
            let mut g = c.wide(t, 0);
            for (d, taps) in taps.iter().enumerate() {
                g = resample::backward(t, &g, d + 2, *taps, to[d + 2]);
            }
            Ok(vec![g])
        }
        SpatialOp::Unfold(blocks) => Ok(vec![unfold(t, &c.args[0], blocks, to)]),
        SpatialOp::Fold(blocks) => {
            let x = c.wide(t, 0);
            Ok(vec![fold(t, &x, blocks, to)])
        }
        SpatialOp::FractionalMaxPool { kernel } => Ok(fractional_max_pool(t, &c.args[0], &c.args[1], *kernel, to)),
        SpatialOp::GridSample { sampling, outside, align_corners } => {
            let options = Options { sampling: *sampling, outside: *outside, align_corners: *align_corners };
            Ok(vec![grid_sample(t, &c.args[0], &c.args[1], options)])
        }
        SpatialOp::GridSampleBackward { sampling, outside, align_corners } => {
            let options = Options { sampling: *sampling, outside: *outside, align_corners: *align_corners };
            Ok(grid_sample_backward(t, &c.args[0], &c.args[1], &c.args[2], options))
        }
        SpatialOp::EmbeddingBag { mode, include_last_offset, padding, weights } => {
            embedding_bag(t, c, *mode, *include_last_offset, *padding, *weights)
        }
    }
}

fn add(t: &mut Text, x: &[V], y: &[V]) -> Vec<V> {
    vec![t.add(&x[0], &y[0])]
}

/// Where a window starts, ends and, with padding, ends, in elements of the input that exist.
struct Span {
    start: i64,
    end: i64,
    padded: i64,
}

fn spans(window: Window, input: i64, output: i64) -> Vec<Span> {
    (0..output)
        .map(|o| match window {
            Window::Adaptive => {
                let (start, end) = (o * input / output, ((o + 1) * input + output - 1) / output);
                Span { start, end, padded: end - start }
            }
            Window::Strided { kernel, stride, padding, dilation } => {
                let from = o * stride - padding;
                let end = (from + (kernel - 1) * dilation + 1).min(input);
                Span { start: from.max(0), end, padded: (from + kernel).min(input + padding) - from }
            }
        })
        .collect()
}

/// Adaptive windows that are all alike as what they are.
fn plain(window: Window, input: i64, output: i64) -> Window {
    match window {
        Window::Adaptive if output > 0 && input % output == 0 => {
            Window::Strided { kernel: input / output, stride: input / output, padding: 0, dilation: 1 }
        }
        other => other,
    }
}

/// Windows of one dimension reduced, `output` of them.
fn along(
    t: &mut Text,
    values: &[V],
    inits: &[Scalar],
    dim: usize,
    window: Window,
    output: i64,
    combine: impl FnOnce(&mut Text, &[V], &[V]) -> Vec<V>,
) -> Vec<V> {
    let input = values[0].dims[dim];
    match plain(window, input, output) {
        Window::Strided { kernel: 1, stride: 1, padding: 0, .. } if input == output => values.to_vec(),
        Window::Strided { kernel, stride, padding, dilation } => {
            let reach = (kernel - 1) * dilation + 1;
            let high = (output - 1) * stride + reach - input - padding;
            let mut windows = vec![WindowDim::ONE; values[0].rank()];
            windows[dim] =
                WindowDim { size: kernel, stride, dilation, base_dilation: 1, low: padding, high: high.max(0) };
            let values: Vec<&V> = values.iter().collect();
            let out = t.reduce_window(&values, inits, &windows, combine);
            out.iter().map(|v| t.slice(v, dim, 0, output, 1)).collect()
        }
        Window::Adaptive => masked(t, values, inits, dim, &spans(window, input, output), combine),
    }
}

/// Each output from all inputs, those outside of its window being neutral.
fn masked(
    t: &mut Text,
    values: &[V],
    inits: &[Scalar],
    dim: usize,
    spans: &[Span],
    combine: impl FnOnce(&mut Text, &[V], &[V]) -> Vec<V>,
) -> Vec<V> {
    let mut dims = values[0].dims.clone();
    dims.insert(dim, spans.len() as i64);
    let inside = inside(t, spans, &dims, dim, dim + 1);
    reduced(t, values, inits, dim, &inside, combine)
}

/// Inputs along `dim` reduced for each output, which comes before them in the mask.
fn reduced(
    t: &mut Text,
    values: &[V],
    inits: &[Scalar],
    dim: usize,
    inside: &V,
    combine: impl FnOnce(&mut Text, &[V], &[V]) -> Vec<V>,
) -> Vec<V> {
    let dims = &inside.dims;
    let over: Vec<i64> = (0..values[0].rank()).map(|d| if d < dim { d } else { d + 1 } as i64).collect();
    let kept: Vec<V> = values
        .iter()
        .zip(inits)
        .map(|(v, init)| {
            let wide = t.broadcast_in(v, &over, dims);
            let neutral = t.splat(v.el, dims, *init);
            t.select(inside, &wide, &neutral)
        })
        .collect();
    let kept: Vec<&V> = kept.iter().collect();
    t.reduce_together(&kept, inits, dim + 1, combine)
}

/// True where the position along `inner` is in the span of the window along `outer`.
fn inside(t: &mut Text, spans: &[Span], dims: &[i64], outer: usize, inner: usize) -> V {
    let mut row = |f: fn(&Span) -> i64| {
        let values: Vec<Scalar> = spans.iter().map(|s| Scalar::I64(f(s))).collect();
        let row = t.row(El::I64, &values);
        t.broadcast_in(&row, &[outer as i64], dims)
    };
    let (start, end) = (row(|s| s.start), row(|s| s.end));
    let position = t.iota(El::I64, dims, inner);
    let (from, until) = (t.compare("GE", &position, &start), t.compare("LT", &position, &end));
    t.and(&from, &until)
}

/// The gradient of a sum over windows of one dimension: each input gets all windows that hold it.
fn spread(t: &mut Text, g: &V, dim: usize, window: Window, input: i64) -> V {
    let output = g.dims[dim];
    match plain(window, input, output) {
        Window::Strided { kernel: 1, stride: 1, padding: 0, .. } if input == output => g.clone(),
        Window::Strided { kernel, stride, padding, .. } => {
            let low = kernel - 1 - padding;
            let high = input - (output - 1) * stride - 1 - low + kernel - 1;
            let mut windows = vec![WindowDim::ONE; g.rank()];
            windows[dim] =
                WindowDim { size: kernel, stride: 1, dilation: 1, base_dilation: stride, low, high: high.max(0) };
            let out = t.reduce_window(&[g], &[Scalar::I64(0)], &windows, add).remove(0);
            t.slice(&out, dim, 0, input, 1)
        }
        Window::Adaptive => {
            let spans = spans(window, input, output);
            let mut dims = g.dims.clone();
            dims.insert(dim + 1, input);
            let inside = inside(t, &spans, &dims, dim, dim + 1);
            let over: Vec<i64> = (0..g.rank()).map(|d| if d <= dim { d } else { d + 1 } as i64).collect();
            let wide = t.broadcast_in(g, &over, &dims);
            let kept = t.select_num(&inside, &wide, 0.0);
            t.reduce("add", &kept, Scalar::I64(0), &[dim as i64])
        }
    }
}

/// Sums over windows, or their gradients, divided by what the windows count.
fn divided(t: &mut Text, x: &V, windows: &[Window; 3], input: &[i64], output: &[i64], divisor: Divisor) -> V {
    let counts = |d: usize| -> Vec<Scalar> {
        spans(windows[d], input[d + 2], output[d + 2])
            .iter()
            .map(|s| Scalar::I64(if divisor == Divisor::Padded { s.padded } else { s.end - s.start }))
            .collect()
    };
    if let Divisor::Fixed(n) = divisor {
        return t.bin_num("divide", x, n as f64);
    }
    let each: Vec<V> = (0..3)
        .map(|d| {
            let row = t.row(x.el, &counts(d));
            t.broadcast_in(&row, &[d as i64 + 2], &x.dims)
        })
        .collect();
    if divisor == Divisor::Extents {
        return each.iter().fold(x.clone(), |x, count| t.div(&x, count));
    }
    let product = t.mul(&each[0], &each[1]);
    let product = t.mul(&product, &each[2]);
    t.div(x, &product)
}

/// The first largest element of each window, or the last NaN, and its position in the plane.
fn max_pool(t: &mut Text, x: &V, windows: &[Window; 3], to: &[i64]) -> Vec<V> {
    let el = x.el;
    let (mut pair, inits) = elements(t, x);
    for (d, window) in windows.iter().enumerate().rev() {
        pair = along(t, &pair, &inits, d + 2, *window, to[d + 2], larger);
    }
    pair[0] = t.convert(&pair[0], el);
    pair
}

/// Elements in their compute type with positions in their plane, and what is below all of them.
fn elements(t: &mut Text, x: &V) -> (Vec<V>, [Scalar; 2]) {
    let x = t.convert(x, x.el.compute());
    let plane = [1, 1, x.dims[2], x.dims[3], x.dims[4]];
    let position = t.iota(El::I64, &[plane.iter().product()], 0);
    let position = t.reshape(&position, &plane);
    let position = t.broadcast(&position, &x.dims);
    let (_, lowest) = super::reduce::combine(ReduceOp::Max, x.el);
    (vec![x, position], [lowest, Scalar::I64(i64::MAX)])
}

/// The larger of two elements: the first of equal ones, the last NaN.
fn larger(t: &mut Text, x: &[V], y: &[V]) -> Vec<V> {
    let better = t.compare("GT", &y[0], &x[0]);
    let equal = t.compare("EQ", &y[0], &x[0]);
    let earlier = t.compare("LT", &y[1], &x[1]);
    let tied = t.and(&equal, &earlier);
    let mut take = t.or(&better, &tied);
    if x[0].el.is_float() {
        let (x_nan, y_nan) = (t.is_nan(&x[0]), t.is_nan(&y[0]));
        let number = t.not(&x_nan);
        let later = t.not(&earlier);
        let last = t.or(&number, &later);
        let last = t.and(&y_nan, &last);
        take = t.or(&take, &last);
    }
    vec![t.select(&take, &y[0], &x[0]), t.select(&take, &y[1], &x[1])]
}

/// As [`max_pool`], of windows that samples place. Half floats are rounded at every step.
fn fractional_max_pool(t: &mut Text, x: &V, samples: &V, kernel: [i64; 3], to: &[i64]) -> Vec<V> {
    let (el, dims) = (x.el, samples.dims[2] as usize);
    let (mut pair, inits) = elements(t, x);
    for d in (0..3).rev() {
        let (input, output, kernel) = (x.dims[d + 2], to[d + 2], kernel[d]);
        let shape = [x.dims[0], x.dims[1], output];
        // Of volumes depth first, of planes width first.
        let column = match (dims, d) {
            (3, _) => Some(d),
            (_, 0) => None,
            _ => Some(2 - d),
        };
        let number = t.iota(El::I64, &shape, 2);
        let mut start = t.like_int(&number, 0);
        if let Some(column) = column {
            if output > 1 {
                let sample = t.slice(samples, 2, column as i64, 1, 1);
                let sample = t.reshape(&sample, &shape[..2]);
                let sample = t.broadcast_in(&sample, &[0, 1], &shape);
                let alpha = (input - kernel) as f64 / (output - 1) as f64;
                let offset = t.bin_num("multiply", &sample, alpha);
                let offset = convert(t, &offset, DType::I64);
                let at = t.convert(&number, el);
                let at = t.add(&at, &sample);
                let at = t.bin_num("multiply", &at, alpha);
                let at = convert(t, &at, DType::I64);
                let at = t.sub(&at, &offset);
                let at = t.bin("maximum", &at, &start);
                let most = t.like_int(&at, input - kernel);
                start = t.bin("minimum", &at, &most);
            }
            let last = t.compare_int("EQ", &number, output - 1);
            let end = t.like_int(&start, input - kernel);
            start = t.select(&last, &end, &start);
        }
        let mut wide = pair[0].dims.clone();
        wide.insert(d + 2, output);
        let start = t.broadcast_in(&start, &[0, 1, d as i64 + 2], &wide);
        let end = t.bin_int("add", &start, kernel);
        let position = t.iota(El::I64, &wide, d + 3);
        let (from, until) = (t.compare("GE", &position, &start), t.compare("LT", &position, &end));
        let inside = t.and(&from, &until);
        pair = reduced(t, &pair, &inits, d + 2, &inside, larger);
    }
    pair[0] = t.convert(&pair[0], el);
    pair
}

/// How many blocks there are along height and width.
fn blocks_of(b: &Blocks, extents: [i64; 2]) -> [i64; 2] {
    [0, 1].map(|d| (extents[d] + 2 * b.padding[d] - (b.kernel[d] - 1) * b.dilation[d] - 1) / b.stride[d] + 1)
}

fn unfold(t: &mut Text, x: &V, b: &Blocks, to: &[i64]) -> V {
    let [n, c, h, w] = x.dims[..] else { unreachable!("four dimensions") };
    let count = blocks_of(b, [h, w]);
    let around = [0, 0, b.padding[0], b.padding[1]];
    let padded = t.pad(x, 0.0, &around, &around, &[0; 4]);
    let mut parts = Vec::new();
    for i in 0..b.kernel[0] {
        for j in 0..b.kernel[1] {
            let part = t.slice(&padded, 2, i * b.dilation[0], count[0], b.stride[0]);
            let part = t.slice(&part, 3, j * b.dilation[1], count[1], b.stride[1]);
            parts.push(t.reshape(&part, &[n, c, 1, count[0] * count[1]]));
        }
    }
    let parts: Vec<&V> = parts.iter().collect();
    let all = t.concat(&parts, 2);
    t.reshape(&all, to)
}

fn fold(t: &mut Text, x: &V, b: &Blocks, to: &[i64]) -> V {
    let [n, c, h, w] = to[..] else { unreachable!("four dimensions") };
    let count = blocks_of(b, [h, w]);
    let x = t.reshape(x, &[n, c, b.kernel[0] * b.kernel[1], count[0], count[1]]);
    let mut sum = t.splat(x.el, to, Scalar::I64(0));
    for i in 0..b.kernel[0] {
        for j in 0..b.kernel[1] {
            let part = t.slice(&x, 2, i * b.kernel[1] + j, 1, 1);
            let part = t.reshape(&part, &[n, c, count[0], count[1]]);
            let low = [i * b.dilation[0] - b.padding[0], j * b.dilation[1] - b.padding[1]];
            let high = [0, 1].map(|d| to[d + 2] - low[d] - (count[d] - 1) * b.stride[d] - 1);
            let part = t.pad(
                &part,
                0.0,
                &[0, 0, low[0], low[1]],
                &[0, 0, high[0], high[1]],
                &[0, 0, b.stride[0] - 1, b.stride[1] - 1],
            );
            sum = t.add(&sum, &part);
        }
    }
    sum
}
