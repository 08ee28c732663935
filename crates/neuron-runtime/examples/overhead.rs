//! What the runtime adds to an operator: allocation, free and launch, in nanoseconds.

use neuron_compiler::{Program, Slot, Step};
use neuron_ir::Scalar;
use neuron_kernels::{Kernel, KernelError};
use neuron_runtime::{Error, Event, device};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
struct Nothing(u64);

impl Kernel for Nothing {
    unsafe fn run(&self, _: &[*mut u8], _: &[Scalar]) -> Result<(), KernelError> {
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.0
    }
}

/// Median over rounds of the time of one call.
fn measure(name: &str, mut call: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let mut rounds = Vec::new();
    for _ in 0..31 {
        let start = Instant::now();
        for _ in 0..1000 {
            call()?;
        }
        rounds.push(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{name:<44}{:>9.1} ns", rounds[rounds.len() / 2]);
    Ok(())
}

fn main() -> Result<(), Error> {
    let core = device::get(0)?;
    for size in [4usize, 4096, 1 << 20, 8 << 20] {
        measure(&format!("allocate and free {size} bytes"), || {
            device::free(black_box(device::allocate(0, 0, size)?));
            Ok(())
        })?;
    }
    let held: Vec<*mut u8> = (0..200).map(|i| device::allocate(0, 0, i * 64 + 1)).collect::<Result<_, _>>()?;
    let mut i = 0;
    let mut ring = held.clone();
    measure("free and allocate, 200 blocks held", || {
        i = (i + 7) % ring.len();
        device::free(ring[i]);
        ring[i] = device::allocate(0, 0, i * 64 + 1)?;
        Ok(())
    })?;
    let program = |cost| {
        let buffers = (0..3).map(Slot::argument).collect();
        let step = Step { kernel: Box::new(Nothing(cost)), buffers, scalars: Default::default() };
        Arc::new(Program::of_steps(vec![step], 3))
    };
    let buffers = [held[0], held[1], held[2]];
    let (short, long) = (program(10), program(100_000));
    let launch = |p: &Arc<Program>| {
        // SAFETY: the program touches no buffer.
        unsafe { core.queue.launch(0, p, &buffers, &[Scalar::F64(1.0)], "example", None) }
    };
    measure("launch on the idle device", || launch(&short))?;
    measure("launch and synchronize, idle device", || {
        launch(&short)?;
        core.queue.synchronize(0)
    })?;
    measure("launch through the queue, executor busy", || launch(&long))?;
    core.queue.synchronize(0)?;
    measure("launch through the queue and synchronize", || {
        launch(&long)?;
        core.queue.synchronize(0)
    })?;
    let event = Event::new(true);
    measure("record an event on the idle device", || event.record(&core.queue, 0))?;
    ring.into_iter().for_each(device::free);
    device::shut_down();
    Ok(())
}
