//! Random programs: launches one by one against launches joined by the tape, to the bit.
//!
//! Programs have views, operators in place, broadcasts, rows long enough for strips, tensors freed on the way and their
//! memory used again.

use neuron_compiler::{Tape, compile};
use neuron_ir::{
    BinaryOp, DType, Destination, Dims, Graph, GraphBuilder, Op, ReduceOp, Scalar, Shape, TensorType, UnaryOp, Value,
};
use std::rc::Rc;

/// Programs of a run; `NEURON_TESTS=all` runs ten times as many.
const PROGRAMS: u64 = 1_000;
/// Bytes of the memory that programs run in.
const MEMORY: usize = 24 << 20;
/// Elements of the largest tensor.
const LARGEST: i64 = 1 << 20;

/// Xorshift: enough for tests, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// A tensor of a program: a view of an allocation.
#[derive(Clone, Debug)]
struct Tensor {
    block: Rc<(usize, usize)>,
    address: usize,
    ty: TensorType,
}

enum Action {
    Launch { graph: Graph, addresses: Vec<usize>, scalars: Vec<Scalar> },
    Free { address: usize, bytes: usize },
}

/// Writes a program by choosing operators for tensors that exist.
struct Writer {
    rng: Rng,
    live: Vec<Tensor>,
    free: Vec<(usize, usize)>,
    top: usize,
    actions: Vec<Action>,
    shapes: Vec<Vec<i64>>,
}

impl Writer {
    fn allocate(&mut self, dtype: DType, sizes: &[i64]) -> Tensor {
        let ty = TensorType::contiguous(dtype, sizes);
        let bytes = (ty.numel() as usize * dtype.size()).next_multiple_of(64).max(64);
        let found = self.free.iter().rposition(|(_, size)| *size >= bytes);
        let (address, size) = match found {
            Some(i) => self.free.swap_remove(i),
            None => {
                self.top += bytes;
                (self.top - bytes, bytes)
            }
        };
        Tensor { block: Rc::new((address, size)), address, ty }
    }

    /// A tensor, often seen through a view.
    fn tensor(&mut self) -> Tensor {
        let mut t = self.rng.pick(&self.live);
        let rank = t.ty.rank();
        match self.rng.below(8) {
            0 if rank == 2 => {
                t.ty.sizes.swap(0, 1);
                t.ty.strides.swap(0, 1);
            }
            1 if rank > 0 => {
                let dim = self.rng.below(rank);
                let extent = t.ty.sizes[dim];
                let start = self.rng.below(extent as usize) as i64;
                t.ty.sizes[dim] = 1 + self.rng.below((extent - start) as usize) as i64;
                t.address += (start * t.ty.strides[dim]) as usize * t.ty.dtype.size();
            }
            2 if t.ty.is_contiguous() => t.ty = TensorType::contiguous(t.ty.dtype, &[t.ty.numel()]),
            3 if rank == 2 && t.ty.is_contiguous() && t.ty.sizes[1] % 2 == 0 => {
                let (m, n) = (t.ty.sizes[0], t.ty.sizes[1]);
                t.ty = TensorType::contiguous(t.ty.dtype, &[m, 2, n / 2]);
            }
            _ => {}
        }
        t
    }

    /// Adds a launch of what `write` makes of the tensors' values, rounded to `dtype`; in place of the first, or anew.
    fn launch(&mut self, inputs: &[Tensor], dtype: DType, write: impl Fn(&mut GraphBuilder, &[Value]) -> Value) {
        let mut g = GraphBuilder::default();
        let values: Vec<Value> = inputs
            .iter()
            .map(|t| {
                let v = g.param(t.ty.clone());
                g.convert(v, t.ty.dtype.compute())
            })
            .collect();
        for (i, a) in inputs.iter().enumerate() {
            for (j, b) in inputs[..i].iter().enumerate() {
                if a.address == b.address {
                    g.alias(j, i);
                }
            }
        }
        let result = write(&mut g, &values);
        let sizes = g.shape(result).sizes.clone();
        let in_place = inputs[0].ty.sizes == sizes
            && !inputs[0].ty.strides.contains(&0)
            && inputs[1..].iter().all(|t| !Rc::ptr_eq(&t.block, &inputs[0].block))
            && self.rng.one_in(4);
        let mut addresses: Vec<usize> = inputs.iter().map(|t| t.address).collect();
        if in_place {
            let value = g.convert(result, inputs[0].ty.dtype);
            g.output(value, Destination::Param(0), inputs[0].ty.clone());
        } else {
            let value = g.convert(result, dtype);
            let out = self.allocate(dtype, &sizes);
            addresses.push(out.address);
            g.output(value, Destination::Fresh(0), out.ty.clone());
            self.live.push(out);
        }
        let graph = g.finish();
        let scalars = vec![Scalar::F64(0.5 + self.rng.below(4) as f64 / 4.0); graph.scalars];
        neuron_ir::verify(&graph).unwrap();
        self.actions.push(Action::Launch { graph, addresses, scalars });
    }

    fn step(&mut self) {
        let x = self.tensor();
        let rank = x.ty.rank();
        let dtype = self.rng.pick(&[x.ty.dtype, x.ty.dtype, x.ty.dtype, DType::F32, DType::BF16]);
        match self.rng.below(12) {
            0..=2 => {
                let op = self.rng.pick(&[UnaryOp::Neg, UnaryOp::Tanh, UnaryOp::Sigmoid, UnaryOp::Abs]);
                self.launch(&[x], dtype, |g, v| g.unary(op, v[0]));
            }
            3..=5 => {
                let others: Vec<Tensor> = (0..8).map(|_| self.tensor()).collect();
                let fits = |t: &&Tensor| {
                    let sizes = neuron_ir::broadcast_sizes(&t.ty.sizes, &x.ty.sizes);
                    sizes.is_some_and(|s| s.iter().product::<i64>() <= LARGEST)
                };
                let Some(y) = others.iter().find(fits).cloned() else { return };
                let op = self.rng.pick(&[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Maximum]);
                self.launch(&[x, y], dtype, |g, v| g.binary(op, v[0], v[1]));
            }
            6 => self.launch(&[x], dtype, |g, v| {
                let s = g.scalar(0, DType::F32);
                g.binary(BinaryOp::Mul, v[0], s)
            }),
            7 if rank > 0 => {
                let dim = if self.rng.one_in(3) { self.rng.below(rank) } else { rank - 1 };
                let op = self.rng.pick(&[ReduceOp::Sum, ReduceOp::Max]);
                self.launch(&[x], dtype, |g, v| {
                    let mut shape = g.shape(v[0]).clone();
                    shape.sizes[dim] = 1;
                    g.op(Op::Reduce { op, dims: Dims::from_slice(&[dim as i64]) }, &[v[0]], shape)
                });
            }
            8 if rank > 0 => self.launch(&[x], dtype, |g, v| {
                let shape = g.shape(v[0]).clone();
                g.op(Op::Softmax { dim: shape.rank() - 1, log: false }, &[v[0]], shape)
            }),
            9 if rank > 0 => self.launch(&[x], dtype, |g, v| {
                let shape = g.shape(v[0]).clone();
                let mut rows = shape.clone();
                rows.sizes[shape.rank() - 1] = 1;
                let op = Op::RmsNorm { dims: 1, eps: 1e-5, weight: false };
                g.push(op, &[v[0]], &[shape, rows])
            }),
            10 if rank == 2 => self.launch(&[x], dtype, |g, v| {
                let s = g.shape(v[0]).sizes.clone();
                let shape = Shape::new(DType::F32, &[s[1], s[0]]);
                g.op(Op::Transpose { permutation: Dims::from_slice(&[1, 0]) }, &[v[0]], shape)
            }),
            11 if rank == 2 && x.ty.numel() * 2 <= LARGEST => self.launch(&[x.clone(), x], dtype, |g, v| {
                let mut shape = g.shape(v[0]).clone();
                shape.sizes[1] *= 2;
                g.op(Op::Concat { dim: 1 }, &[v[0], v[1]], shape)
            }),
            _ => {}
        }
        if self.live.len() > 3 && self.rng.one_in(2) {
            let i = self.rng.below(self.live.len());
            let gone = self.live.swap_remove(i);
            let (address, bytes) = *gone.block;
            self.actions.push(Action::Free { address, bytes });
            self.free.push((address, bytes));
        }
    }
}

fn program(seed: u64) -> Writer {
    let mut rng = Rng(seed * 0x9e37_79b9_7f4a_7c15 + 1);
    let large = rng.one_in(8);
    let shapes: Vec<Vec<i64>> = if large {
        vec![vec![520, 256], vec![256], vec![520, 1], vec![8, 65, 256]]
    } else {
        vec![vec![4, 6], vec![6], vec![4, 1], vec![2, 2, 6], vec![], vec![33, 40]]
    };
    let mut w = Writer { rng, live: Vec::new(), free: Vec::new(), top: 64, actions: Vec::new(), shapes };
    for shape in w.shapes.clone() {
        let dtype = w.rng.pick(&[DType::F32, DType::F32, DType::BF16]);
        let t = w.allocate(dtype, &shape);
        w.live.push(t);
    }
    for _ in 0..4 + w.rng.below(20) {
        if w.top > MEMORY - (8 << 20) {
            break;
        }
        w.step();
    }
    w
}

fn memory() -> Vec<u64> {
    // Bytes that are moderate numbers as f32 and as bf16.
    (0..MEMORY as u64 / 8)
        .map(|i| {
            let half = |k: u64| 0x3f00 + (((i * 4 + k) * 2_654_435_761) >> 7) % 0x100 + ((i + k) & 1) * 0x8000;
            half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48
        })
        .collect()
}

fn run(graph: &Graph, memory: &mut [u64], addresses: &[usize], scalars: &[Scalar]) {
    let compiled = std::panic::catch_unwind(|| compile(graph));
    let program = compiled.unwrap_or_else(|_| panic!("{graph}")).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let base = memory.as_mut_ptr().cast::<u8>();
    let buffers: Vec<*mut u8> = addresses.iter().map(|a| base.wrapping_add(*a)).collect();
    // SAFETY: the writer has allocated every buffer within the memory.
    unsafe { program.run(&buffers, scalars).unwrap() };
}

/// Ends a tape and runs what it came to.
fn flush(tape: &mut Tape, since: &[&Action], memory: &mut [u64]) -> usize {
    let launches = tape.len();
    let joined = std::mem::replace(tape, Tape::exact()).finish(|_, _| true);
    if launches == 0 {
        return 0;
    }
    neuron_ir::verify(&joined.graph).unwrap_or_else(|e| panic!("{e}\n{}", joined.graph));
    let taken: Vec<_> = since
        .iter()
        .filter_map(|a| match a {
            Action::Launch { addresses, scalars, .. } => Some((addresses, scalars)),
            Action::Free { .. } => None,
        })
        .collect();
    let addresses: Vec<usize> = joined.buffers.iter().map(|o| taken[o.launch].0[o.buffer]).collect();
    let scalars: Vec<Scalar> = taken.iter().flat_map(|t| t.1.iter().copied()).collect();
    run(&joined.graph, memory, &addresses, &scalars);
    launches
}

fn listing(actions: &[Action]) -> String {
    let line = |a: &Action| match a {
        Action::Launch { graph, addresses, scalars } => format!("launch at {addresses:?} with {scalars:?}\n{graph}"),
        Action::Free { address, bytes } => format!("free {address}, {bytes} bytes\n"),
    };
    actions.iter().map(line).collect()
}

#[test]
fn joined_launches_compute_what_single_ones_do() {
    let scale = if std::env::var("NEURON_TESTS").is_ok_and(|v| v == "all") { 10 } else { 1 };
    let (mut joined, mut launches) = (0, 0);
    let initial = memory();
    for seed in 1..=PROGRAMS * scale {
        let w = program(seed);
        let used = w.top.div_ceil(8);
        let (mut one, mut two) = (initial[..used].to_vec(), initial[..used].to_vec());
        let mut tape = Tape::exact();
        let mut since: Vec<&Action> = Vec::new();
        for action in &w.actions {
            match action {
                Action::Launch { graph, addresses, scalars } => {
                    launches += 1;
                    run(graph, &mut one, addresses, scalars);
                    if !tape.push(graph, addresses, scalars.len()) {
                        joined += flush(&mut tape, &since, &mut two);
                        since.clear();
                        if !tape.push(graph, addresses, scalars.len()) {
                            run(graph, &mut two, addresses, scalars);
                            continue;
                        }
                    }
                    since.push(action);
                }
                Action::Free { address, bytes } => tape.free(*address, *bytes),
            }
        }
        joined += flush(&mut tape, &since, &mut two);
        for t in &w.live {
            let bytes = t.address..t.address + t.ty.numel() as usize * t.ty.dtype.size();
            let of =
                |memory: &[u64]| -> Vec<u8> { bytes.clone().map(|b| (memory[b / 8] >> (b % 8 * 8)) as u8).collect() };
            assert!(of(&one) == of(&two), "program {seed}: {} at {}\n{}", t.ty, t.address, listing(&w.actions));
        }
    }
    assert!(joined * 2 > launches, "only {joined} of {launches} launches were joined");
}
