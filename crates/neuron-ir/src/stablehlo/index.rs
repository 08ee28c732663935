//! Reading and writing through tensors of indices.
//!
//! StableHLO combines the updates of one element in any order. Where the last one has to win, positions are scattered
//! first, of which the largest stays, and the updates are then read at these.

use super::text::{El, IndexNumbers, Text, V};
use super::{Call, Written};
use crate::{Op, Scalar, ScatterOp};

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    let to = &c.result().sizes;
    if c.result().numel() == 0 && c.node.results.len() == 1 {
        return Ok(vec![t.splat(c.result().dtype.into(), to, Scalar::I64(0))]);
    }
    match &c.node.op {
        Op::IndexSelect { dim } => Ok(vec![index_select(t, &c.args[0], &c.args[1], *dim, to)]),
        Op::Gather { dim } => {
            let (a, index) = (&c.args[0], &c.args[1]);
            let vectors = whole_index(t, index, *dim);
            Ok(vec![gather_elements(t, a, &vectors)])
        }
        Op::Scatter { dim, op } => Ok(vec![scatter(t, c, *dim, *op)]),
        Op::IndexAdd { dim, alpha } => Ok(vec![index_add(t, c, *dim, *alpha)]),
        Op::Index { dims, result_dim } => {
            let a = &c.args[0];
            let rank = c.args[1].rank();
            let vectors = stacked(t, a, &c.args[1..], dims);
            let numbers = IndexNumbers {
                offset_dims: around(to.len(), *result_dim, rank),
                collapsed: dims.to_vec(),
                index_map: dims.to_vec(),
                vector_dim: rank as i64,
            };
            let slice: Vec<i64> =
                (0..a.rank()).map(|d| if dims.contains(&(d as i64)) { 1 } else { a.dims[d] }).collect();
            Ok(vec![t.gather(a, &vectors, &numbers, &slice, to)])
        }
        Op::IndexPut { dims, result_dim, accumulate } => Ok(vec![index_put(t, c, dims, *result_dim, *accumulate)]),
        Op::EmbeddingBackward { rows, padding, scale_by_frequency } => {
            Ok(vec![embedding_backward(t, c, *rows, *padding, *scale_by_frequency)])
        }
        Op::NllLoss { reduction, ignore_index, weight } => Ok(nll_loss(t, c, *reduction, *ignore_index, *weight)),
        Op::NllLossBackward { reduction, ignore_index, weight } => {
            Ok(nll_loss_backward(t, c, *reduction, *ignore_index, *weight))
        }
        other => unreachable!("{} does not index", other.name()),
    }
}

/// Slices of `a` along `dim` in the order that `index` names them.
pub(super) fn index_select(t: &mut Text, a: &V, index: &V, dim: usize, to: &[i64]) -> V {
    if a.rank() == 0 {
        return t.broadcast(a, to);
    }
    let numbers = IndexNumbers {
        offset_dims: around(to.len(), dim, index.rank()),
        collapsed: vec![dim as i64],
        index_map: vec![dim as i64],
        vector_dim: index.rank() as i64,
    };
    let mut slice = a.dims.clone();
    slice[dim] = 1;
    t.gather(a, index, &numbers, &slice, to)
}

/// All of `rank` dimensions but the `count` from `first` on.
fn around(rank: usize, first: usize, count: usize) -> Vec<i64> {
    (0..rank).filter(|d| !(first..first + count).contains(d)).map(|d| d as i64).collect()
}

/// Vectors of the numbers that tensors of one shape hold.
fn vectors(t: &mut Text, parts: &[V]) -> V {
    let mut dims = parts[0].dims.clone();
    dims.push(1);
    let parts: Vec<V> = parts.iter().map(|p| t.reshape(p, &dims)).collect();
    let parts: Vec<&V> = parts.iter().collect();
    t.concat(&parts, dims.len() - 1)
}

/// For each element of an index along `dim` all coordinates of what it names; none for 0-dimensional ones.
fn whole_index(t: &mut Text, index: &V, dim: usize) -> Option<V> {
    if index.rank() == 0 {
        return None;
    }
    let index = t.convert(index, El::I64);
    let parts: Vec<V> =
        (0..index.rank()).map(|d| if d == dim { index.clone() } else { t.iota(El::I64, &index.dims, d) }).collect();
    Some(vectors(t, &parts))
}

/// Dimension numbers where each index vector names one element.
fn elements(rank: usize) -> IndexNumbers {
    let all: Vec<i64> = (0..rank as i64).collect();
    IndexNumbers { offset_dims: vec![], collapsed: all.clone(), index_map: all, vector_dim: rank as i64 }
}

fn gather_elements(t: &mut Text, a: &V, vectors: &Option<V>) -> V {
    let Some(vectors) = vectors else { return t.reshape(a, &[]) };
    if a.rank() == 0 {
        return t.broadcast(a, &vectors.dims[..vectors.rank() - 1]);
    }
    let mut numbers = elements(a.rank());
    numbers.vector_dim = vectors.rank() as i64 - 1;
    let slice = vec![1; a.rank()];
    t.gather(a, vectors, &numbers, &slice, &vectors.dims[..vectors.rank() - 1])
}

/// How a scatter combines: StableHLO's operation on elements of the compute type.
fn scatter_operation(op: ScatterOp, el: El) -> &'static str {
    match op {
        ScatterOp::Add if el == El::I1 => "or",
        ScatterOp::Prod if el == El::I1 => "and",
        ScatterOp::Add => "add",
        ScatterOp::Prod => "multiply",
        ScatterOp::Max => "maximum",
        ScatterOp::Min => "minimum",
        ScatterOp::Set => unreachable!("replaced by positions"),
    }
}

fn scatter(t: &mut Text, c: &Call, dim: usize, op: ScatterOp) -> V {
    let (a, index) = (&c.args[0], &c.args[1]);
    if index.numel() == 0 {
        return a.clone();
    }
    let mut updates = c.args[2].clone();
    if a.rank() == 0 || index.rank() == 0 {
        // One element, at index 0.
        let index = t.reshape(index, &[index.numel()]);
        let row = t.reshape(a, &[a.numel()]);
        updates = t.reshape(&updates, &[updates.numel()]);
        let out = scatter_into(t, &row, &index, &updates, 0, op);
        return t.reshape(&out, &a.dims);
    }
    for d in 0..index.rank() {
        updates = t.slice(&updates, d, 0, index.dims[d], 1);
    }
    scatter_into(t, a, index, &updates, dim, op)
}

pub(super) fn scatter_into(t: &mut Text, a: &V, index: &V, updates: &V, dim: usize, op: ScatterOp) -> V {
    let Some(at) = whole_index(t, index, dim) else { unreachable!("an index of some rank") };
    let numbers = elements(a.rank());
    if op == ScatterOp::Set {
        let winner = last_positions(t, &a.dims, &at, &numbers);
        return replaced(t, a, updates, &winner);
    }
    let (wide, updates) = (t.convert(a, a.el.compute()), t.convert(updates, a.el.compute()));
    let out = t.scatter(&wide, &at, &updates, &numbers, scatter_operation(op, wide.el));
    t.convert(&out, a.el)
}

/// For each element the number of the last update that names it, or -1; updates count in row-major order.
fn last_positions(t: &mut Text, dims: &[i64], at: &V, numbers: &IndexNumbers) -> V {
    let shape = &at.dims[..at.rank() - 1];
    let count = shape.iter().product();
    let number = t.iota(El::I64, &[count], 0);
    let number = t.reshape(&number, shape);
    let none = t.splat(El::I64, dims, Scalar::I64(-1));
    t.scatter(&none, at, &number, numbers, "maximum")
}

/// Elements of `a`, or of the updates where one has won.
fn replaced(t: &mut Text, a: &V, updates: &V, winner: &V) -> V {
    let flat = t.reshape(updates, &[updates.numel()]);
    let won = t.compare_int("GE", winner, 0);
    let safe = t.select_num(&won, winner, 0.0);
    let taken = index_select(t, &flat, &safe, 0, &safe.dims.clone());
    let taken = t.convert(&taken, a.el);
    t.select(&won, &taken, a)
}

/// Dimension numbers where each index names a slice along `dim`.
fn slices(rank: usize, dim: usize) -> IndexNumbers {
    IndexNumbers {
        offset_dims: around(rank, dim, 1),
        collapsed: vec![dim as i64],
        index_map: vec![dim as i64],
        vector_dim: 1,
    }
}

fn index_add(t: &mut Text, c: &Call, dim: usize, alpha: bool) -> V {
    let el = c.args[0].el.compute();
    let (mut a, index) = (t.convert(&c.args[0], el), c.args[1].clone());
    let mut updates = t.convert(&c.args[2], el);
    if alpha {
        let factor = t.convert(&c.args[3], el);
        let factor = t.broadcast(&factor, &updates.dims);
        updates = if el == El::I1 { t.and(&updates, &factor) } else { t.mul(&updates, &factor) };
    }
    let to = a.dims.clone();
    if a.rank() == 0 {
        (a, updates) = (t.reshape(&a, &[1]), t.reshape(&updates, &[updates.numel()]));
    }
    let index = t.reshape(&index, &[index.numel()]);
    let numbers = slices(a.rank(), dim);
    let out = t.scatter(&a, &index, &updates, &numbers, if el == El::I1 { "or" } else { "add" });
    t.reshape(&out, &to)
}

/// `a` with slice `i` of the updates in place of slice `index[i]`, the last of equal ones.
pub(super) fn index_copy(t: &mut Text, a: &V, index: &V, updates: &V, dim: usize) -> V {
    if updates.numel() == 0 {
        return a.clone();
    }
    let to = a.dims.clone();
    let mut row = a.dims.clone();
    if row.is_empty() {
        row.push(1);
    }
    let (a, index) = (t.reshape(a, &row), t.reshape(index, &[index.numel()]));
    let mut given = row.clone();
    given[dim] = index.numel();
    let updates = t.reshape(updates, &given);
    let at = t.reshape(&index, &[index.numel(), 1]);
    let winner = last_positions(t, &[row[dim]], &at, &elements(1));
    let won = t.compare_int("GE", &winner, 0);
    let safe = t.select_num(&won, &winner, 0.0);
    let taken = index_select(t, &updates, &safe, dim, &row);
    let won = t.broadcast_in(&won, &[dim as i64], &row);
    let out = t.select(&won, &taken, &a);
    t.reshape(&out, &to)
}

/// Index vectors of advanced indexing, negative ones counted from the end.
fn stacked(t: &mut Text, a: &V, indices: &[V], dims: &[i64]) -> V {
    let parts: Vec<V> = indices
        .iter()
        .zip(dims)
        .map(|(index, dim)| {
            let index = t.convert(index, El::I64);
            let below = t.compare_int("LT", &index, 0);
            let shifted = t.bin_int("add", &index, a.dims[*dim as usize]);
            t.select(&below, &shifted, &index)
        })
        .collect();
    vectors(t, &parts)
}

fn index_put(t: &mut Text, c: &Call, dims: &[i64], result_dim: usize, accumulate: bool) -> V {
    let (a, updates, indices) = (&c.args[0], &c.args[1], &c.args[2..]);
    let shape = indices[0].dims.clone();
    if shape.contains(&0) {
        return a.clone();
    }
    let rest: Vec<i64> = (0..a.rank() as i64).filter(|d| !dims.contains(d)).collect();
    let mut read: Vec<i64> = rest.iter().map(|d| a.dims[*d as usize]).collect();
    for (i, s) in shape.iter().enumerate() {
        read.insert(result_dim + i, *s);
    }
    let updates = t.broadcast(updates, &read);
    let at = stacked(t, a, indices, dims);
    let vector_dim = shape.len() as i64;
    if accumulate {
        let el = a.el.compute();
        let (wide, updates) = (t.convert(a, el), t.convert(&updates, el));
        let numbers = IndexNumbers {
            offset_dims: around(read.len(), result_dim, shape.len()),
            collapsed: dims.to_vec(),
            index_map: dims.to_vec(),
            vector_dim,
        };
        let out = t.scatter(&wide, &at, &updates, &numbers, if el == El::I1 { "or" } else { "add" });
        return t.convert(&out, a.el);
    }
    // Which update each combination of indices takes, then the slices of these.
    let extents: Vec<i64> = dims.iter().map(|d| a.dims[*d as usize]).collect();
    let mut numbers = elements(dims.len());
    numbers.vector_dim = vector_dim;
    let winner = last_positions(t, &extents, &at, &numbers);
    let won = t.compare_int("GE", &winner, 0);
    let safe = t.select_num(&won, &winner, 0.0);
    let mut order: Vec<i64> = (result_dim..result_dim + shape.len()).map(|d| d as i64).collect();
    order.extend(around(read.len(), result_dim, shape.len()));
    let first = t.transpose(&updates, &order);
    let mut flat = vec![shape.iter().product()];
    flat.extend(rest.iter().map(|d| a.dims[*d as usize]));
    let first = t.reshape(&first, &flat);
    let mut taken_dims = extents.clone();
    taken_dims.extend(&flat[1..]);
    let taken = index_select(t, &first, &safe, 0, &taken_dims);
    // Dimension `d` of the tensor is where `dims`, then the rest, have it.
    let named: Vec<i64> = dims.iter().chain(&rest).copied().collect();
    let back: Vec<i64> = (0..a.rank() as i64).map(|d| named.iter().position(|n| *n == d).unwrap_or(0) as i64).collect();
    let taken = t.transpose(&taken, &back);
    let taken = t.convert(&taken, a.el);
    let won = t.broadcast_in(&won, dims, &a.dims);
    t.select(&won, &taken, a)
}

fn embedding_backward(t: &mut Text, c: &Call, rows: i64, padding: i64, by_frequency: bool) -> V {
    let (mut grad, index) = (c.wide(t, 0), t_index(t, c, 1));
    let columns = grad.dims[grad.rank() - 1];
    let count = index.numel();
    let index = t.reshape(&index, &[count]);
    grad = t.reshape(&grad, &[count, columns]);
    let counted = t.compare_int("NE", &index, padding);
    let zero = t.like(&grad, 0.0);
    let along = t.broadcast_in(&counted, &[0], &grad.dims.clone());
    grad = t.select(&along, &grad, &zero);
    let out = t.splat(grad.el, &[rows, columns], Scalar::I64(0));
    let out = t.scatter(&out, &index, &grad, &slices(2, 0), "add");
    if !by_frequency {
        return out;
    }
    let ones = t.splat(grad.el, &[count], Scalar::I64(1));
    let none = t.splat(grad.el, &[rows], Scalar::I64(0));
    let times = t.scatter(&none, &index, &ones, &slices(1, 0), "add");
    let one = t.like(&times, 1.0);
    let times = t.bin("maximum", &times, &one);
    let times = t.broadcast_in(&times, &[0], &out.dims.clone());
    t.div(&out, &times)
}

fn t_index(t: &mut Text, c: &Call, i: usize) -> V {
    t.convert(&c.args[i], El::I64)
}

/// Rows and classes of a loss: where the class of a row is, and which rows count.
fn targets(t: &mut Text, c: &Call, dims: &[i64; 2], ignore: i64) -> (V, V) {
    let target = t_index(t, c, 1);
    let target = t.reshape(&target, &dims[..1]);
    let counts = t.compare_int("NE", &target, ignore);
    let class = t.iota(El::I64, dims, 1);
    let wanted = t.broadcast_in(&target, &[0], dims);
    let hit = t.compare("EQ", &class, &wanted);
    let wide = t.broadcast_in(&counts, &[0], dims);
    (t.and(&hit, &wide), counts)
}

/// The weight of each row's class, 0 where the row does not count.
fn row_weights(t: &mut Text, c: &Call, hit: &V, counts: &V, weight: Option<usize>, el: El) -> V {
    let Some(i) = weight else { return t.convert(counts, el) };
    let w = t.convert(&c.args[i], el);
    let w = t.broadcast_in(&w, &[1], &hit.dims);
    let w = t.select_num(hit, &w, 0.0);
    t.reduce("add", &w, Scalar::I64(0), &[1])
}

fn matrix(dims: &[i64]) -> [i64; 2] {
    match dims {
        [classes] => [1, *classes],
        _ => [dims[0], dims[1]],
    }
}

fn nll_loss(t: &mut Text, c: &Call, reduction: i64, ignore: i64, weight: bool) -> Vec<V> {
    let x = c.wide(t, 0);
    let dims = matrix(&x.dims);
    let each = reduction == 0 && x.rank() == 2;
    let x = t.reshape(&x, &dims);
    let (hit, counts) = targets(t, c, &dims, ignore);
    let picked = t.select_num(&hit, &x, 0.0);
    let picked = t.reduce("add", &picked, Scalar::I64(0), &[1]);
    let w = row_weights(t, c, &hit, &counts, weight.then_some(2), x.el);
    let product = t.mul(&w, &picked);
    let zero = t.like(&product, 0.0);
    let loss = t.sub(&zero, &product);
    if each {
        return vec![loss, t.splat(x.el, &[], Scalar::I64(0))];
    }
    let sum = t.reduce("add", &loss, Scalar::I64(0), &[0]);
    let total = t.reduce("add", &w, Scalar::I64(0), &[0]);
    let loss = if reduction == 1 { t.div(&sum, &total) } else { sum };
    vec![loss, total]
}

fn nll_loss_backward(t: &mut Text, c: &Call, reduction: i64, ignore: i64, weight: bool) -> Vec<V> {
    let grad = c.wide(t, 0);
    let dims = matrix(&c.result().sizes);
    let (hit, counts) = targets(t, c, &dims, ignore);
    let w = row_weights(t, c, &hit, &counts, weight.then_some(3), grad.el);
    let mut g = t.reshape(&grad, &[grad.numel()]);
    if reduction == 1 {
        let total = c.wide(t, 2);
        let total = t.reshape(&total, &[1]);
        g = t.div(&g, &total);
    }
    let g = match g.dims[0] {
        n if n == dims[0] => g,
        _ => t.broadcast_in(&g, &[0], &dims[..1]),
    };
    let g = t.un("negate", &g);
    let g = t.mul(&g, &w);
    let g = t.broadcast_in(&g, &[0], &dims);
    vec![t.select_num(&hit, &g, 0.0)]
}
