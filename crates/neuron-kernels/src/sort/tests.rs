use super::*;
use crate::index::reference::{Cases, Tensor, run};

/// Positions along `dim` in sorted order, by a comparison sort.
fn order(input: &Tensor, at: &[i64], dim: usize, descending: bool) -> Vec<i64> {
    let value = |j: i64| {
        let mut at = at.to_vec();
        if !at.is_empty() {
            at[dim] = j;
        }
        input.get(&at)
    };
    let mut positions: Vec<i64> = (0..input.tensor.sizes.get(dim).copied().unwrap_or(1)).collect();
    positions.sort_by(|a, b| if descending { value(*b).cmp(&value(*a)) } else { value(*a).cmp(&value(*b)) });
    positions
}

fn check(cases: &mut Cases, input: &Tensor, dim: usize, descending: bool, k: i64) {
    let mut sizes = input.tensor.sizes.to_vec();
    if !sizes.is_empty() {
        sizes[dim] = k;
    }
    let values = cases.tensor(input.tensor.dtype, &sizes, |_| 1);
    let indices = cases.tensor(DType::I64, &sizes, |_| 7);
    let kernel = Sort::new(&input.tensor, dim, descending, k, &values.tensor, &indices.tensor).unwrap();
    run(&kernel, &[input, &values, &indices], &[]).unwrap();
    let mut lines = std::collections::HashMap::new();
    for at in values.coordinates() {
        let mut line = at.clone();
        let place = if line.is_empty() { 0 } else { std::mem::replace(&mut line[dim], 0) as usize };
        let order = lines.entry(line.clone()).or_insert_with(|| order(input, &line, dim, descending));
        let mut from = at.clone();
        if !from.is_empty() {
            from[dim] = order[place];
        }
        assert_eq!(indices.get(&at), order[place], "{kernel:?} at {at:?}");
        assert_eq!(values.get(&at), input.get(&from), "{kernel:?} at {at:?}");
    }
}

#[test]
fn lines_are_sorted_stably_in_any_layout() {
    let mut cases = Cases::new(21);
    for case in 0..400 {
        let rank = cases.below(4);
        let mut sizes: Vec<i64> = (0..rank).map(|_| cases.pick(&[1, 2, 3, 7, 20])).collect();
        let dim = cases.below(rank.max(1)) as usize;
        if rank > 0 && case % 4 == 0 {
            sizes[dim] = cases.pick(&[0, 1, 255, 300, 700]);
        }
        let size = sizes.get(dim).copied().unwrap_or(1);
        let dtype = cases.pick(&DType::ALL);
        let (low, high) = match dtype {
            DType::Bool => (0, 2),
            DType::U8 => (0, 200),
            _ => (-60, 60),
        };
        let input = cases.tensor(dtype, &sizes, |c| low + c.below(high - low));
        let k = if rank == 0 || cases.below(2) == 0 { size } else { cases.below(size + 1) };
        let descending = cases.below(2) == 0;
        check(&mut cases, &input, dim, descending, k);
    }
}

#[test]
fn wide_values_and_long_lines() {
    let mut cases = Cases::new(22);
    for dtype in [DType::I64, DType::F64, DType::I32, DType::F32] {
        let n = 2 * CHUNK as i64 + 5;
        let input = cases.tensor(dtype, &[n], |c| c.below(1 << 22) - (1 << 21));
        for (descending, k) in [(false, n), (true, n), (true, 50), (false, n / 2), (true, n / 5)] {
            check(&mut cases, &input, 0, descending, k);
        }
    }
}

#[test]
fn transposed_lines_are_staged() {
    let mut cases = Cases::new(23);
    for dtype in [DType::F32, DType::I64, DType::U8] {
        let input = cases.strided(TensorType::contiguous(dtype, &[400, 67]), |c| c.below(100));
        check(&mut cases, &input, 0, false, 400);
        check(&mut cases, &input, 0, true, 9);
    }
}

#[test]
fn wide_integers_of_any_range() {
    let mut cases = Cases::new(24);
    for bits in [0, 1, 9, 31, 32, 33, 45, 62] {
        for n in [5, 300, 3000] {
            // Around a base far from zero.
            let input = cases
                .tensor(DType::I64, &[n], |c| (c.below(1 << 31) << 31 | c.below(1 << 31)) % (1i64 << bits) - (1 << 61));
            for (descending, k) in [(false, n), (true, n), (true, 2)] {
                check(&mut cases, &input, 0, descending, k);
            }
        }
    }
    let extremes = [i64::MAX, i64::MIN, 0, -1, i64::MAX, i64::MIN];
    let mut next = extremes.into_iter().cycle();
    let input = cases.tensor(DType::I64, &[600], |_| next.next().unwrap_or(0));
    check(&mut cases, &input, 0, true, 600);
}

fn sort_floats(input: &[f32], descending: bool, k: usize) -> (Vec<f32>, Vec<i64>) {
    let (n, m) = (input.len() as i64, k as i64);
    let f32 = |n| TensorType::contiguous(DType::F32, &[n]);
    let kernel = Sort::new(&f32(n), 0, descending, m, &f32(m), &TensorType::contiguous(DType::I64, &[m])).unwrap();
    let (mut values, mut indices) = (vec![0f32; k], vec![0i64; k]);
    let buffers = [input.as_ptr() as *mut u8, values.as_mut_ptr().cast(), indices.as_mut_ptr().cast()];
    // SAFETY: buffers of the declared layouts.
    unsafe { kernel.run(&buffers, &[]).unwrap() };
    (values, indices)
}

#[test]
fn nan_is_largest_and_zeros_keep_their_signs() {
    let input = [0.0, f32::NAN, -0.0, f32::INFINITY, -f32::NAN, -1.0, 0.0];
    let (values, indices) = sort_floats(&input, false, 7);
    assert_eq!(indices, [5, 0, 2, 6, 3, 1, 4]);
    assert!(values[2].is_sign_negative() && values[5].is_nan() && values[6].is_nan());
    assert_eq!(sort_floats(&input, true, 7).1, [1, 4, 3, 0, 2, 6, 5]);
    let mut long = vec![0.0; 1000];
    long[700] = f32::NAN;
    long[300] = 1.0;
    assert_eq!(sort_floats(&long, true, 4).1, [700, 300, 0, 1]);
    assert_eq!(sort_floats(&long, false, 3).1, [0, 1, 2]);
}

#[test]
fn shapes_that_do_not_belong_together_are_refused() {
    let f32 = |sizes: &[i64]| TensorType::contiguous(DType::F32, sizes);
    let i64 = |sizes: &[i64]| TensorType::contiguous(DType::I64, sizes);
    assert!(Sort::new(&f32(&[3, 4]), 1, false, 5, &f32(&[3, 5]), &i64(&[3, 5])).is_err());
    assert!(Sort::new(&f32(&[3, 4]), 1, false, 4, &f32(&[3, 4]), &f32(&[3, 4])).is_err());
    assert!(Sort::new(&f32(&[3, 4]), 2, false, 4, &f32(&[3, 4]), &i64(&[3, 4])).is_err());
}
