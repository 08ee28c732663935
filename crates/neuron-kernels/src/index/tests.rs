use super::reference::{Cases, run};
use super::*;
use crate::concat::Concat;
use crate::kernel::KernelError;
use neuron_ir::{DType, TensorType};

const ELEMENTS: [DType; 5] = [DType::U8, DType::BF16, DType::F32, DType::I64, DType::F64];
const INDICES: [DType; 2] = [DType::I64, DType::I32];

fn sizes(cases: &mut Cases, rank: i64) -> Vec<i64> {
    (0..rank).map(|_| cases.pick(&[1, 2, 3, 5, 9])).collect()
}

#[test]
fn index_select_copies_rows() {
    let mut cases = Cases::new(1);
    for case in 0..400 {
        let rank = cases.below(4);
        let table_sizes = sizes(&mut cases, rank);
        let dim = cases.below(rank.max(1)) as usize;
        let dtype = cases.pick(&ELEMENTS);
        let table = cases.tensor(dtype, &table_sizes, |c| c.below(100));
        let index_rank = if rank == 0 { 1 } else { cases.below(3) };
        let index_sizes =
            if rank == 0 { vec![1] } else { (0..index_rank).map(|_| cases.below(300 >> (2 * index_rank))).collect() };
        let size = table_sizes.get(dim).copied().unwrap_or(1);
        let index_type = cases.pick(&INDICES);
        let index = cases.tensor(index_type, &index_sizes, |c| c.below(size));
        let mut out_sizes = table_sizes.clone();
        if rank > 0 {
            out_sizes.splice(dim..=dim, index_sizes.iter().copied());
        }
        let out = cases.tensor(dtype, &out_sizes, |_| 7);
        let kernel = IndexSelect::new(&table.tensor, dim, &index.tensor, &out.tensor).unwrap();
        run(&kernel, &[&table, &index, &out], &[]).unwrap();
        for at in out.coordinates() {
            let expected = if rank == 0 {
                table.get(&[])
            } else {
                let row = index.get(&at[dim..dim + index_sizes.len()]);
                table.get(&[&at[..dim], &[row], &at[dim + index_sizes.len()..]].concat())
            };
            assert_eq!(out.get(&at), expected, "case {case}: {kernel:?} at {at:?}");
        }
    }
}

#[test]
fn large_selections_are_shared() {
    let mut cases = Cases::new(2);
    for (table_sizes, dim, positions) in
        [([3000, 70], 0, 5000), ([3000, 70], 1, 300), ([2, 90_000], 0, 3), ([9, 100_000], 0, 1)]
    {
        let table = cases.strided(TensorType::contiguous(DType::F32, &table_sizes), |c| c.below(1 << 20));
        let index = cases.tensor(DType::I64, &[positions], |c| c.below(table_sizes[dim]));
        let mut out_sizes = table_sizes;
        out_sizes[dim] = positions;
        let out = cases.strided(TensorType::contiguous(DType::F32, &out_sizes), |_| 7);
        let kernel = IndexSelect::new(&table.tensor, dim, &index.tensor, &out.tensor).unwrap();
        run(&kernel, &[&table, &index, &out], &[]).unwrap();
        let rows: Vec<i64> = index.values();
        for at in out.coordinates() {
            let mut from = at.clone();
            from[dim] = rows[at[dim] as usize];
            assert_eq!(out.get(&at), table.get(&from));
        }
    }
}

#[test]
fn the_first_index_out_of_range_is_reported() {
    let mut cases = Cases::new(3);
    let table = cases.tensor(DType::F32, &[10, 600], |_| 0);
    let mut index = cases.tensor(DType::I64, &[4000], |c| c.below(10));
    index.set(&[3500], -1);
    index.set(&[900], 10);
    let out = cases.tensor(DType::F32, &[4000, 600], |_| 0);
    let kernel = IndexSelect::new(&table.tensor, 0, &index.tensor, &out.tensor).unwrap();
    let error = KernelError::IndexOutOfRange { index: 10, dim: 0, size: 10 };
    assert_eq!(run(&kernel, &[&table, &index, &out], &[]), Err(error));
    let kernel = Index::new(&table.tensor, &[0], &[index.tensor.clone()], 0, &out.tensor).unwrap();
    let error = KernelError::IndexOutOfRange { index: 10, dim: 0, size: 10 };
    assert_eq!(run(&kernel, &[&table, &index, &out], &[]), Err(error), "-1 is the last row");
}

#[test]
fn an_empty_table_has_no_row() {
    let mut cases = Cases::new(4);
    let table = cases.tensor(DType::F32, &[0, 3], |_| 0);
    let index = cases.tensor(DType::I64, &[1], |_| 0);
    let out = cases.tensor(DType::F32, &[1, 3], |_| 0);
    let kernel = IndexSelect::new(&table.tensor, 0, &index.tensor, &out.tensor).unwrap();
    assert!(run(&kernel, &[&table, &index, &out], &[]).is_err());
    let none = cases.tensor(DType::I64, &[0], |_| 0);
    let out = cases.tensor(DType::F32, &[0, 3], |_| 0);
    let kernel = IndexSelect::new(&table.tensor, 0, &none.tensor, &out.tensor).unwrap();
    assert_eq!(run(&kernel, &[&table, &none, &out], &[]), Ok(()));
}

#[test]
fn gather_reads_along_a_dimension() {
    let mut cases = Cases::new(5);
    for case in 0..400 {
        let rank = cases.below(4);
        let input_sizes = sizes(&mut cases, rank);
        let dim = cases.below(rank.max(1)) as usize;
        let dtype = cases.pick(&ELEMENTS);
        let input = cases.tensor(dtype, &input_sizes, |c| c.below(100));
        let index_sizes: Vec<i64> = (0..rank as usize)
            .map(|d| if d == dim { cases.below(8) } else { 1 + cases.below(input_sizes[d]) })
            .collect();
        let size = input_sizes.get(dim).copied().unwrap_or(1);
        let index_type = cases.pick(&INDICES);
        let index = cases.tensor(index_type, &index_sizes, |c| c.below(size));
        let out = cases.tensor(dtype, &index_sizes, |_| 7);
        let kernel = Gather::new(&input.tensor, dim, &index.tensor, &out.tensor).unwrap();
        run(&kernel, &[&input, &index, &out], &[]).unwrap();
        for at in out.coordinates() {
            let mut from = at.clone();
            if rank > 0 {
                from[dim] = index.get(&at);
            }
            assert_eq!(out.get(&at), input.get(&from), "case {case}: {kernel:?} at {at:?}");
        }
    }
}

#[test]
fn gather_checks_every_index() {
    let mut cases = Cases::new(6);
    let input = cases.tensor(DType::F32, &[50, 3000], |_| 0);
    let out = cases.tensor(DType::F32, &[50, 3000], |_| 0);
    for bad in [50, -1, i64::MAX, i64::MIN] {
        let mut index = cases.tensor(DType::I64, &[50, 3000], |c| c.below(50));
        index.set(&[40, 2999], bad);
        let kernel = Gather::new(&input.tensor, 0, &index.tensor, &out.tensor).unwrap();
        let error = KernelError::IndexOutOfRange { index: bad, dim: 0, size: 50 };
        assert_eq!(run(&kernel, &[&input, &index, &out], &[]), Err(error));
    }
}

#[test]
fn advanced_indexing_follows_the_operator() {
    let mut cases = Cases::new(7);
    for case in 0..400 {
        let rank = 1 + cases.below(4);
        let input_sizes = sizes(&mut cases, rank);
        let dtype = cases.pick(&ELEMENTS);
        let input = cases.tensor(dtype, &input_sizes, |c| c.below(100));
        let mut dims: Vec<i64> = (0..rank).filter(|_| cases.below(2) == 0).collect();
        if dims.is_empty() {
            dims.push(cases.below(rank));
        }
        let index_rank = cases.below(3);
        let index_sizes: Vec<i64> = (0..index_rank).map(|_| cases.below(5)).collect();
        let kept: Vec<usize> = (0..rank as usize).filter(|d| !dims.contains(&(*d as i64))).collect();
        let result_dim = cases.below(kept.len() as i64 + 1) as usize;
        let mut out_sizes: Vec<i64> = kept.iter().map(|&d| input_sizes[d]).collect();
        out_sizes.splice(result_dim..result_dim, index_sizes.iter().copied());
        let indices: Vec<_> = dims
            .iter()
            .map(|&d| {
                let (size, index_type) = (input_sizes[d as usize], cases.pick(&INDICES));
                cases.tensor(index_type, &index_sizes, |c| c.below(2 * size) - size)
            })
            .collect();
        let out = cases.tensor(dtype, &out_sizes, |_| 7);
        let types: Vec<TensorType> = indices.iter().map(|i| i.tensor.clone()).collect();
        let kernel = Index::new(&input.tensor, &dims, &types, result_dim, &out.tensor).unwrap();
        let tensors: Vec<_> = std::iter::once(&input).chain(&indices).chain([&out]).collect();
        run(&kernel, &tensors, &[]).unwrap();
        for at in out.coordinates() {
            let position = &at[result_dim..result_dim + index_sizes.len()];
            let others: Vec<i64> = [&at[..result_dim], &at[result_dim + index_sizes.len()..]].concat();
            let mut from = vec![0; rank as usize];
            for (&d, other) in kept.iter().zip(others) {
                from[d] = other;
            }
            for (&d, index) in dims.iter().zip(&indices) {
                from[d as usize] = index.get(position).rem_euclid(input_sizes[d as usize]);
            }
            assert_eq!(out.get(&at), input.get(&from), "case {case}: {kernel:?} at {at:?}");
        }
    }
}

#[test]
fn concat_joins_any_layouts() {
    let mut cases = Cases::new(8);
    for case in 0..300 {
        let rank = 1 + cases.below(3);
        let (mut input_sizes, dim) = (sizes(&mut cases, rank), cases.below(rank) as usize);
        let dtype = cases.pick(&ELEMENTS);
        let mut inputs = Vec::new();
        let scale = if case % 50 == 0 { 9000 } else { 6 };
        for _ in 0..1 + cases.below(4) {
            input_sizes[dim] = cases.below(scale);
            inputs.push(cases.tensor(dtype, &input_sizes, |c| c.below(100)));
        }
        let mut out_sizes = input_sizes.clone();
        out_sizes[dim] = inputs.iter().map(|i| i.tensor.sizes[dim]).sum();
        let out = cases.tensor(dtype, &out_sizes, |_| 7);
        let types: Vec<TensorType> = inputs.iter().map(|i| i.tensor.clone()).collect();
        let kernel = Concat::new(&types, dim, &out.tensor).unwrap();
        let tensors: Vec<_> = inputs.iter().chain([&out]).collect();
        run(&kernel, &tensors, &[]).unwrap();
        let mut begin = 0;
        for input in &inputs {
            for mut at in input.coordinates() {
                let expected = input.get(&at);
                at[dim] += begin;
                assert_eq!(out.get(&at), expected, "case {case}: {kernel:?} at {at:?}");
            }
            begin += input.tensor.sizes[dim];
        }
    }
}

#[test]
fn shapes_that_do_not_belong_together_are_refused() {
    let f32 = |sizes: &[i64]| TensorType::contiguous(DType::F32, sizes);
    let i64 = |sizes: &[i64]| TensorType::contiguous(DType::I64, sizes);
    assert!(IndexSelect::new(&f32(&[3, 4]), 0, &i64(&[2]), &f32(&[2, 5])).is_err());
    assert!(IndexSelect::new(&f32(&[3, 4]), 2, &i64(&[2]), &f32(&[3, 4])).is_err());
    assert!(IndexSelect::new(&f32(&[3, 4]), 0, &f32(&[2]), &f32(&[2, 4])).is_err());
    assert!(Gather::new(&f32(&[3, 4]), 0, &i64(&[2, 5]), &f32(&[2, 5])).is_err());
    assert!(Index::new(&f32(&[3, 4]), &[0, 1], &[i64(&[2]), i64(&[3])], 0, &f32(&[2])).is_err());
    assert!(Index::new(&f32(&[3, 4]), &[], &[], 0, &f32(&[3, 4])).is_err());
    assert!(Concat::new(&[f32(&[3, 4]), f32(&[3, 5])], 0, &f32(&[6, 4])).is_err());
}
