//! Adaptive fusion: launches that pile up behind a busy executor run as one.
//!
//! A run is consecutive launches of one stream that are elementwise or work along rows. Joined by the compiler's tape they
//! are one pass over memory, and what was freed before the end of the run is never written. Results are those of single
//! launches, to the bit.
//!
//! A run is recognised by the shape of its launches and of the memory they share. The first time it runs launch by launch,
//! unless it takes much longer than to compile it; a run that comes back is compiled once. Which launches share a batch depends on the clock, so that without this rule
//! many would be compiled for one use.

use crate::queue::{Launch, Work};
use neuron_compiler::{Origin, Program, Tape};
use neuron_ir::Scalar;
use neuron_kernels::KernelError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Most launches of a run.
const LONGEST: usize = 32;
/// A run of this length ends where a launch uses nothing that it made: so the same launches make the same runs.
const SHORTEST: usize = 4;
/// A run that takes less than this, in estimated nanoseconds, is not worth looking at.
const WORTHWHILE: u64 = 20_000;
/// A run that takes longer than this, in estimated nanoseconds, is compiled when it is first seen: that costs less.
const AT_ONCE: u64 = 2_000_000;
/// Runs remembered before all are dropped.
const CAPACITY: usize = 4096;

static ENABLED: AtomicBool = AtomicBool::new(true);
static FUSED: AtomicU64 = AtomicU64::new(0);
static COMPILED: AtomicU64 = AtomicU64::new(0);

/// Switches fusion: `NEURON_EAGER_FUSION`.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// How many launches ran as part of a fused run so far, and how many runs were compiled.
pub fn counters() -> (u64, u64) {
    (FUSED.load(Ordering::Relaxed), COMPILED.load(Ordering::Relaxed))
}

/// What a run became.
enum Known {
    /// Seen once.
    Once,
    /// Compiled.
    Fused(Arc<Fused>),
    /// Nothing to gain.
    Alone,
}

/// A compiled run: programs in order.
pub(crate) struct Fused {
    parts: Vec<Part>,
}

/// Launches that became one program.
struct Part {
    program: Program,
    buffers: Vec<Origin>,
    /// The first launch and how many.
    launches: std::ops::Range<usize>,
}

static RUNS: LazyLock<Mutex<FxHashMap<Box<[u64]>, Known>>> = LazyLock::new(Mutex::default);

/// How many items at the start of a batch belong together, and the programs they are, if they run as one.
pub(crate) fn next(batch: &[Work]) -> (usize, Option<Arc<Fused>>) {
    let (mut launches, mut cost, mut end) = (0, 0, 0);
    let mut written: SmallVec<[(usize, usize); LONGEST]> = SmallVec::new();
    for (i, work) in batch.iter().enumerate() {
        match work {
            Work::Launch(l) if launches < LONGEST && l.program.fuses() => {
                let extents = || l.buffers.iter().zip(l.program.extents()).map(|(b, n)| (b.addr(), b.addr() + n));
                let mut read = extents().take(l.program.graph().params.len());
                if launches >= SHORTEST && !read.any(|e| written.iter().any(|w| w.0 < e.1 && e.0 < w.1)) {
                    break; // something new begins here, wherever the batch began
                }
                written.extend(l.program.written().iter().filter_map(|b| extents().nth(*b)));
                launches += 1;
                cost += l.program.cost();
            }
            Work::Free { .. } => {}
            _ => break,
        }
        end = i + 1;
    }
    if launches < 2 || cost < WORTHWHILE || !ENABLED.load(Ordering::Relaxed) {
        return (end.max(1), None);
    }
    let run = &batch[..end];
    // A fault in here must not end the executor: the launches then run one by one.
    let found = catch_unwind(AssertUnwindSafe(|| find(run, &launches_of(run), cost)));
    (end, found.unwrap_or_default())
}

fn launches_of(run: &[Work]) -> SmallVec<[&Launch; LONGEST]> {
    run.iter()
        .filter_map(|w| match w {
            Work::Launch(l) => Some(l),
            _ => None,
        })
        .collect()
}

impl Fused {
    /// Runs what the run became.
    ///
    /// # Safety
    /// As for running its launches one by one.
    pub(crate) unsafe fn run(&self, run: &[Work]) -> Result<(), KernelError> {
        let launches = launches_of(run);
        FUSED.fetch_add(launches.len() as u64, Ordering::Relaxed);
        for part in &self.parts {
            // SAFETY: the caller's contract: the program does what its launches do.
            unsafe { part.run(&launches[part.launches.clone()])? };
        }
        Ok(())
    }
}

impl Part {
    /// # Safety
    /// The launches are those this was compiled for.
    unsafe fn run(&self, launches: &[&Launch]) -> Result<(), KernelError> {
        let buffers: SmallVec<[*mut u8; 16]> =
            self.buffers.iter().map(|o| launches[o.launch].buffers[o.buffer]).collect();
        let scalars: SmallVec<[Scalar; 16]> = launches.iter().flat_map(|l| l.scalars.iter().copied()).collect();
        // SAFETY: the caller's contract.
        unsafe { self.program.run(&buffers, &scalars) }
    }
}

fn find(run: &[Work], launches: &[&Launch], cost: u64) -> Option<Arc<Fused>> {
    let key = key(run, launches).into_boxed_slice();
    {
        let mut runs = RUNS.lock();
        match runs.get(&key) {
            Some(Known::Fused(fused)) => return Some(fused.clone()),
            Some(Known::Alone) => return None,
            None if cost < AT_ONCE => {
                if runs.len() >= CAPACITY {
                    runs.clear();
                }
                runs.insert(key, Known::Once);
                return None;
            }
            // Should compiling panic, the run is not tried again.
            Some(Known::Once) | None => runs.insert(key.clone(), Known::Alone),
        };
    }
    let fused = compile(run).map(Arc::new);
    COMPILED.fetch_add(1, Ordering::Relaxed);
    RUNS.lock().insert(key, fused.clone().map_or(Known::Alone, Known::Fused));
    fused
}

/// Marks, in a key, that memory is freed.
const FREED: u64 = u64::MAX;

/// What a run does, whatever its addresses: programs, which memory their buffers share, what is freed when.
fn key(run: &[Work], launches: &[&Launch]) -> Vec<u64> {
    // Buffers that overlap are in one region.
    let mut extents: SmallVec<[(usize, usize); 96]> = SmallVec::new();
    for l in launches {
        extents.extend(l.buffers.iter().zip(l.program.extents()).map(|(b, n)| (b.addr(), b.addr() + n)));
    }
    extents.sort_unstable();
    let mut regions: SmallVec<[(usize, usize, u64); 64]> = SmallVec::new();
    for (start, end) in extents {
        match regions.last_mut() {
            Some(r) if start < r.1 || start == r.0 => r.1 = r.1.max(end),
            _ => regions.push((start, end, FREED)),
        }
    }
    let mut key = Vec::with_capacity(8 * run.len());
    let mut seen = 0;
    for work in run {
        match work {
            Work::Launch(l) => {
                key.push(l.program.id() << 16 | l.scalars.len() as u64);
                for b in &l.buffers {
                    let region = regions.partition_point(|r| r.0 <= b.addr()) - 1;
                    let r = &mut regions[region];
                    if r.2 == FREED {
                        r.2 = seen;
                        seen += 1;
                    }
                    key.push(r.2 << 40 | (b.addr() - r.0) as u64);
                }
            }
            Work::Free { address, bytes } => {
                let (first, last) = (regions.partition_point(|r| r.0 < *address), address + bytes);
                for r in regions[first..].iter().take_while(|r| r.0 < last) {
                    key.extend([FREED, r.2, u64::from(r.1 <= last)]);
                }
            }
            _ => {}
        }
    }
    key
}

/// Joins as many launches at a time as the tape takes.
fn compile(run: &[Work]) -> Option<Fused> {
    let mut parts = Vec::new();
    let mut tape = Tape::exact();
    let (mut first, mut next) = (0, 0);
    let mut finish = |tape: &mut Tape, launches: std::ops::Range<usize>| -> Option<()> {
        let joined = std::mem::replace(tape, Tape::exact()).finish(|_, _| true);
        if !launches.is_empty() {
            let program = neuron_compiler::compile(&joined.graph).ok()?;
            parts.push(Part { program, buffers: joined.buffers, launches });
        }
        Some(())
    };
    for work in run {
        match work {
            Work::Launch(l) => {
                let addresses: SmallVec<[usize; 8]> = l.buffers.iter().map(|b| b.addr()).collect();
                if !tape.push(l.program.graph(), &addresses, l.scalars.len()) {
                    finish(&mut tape, first..next)?;
                    first = next;
                    if !tape.push(l.program.graph(), &addresses, l.scalars.len()) {
                        return None;
                    }
                }
                next += 1;
            }
            Work::Free { address, bytes } => tape.free(*address, *bytes),
            _ => {}
        }
    }
    finish(&mut tape, first..next)?;
    (parts.len() < next).then_some(Fused { parts })
}
