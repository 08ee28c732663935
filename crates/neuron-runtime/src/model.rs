//! Model checks of the queue: loom runs every interleaving of these threads, up to a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p neuron-runtime --release loom_`
//!
//! Counters are written and read with relaxed ordering: what a model sees of them it sees because the queue orders the
//! work. Waits have no timeout here, so a lost wake-up is a deadlock, which loom reports.

use crate::error::Error;
use crate::event::Event;
use crate::queue::{Queue, Work};
use crate::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

const LONG: u64 = u64::MAX;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Fails unless the counter has this value, then increments it.
fn step(counter: &Arc<AtomicUsize>, expected: usize) -> impl FnOnce() -> Result<(), Error> + Send + 'static {
    let counter = counter.clone();
    move || {
        let was = counter.load(Ordering::Relaxed);
        counter.store(was + 1, Ordering::Relaxed);
        if was == expected { Ok(()) } else { Err(Error::Runtime(format!("{was} instead of {expected}"))) }
    }
}

#[test]
fn loom_a_stream_runs_in_order_whoever_runs_it() {
    check(|| {
        let queue = Queue::new(0, 2);
        let counter = Arc::new(AtomicUsize::new(0));
        queue.run_host(0, LONG, step(&counter, 0)).expect("submits");
        queue.run_host(0, 0, step(&counter, 1)).expect("submits");
        queue.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 2);
        queue.run_host(0, 0, step(&counter, 2)).expect("submits");
        queue.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 3);
        queue.stop();
    });
}

#[test]
fn loom_two_threads_launch_inline_or_queue() {
    check(|| {
        let queue = Queue::new(0, 2);
        let other = queue.clone();
        let thread = loom::thread::spawn(move || {
            let counter = Arc::new(AtomicUsize::new(0));
            other.run_host(1, 0, step(&counter, 0)).expect("submits");
            other.synchronize(1).expect("in order");
            assert_eq!(counter.load(Ordering::Relaxed), 1);
        });
        let counter = Arc::new(AtomicUsize::new(0));
        queue.run_host(0, 0, step(&counter, 0)).expect("submits");
        queue.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 1);
        thread.join().expect("ends well");
        assert!(queue.is_idle());
        queue.stop();
    });
}

/// Not an atomic: loom reports two threads in it at once.
struct Plain(loom::cell::UnsafeCell<i32>);

// SAFETY: the queue orders the accesses, which is what the model checks.
unsafe impl Sync for Plain {}

#[test]
fn loom_work_of_a_device_never_overlaps() {
    check(|| {
        let queue = Queue::new(0, 2);
        let cell = Arc::new(Plain(loom::cell::UnsafeCell::new(0)));
        let touch = |cell: &Arc<Plain>| {
            let cell = cell.clone();
            move || {
                // SAFETY: the claim under test: the baton excludes every other access.
                cell.0.with_mut(|v| unsafe { *v += 1 });
                Ok(())
            }
        };
        let (other, body) = (queue.clone(), touch(&cell));
        let thread = loom::thread::spawn(move || other.run_host(1, 0, body).expect("submits"));
        queue.run_host(0, 0, touch(&cell)).expect("submits");
        thread.join().expect("ends well");
        queue.synchronize_all().expect("no error");
        // SAFETY: all work is done, which is the other claim under test.
        assert_eq!(cell.0.with(|v| unsafe { *v }), 2);
        queue.stop();
    });
}

#[test]
fn loom_events_order_devices() {
    check(|| {
        let (first, second) = (Queue::new(0, 1), Queue::new(1, 1));
        let counter = Arc::new(AtomicUsize::new(0));
        let event = Event::new(false);
        first.run_host(0, LONG, step(&counter, 0)).expect("submits");
        event.record(&first, 0).expect("records");
        event.block(&second, 0).expect("blocks");
        second.run_host(0, 0, step(&counter, 1)).expect("submits");
        second.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 2);
        first.stop();
        second.stop();
    });
}

#[test]
fn loom_events_order_streams_of_a_device() {
    check(|| {
        let queue = Queue::new(0, 2);
        let counter = Arc::new(AtomicUsize::new(0));
        let event = Event::new(false);
        queue.run_host(1, LONG, step(&counter, 0)).expect("submits");
        event.record(&queue, 1).expect("records");
        event.block(&queue, 0).expect("blocks");
        queue.run_host(0, 0, step(&counter, 1)).expect("submits");
        event.synchronize().expect("no error");
        assert!(counter.load(Ordering::Relaxed) >= 1);
        queue.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 2);
        queue.stop();
    });
}

#[test]
fn loom_two_threads_wait_for_the_same_stream() {
    check(|| {
        let queue = Queue::new(0, 1);
        let counter = Arc::new(AtomicUsize::new(0));
        queue.run_host(0, LONG, step(&counter, 0)).expect("submits");
        let (other, seen) = (queue.clone(), counter.clone());
        let thread = loom::thread::spawn(move || {
            other.synchronize(0).expect("in order");
            assert_eq!(seen.load(Ordering::Relaxed), 1);
        });
        queue.synchronize(0).expect("in order");
        assert_eq!(counter.load(Ordering::Relaxed), 1);
        thread.join().expect("ends well");
        queue.stop();
    });
}

#[test]
fn loom_stopping_runs_what_is_queued() {
    check(|| {
        let queue = Queue::new(0, 1);
        let counter = Arc::new(AtomicUsize::new(0));
        queue.submit(0, Work::Host(Box::new(step(&counter, 0)))).expect("submits");
        queue.stop();
        assert_eq!(counter.load(Ordering::Relaxed), 1);
        assert_eq!(queue.run_host(0, LONG, || Ok(())), Err(Error::ShutDown));
    });
}

#[test]
fn loom_an_error_is_raised_by_exactly_one_synchronization() {
    check(|| {
        let queue = Queue::new(0, 1);
        queue.run_host(0, LONG, || Err(Error::Runtime("broken".to_string()))).expect("errors come later");
        let other = queue.clone();
        let thread = loom::thread::spawn(move || other.synchronize(0).is_err());
        let here = queue.synchronize(0).is_err();
        let there = thread.join().expect("ends well");
        assert!(here != there, "raised by both or none: {here} {there}");
        queue.stop();
    });
}
