//! Devices.

use super::status::{give, guard, guard_value};
use neuron_runtime::{Status, device, executor, stream};
use std::ffi::c_char;

/// How many devices there are; starts nothing, never fails, also in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_device_count() -> i32 {
    guard_value(0, device::count)
}

/// True once memory was allocated or work launched.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_is_initialized() -> bool {
    device::started().is_some()
}

/// Starts the runtime. Fails in a forked child of an initialized process.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_init() -> Status {
    guard(|| device::runtime().map(drop))
}

/// True in a forked child of an initialized process.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_in_bad_fork() -> bool {
    device::is_forked()
}

/// The calling thread's device.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_current_device() -> i32 {
    stream::current_device()
}

/// Makes a device the calling thread's.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_set_device(device: i32) -> Status {
    guard(|| device::set_current(device))
}

/// Fails if there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_check_device(device: i32) -> Status {
    guard(|| device::check(device))
}

/// The target profile's name.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_device_name() -> *const c_char {
    guard_value(c"trn2".as_ptr(), || match device::configuration() {
        Ok(c) if c.target == device::TRN3 => c"trn3".as_ptr(),
        _ => c"trn2".as_ptr(),
    })
}

/// Bytes of a device's memory.
///
/// # Safety
/// `bytes` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_total_memory(device: i32, bytes: *mut u64) -> Status {
    guard(|| {
        let (_, total) = device::memory_info(device)?;
        // SAFETY: the caller's contract.
        unsafe { give(bytes, total) }
    })
}

/// Makes every launch wait for its completion and raise its own errors.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_set_launch_blocking(blocking: bool) {
    executor::set_blocking(blocking);
}

/// Whether launches wait for their completion.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_launch_blocking() -> bool {
    executor::is_blocking()
}

/// Finishes all work and ends the threads of this software; for the exit of the process. Later frees do nothing.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_shutdown() {
    guard_value((), device::shut_down);
}
