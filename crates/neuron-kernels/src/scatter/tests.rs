use super::*;
use crate::embedding::EmbeddingBackward;
use crate::index::reference::{Cases, Tensor, run};
use crate::kernel::KernelError;
use neuron_ir::{DType, Scalar, ScatterOp, TensorType};

const INDICES: [DType; 2] = [DType::I64, DType::I32];

fn sizes(cases: &mut Cases, rank: i64) -> Vec<i64> {
    (0..rank).map(|_| cases.pick(&[1, 2, 3, 5, 9])).collect()
}

fn combine(op: ScatterOp, dtype: DType, old: i64, update: i64) -> i64 {
    let value = match op {
        ScatterOp::Set => update,
        ScatterOp::Add => old + update,
        ScatterOp::Prod => old * update,
        ScatterOp::Max => old.max(update),
        ScatterOp::Min => old.min(update),
    };
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::Bool => i64::from(value != 0),
        _ => value,
    }
}

#[test]
fn scatter_combines_in_index_order() {
    let mut cases = Cases::new(11);
    for case in 0..1000 {
        let rank = cases.below(4);
        let dim = cases.below(rank.max(1)) as usize;
        let out_sizes = sizes(&mut cases, rank);
        let op = cases.pick(&[ScatterOp::Set, ScatterOp::Add, ScatterOp::Prod, ScatterOp::Max, ScatterOp::Min]);
        let dtype = cases.pick(&DType::ALL);
        let index_sizes: Vec<i64> =
            (0..rank as usize).map(|d| if d == dim { cases.below(8) } else { 1 + cases.below(out_sizes[d]) }).collect();
        let size = out_sizes.get(dim).copied().unwrap_or(1);
        // Products must stay exact in the half floats.
        let (range, factor) = if op == ScatterOp::Prod { (2, 2) } else { (12, 12) };
        let index_type = cases.pick(&INDICES);
        let index = cases.tensor(index_type, &index_sizes, |c| c.below(size));
        let updates = if cases.below(4) == 0 {
            let zeros = vec![0; rank as usize];
            cases.strided(TensorType::strided(dtype, &index_sizes, &zeros), |c| c.below(factor))
        } else {
            let larger: Vec<i64> = index_sizes.iter().map(|s| s + cases.below(2)).collect();
            cases.tensor(dtype, &larger, |c| c.below(factor))
        };
        let out = cases.tensor(dtype, &out_sizes, |c| 1 + c.below(range));
        let mut expected = out.clone();
        for at in index.coordinates() {
            let mut to = at.clone();
            if rank > 0 {
                to[dim] = index.get(&at);
            }
            let value = combine(op, dtype, expected.get(&to), updates.get(&at));
            expected.set(&to, value);
        }
        let kernel = Scatter::new(dim, op, &index.tensor, &updates.tensor, &out.tensor).unwrap();
        run(&kernel, &[&index, &updates, &out], &[]).unwrap();
        assert_eq!(out.values(), expected.values(), "case {case}: {kernel:?}");
    }
}

#[test]
fn large_scatters_are_shared() {
    let mut cases = Cases::new(12);
    for (dim, dtype) in [(0, DType::F32), (1, DType::F32), (0, DType::BF16), (1, DType::BF16)] {
        let index = cases.strided(TensorType::contiguous(DType::I64, &[200, 300]), |c| c.below(150));
        let updates = cases.strided(TensorType::contiguous(dtype, &[200, 300]), |c| c.below(3));
        let out = cases.strided(TensorType::contiguous(dtype, &[200, 300]), |_| 1);
        let mut expected = out.clone();
        for at in index.coordinates() {
            let mut to = at.clone();
            to[dim] = index.get(&at);
            let value = expected.get(&to) + updates.get(&at);
            expected.set(&to, value);
        }
        let kernel = Scatter::new(dim, ScatterOp::Add, &index.tensor, &updates.tensor, &out.tensor).unwrap();
        run(&kernel, &[&index, &updates, &out], &[]).unwrap();
        assert_eq!(out.values(), expected.values(), "{kernel:?}");
    }
}

#[test]
fn half_sums_are_rounded_once() {
    let mut cases = Cases::new(13);
    let index = cases.tensor(DType::I64, &[1000], |_| 0);
    let updates = cases.tensor(DType::BF16, &[1000], |_| 1);
    let out = cases.tensor(DType::BF16, &[1], |_| 0);
    let kernel = Scatter::new(0, ScatterOp::Add, &index.tensor, &updates.tensor, &out.tensor).unwrap();
    run(&kernel, &[&index, &updates, &out], &[]).unwrap();
    assert_eq!(out.values(), [1000]);
}

#[test]
fn indices_out_of_range_write_nothing() {
    let mut cases = Cases::new(14);
    for bad in [4, -1, i64::MAX, i64::MIN] {
        for dtype in [DType::F32, DType::BF16] {
            let index = cases.tensor(DType::I64, &[1], |_| bad);
            let updates = cases.tensor(dtype, &[1], |_| 3);
            let out = cases.tensor(dtype, &[4], |_| 1);
            let error = Err(KernelError::IndexOutOfRange { index: bad, dim: 0, size: 4 });
            let kernel = Scatter::new(0, ScatterOp::Add, &index.tensor, &updates.tensor, &out.tensor).unwrap();
            assert_eq!(run(&kernel, &[&index, &updates, &out], &[]), error);
            let kernel = IndexAdd::new(0, &index.tensor, &updates.tensor, &out.tensor, None).unwrap();
            assert_eq!(run(&kernel, &[&index, &updates, &out], &[]), error);
            assert_eq!(out.values(), [1; 4]);
        }
    }
}

#[test]
fn index_add_accumulates_rows() {
    let mut cases = Cases::new(15);
    for case in 0..500 {
        let rank = cases.below(4);
        let dim = cases.below(rank.max(1)) as usize;
        let mut out_sizes = sizes(&mut cases, rank);
        if rank > 0 && case % 10 == 0 {
            out_sizes[rank as usize - 1] = 400;
        }
        let dtype = cases.pick(&[DType::F32, DType::I64, DType::BF16, DType::F64, DType::I16]);
        let count = if rank == 0 { 1 } else { cases.below(6) * if case % 10 == 0 { 1 } else { 50 } };
        let size = out_sizes.get(dim).copied().unwrap_or(1);
        let index_type = cases.pick(&INDICES);
        let index = cases.tensor(index_type, &[count], |c| c.below(size));
        let mut update_sizes = out_sizes.clone();
        if rank > 0 {
            update_sizes[dim] = count;
        }
        let small = if dtype == DType::BF16 { 1 } else { 50 };
        let updates = cases.tensor(dtype, &update_sizes, |c| c.below(small));
        let out = cases.tensor(dtype, &out_sizes, |c| c.below(100));
        let alpha = (cases.below(2) == 0).then(|| 1 + cases.below(4));
        let mut expected = out.clone();
        for at in updates.coordinates() {
            let mut to = at.clone();
            if rank > 0 {
                to[dim] = index.get(&[at[dim]]);
            }
            let value = expected.get(&to) + alpha.unwrap_or(1) * updates.get(&at);
            expected.set(&to, value);
        }
        let kernel = IndexAdd::new(dim, &index.tensor, &updates.tensor, &out.tensor, alpha.map(|_| 1)).unwrap();
        run(&kernel, &[&index, &updates, &out], &[Scalar::F64(99.0), Scalar::I64(alpha.unwrap_or(0))]).unwrap();
        assert_eq!(out.values(), expected.values(), "case {case}: {kernel:?}");
    }
}

#[test]
fn many_rows_are_grouped_by_destination() {
    let mut cases = Cases::new(19);
    for (dtype, columns, wide) in [(DType::F32, 70, false), (DType::I64, 33, true), (DType::F64, 512, false)] {
        let (rows, count) = (300, 4000);
        let index = cases.tensor(DType::I64, &[count], |c| c.below(rows) * c.below(2));
        let updates = cases.strided(TensorType::contiguous(dtype, &[count, columns]), |c| c.below(9));
        let layout = if wide {
            TensorType::strided(dtype, &[rows, columns], &[2 * columns, 1])
        } else {
            TensorType::contiguous(dtype, &[rows, columns])
        };
        let out = cases.strided(layout, |c| c.below(9));
        for accumulate in [true, false] {
            let mut expected = out.clone();
            for at in updates.coordinates() {
                let to = [index.get(&at[..1]), at[1]];
                let value = updates.get(&at) + if accumulate { expected.get(&to) } else { 0 };
                expected.set(&to, value);
            }
            let target = out.clone();
            let types = [index.tensor.clone()];
            let put = IndexPut::new(&target.tensor, &[0], 0, &updates.tensor, &types, accumulate).unwrap();
            run(&put, &[&updates, &index, &target], &[]).unwrap();
            assert_eq!(target.values(), expected.values(), "{put:?}");
            if accumulate {
                let target = out.clone();
                let add = IndexAdd::new(0, &index.tensor, &updates.tensor, &target.tensor, None).unwrap();
                run(&add, &[&index, &updates, &target], &[]).unwrap();
                assert_eq!(target.values(), expected.values(), "{add:?}");
            }
        }
        let mut bad = index.clone();
        bad.set(&[3000], rows);
        let add = IndexAdd::new(0, &index.tensor, &updates.tensor, &out.tensor, None).unwrap();
        let error = KernelError::IndexOutOfRange { index: rows, dim: 0, size: rows };
        assert_eq!(run(&add, &[&bad, &updates, &out], &[]), Err(error));
    }
}

#[test]
fn index_put_follows_the_operator() {
    let mut cases = Cases::new(16);
    for case in 0..600 {
        let rank = 1 + cases.below(4);
        let mut out_sizes = sizes(&mut cases, rank);
        if case % 20 == 0 {
            out_sizes[rank as usize - 1] = 700;
        }
        let dtype = cases.pick(&[DType::F32, DType::I64, DType::U8, DType::F64, DType::Bool]);
        let out = cases.tensor(dtype, &out_sizes, |c| c.below(50));
        let mut dims: Vec<i64> = (0..rank).filter(|_| cases.below(2) == 0).collect();
        if dims.is_empty() {
            dims.push(cases.below(rank));
        }
        let index_rank = cases.below(3);
        let index_sizes: Vec<i64> = (0..index_rank).map(|_| cases.below(5)).collect();
        let kept: Vec<usize> = (0..rank as usize).filter(|d| !dims.contains(&(*d as i64))).collect();
        let result_dim = cases.below(kept.len() as i64 + 1) as usize;
        let mut update_sizes: Vec<i64> = kept.iter().map(|&d| out_sizes[d]).collect();
        update_sizes.splice(result_dim..result_dim, index_sizes.iter().copied());
        let indices: Vec<Tensor> = dims
            .iter()
            .map(|&d| {
                let (size, index_type) = (out_sizes[d as usize], cases.pick(&INDICES));
                cases.tensor(index_type, &index_sizes, |c| c.below(2 * size) - size)
            })
            .collect();
        let updates = if cases.below(3) == 0 {
            let zeros = vec![0; update_sizes.len()];
            cases.strided(TensorType::strided(dtype, &update_sizes, &zeros), |c| c.below(9))
        } else {
            cases.tensor(dtype, &update_sizes, |c| c.below(9))
        };
        let accumulate = cases.below(2) == 0;
        let mut expected = out.clone();
        // Index order, whatever the place of the index dimensions.
        let mut order = updates.coordinates();
        order.sort_by_key(|at| at[result_dim..result_dim + index_sizes.len()].to_vec());
        for at in order {
            let position = &at[result_dim..result_dim + index_sizes.len()];
            let others: Vec<i64> = [&at[..result_dim], &at[result_dim + index_sizes.len()..]].concat();
            let mut to = vec![0; rank as usize];
            for (&d, other) in kept.iter().zip(others) {
                to[d] = other;
            }
            for (&d, index) in dims.iter().zip(&indices) {
                to[d as usize] = index.get(position).rem_euclid(out_sizes[d as usize]);
            }
            let op = if accumulate { ScatterOp::Add } else { ScatterOp::Set };
            let value = combine(op, dtype, expected.get(&to), updates.get(&at));
            expected.set(&to, value);
        }
        let types: Vec<TensorType> = indices.iter().map(|i| i.tensor.clone()).collect();
        let kernel = IndexPut::new(&out.tensor, &dims, result_dim, &updates.tensor, &types, accumulate).unwrap();
        let tensors: Vec<_> = std::iter::once(&updates).chain(&indices).chain([&out]).collect();
        run(&kernel, &tensors, &[]).unwrap();
        assert_eq!(out.values(), expected.values(), "case {case}: {kernel:?}");
    }
}

#[test]
fn embedding_gradients_are_grouped_by_row() {
    let mut cases = Cases::new(17);
    for case in 0..300 {
        let (rows, columns) = (cases.below(40), cases.pick(&[0, 1, 3, 64, 300]));
        let index_rank = cases.below(3);
        let index_sizes: Vec<i64> = (0..index_rank).map(|_| if rows == 0 { 0 } else { cases.below(20) }).collect();
        if rows == 0 && index_rank == 0 {
            continue;
        }
        let dtype = cases.pick(&[DType::F32, DType::BF16, DType::F16, DType::F64]);
        let index_type = cases.pick(&INDICES);
        let index = cases.tensor(index_type, &index_sizes, |c| c.below(rows));
        let grad_sizes = [&index_sizes[..], &[columns]].concat();
        let frequency = cases.below(2) == 0;
        let padding = cases.below(2 * rows + 1) - rows;
        let lookups = |row| index.values().iter().filter(|v| **v == row).count() as i64;
        let mut grad = cases.tensor(dtype, &grad_sizes, |_| 0);
        for at in grad.coordinates() {
            // A multiple of the frequency, so that the quotient is a small integer.
            let row = index.get(&at[..index_sizes.len()]);
            let factor = if frequency { lookups(row) } else { 1 };
            let value = cases.below(4) * factor;
            grad.set(&at, value);
        }
        let out = cases.tensor(dtype, &[rows, columns], |_| 7);
        let mut expected = cases.tensor(DType::I64, &[rows, columns], |_| 0);
        for at in grad.coordinates() {
            let (position, column) = at.split_at(index_sizes.len());
            let row = index.get(position);
            if row != padding {
                let to = [row, column[0]];
                let value = expected.get(&to) + grad.get(&at);
                expected.set(&to, value);
            }
        }
        let kernel =
            EmbeddingBackward::new(&grad.tensor, &index.tensor, rows, padding, frequency, &out.tensor).unwrap();
        run(&kernel, &[&grad, &index, &out], &[]).unwrap();
        for at in out.coordinates() {
            let factor = if frequency { lookups(at[0]).max(1) } else { 1 };
            // The factor's reciprocal is rounded.
            assert!(
                (out.get(&at) - expected.get(&at) / factor).abs() <= i64::from(frequency),
                "case {case}: {kernel:?}"
            );
        }
    }
}

#[test]
fn embedding_gradients_reject_rows_that_do_not_exist() {
    let mut cases = Cases::new(18);
    let index = cases.tensor(DType::I64, &[2], |_| 5);
    let grad = cases.tensor(DType::F32, &[2, 3], |_| 1);
    let out = cases.tensor(DType::F32, &[5, 3], |_| 1);
    let kernel = EmbeddingBackward::new(&grad.tensor, &index.tensor, 5, -1, false, &out.tensor).unwrap();
    let error = KernelError::IndexOutOfRange { index: 5, dim: 0, size: 5 };
    assert_eq!(run(&kernel, &[&grad, &index, &out], &[]), Err(error));
}
