//! Device memory through the process-wide devices.

use neuron_runtime::{Error, Status, device, pinned, space};
use std::sync::{Mutex, MutexGuard, Once};

/// The devices are the process's: tests that count bytes take turns.
fn devices() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static ENVIRONMENT: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    ENVIRONMENT.call_once(|| {
        // SAFETY: before the devices start; no other thread of this test reads the environment yet.
        unsafe { std::env::set_var("NEURON_RT_VISIBLE_CORES", "1,4-6") };
    });
    turn
}

fn alloc(device: i32, stream: u64, size: usize) -> *mut u8 {
    device::allocate(device, stream, size).expect("fits")
}

#[test]
fn memory_is_reused_in_stream_order_only() {
    let _turn = devices();
    let a = alloc(0, 1, 1000);
    device::free(a);
    let b = alloc(0, 2, 1000);
    assert_ne!(a, b, "another stream's free block");
    assert_eq!(alloc(0, 1, 1000), a, "this stream's free block");
    device::free(a);
    device::free(b);
}

#[test]
fn addresses_know_their_device() {
    let _turn = devices();
    assert_eq!(device::count(), 4);
    for index in 0..4 {
        let a = alloc(index, 0, 3 << 20);
        assert_eq!(a as usize % 64, 0);
        assert_eq!(space::device_of(a), Some(index as usize));
        assert_eq!(space::device_of(a.wrapping_add((3 << 20) - 1)), Some(index as usize));
        assert_eq!(space::host_view(a), a);
        // SAFETY: allocated above with this size.
        unsafe { a.write_bytes(7, 3 << 20) };
        device::free(a);
    }
    assert_eq!(space::device_of([0u8].as_ptr()), None);
    assert_eq!(space::device_of(std::ptr::null()), None);
    assert!(alloc(0, 0, 0).is_null());
    device::free(std::ptr::null_mut());
    let error = device::allocate(9, 0, 8).expect_err("no such device");
    assert_eq!(error, Error::Device { index: 9, count: 4 });
    assert_eq!(device::allocate(0, 65, 8), Err(Error::Stream { stream: 65, device: 0 }));
}

#[test]
fn recorded_streams_are_waited_for() {
    let _turn = devices();
    let core = device::get(1).expect("exists");
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let body = move || {
        let _ = closed.recv();
        Ok(())
    };
    core.queue.run_host(7, u64::MAX, body).expect("submits");
    let a = alloc(1, 0, 2000);
    core.memory.record(a, 1, 0);
    core.memory.record(a, 1, 7);
    device::free(a);
    let stats = device::memory_stats(1).expect("exists");
    assert_eq!((stats.allocation[0].current, stats.active[0].current), (0, 1));
    let b = alloc(1, 0, 2000);
    assert_ne!(a, b, "stream 7 still uses it");
    gate.send(()).expect("stream 7 waits");
    core.queue.synchronize(7).expect("no error");
    let c = alloc(1, 0, 2000);
    assert_eq!(a, c);
    device::free(b);
    device::free(c);
    assert_eq!(device::memory_stats(1).expect("exists").active_bytes[0].current, 0);
}

#[test]
fn out_of_memory_says_what_there_is_and_is_recoverable() {
    let _turn = devices();
    let core = device::get(2).expect("exists");
    core.memory.empty_cache(&core.queue);
    let capacity = core.memory.capacity();
    let before = core.memory.stats();
    let big = capacity / 2 / (2 << 20) * (2 << 20);
    let first = alloc(2, 0, big);
    let cached = alloc(2, 3, big / 2);
    device::free(cached);
    // Fits only after what stream 3 has cached is returned.
    let second = alloc(2, 0, capacity - big - (8 << 20));
    let error = device::allocate(2, 0, big).expect_err("full");
    assert_eq!(error.status(), Status::OutOfMemory);
    let text = error.to_string();
    for part in ["Tried to allocate", "Device 2", "capacity", "free", "allocated by tensors", "small", "large"] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert_eq!(device::allocate(2, 0, usize::MAX).map_err(|e| e.status()), Err(Status::OutOfMemory));
    device::free(first);
    let again = alloc(2, 0, big);
    device::free(again);
    device::free(second);
    let stats = core.memory.stats();
    assert_eq!(stats.num_ooms - before.num_ooms, 2);
    assert!(stats.num_alloc_retries > before.num_alloc_retries);
    core.memory.empty_cache(&core.queue);
    assert_eq!(core.memory.stats().reserved_bytes[0].current, 0);
    assert_eq!(device::memory_info(2), Ok((capacity as u64, capacity as u64)));
}

#[test]
fn threads_allocate_and_free_each_others_memory() {
    let _turn = devices();
    let before = device::memory_stats(3).expect("exists").allocation[0].allocated;
    let (give, take) = std::sync::mpsc::sync_channel::<usize>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || take.iter().for_each(|a| device::free(a as *mut u8)));
        for stream in 0..3u64 {
            let give = give.clone();
            scope.spawn(move || {
                for i in 0..5000usize {
                    let a = alloc(3, stream, 1 + i * 37 % 100_000);
                    // SAFETY: allocated above with at least this size.
                    unsafe { a.write(stream as u8) };
                    give.send(a as usize).expect("the other thread takes them");
                }
            });
        }
        drop(give);
    });
    let stats = device::memory_stats(3).expect("exists");
    assert_eq!(stats.allocation[0].current, 0);
    assert_eq!(stats.allocation[0].allocated - before, 15_000);
    assert_eq!((stats.allocated_bytes[0].current, stats.requested_bytes[0].current), (0, 0));
}

#[test]
fn pinned_memory_waits_for_its_events() {
    let _turn = devices();
    let a = pinned::allocate(5000).expect("fits");
    assert!(pinned::is_pinned(a) && pinned::is_pinned(a.wrapping_add(4999)) && !pinned::is_pinned([0u8].as_ptr()));
    assert_eq!(a as usize % 4096, 0);
    let core = device::get(0).expect("exists");
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let body = move || {
        let _ = closed.recv();
        Ok(())
    };
    core.queue.run_host(9, u64::MAX, body).expect("submits");
    assert!(pinned::record(a.wrapping_add(100), 0, 9));
    pinned::free(a);
    assert!(!pinned::is_pinned(a));
    let b = pinned::allocate(5000).expect("fits");
    assert_ne!(a, b, "stream 9 still uses it");
    gate.send(()).expect("stream 9 waits");
    core.queue.synchronize(9).expect("no error");
    assert_eq!(pinned::allocate(8000), Ok(a));
    pinned::free(a);
    pinned::free(b);
    pinned::empty_cache();
    let stats = pinned::stats();
    assert_eq!((stats.segments.current, stats.reserved_bytes.current, stats.allocated_bytes.current), (0, 0, 0));
    assert_eq!((stats.num_host_alloc, stats.num_host_free), (2, 2));
}
