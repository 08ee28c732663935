//! The launch queue of a device: work of its streams, and who runs it.
//!
//! One thread at a time runs a device's work; it holds the *baton*. It may be
//! * the thread that launches, if the device is idle and the work is short: the work is then never queued;
//! - the device's executor thread, started at the first push;
//! - a thread that waits for the device.
//!
//! All of that is decided on one word, so that launching on an idle device is two atomic operations:
//!
//! ```text
//!  63      48 47                       8 7      2   1       0
//! +----------+--------------------------+--------+--------+-------+
//! |  stream  |  items queued or running |        | INLINE | BATON |
//! +----------+--------------------------+--------+--------+-------+
//! ```
//!
//! Zero means idle: nothing queued, nobody runs. The baton is taken inline only from zero, so inline work never
//! overtakes queued work. `stream` is the stream of the inline work. Items count until they have run.
//!
//! Lock order: a queue's lock, then a signal's. Work is run and dropped with no lock held.

use crate::error::Error;
use crate::event::{Signal, Subscribers};
use crate::interrupt;
use crate::stream;
use crate::sync::{self, Arc, AtomicBool, AtomicU64, Condvar, Helper, JoinHandle, Mutex, Ordering};
use neuron_compiler::Program;
use neuron_ir::Scalar;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

const BATON: u64 = 1;
const INLINE: u64 = 1 << 1;
const ITEM: u64 = 1 << 8;
const ITEMS: u64 = ((1 << 48) - 1) & !(ITEM - 1);
const STREAM_SHIFT: u32 = 48;

/// Streams of a device: the default stream and a pool for each of two priorities.
pub const STREAMS: u32 = 65;

/// Most items a batch has: a stream of higher priority waits no longer than this.
const BATCH: usize = 128;

/// A launching thread that is this far ahead of the device waits for it.
const AHEAD: u64 = 8192;

/// Between two looks at whether a wait was interrupted.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

/// What a stream does, in order.
pub enum Work {
    /// Runs a program.
    Launch(Launch),
    /// Runs a function of the host.
    Host(Box<dyn FnOnce() -> Result<(), Error> + Send>),
    /// Passes a point others wait for.
    Record(Arc<Signal>),
    /// Waits until another stream has passed a point.
    Wait(Arc<Signal>),
    /// Nothing queued behind this reads the memory before it is written again.
    Free {
        /// Where it begins.
        address: usize,
        /// How much it is.
        bytes: usize,
    },
}

/// A program with its operands.
pub struct Launch {
    /// What runs.
    pub program: std::sync::Arc<Program>,
    /// Where its operands lie.
    pub buffers: SmallVec<[*mut u8; 8]>,
    /// Its scalars.
    pub scalars: SmallVec<[Scalar; 4]>,
    /// The operator, for errors.
    pub op: &'static str,
    /// Where in Python it was issued, for errors.
    pub trace: Option<Box<str>>,
}

// SAFETY: the addresses are device memory, which work reads and writes in stream order on whichever thread holds the
// baton; everything else in it is `Send`.
unsafe impl Send for Launch {}

impl Work {
    /// What is left of an item that was taken.
    pub(crate) const NOTHING: Work = Work::Free { address: 0, bytes: 0 };
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Launch(l) => write!(f, "Launch({})", l.op),
            Work::Host(_) => f.write_str("Host"),
            Work::Record(_) => f.write_str("Record"),
            Work::Wait(_) => f.write_str("Wait"),
            Work::Free { .. } => f.write_str("Free"),
        }
    }
}

#[derive(Default)]
struct Stream {
    queued: VecDeque<(u64, Work)>,
    running: u64,
    priority: i32,
    error: Option<(u64, Error)>,
}

struct Inner {
    streams: Vec<Stream>,
    /// Bit per stream that has something queued.
    occupied: u128,
    sequence: u64,
    errors: u64,
    executor: Option<JoinHandle<()>>,
    parked: bool,
    waiting: usize,
    stopping: bool,
}

/// The work of a device's streams.
pub struct Queue {
    device: i32,
    state: AtomicU64,
    failed: AtomicBool,
    inner: Mutex<Inner>,
    /// The executor sleeps here.
    work: Condvar,
    /// Threads that wait for work to be done sleep here.
    done: Condvar,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Queue {
    /// The queue of a device, idle.
    pub fn new(device: i32, streams: u32) -> Arc<Queue> {
        let make = |i| Stream { priority: stream::priority(u64::from(i)), ..Stream::default() };
        Arc::new(Queue {
            device,
            state: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                streams: (0..streams).map(make).collect(),
                occupied: 0,
                sequence: 0,
                errors: 0,
                executor: None,
                parked: false,
                waiting: 0,
                stopping: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// Index of the device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// True if nothing is queued and nothing runs. What ran before is then visible to the caller.
    ///
    /// The baton may still be on its way back: a bare baton runs nothing.
    pub fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ITEMS | INLINE) == 0
    }

    /// Takes the baton for work that is never queued; false if the device is not idle.
    pub(crate) fn begin_inline(&self, stream: u32) -> bool {
        let busy = BATON | INLINE | u64::from(stream) << STREAM_SHIFT;
        if self.state.compare_exchange(0, busy, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        sync::set_running(self.identity());
        true
    }

    /// Gives the baton back.
    pub(crate) fn end_inline(&self, stream: u32) {
        sync::set_running(0);
        let busy = BATON | INLINE | u64::from(stream) << STREAM_SHIFT;
        if self.state.fetch_sub(busy, Ordering::Release) & ITEMS != 0 {
            self.hand_over();
        }
    }

    /// Wakes those who could run what is queued.
    fn hand_over(&self) {
        let inner = self.inner.lock();
        if inner.parked {
            self.work.notify_one();
        }
        if inner.waiting > 0 {
            self.done.notify_all();
        }
    }

    /// Queues work. Without `wake` the caller runs it itself, by waiting for it.
    fn push(self: &Arc<Self>, stream: u32, work: Work, wake: bool) -> Result<(), Error> {
        let ahead = {
            let mut inner = self.inner.lock();
            if inner.stopping {
                return Err(Error::ShutDown);
            }
            self.push_locked(&mut inner, stream, work);
            if wake {
                if inner.executor.is_none() {
                    let queue = self.clone();
                    let thread = sync::spawn(format!("neuron-{}", self.device), move || queue.serve());
                    inner.executor = Some(thread.map_err(|e| Error::System { call: "thread", reason: e.to_string() })?);
                } else if inner.parked {
                    self.work.notify_one();
                }
            }
            (self.state.load(Ordering::Relaxed) & ITEMS) / ITEM
        };
        if ahead > AHEAD && wake && !self.is_running_here() {
            self.drain(stream)?;
        }
        Ok(())
    }

    fn push_locked(&self, inner: &mut Inner, stream: u32, work: Work) {
        inner.sequence += 1;
        let sequence = inner.sequence;
        inner.streams[stream as usize].queued.push_back((sequence, work));
        inner.occupied |= 1 << stream;
        self.state.fetch_add(ITEM, Ordering::Release);
    }

    /// Queues work behind what the stream has.
    ///
    /// # Errors
    /// If the runtime is shut down or no thread can be started.
    pub fn submit(self: &Arc<Self>, stream: u32, work: Work) -> Result<(), Error> {
        self.push(stream, work, true)
    }

    /// Tells what is queued on the stream that nobody reads this memory any more: what is in it need not be written.
    pub(crate) fn note_free(&self, stream: u32, address: usize, bytes: usize) {
        if self.is_idle() || !crate::fusion::is_enabled() {
            return;
        }
        let mut inner = self.inner.lock();
        if !inner.stopping && !inner.streams[stream as usize].queued.is_empty() {
            self.push_locked(&mut inner, stream, Work::Free { address, bytes });
        }
    }

    fn is_stream_idle(&self, inner: &Inner, stream: u32) -> bool {
        let s = &inner.streams[stream as usize];
        let state = self.state.load(Ordering::Acquire);
        s.queued.is_empty() && s.running == 0 && !(state & INLINE != 0 && state >> STREAM_SHIFT == u64::from(stream))
    }

    /// A signal at this point of the stream; it has happened if the stream is idle.
    ///
    /// # Errors
    /// If the runtime is shut down.
    pub fn record(self: &Arc<Self>, stream: u32) -> Result<Arc<Signal>, Error> {
        match self.mark(stream, true)? {
            Some(signal) => Ok(signal),
            None => Ok(Signal::passed()),
        }
    }

    /// A signal behind what the stream has queued; none if it is idle.
    fn mark(self: &Arc<Self>, stream: u32, wake: bool) -> Result<Option<Arc<Signal>>, Error> {
        if self.is_idle() {
            return Ok(None);
        }
        if self.is_stream_idle(&self.inner.lock(), stream) {
            return Ok(None);
        }
        let signal = Signal::new();
        self.push(stream, Work::Record(signal.clone()), wake)?;
        Ok(Some(signal))
    }

    /// Later work of the stream starts after the signal.
    ///
    /// # Errors
    /// If the runtime is shut down.
    pub fn wait_for(self: &Arc<Self>, stream: u32, signal: &Arc<Signal>) -> Result<(), Error> {
        if signal.is_done() {
            return Ok(());
        }
        self.submit(stream, Work::Wait(signal.clone()))
    }

    /// True if nothing of the stream is queued or runs.
    pub fn query(&self, stream: u32) -> bool {
        self.is_idle() || self.is_stream_idle(&self.inner.lock(), stream)
    }

    /// True if the calling thread runs work of this device: it cannot wait for the device.
    pub(crate) fn is_running_here(&self) -> bool {
        sync::running() == self.identity()
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Waits until what the stream has now is done.
    fn drain(self: &Arc<Self>, stream: u32) -> Result<(), Error> {
        if self.is_running_here() {
            return Ok(());
        }
        match self.mark(stream, false)? {
            Some(signal) => self.wait(&signal),
            None => Ok(()),
        }
    }

    /// Waits until what the stream has now is done, and raises its first error since the last time.
    ///
    /// # Errors
    /// That error, or [`Error::Interrupted`].
    pub fn synchronize(self: &Arc<Self>, stream: u32) -> Result<(), Error> {
        self.drain(stream)?;
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        let error = inner.streams[stream as usize].error.take();
        self.failed.store(inner.streams.iter().any(|s| s.error.is_some()), Ordering::Release);
        error.map_or(Ok(()), |(_, e)| Err(e))
    }

    /// Waits until what all streams have now is done, and raises the first error of any since the last time.
    ///
    /// # Errors
    /// That error, or [`Error::Interrupted`].
    pub fn synchronize_all(self: &Arc<Self>) -> Result<(), Error> {
        self.drain_all()?;
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        let first = inner.streams.iter_mut().filter_map(|s| s.error.take()).min_by_key(|(order, _)| *order);
        self.failed.store(false, Ordering::Release);
        first.map_or(Ok(()), |(_, e)| Err(e))
    }

    /// Waits until what all streams have now is done; their errors stay for a later synchronization.
    pub(crate) fn drain_all(self: &Arc<Self>) -> Result<(), Error> {
        if self.is_idle() {
            return Ok(());
        }
        let streams = self.inner.lock().streams.len() as u32;
        for stream in 0..streams {
            self.drain(stream)?;
        }
        Ok(())
    }

    /// Keeps the stream's first error for the next synchronization.
    pub(crate) fn fail(&self, stream: u32, error: Error) {
        let mut inner = self.inner.lock();
        inner.errors += 1;
        let order = inner.errors;
        inner.streams[stream as usize].error.get_or_insert((order, error));
        self.failed.store(true, Ordering::Release);
    }

    /// Waits for a signal of this queue, running its work meanwhile.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the interrupt check says so.
    pub fn wait(self: &Arc<Self>, signal: &Signal) -> Result<(), Error> {
        if signal.is_done() || self.is_running_here() {
            return Ok(());
        }
        let result = self.wait_running(signal);
        if self.state.load(Ordering::Relaxed) & ITEMS != 0 {
            // This thread may have been woken, or counted on, to run what is left.
            self.hand_over();
        }
        result
    }

    fn wait_running(self: &Arc<Self>, signal: &Signal) -> Result<(), Error> {
        let mut batch = Vec::new();
        let mut idle_since = None;
        let mut helper = None;
        loop {
            if signal.is_done() {
                return Ok(());
            }
            if self.looks_runnable() {
                // Whoever runs a kernel wants workers beside it.
                helper = None;
                if self.run_some(&mut batch) {
                    idle_since = None;
                    continue;
                }
            }
            if helper.get_or_insert_with(Helper::new).help() {
                idle_since = None;
                continue;
            }
            if !sync::SPIN.is_zero() && idle_since.get_or_insert_with(Instant::now).elapsed() < sync::SPIN {
                std::hint::spin_loop();
                continue;
            }
            helper = None;
            let taken = {
                let mut inner = self.inner.lock();
                if signal.is_done() {
                    return Ok(());
                }
                let taken = self.take(&mut inner, &mut batch);
                if taken.is_none() {
                    inner.waiting += 1;
                    self.done.wait_for(&mut inner, INTERRUPT_INTERVAL);
                    inner.waiting -= 1;
                }
                taken
            };
            match taken {
                Some(stream) => self.execute(stream, &mut batch),
                None if interrupt::is_pending() => return Err(Error::Interrupted),
                None => {}
            }
        }
    }

    /// Something is queued and nobody runs: worth taking the lock.
    pub(crate) fn looks_runnable(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & BATON == 0 && state & ITEMS != 0
    }

    /// Runs a batch if one is ready and nobody runs.
    fn run_some(self: &Arc<Self>, batch: &mut Vec<Work>) -> bool {
        let taken = self.take(&mut self.inner.lock(), batch);
        match taken {
            Some(stream) => {
                self.execute(stream, batch);
                true
            }
            None => false,
        }
    }

    /// Takes the baton and the next ready items of one stream: highest priority first, then longest queued.
    fn take(self: &Arc<Self>, inner: &mut Inner, batch: &mut Vec<Work>) -> Option<u32> {
        if inner.occupied == 0 || !self.take_baton() {
            return None;
        }
        let mut best: Option<(i32, u64, u32)> = None;
        let mut rest = inner.occupied;
        while rest != 0 {
            let stream = rest.trailing_zeros();
            rest &= rest - 1;
            let s = &inner.streams[stream as usize];
            let Some((sequence, head)) = s.queued.front() else { continue };
            let rank = (s.priority, *sequence, stream);
            if best.is_none_or(|b| rank < b) && !self.is_blocked(head) {
                best = Some(rank);
            }
        }
        let Some((_, _, stream)) = best else {
            self.state.fetch_sub(BATON, Ordering::Release);
            return None;
        };
        let s = &mut inner.streams[stream as usize];
        while batch.len() < BATCH && s.queued.front().is_some_and(|(_, w)| !self.is_blocked(w)) {
            batch.extend(s.queued.pop_front().map(|(_, w)| w));
        }
        s.running = batch.len() as u64;
        if s.queued.is_empty() {
            inner.occupied &= !(1 << stream);
        }
        Some(stream)
    }

    fn take_baton(&self) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & BATON == 0 {
            match self.state.compare_exchange_weak(state, state | BATON, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    fn is_blocked(self: &Arc<Self>, work: &Work) -> bool {
        matches!(work, Work::Wait(signal) if signal.subscribe(self))
    }

    /// Runs a batch that was taken with the baton, and gives the baton back.
    fn execute(self: &Arc<Self>, stream: u32, batch: &mut Vec<Work>) {
        let outer = sync::set_running(self.identity());
        crate::executor::execute_batch(self, stream, batch);
        sync::set_running(outer);
        let mut inner = self.inner.lock();
        let left = std::mem::take(&mut inner.streams[stream as usize].running);
        let before = self.state.fetch_sub(left * ITEM + BATON, Ordering::Release);
        if inner.waiting > 0 {
            self.done.notify_all();
        }
        if inner.parked && before & ITEMS != left * ITEM {
            self.work.notify_one();
        }
    }

    /// `ran` items of the running batch are done, and with them the signal.
    pub(crate) fn pass(&self, stream: u32, ran: u64, signal: &Signal) {
        let subscribers = {
            let mut inner = self.inner.lock();
            inner.streams[stream as usize].running -= ran;
            self.state.fetch_sub(ran * ITEM, Ordering::Release);
            let subscribers = signal.complete();
            if inner.waiting > 0 {
                self.done.notify_all();
            }
            subscribers
        };
        Self::wake_all(subscribers);
    }

    fn wake_all(subscribers: Subscribers) {
        for queue in subscribers {
            queue.hand_over();
        }
    }

    /// The executor: runs batches until the queue stops.
    fn serve(self: &Arc<Self>) {
        let mut batch = Vec::new();
        loop {
            if self.run_some(&mut batch) {
                continue;
            }
            let idle_since = Instant::now();
            while !sync::SPIN.is_zero() && !self.looks_runnable() && idle_since.elapsed() < sync::SPIN {
                std::hint::spin_loop();
            }
            let taken = {
                let mut inner = self.inner.lock();
                let taken = self.take(&mut inner, &mut batch);
                if taken.is_none() {
                    if inner.stopping {
                        return;
                    }
                    inner.parked = true;
                    self.work.wait(&mut inner);
                    inner.parked = false;
                }
                taken
            };
            if let Some(stream) = taken {
                self.execute(stream, &mut batch);
            }
        }
    }

    /// Ends the executor. What is queued and ready runs first; later pushes fail.
    pub fn stop(&self) {
        let executor = {
            let mut inner = self.inner.lock();
            inner.stopping = true;
            self.work.notify_one();
            inner.executor.take()
        };
        if let Some(thread) = executor {
            // A panic of the executor would have been caught and kept as a stream's error.
            let _ = thread.join();
        }
    }
}
