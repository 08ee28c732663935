//! Pinned host memory.

use super::status::{give, guard, guard_value};
use neuron_runtime::stats::HostStats;
use neuron_runtime::{Error, Status, device, pinned};
use std::ffi::c_void;

/// Pinned memory of at least `size` bytes; null for 0 bytes.
///
/// # Safety
/// `address` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_host_alloc(size: usize, address: *mut *mut c_void) -> Status {
    guard(|| {
        if device::is_forked() {
            return Err(Error::Forked);
        }
        let memory = pinned::allocate(size)?;
        // SAFETY: the caller's contract.
        unsafe { give(address, memory.cast()) }
    })
}

/// Frees pinned memory; it is reused once the work recorded on it is done.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_free(address: *mut c_void) {
    guard_value((), || pinned::free(address.cast()));
}

/// True if the address lies in pinned memory in use.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_is_pinned(address: *const c_void) -> bool {
    guard_value(false, || pinned::is_pinned(address.cast()))
}

/// Work of the stream uses the pinned memory this address lies in.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_record(address: *mut c_void, device: i32, stream: u64) -> Status {
    guard(|| {
        let (_, stream) = device::get_stream(device, stream)?;
        pinned::record(address.cast_const().cast(), device, stream);
        Ok(())
    })
}

/// Returns cached pinned memory to the system.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_empty_cache() -> Status {
    guard(|| {
        pinned::empty_cache();
        Ok(())
    })
}

/// Statistics of pinned memory.
///
/// # Safety
/// `stats` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_host_stats(stats: *mut HostStats) -> Status {
    guard(|| {
        let now = pinned::stats();
        // SAFETY: the caller's contract.
        unsafe { give(stats, now) }
    })
}

/// Resets peaks, or sums and counters.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_reset_stats(peak: bool, accumulated: bool) {
    guard_value((), || pinned::reset_stats(peak, accumulated));
}
