//! Device memory.

use super::status::{give, guard, guard_value};
use crate::capture::record;
use neuron_runtime::stats::MemoryStats;
use neuron_runtime::{Error, Status, device, space};
use std::ffi::c_void;

/// Memory for work of the stream; null for 0 bytes.
///
/// # Safety
/// `address` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_alloc(device: i32, stream: u64, size: usize, address: *mut *mut c_void) -> Status {
    guard(|| {
        let memory = device::allocate(device, stream, size)?;
        record::allocated(memory, size);
        // SAFETY: the caller's contract.
        unsafe { give(address, memory.cast()) }
    })
}

/// Frees device memory; ignores null and anything that is not a device's.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_free(address: *mut c_void) {
    guard_value((), || {
        record::freed(address.cast());
        device::free(address.cast());
    });
}

/// Work of the stream uses this memory: it is not reused before that work is done.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_record_stream(address: *mut c_void, device: i32, stream: u64) -> Status {
    guard(|| {
        let (_, stream) = device::get_stream(device, stream)?;
        let Some(owner) = space::device_of(address.cast()) else { return Ok(()) };
        device::get(owner as i32)?.memory.record(address.cast(), device, stream);
        Ok(())
    })
}

/// The device an address belongs to, also inside a tensor; -1 if none.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_device_of(address: *const c_void) -> i32 {
    space::device_of(address.cast()).map_or(-1, |d| d as i32)
}

/// Where the host reads device memory.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_view(address: *const c_void) -> *mut c_void {
    space::host_view(address.cast()).cast()
}

/// Returns cached memory of a device, or of every device for -1, to the system.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_empty_cache(device: i32) -> Status {
    guard(|| {
        if device != -1 {
            device::check(device)?;
        }
        let Some(runtime) = device::started() else { return Ok(()) };
        for d in runtime.devices() {
            if device == -1 || device == d.queue.device() {
                d.memory.empty_cache(&d.queue);
            }
        }
        Ok(())
    })
}

/// Free and total bytes of a device.
///
/// # Safety
/// The pointers are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_memory_info(device: i32, free: *mut u64, total: *mut u64) -> Status {
    guard(|| {
        let (f, t) = device::memory_info(device)?;
        // SAFETY: the caller's contract.
        unsafe {
            give(free, f)?;
            give(total, t)
        }
    })
}

/// Statistics of a device.
///
/// # Safety
/// `stats` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_memory_stats(device: i32, stats: *mut MemoryStats) -> Status {
    guard(|| {
        let now = device::memory_stats(device)?;
        // SAFETY: the caller's contract.
        unsafe { give(stats, now) }
    })
}

fn with_started(device: i32, body: impl FnOnce(&device::Device)) -> Result<(), Error> {
    device::check(device)?;
    if let Some(runtime) = device::started() {
        body(runtime.device(device)?);
    }
    Ok(())
}

/// Peaks start from what is current.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_reset_peak_stats(device: i32) -> Status {
    guard(|| with_started(device, |d| d.memory.reset_peak_stats()))
}

/// Sums and counters start from zero.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_reset_accumulated_stats(device: i32) -> Status {
    guard(|| with_started(device, |d| d.memory.reset_accumulated_stats()))
}
