//! Streams.

use super::status::{give, guard, guard_value};
use neuron_runtime::queue::STREAMS;
use neuron_runtime::{Error, Status, device, stream};

fn check_stream(device: i32, stream: u64) -> Result<(), Error> {
    device::check(device)?;
    if stream < u64::from(STREAMS) { Ok(()) } else { Err(Error::Stream { stream, device }) }
}

/// The calling thread's stream on a device.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_current_stream(device: i32) -> u64 {
    u64::from(stream::current(device))
}

/// Makes a stream the calling thread's on a device.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_set_current_stream(device: i32, stream: u64) -> Status {
    guard(|| {
        check_stream(device, stream)?;
        stream::set_current(device, stream as u32);
        Ok(())
    })
}

/// The next stream of the pool of a priority: 0 is normal, negative is high.
///
/// # Safety
/// `stream` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_stream_new(device: i32, priority: i32, stream: *mut u64) -> Status {
    guard(|| {
        let next = device::get(device)?.streams.next(priority);
        // SAFETY: the caller's contract.
        unsafe { give(stream, u64::from(next)) }
    })
}

/// The priority of a stream: 0 or -1.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_stream_priority(stream: u64) -> i32 {
    guard_value(0, || stream::priority(stream))
}

/// Whether the stream's work is done.
///
/// # Safety
/// `done` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_stream_query(device: i32, stream: u64, done: *mut bool) -> Status {
    guard(|| {
        let answer = if device::started().is_none() && !device::is_forked() {
            check_stream(device, stream)?;
            true
        } else {
            let (device, stream) = device::get_stream(device, stream)?;
            device.queue.query(stream)
        };
        // SAFETY: the caller's contract.
        unsafe { give(done, answer) }
    })
}

/// Waits until the stream's work is done, and raises its pending error, once.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_stream_synchronize(device: i32, stream: u64) -> Status {
    guard(|| {
        if device::started().is_none() && !device::is_forked() {
            return check_stream(device, stream);
        }
        let (device, stream) = device::get_stream(device, stream)?;
        device.queue.synchronize(stream)
    })
}

/// Waits until the device's work is done, and raises its pending error, once.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_device_synchronize(device: i32) -> Status {
    guard(|| {
        if device::started().is_none() && !device::is_forked() {
            return device::check(device);
        }
        device::get(device)?.queue.synchronize_all()
    })
}
