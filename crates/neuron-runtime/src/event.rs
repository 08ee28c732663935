//! Events: points in the work of a stream that other streams and the host can wait for.

use crate::error::Error;
use crate::queue::Queue;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use smallvec::SmallVec;
use std::fmt;
use std::time::Instant;

/// Queues whose streams wait for a signal.
pub(crate) type Subscribers = SmallVec<[Arc<Queue>; 1]>;

/// One recording of an event: it happens once.
///
/// Recording an event again makes a new signal, so that who waits for the earlier recording keeps waiting for exactly
/// that work, whichever is reached first.
pub struct Signal {
    done: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    time: Option<Instant>,
    subscribers: Subscribers,
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("done", &self.is_done()).finish()
    }
}

impl Signal {
    pub(crate) fn new() -> Arc<Signal> {
        Arc::new(Signal { done: AtomicBool::new(false), inner: Mutex::new(Inner::default()) })
    }

    /// Of a point that has already been passed.
    pub(crate) fn passed() -> Arc<Signal> {
        let inner = Inner { time: Some(Instant::now()), subscribers: Subscribers::new() };
        Arc::new(Signal { done: AtomicBool::new(true), inner: Mutex::new(inner) })
    }

    /// True once the work before it is done; that work's writes are then visible.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// When the device passed it.
    pub fn time(&self) -> Option<Instant> {
        self.inner.lock().time
    }

    /// Has `queue` woken when this happens; false if it has happened.
    pub(crate) fn subscribe(&self, queue: &Arc<Queue>) -> bool {
        let mut inner = self.inner.lock();
        if self.is_done() {
            return false;
        }
        if !inner.subscribers.iter().any(|q| Arc::ptr_eq(q, queue)) {
            inner.subscribers.push(queue.clone());
        }
        true
    }

    /// It happens now; returns whom to wake once no lock is held.
    pub(crate) fn complete(&self) -> Subscribers {
        let mut inner = self.inner.lock();
        inner.time = Some(Instant::now());
        self.done.store(true, Ordering::Release);
        std::mem::take(&mut inner.subscribers)
    }
}

/// An event, as PyTorch means it: can be recorded any number of times.
#[derive(Debug)]
pub struct Event {
    timing: bool,
    recorded: Mutex<Option<Recording>>,
}

#[derive(Clone, Debug)]
struct Recording {
    signal: Arc<Signal>,
    queue: Arc<Queue>,
}

impl Event {
    /// An event that has not been recorded.
    pub fn new(timing: bool) -> Event {
        Event { timing, recorded: Mutex::new(None) }
    }

    /// Marks this point of the stream's work; replaces an earlier recording.
    ///
    /// # Errors
    /// [`Error::EventDevice`] if it was recorded on another device before.
    pub fn record(&self, queue: &Arc<Queue>, stream: u32) -> Result<(), Error> {
        if let Some(r) = &*self.recorded.lock()
            && r.queue.device() != queue.device()
        {
            return Err(Error::EventDevice { event: r.queue.device(), stream: queue.device() });
        }
        let signal = queue.record(stream)?;
        let before = self.recorded.lock().replace(Recording { signal, queue: queue.clone() });
        drop(before);
        Ok(())
    }

    fn recording(&self) -> Option<Recording> {
        self.recorded.lock().clone()
    }

    /// Later work of the stream starts after this event; nothing if it was never recorded.
    ///
    /// # Errors
    /// If the runtime is shut down.
    pub fn block(&self, queue: &Arc<Queue>, stream: u32) -> Result<(), Error> {
        match self.recording() {
            Some(r) => queue.wait_for(stream, &r.signal),
            None => Ok(()),
        }
    }

    /// True if the work before it is done, or it was never recorded.
    pub fn query(&self) -> bool {
        self.recorded.lock().as_ref().is_none_or(|r| r.signal.is_done())
    }

    /// Waits until the work before it is done.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn synchronize(&self) -> Result<(), Error> {
        match self.recording() {
            Some(r) => r.queue.wait(&r.signal),
            None => Ok(()),
        }
    }

    /// Milliseconds from this event to `end`, measured where the work ran.
    ///
    /// # Errors
    /// If one of them has no timing, was not recorded, is not reached yet, or belongs to another device.
    pub fn elapsed(&self, end: &Event) -> Result<f64, Error> {
        if !self.timing || !end.timing {
            return Err(Error::EventTiming);
        }
        let (Some(a), Some(b)) = (self.recording(), end.recording()) else {
            return Err(Error::EventNotRecorded);
        };
        if a.queue.device() != b.queue.device() {
            return Err(Error::EventDevices);
        }
        let (Some(from), Some(to)) = (a.signal.time(), b.signal.time()) else {
            return Err(Error::EventNotCompleted);
        };
        // The order of the arguments is the caller's: a negative time is an answer.
        let (sign, duration) = if to >= from { (1.0, to - from) } else { (-1.0, from - to) };
        Ok(sign * duration.as_secs_f64() * 1e3)
    }
}
