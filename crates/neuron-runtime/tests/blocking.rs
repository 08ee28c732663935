//! `NEURON_LAUNCH_BLOCKING` and interrupted waits: state of the whole process, so a process of their own.

use neuron_runtime::queue::STREAMS;
use neuron_runtime::{Error, Queue, Work, executor, interrupt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn blocking_launches_return_their_own_error_and_waits_can_be_interrupted() {
    let queue = Queue::new(0, STREAMS);
    executor::set_blocking(true);
    assert!(executor::is_blocking());
    let failing = || Err(Error::Runtime("broken".to_string()));
    assert_eq!(queue.run_host(0, u64::MAX, failing), Err(Error::Runtime("broken".to_string())));
    queue.synchronize(0).expect("raised already");
    executor::set_blocking(false);
    queue.run_host(0, u64::MAX, failing).expect("errors come later");
    assert_eq!(queue.synchronize(0), Err(Error::Runtime("broken".to_string())));

    extern "C" fn pending() -> i32 {
        1
    }
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let body = move || {
        while !gate.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    };
    queue.submit(0, Work::Host(Box::new(body))).expect("submits");
    // The executor takes the gate, so that the wait below sleeps instead of running it.
    std::thread::sleep(std::time::Duration::from_millis(50));
    interrupt::set_check(Some(pending));
    assert_eq!(queue.synchronize(0), Err(Error::Interrupted));
    interrupt::set_check(None);
    open.store(true, Ordering::Release);
    queue.synchronize(0).expect("no error");
    queue.stop();
}
