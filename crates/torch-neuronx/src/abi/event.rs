//! Events.

use super::status::{give, guard, guard_value};
use neuron_runtime::{Error, Event, Status, device};

/// The event an opaque handle stands for.
///
/// # Safety
/// The handle is null or came from [`neuron_event_create`] and was not destroyed.
unsafe fn event<'a>(handle: *const Event) -> Result<&'a Event, Error> {
    // SAFETY: the caller's contract.
    unsafe { handle.as_ref() }.ok_or(Error::EventNotRecorded)
}

/// An event that has not been recorded; starts nothing.
///
/// # Safety
/// `event` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_create(device: i32, timing: bool, event: *mut *mut Event) -> Status {
    guard(|| {
        device::check(device)?;
        let new = Box::into_raw(Box::new(Event::new(timing)));
        // SAFETY: the caller's contract.
        unsafe { give(event, new) }.inspect_err(|_| {
            // SAFETY: made above and given to nobody.
            drop(unsafe { Box::from_raw(new) });
        })
    })
}

/// Destroys an event; its recordings stay valid for who waits for them.
///
/// # Safety
/// The handle is null or came from [`neuron_event_create`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_destroy(event: *mut Event) {
    if !event.is_null() {
        // SAFETY: the caller's contract.
        guard_value((), || drop(unsafe { Box::from_raw(event) }));
    }
}

/// Marks this point of the stream's work.
///
/// # Safety
/// The handle is null or an event's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_record(event: *mut Event, device: i32, stream: u64) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let event = unsafe { self::event(event)? };
        let (device, stream) = device::get_stream(device, stream)?;
        event.record(&device.queue, stream)
    })
}

/// Later work of the stream waits for the event.
///
/// # Safety
/// The handle is null or an event's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_block(event: *mut Event, device: i32, stream: u64) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let event = unsafe { self::event(event)? };
        let (device, stream) = device::get_stream(device, stream)?;
        event.block(&device.queue, stream)
    })
}

/// Whether the work before the event is done.
///
/// # Safety
/// The handle is null or an event's; `done` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_query(event: *const Event, done: *mut bool) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { give(done, self::event(event)?.query()) }
    })
}

/// Waits for the event.
///
/// # Safety
/// The handle is null or an event's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_synchronize(event: *mut Event) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { self::event(event)? }.synchronize()
    })
}

/// Milliseconds between two events.
///
/// # Safety
/// The handles are null or events'; `milliseconds` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_event_elapsed(
    start: *const Event,
    end: *const Event,
    milliseconds: *mut f64,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let (start, end) = unsafe { (self::event(start)?, self::event(end)?) };
        let elapsed = start.elapsed(end)?;
        // SAFETY: the caller's contract.
        unsafe { give(milliseconds, elapsed) }
    })
}
