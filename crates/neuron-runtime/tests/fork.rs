//! Life of the process: nothing starts early, forked children get a clear error, exit ends the threads.

use neuron_runtime::{Error, device};

#[test]
fn counts_before_start_forked_children_and_exit() {
    assert!(device::started().is_none() && !device::is_forked());
    // SAFETY: the only test of this process.
    unsafe { std::env::set_var("NEURON_RT_NUM_CORES", "many") };
    assert!(device::count() > 0, "counting never fails");
    let error = device::get(0).expect_err("the variable makes no sense");
    assert!(error.to_string().contains("NEURON_RT_NUM_CORES: got \"many\", expected a whole number"), "{error}");
    // SAFETY: as above.
    unsafe { std::env::set_var("NEURON_RT_NUM_CORES", "2") };
    assert_eq!(device::count(), 2);
    assert_eq!(device::set_current(2), Err(Error::Device { index: 2, count: 2 }));
    assert!(device::started().is_none(), "counting starts nothing");

    let a = device::allocate(1, 0, 100).expect("fits");
    device::get(1).expect("exists").queue.run_host(0, u64::MAX, || Ok(())).expect("submits");
    // SAFETY: the child uses this crate's error paths only, and exits without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        device::free(a);
        let ok = device::is_forked()
            && device::count() == 2
            && device::get(0).is_err_and(|e| e == Error::Forked)
            && device::allocate(0, 0, 8).is_err_and(|e| e.to_string().contains("use the 'spawn' start method"));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert!(!device::is_forked(), "the parent goes on");
    device::get(1).expect("exists").queue.synchronize(0).expect("no error");

    device::shut_down();
    device::free(a);
    assert!(device::get(0).is_err_and(|e| e == Error::ShutDown));
    device::shut_down();
}
