//! Adaptive fusion: launches that pile up behind a busy executor run as one.
//!
//! A run is consecutive launches of one stream that are elementwise or work along rows. Joined by the compiler's tape they
//! are one pass over memory, and what was freed before the end of the run is never written. Results are those of single
//! launches, to the bit.
//!
//! A run is recognised by the shape of its launches and of the memory they share. The first time it runs launch by launch,
//! unless that takes much longer than compiling; a run that comes back is compiled once. Which launches share a batch
//! depends on the clock, so that without this rule many would be compiled for one use.

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
/// Most bytes of temporaries of a program: with more of them, launches that write tensors the allocator keeps are faster.
const MOST_TEMPORARIES: usize = 16 << 20;
/// Runs remembered before all are dropped.
const CAPACITY: usize = 4096;

static ENABLED: AtomicBool = AtomicBool::new(true);
static FUSED: AtomicU64 = AtomicU64::new(0);
static COMPILED: AtomicU64 = AtomicU64::new(0);

/// Whether launches are fused.
pub(crate) fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

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
    if !is_enabled() {
        return (1, None);
    }
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
    if launches < 2 || cost < WORTHWHILE {
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
            Some(Known::Once) => {}
            None => {
                if runs.len() >= CAPACITY {
                    runs.clear();
                }
                if cost < AT_ONCE {
                    runs.insert(key, Known::Once);
                    return None;
                }
            }
        }
        // Should compiling panic, the run is not tried again.
        runs.insert(key.clone(), Known::Alone);
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
                // As much of each region as is freed.
                let (first, last) = (regions.partition_point(|r| r.1 <= *address), address + bytes);
                for r in regions[first..].iter().take_while(|r| r.0 < last) {
                    let (from, to) = (r.0.max(*address) - r.0, r.1.min(last) - r.0);
                    key.extend([FREED, r.2, from as u64, to as u64]);
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
            if program.workspace() > MOST_TEMPORARIES {
                return None;
            }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use neuron_ir::{DType, Destination, GraphBuilder, TensorType, UnaryOp};

    /// A launch of `b = -a` on so many floats.
    fn negation(n: i64, a: usize, b: usize) -> Work {
        let mut g = GraphBuilder::default();
        let ty = TensorType::contiguous(DType::F32, &[n]);
        let x = g.param(ty.clone());
        let y = g.unary(UnaryOp::Neg, x);
        g.output(y, Destination::Fresh(0), ty);
        let program = Arc::new(neuron_compiler::compile(&g.finish()).unwrap());
        let buffers = [a, b].map(std::ptr::without_provenance_mut).into_iter().collect();
        Work::Launch(Launch { program, buffers, scalars: SmallVec::new(), op: "test", trace: None })
    }

    fn with_free(mut run: Vec<Work>, address: usize, bytes: usize) -> Vec<u64> {
        run.push(Work::Free { address, bytes });
        key(&run, &launches_of(&run))
    }

    /// Two launches whose results overlap: what of them is dead depends on how much is freed.
    #[test]
    fn keys_tell_how_much_is_freed() {
        let Work::Launch(first) = negation(16, 0x1000, 0x2000) else { unreachable!() };
        let Work::Launch(second) = negation(64, 0x1000, 0x2000) else { unreachable!() };
        let run = || {
            let again = |l: &Launch| {
                let (program, buffers) = (l.program.clone(), l.buffers.clone());
                Work::Launch(Launch { program, buffers, scalars: SmallVec::new(), op: "test", trace: None })
            };
            vec![again(&first), again(&second)]
        };
        assert_eq!(with_free(run(), 0x2000, 64), with_free(run(), 0x2000, 64));
        assert_ne!(with_free(run(), 0x2000, 64), with_free(run(), 0x2000, 128));
        assert_ne!(with_free(run(), 0x2000, 64), with_free(run(), 0x2040, 64));
    }

    /// The same launches elsewhere in memory are the same run; with other memory shared they are another.
    #[test]
    fn keys_tell_what_is_shared_but_not_where() {
        let Work::Launch(one) = negation(16, 0, 0) else { unreachable!() };
        let run = |buffers: [[usize; 2]; 2]| {
            let launch = |b: [usize; 2]| {
                let buffers = b.map(std::ptr::without_provenance_mut).into_iter().collect();
                let program = one.program.clone();
                Work::Launch(Launch { program, buffers, scalars: SmallVec::new(), op: "test", trace: None })
            };
            with_free(buffers.map(launch).into(), buffers[0][1], 64)
        };
        let chain = run([[0x1000, 0x2000], [0x2000, 0x3000]]);
        assert_eq!(chain, run([[0x7000, 0x5000], [0x5000, 0x9000]]));
        assert_ne!(chain, run([[0x1000, 0x2000], [0x1000, 0x3000]]));
        assert_ne!(chain, run([[0x1000, 0x2000], [0x2000, 0x1000]]));
    }
}
