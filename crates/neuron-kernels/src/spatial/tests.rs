//! Against naive loops.

use super::*;
use crate::reduce::testing::{Rng, Tensor, assert_close, epsilon, run};
use crate::{Kernel, KernelError};
use neuron_ir::{BagMode, Blocks, DType, Divisor, Filter, Outside, Sampling, Taps, TensorType, Window};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

fn laid_out(rng: &mut Rng, dtype: DType, sizes: &[i64], last: bool) -> Tensor {
    let ty = TensorType::contiguous(dtype, sizes);
    Tensor::of(if last { channels_last(&ty) } else { ty }).randn(rng)
}

fn sizes(rng: &mut Rng, most: usize) -> Vec<i64> {
    let lanes = [1, 2, 17, 33][rng.below(4)];
    let mut sizes = vec![1 + rng.below(2) as i64, lanes];
    sizes.extend((0..3).map(|_| 1 + rng.below(most) as i64));
    sizes
}

/// Windows and the elements of each output, or `None` where there is no output.
fn window(rng: &mut Rng, input: i64, dilated: bool) -> Option<(Window, Vec<Vec<i64>>)> {
    if rng.below(4) == 0 {
        let output = 1 + rng.below(6) as i64;
        let all = (0..output).map(|o| (o * input / output..((o + 1) * input + output - 1) / output).collect());
        return Some((Window::Adaptive, all.collect()));
    }
    let [kernel, stride] = [0; 2].map(|_| 1 + rng.below(3) as i64);
    let padding = rng.below(kernel as usize / 2 + 1) as i64;
    let dilation = if dilated { 1 + rng.below(2) as i64 } else { 1 };
    let output = (input + 2 * padding - dilation * (kernel - 1) - 1).div_euclid(stride) + 1;
    let elements = |o: i64| {
        let all = (0..kernel).map(|k| o * stride - padding + k * dilation);
        all.filter(|i| *i >= 0 && *i < input).collect()
    };
    let window = Window::Strided { kernel, stride, padding, dilation };
    (output > 0).then(|| (window, (0..output).map(elements).collect()))
}

/// Row-major positions of the elements of each output of a plane.
fn elements(of: &[Vec<Vec<i64>>], size: &[i64]) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for d in &of[0] {
        for h in &of[1] {
            for w in &of[2] {
                let mut here = Vec::new();
                for d in d {
                    for h in h {
                        here.extend(w.iter().map(|w| ((d * size[1] + h) * size[2] + w) as usize));
                    }
                }
                all.push(here);
            }
        }
    }
    all
}

#[test]
fn pools_of_both_layouts() {
    let mut rng = Rng(1);
    let mut done = 0;
    while done < 150 {
        let mean = rng.below(2) == 0;
        let dtype = if mean { FLOATS[rng.below(4)] } else { DType::ALL[rng.below(8)] };
        let sizes = sizes(&mut rng, 24);
        let axes: Option<Vec<_>> = (2..5).map(|d| window(&mut rng, sizes[d], !mean)).collect();
        let Some(axes) = axes.filter(|a| a.iter().all(|(_, e)| e.iter().all(|e| !e.is_empty()))) else { continue };
        let windows: [Window; 3] = std::array::from_fn(|i| axes[i].0);
        let of: Vec<Vec<Vec<i64>>> = axes.into_iter().map(|a| a.1).collect();
        let last = rng.below(2) == 0;
        let mut x = laid_out(&mut rng, dtype, &sizes, last);
        if dtype.is_float() && !mean && rng.below(3) == 0 {
            let at = rng.below(x.ty.numel() as usize);
            x.set(at, f64::NAN);
        }
        let out_sizes: Vec<i64> = sizes[..2].iter().copied().chain(of.iter().map(|o| o.len() as i64)).collect();
        let mut values = laid_out(&mut rng, dtype, &out_sizes, last);
        let mut positions = laid_out(&mut rng, DType::I64, &out_sizes, last);
        if mean {
            let kernel = AvgPool::new(&x.ty, windows, Divisor::Existing, &values.ty).unwrap();
            run(&kernel, &mut [&mut x, &mut values]);
        } else {
            let kernel = MaxPool::new(&x.ty, windows, &values.ty, &positions.ty).unwrap();
            run(&kernel, &mut [&mut x, &mut values, &mut positions]);
        }
        let pixels: i64 = sizes[2..].iter().product();
        let outputs = elements(&of, &sizes[2..]);
        for i in 0..values.ty.numel() as usize {
            let plane = i / outputs.len() * pixels as usize;
            let here = &outputs[i % outputs.len()];
            if mean {
                let want = here.iter().map(|e| x.get(plane + e)).sum::<f64>() / here.len() as f64;
                assert_close(values.get(i), want, epsilon(dtype) * 2.0, "mean");
                continue;
            }
            let mut best = here[0];
            for &e in &here[1..] {
                let (v, b) = (x.get(plane + e), x.get(plane + best));
                if v > b || v.is_nan() {
                    best = e;
                }
            }
            assert_close(values.get(i), x.get(plane + best), 0.0, "maximum");
            assert_eq!(positions.get(i) as usize, best, "{windows:?} of {}", x.ty);
        }
        done += 1;
    }
}

/// `sum(a * b)`, which a linear kernel and its gradient agree upon.
fn product(a: &Tensor, b: &Tensor) -> f64 {
    a.values().iter().zip(b.values()).map(|(a, b)| a * b).sum()
}

#[test]
fn gradients_are_adjoint() {
    let mut rng = Rng(2);
    for case in 0..200 {
        let last = rng.below(2) == 0;
        let sizes = sizes(&mut rng, 9);
        let mut x = laid_out(&mut rng, DType::F64, &sizes, last);
        let mut grad_x = laid_out(&mut rng, DType::F64, &sizes, last);
        let mut out_sizes = sizes.clone();
        let (mut out, mut grad);
        if case % 3 == 0 {
            let axes: Option<Vec<_>> = (2..5).map(|d| window(&mut rng, sizes[d], false)).collect();
            let Some(axes) = axes else { continue };
            (0..3).for_each(|i| out_sizes[i + 2] = axes[i].1.len() as i64);
            let windows: [Window; 3] = std::array::from_fn(|i| axes[i].0);
            let divisor = [Divisor::Existing, Divisor::Padded, Divisor::Extents, Divisor::Fixed(3)][rng.below(4)];
            (out, grad) =
                (laid_out(&mut rng, DType::F64, &out_sizes, last), laid_out(&mut rng, DType::F64, &out_sizes, last));
            run(&AvgPool::new(&x.ty, windows, divisor, &out.ty).unwrap(), &mut [&mut x, &mut out]);
            let backward = AvgPoolBackward::new(&grad.ty, windows, divisor, &x.ty).unwrap();
            run(&backward, &mut [&mut grad, &mut grad_x]);
        } else {
            let pads = case % 3 == 1;
            let taps: [Taps; 3] = std::array::from_fn(|i| {
                let size = sizes[i + 2];
                if pads {
                    let before = rng.below(size as usize) as i64;
                    out_sizes[i + 2] = before + size + rng.below(size as usize) as i64;
                    return if rng.below(2) == 0 { Taps::Reflect { before } } else { Taps::Replicate { before } };
                }
                out_sizes[i + 2] = 1 + rng.below(20) as i64;
                let antialias = rng.below(2) == 0;
                let filter = [Filter::Linear, Filter::Cubic, Filter::Lanczos][rng.below(2 + usize::from(antialias))];
                Taps::Filter { filter, align_corners: rng.below(2) == 0, factor: None, antialias }
            });
            (out, grad) =
                (laid_out(&mut rng, DType::F64, &out_sizes, last), laid_out(&mut rng, DType::F64, &out_sizes, last));
            let (forward, backward): (Box<dyn Kernel>, Box<dyn Kernel>) = if pads {
                let forward = Pick::new(&x.ty, taps, &out.ty).unwrap();
                (Box::new(forward), Box::new(PickBackward::new(&grad.ty, taps, &x.ty).unwrap()))
            } else {
                let forward = Resample::new(&x.ty, taps, false, &out.ty).unwrap();
                (Box::new(forward), Box::new(Resample::new(&grad.ty, taps, true, &x.ty).unwrap()))
            };
            run(&*forward, &mut [&mut x, &mut out]);
            run(&*backward, &mut [&mut grad, &mut grad_x]);
        }
        assert_close(product(&out, &grad), product(&x, &grad_x), 1e-9, "gradient");
    }
}

#[test]
fn interpolation_keeps_constants_and_lines() {
    let mut rng = Rng(3);
    for dtype in FLOATS {
        for last in [false, true] {
            let taps = |filter| {
                let axis = Taps::Filter { filter, align_corners: true, factor: None, antialias: false };
                [axis; 3]
            };
            let ty = |sizes: &[i64]| laid_out(&mut Rng(0), dtype, sizes, last);
            for filter in [Filter::Linear, Filter::Cubic] {
                let mut x = ty(&[2, 3, 2, 4, 9]);
                (0..x.ty.numel() as usize).for_each(|i| x.set(i, (i % 9) as f64));
                let mut out = ty(&[2, 3, 3, 7, 17]);
                run(&Resample::new(&x.ty, taps(filter), false, &out.ty).unwrap(), &mut [&mut x, &mut out]);
                for i in 0..out.ty.numel() as usize {
                    // Cubic filters see the edge repeated, so lines are kept inside only.
                    let at = (i % 17) as f64 / 2.0;
                    if filter == Filter::Linear || (2.0..=6.0).contains(&at) {
                        assert_close(out.get(i), at, epsilon(dtype) * 2.0, "line");
                    }
                }
            }
        }
    }
    let mut x = laid_out(&mut rng, DType::U8, &[1, 2, 1, 3, 5], false);
    let mut out = laid_out(&mut rng, DType::U8, &[1, 2, 1, 6, 10], false);
    let nearest = Taps::Nearest { factor: None, shortcuts: true };
    run(&Pick::new(&x.ty, [Taps::Same, nearest, nearest], &out.ty).unwrap(), &mut [&mut x, &mut out]);
    for i in 0..out.ty.numel() as usize {
        assert_eq!(out.get(i), x.get(i / 60 * 15 + i % 60 / 20 * 5 + i % 10 / 2));
    }
}

#[test]
fn elements_go_to_positions() {
    for last in [false, true] {
        for accumulate in [false, true] {
            let mut x = laid_out(&mut Rng(4), DType::F32, &[2, 40, 1, 2, 2], last);
            let mut at = laid_out(&mut Rng(5), DType::I64, &[2, 40, 1, 2, 2], last);
            (0..at.ty.numel() as usize).for_each(|i| at.set(i, [4.0, 1.0, 4.0, 8.0][i % 4]));
            let mut out = laid_out(&mut Rng(6), DType::F32, &[2, 40, 1, 3, 3], last);
            let kernel = ToPositions::new(&x.ty, &at.ty, accumulate, &out.ty).unwrap();
            run(&kernel, &mut [&mut x, &mut at, &mut out]);
            for plane in 0..80 {
                let v = |i: usize| x.get(plane * 4 + i);
                let four = if accumulate { v(0) + v(2) } else { v(2) };
                for (i, want) in [0.0, v(1), 0.0, 0.0, four, 0.0, 0.0, 0.0, v(3)].into_iter().enumerate() {
                    assert_close(out.get(plane * 9 + i), want, 1e-6, "element");
                }
            }
            at.set(7, 9.0);
            let buffers = [x.address(), at.address(), out.address()];
            // SAFETY: the tensors that the kernel was made for.
            let result = unsafe { kernel.run(&buffers, &[]) };
            assert!(matches!(result, Err(KernelError::InvalidValue(_))));
        }
    }
}

#[test]
fn blocks_unfold_and_fold() {
    let mut rng = Rng(7);
    for _ in 0..100 {
        let mut two = |n: usize, least: i64| [0; 2].map(|_| least + rng.below(n) as i64);
        let blocks = Blocks { kernel: two(3, 1), stride: two(3, 1), padding: two(3, 0), dilation: two(2, 1) };
        let size = two(8, 5);
        let counts: [i64; 2] = std::array::from_fn(|i| {
            let reach = blocks.dilation[i] * (blocks.kernel[i] - 1) + 1;
            (size[i] + 2 * blocks.padding[i] - reach) / blocks.stride[i] + 1
        });
        let [kh, kw] = blocks.kernel;
        let mut x = laid_out(&mut rng, DType::F64, &[2, 3, size[0], size[1]], false);
        let columns = [2, 3 * kh * kw, counts[0] * counts[1]];
        let mut out = Tensor::of(TensorType::contiguous(DType::F64, &columns));
        run(&Unfold::new(&x.ty, blocks, &out.ty).unwrap(), &mut [&mut x, &mut out]);
        let mut i = 0;
        for plane in 0..6 {
            for tap in 0..kh * kw {
                for o in 0..counts[0] * counts[1] {
                    let (o, k) = ([o / counts[1], o % counts[1]], [tap / kw, tap % kw]);
                    let at: [i64; 2] = std::array::from_fn(|i| {
                        o[i] * blocks.stride[i] - blocks.padding[i] + k[i] * blocks.dilation[i]
                    });
                    let inside = (0..2).all(|i| at[i] >= 0 && at[i] < size[i]);
                    let from = plane * size[0] * size[1] + at[0] * size[1] + at[1];
                    assert_eq!(out.get(i), if inside { x.get(from as usize) } else { 0.0 });
                    i += 1;
                }
            }
        }
        let mut grad = Tensor::of(out.ty.clone()).randn(&mut rng);
        let mut folded = Tensor::of(x.ty.clone());
        run(&Fold::new(&grad.ty, blocks, &x.ty).unwrap(), &mut [&mut grad, &mut folded]);
        assert_close(product(&out, &grad), product(&x, &folded), 1e-9, "fold");
    }
}

#[test]
fn gradients_of_samples() {
    let mut rng = Rng(8);
    for case in 0..60 {
        let dims = 2 + case % 2;
        let sampling = [Sampling::Linear, Sampling::Nearest, Sampling::Cubic][rng.below(5 - dims)];
        let outside = [Outside::Zeros, Outside::Border, Outside::Reflection][rng.below(3)];
        let align = rng.below(2) == 0;
        let depth = if dims == 3 { 4 } else { 1 };
        let mut x = laid_out(&mut rng, DType::F64, &[2, 3, depth, 5, 6], false);
        let mut grid = Tensor::of(TensorType::contiguous(DType::F64, &[2, 1, 3, 4, dims as i64])).randn(&mut rng);
        let mut out = laid_out(&mut rng, DType::F64, &[2, 3, 1, 3, 4], false);
        let mut grad = laid_out(&mut rng, DType::F64, &[2, 3, 1, 3, 4], false);
        let (mut grad_x, mut grad_grid) = (Tensor::of(x.ty.clone()), Tensor::of(grid.ty.clone()));
        let forward = GridSample::new(&x.ty, &grid.ty, sampling, outside, align, &out.ty).unwrap();
        let backward = GridSampleBackward::new(&grad.ty, &x.ty, &grid.ty, sampling, outside, align).unwrap();
        run(&forward, &mut [&mut x, &mut grid, &mut out]);
        run(&backward, &mut [&mut grad, &mut x, &mut grid, &mut grad_x, &mut grad_grid]);
        assert_close(product(&out, &grad), product(&x, &grad_x), 1e-9, "gradient of the input");
        let before = product(&out, &grad);
        let (at, step) = (rng.below(grid.ty.numel() as usize), 1e-7);
        grid.set(at, grid.get(at) + step);
        run(&forward, &mut [&mut x, &mut grid, &mut out]);
        let slope = (product(&out, &grad) - before) / step;
        assert_close(grad_grid.get(at), slope, 1e-5, &format!("{sampling:?} {outside:?} {align} of {dims}"));
    }
}

#[test]
fn bags_of_rows() {
    let mut rng = Rng(9);
    for case in 0..60 {
        let mode = [BagMode::Sum, BagMode::Mean, BagMode::Max][case % 3];
        let include = rng.below(2) == 0;
        let padding = rng.below(3) as i64 - 1;
        let starts = [0.0, 3.0, 3.0, 10.0];
        let bags = starts.len();
        let count = 17;
        let mut table = Tensor::of(TensorType::contiguous(DType::F64, &[5, 70])).randn(&mut rng);
        let mut index = Tensor::of(TensorType::contiguous(DType::I64, &[count])).fill(|| rng.below(5) as f64);
        let offsets = bags as i64 + i64::from(include);
        let mut offsets = Tensor::of(TensorType::contiguous(DType::I64, &[offsets]));
        starts.iter().enumerate().for_each(|(i, v)| offsets.set(i, *v));
        if include {
            offsets.set(bags, count as f64);
        }
        let mut out = Tensor::of(TensorType::contiguous(DType::F64, &[bags as i64, 70]));
        let mut bag_of = Tensor::of(index.ty.clone());
        let mut size = Tensor::of(offsets.ty.clone());
        let mut from = Tensor::of(TensorType::contiguous(DType::I64, &[bags as i64, 70]));
        let kernel =
            EmbeddingBag::new(&table.ty, &index.ty, &offsets.ty, None, mode, include, padding, &out.ty).unwrap();
        let mut tensors = [&mut table, &mut index, &mut offsets, &mut out, &mut bag_of, &mut size, &mut from];
        run(&kernel, &mut tensors);
        for bag in 0..bags {
            let end = if bag + 1 < bags { starts[bag + 1] as usize } else { count as usize };
            let rows: Vec<usize> = (starts[bag] as usize..end)
                .inspect(|i| assert_eq!(bag_of.get(*i), bag as f64))
                .map(|i| index.get(i) as usize)
                .filter(|r| *r as i64 != padding)
                .collect();
            assert_eq!(size.get(bag), rows.len() as f64);
            for c in 0..70 {
                let values = rows.iter().map(|r| table.get(r * 70 + c));
                let want = match mode {
                    BagMode::Sum => values.sum(),
                    BagMode::Mean => values.sum::<f64>() / rows.len().max(1) as f64,
                    BagMode::Max => values.reduce(f64::max).unwrap_or(0.0),
                };
                assert_close(out.get(bag * 70 + c), want, 1e-12, "bag");
            }
        }
        index.set(4, 5.0);
        let buffers =
            [&mut table, &mut index, &mut offsets, &mut out, &mut bag_of, &mut size, &mut from].map(|t| t.address());
        // SAFETY: the tensors that the kernel was made for.
        let result = unsafe { kernel.run(&buffers, &[]) };
        assert!(matches!(result, Err(KernelError::InvalidValue(_))));
    }
}
