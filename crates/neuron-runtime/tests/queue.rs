//! Streams, events and errors, through the queue of a device.

use neuron_compiler::{Program, Slot, Step};
use neuron_ir::Scalar;
use neuron_kernels::{Kernel, KernelError};
use neuron_runtime::queue::STREAMS;
use neuron_runtime::{Error, Event, Queue, Status, Work};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Adds one to a counter, or does what the scalar says.
#[derive(Debug)]
struct Count(u64);

const FAIL: i64 = -1;
const PANIC: i64 = -2;

impl Kernel for Count {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        match scalars {
            [Scalar::I64(FAIL)] => return Err(KernelError::IndexOutOfRange { index: 7, dim: 0, size: 3 }),
            [Scalar::I64(PANIC)] => panic!("lost"),
            _ => {}
        }
        // SAFETY: the tests pass counters.
        unsafe { *buffers[0].cast::<u64>() += 1 };
        Ok(())
    }

    fn cost(&self) -> u64 {
        self.0
    }
}

fn program(cost: u64) -> Arc<Program> {
    let buffers = [Slot::argument(0)].into_iter().collect();
    Arc::new(Program::of_steps(vec![Step { kernel: Box::new(Count(cost)), buffers, scalars: Default::default() }], 1))
}

fn launch(
    queue: &Arc<Queue>,
    stream: u32,
    program: &Arc<Program>,
    counter: &mut u64,
    scalar: i64,
) -> Result<(), Error> {
    let buffers = [std::ptr::from_mut(counter).cast()];
    // SAFETY: the counter outlives the queue's work: every test synchronizes.
    unsafe { queue.launch(stream, program, &buffers, &[Scalar::I64(scalar)], "test::count", None) }
}

/// Occupies a stream until it is opened.
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn on(queue: &Arc<Queue>, stream: u32) -> Gate {
        let gate = Gate(Arc::new(AtomicBool::new(false)));
        let open = gate.0.clone();
        let body = move || {
            while !open.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            Ok(())
        };
        queue.submit(stream, Work::Host(Box::new(body))).expect("the queue runs");
        gate
    }

    fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_short_program_on_an_idle_device_has_run_when_launch_returns() {
    let queue = Queue::new(0, STREAMS);
    let (short, mut n) = (program(10), 0);
    for _ in 0..100 {
        launch(&queue, 0, &short, &mut n, 0).expect("launches");
    }
    assert!(queue.is_idle());
    assert_eq!(n, 100);
}

#[test]
fn long_programs_run_in_order_with_short_ones() {
    let queue = Queue::new(0, STREAMS);
    let (short, long, mut n) = (program(10), program(1_000_000), 0);
    for i in 0..10_000 {
        launch(&queue, 0, if i % 3 == 0 { &long } else { &short }, &mut n, 0).expect("launches");
    }
    queue.synchronize(0).expect("no error");
    assert_eq!(n, 10_000);
    queue.stop();
}

#[test]
fn an_error_is_raised_once_and_later_work_runs() {
    for cost in [10, 1_000_000] {
        let queue = Queue::new(0, STREAMS);
        let (p, mut n) = (program(cost), 0);
        launch(&queue, 0, &p, &mut n, FAIL).expect("errors come later");
        launch(&queue, 0, &p, &mut n, PANIC).expect("errors come later");
        launch(&queue, 0, &p, &mut n, 0).expect("launches");
        queue.synchronize(3).expect("another stream's error is not this one's");
        let error = queue.synchronize(0).expect_err("the first error");
        assert_eq!(error.status(), Status::IndexError);
        assert_eq!(error.to_string(), "test::count: index 7 is out of bounds for dimension 0 with size 3");
        queue.synchronize(0).expect("raised once");
        queue.synchronize_all().expect("raised once");
        assert_eq!(n, 1);
        launch(&queue, 5, &p, &mut n, PANIC).expect("errors come later");
        let error = queue.synchronize_all().expect_err("the device raises it too");
        assert_eq!(error.to_string(), "test::count: internal error: lost");
        queue.synchronize(5).expect("raised once");
        queue.stop();
    }
}

#[test]
fn streams_do_not_wait_for_each_other_but_for_events() {
    let queue = Queue::new(0, STREAMS);
    let other = Queue::new(1, STREAMS);
    let gate = Gate::on(&queue, 0);
    let event = Event::new(false);
    assert!(event.query(), "never recorded");
    event.record(&queue, 0).expect("records");
    assert!(!event.query());
    // Another device's stream behind the event, and one that is not.
    let done = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let done = done.clone();
        move || {
            done.lock().expect("not poisoned").push(name);
            Ok(())
        }
    };
    event.block(&other, 1).expect("blocks");
    other.run_host(1, 0, note("behind")).expect("submits");
    other.run_host(2, 0, note("free")).expect("submits");
    other.synchronize(2).expect("no error");
    assert_eq!(*done.lock().expect("not poisoned"), ["free"]);
    assert!(!other.query(1) && other.query(2) && !queue.query(0) && queue.query(1));
    gate.open();
    other.synchronize(1).expect("no error");
    assert_eq!(*done.lock().expect("not poisoned"), ["free", "behind"]);
    assert!(event.query());
    event.synchronize().expect("no error");
    queue.stop();
    other.stop();
}

#[test]
fn who_waits_for_an_earlier_recording_waits_for_that_work() {
    let queue = Queue::new(0, STREAMS);
    let other = Queue::new(1, STREAMS);
    let gate = Gate::on(&queue, 0);
    let event = Event::new(false);
    event.record(&queue, 0).expect("records");
    event.block(&other, 0).expect("blocks");
    let ran = Arc::new(AtomicU64::new(0));
    let counter = ran.clone();
    other
        .run_host(0, 0, move || {
            counter.store(1, Ordering::Release);
            Ok(())
        })
        .expect("submits");
    // Recorded anew on an idle stream, the event itself is complete at once.
    event.record(&queue, 1).expect("records");
    assert!(event.query());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(ran.load(Ordering::Acquire), 0);
    gate.open();
    other.synchronize_all().expect("no error");
    assert_eq!(ran.load(Ordering::Acquire), 1);
    let error = event.record(&other, 0).expect_err("of another device");
    assert_eq!(error.to_string(), "Event device 0 does not match recording stream's device 1.");
    queue.stop();
    other.stop();
}

#[test]
fn elapsed_time_is_what_the_work_took() {
    let queue = Queue::new(0, STREAMS);
    let (start, end) = (Event::new(true), Event::new(true));
    assert_eq!(start.elapsed(&end), Err(Error::EventNotRecorded));
    start.record(&queue, 0).expect("records");
    queue
        .run_host(0, 1_000_000, || {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        })
        .expect("submits");
    end.record(&queue, 0).expect("records");
    assert_eq!(start.elapsed(&end), Err(Error::EventNotCompleted));
    end.synchronize().expect("no error");
    let ms = start.elapsed(&end).expect("both are complete");
    assert!((20.0..2000.0).contains(&ms), "{ms}");
    assert!(end.elapsed(&start).expect("both are complete") <= -20.0);
    assert_eq!(start.elapsed(&Event::new(false)), Err(Error::EventTiming));
    let (other, elsewhere) = (Queue::new(1, STREAMS), Event::new(true));
    elsewhere.record(&other, 0).expect("records");
    assert_eq!(start.elapsed(&elsewhere), Err(Error::EventDevices));
    queue.stop();
}

#[test]
fn high_priority_streams_go_first() {
    let queue = Queue::new(0, STREAMS);
    let gate = Gate::on(&queue, 0);
    while !queue_has_taken_the_gate(&queue) {
        std::thread::yield_now();
    }
    let order = Arc::new(Mutex::new(Vec::new()));
    for stream in [1, 2, 40] {
        let order = order.clone();
        let body = move || {
            order.lock().expect("not poisoned").push(stream);
            Ok(())
        };
        queue.run_host(stream, 0, body).expect("submits");
    }
    gate.open();
    queue.synchronize_all().expect("no error");
    assert_eq!(*order.lock().expect("not poisoned"), [40, 1, 2]);
    queue.stop();
}

/// The executor starts within this time, or the gate runs in the synchronization with the same result.
fn queue_has_taken_the_gate(_queue: &Queue) -> bool {
    std::thread::sleep(Duration::from_millis(20));
    true
}

#[test]
fn many_threads_launch_and_wait_at_once() {
    let queue = Queue::new(0, STREAMS);
    let totals: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|stream| {
                let queue = &queue;
                scope.spawn(move || {
                    let (short, long) = (program(10), program(1_000_000));
                    let mut n = 0;
                    for i in 0..3000 {
                        launch(queue, stream, if i % 7 == 0 { &long } else { &short }, &mut n, 0).expect("launches");
                        if i % 50 == 0 {
                            queue.synchronize(stream).expect("no error");
                            assert_eq!(n, i + 1);
                        }
                    }
                    queue.synchronize(stream).expect("no error");
                    n
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("ends well")).collect()
    });
    assert_eq!(totals, [3000; 4]);
    queue.synchronize_all().expect("no error");
    assert!(queue.is_idle());
    queue.stop();
}

#[test]
fn a_stopped_queue_refuses_work() {
    let queue = Queue::new(0, STREAMS);
    let gate = Gate::on(&queue, 0);
    gate.open();
    queue.synchronize_all().expect("no error");
    queue.stop();
    assert_eq!(queue.submit(0, Work::Host(Box::new(|| Ok(())))), Err(Error::ShutDown));
}
