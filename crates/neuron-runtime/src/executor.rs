//! Running work: programs, host functions and the errors they leave.

use crate::error::Error;
use crate::fusion;
use crate::queue::{Launch, Queue, Work};
use crate::space;
use crate::sync::Arc;
use neuron_compiler::Program;
use neuron_ir::Scalar;
use neuron_kernels::KernelError;
use smallvec::SmallVec;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Work estimated shorter than this, in nanoseconds, is not worth a hand-over to the executor.
const INLINE_COST: u64 = 15_000;

static BLOCKING: AtomicBool = AtomicBool::new(false);

/// Makes every launch wait for its completion and return its error: `NEURON_LAUNCH_BLOCKING`.
pub fn set_blocking(blocking: bool) {
    BLOCKING.store(blocking, Ordering::Relaxed);
}

/// Whether launches wait for their completion.
pub fn is_blocking() -> bool {
    BLOCKING.load(Ordering::Relaxed)
}

/// Runs the items of one stream in order. The items that ran since the last signal are reported with the next.
pub(crate) fn execute_batch(queue: &Arc<Queue>, stream: u32, batch: &mut Vec<Work>) {
    let (mut ran, mut at) = (0, 0);
    while at < batch.len() {
        let (length, fused) = fusion::next(&batch[at..]);
        let items = at..at + length;
        at += length;
        if let Some(fused) = fused {
            ran += length as u64;
            // SAFETY: whoever launched promised that the buffers fit the programs, and stream order keeps them so.
            if let Err(error) = caught("fused operators", || None, || unsafe { fused.run(&batch[items]) }) {
                queue.fail(stream, error);
            }
            continue;
        }
        for work in &mut batch[items] {
            ran += 1;
            let result = match std::mem::replace(work, Work::NOTHING) {
                Work::Launch(l) => {
                    // SAFETY: as above.
                    unsafe { run_program(&l.program, &l.buffers, &l.scalars, l.op, || l.trace) }
                }
                Work::Host(f) => run_host(f),
                Work::Record(signal) => {
                    queue.pass(stream, std::mem::take(&mut ran), &signal);
                    Ok(())
                }
                Work::Wait(_) | Work::Free { .. } => Ok(()),
            };
            if let Err(error) = result {
                queue.fail(stream, error);
            }
        }
    }
    batch.clear();
}

/// # Safety
/// As for [`Program::run`].
unsafe fn run_program(
    program: &Program,
    buffers: &[*mut u8],
    scalars: &[Scalar],
    op: &'static str,
    trace: impl FnOnce() -> Option<Box<str>>,
) -> Result<(), Error> {
    // SAFETY: the caller's contract.
    caught(op, trace, || unsafe { program.run(buffers, scalars) })
}

/// Turns a kernel's error or panic into one that names the operator.
fn caught(
    op: &'static str,
    trace: impl FnOnce() -> Option<Box<str>>,
    run: impl FnOnce() -> Result<(), KernelError>,
) -> Result<(), Error> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(cause)) => Err(Error::Launch { op, cause, trace: trace() }),
        Err(payload) => Err(Error::Panic { op, message: panic_message(&*payload), trace: trace() }),
    }
}

fn run_host(f: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        Err(Error::Panic { op: "host function", message: panic_message(&*payload), trace: None })
    })
}

/// The text of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (None, Some(text)) => text.clone(),
        (None, None) => "panic".to_string(),
    }
}

impl Queue {
    /// Runs a program on a stream: at once on this thread if the device is idle and the program short, else in turn.
    ///
    /// # Errors
    /// If the runtime is shut down; in blocking mode, also what the program or earlier work of the stream failed with.
    ///
    /// Buffers are device addresses; under `NEURON_PROTECT_DEVICE_MEMORY=1` they are translated here.
    ///
    /// # Safety
    /// The buffers fit the program and stay allocated until the stream has passed this point.
    pub unsafe fn launch(
        self: &Arc<Self>,
        stream: u32,
        program: &std::sync::Arc<Program>,
        buffers: &[*mut u8],
        scalars: &[Scalar],
        op: &'static str,
        trace: Option<Box<str>>,
    ) -> Result<(), Error> {
        let views: SmallVec<[*mut u8; 8]>;
        let buffers = if space::is_protected() {
            views = buffers.iter().map(|b| space::host_view(*b)).collect();
            &views[..]
        } else {
            buffers
        };
        let blocking = is_blocking();
        if (blocking || program.cost() < INLINE_COST) && self.begin_inline(stream) {
            // SAFETY: the caller's contract.
            let result = unsafe { run_program(program, buffers, scalars, op, || trace) };
            return self.finish_inline(stream, result, blocking);
        }
        let launch = Launch {
            program: program.clone(),
            buffers: SmallVec::from_slice(buffers),
            scalars: SmallVec::from_slice(scalars),
            op,
            trace,
        };
        self.submit(stream, Work::Launch(launch))?;
        if blocking { self.synchronize(stream) } else { Ok(()) }
    }

    /// Runs a host function on a stream: at once on this thread if the device is idle and `cost` (in nanoseconds)
    /// small, else in turn.
    ///
    /// # Errors
    /// As for [`Queue::launch`].
    pub fn run_host(
        self: &Arc<Self>,
        stream: u32,
        cost: u64,
        f: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let blocking = is_blocking();
        if (blocking || cost < INLINE_COST) && self.begin_inline(stream) {
            let result = run_host(f);
            return self.finish_inline(stream, result, blocking);
        }
        self.submit(stream, Work::Host(Box::new(f)))?;
        if blocking { self.synchronize(stream) } else { Ok(()) }
    }

    /// The error is kept before the baton is given back: whoever sees the device idle also sees the error.
    fn finish_inline(&self, stream: u32, result: Result<(), Error>, blocking: bool) -> Result<(), Error> {
        let result = match result {
            Err(error) if !blocking => {
                self.fail(stream, error);
                Ok(())
            }
            other => other,
        };
        self.end_inline(stream);
        result
    }
}
