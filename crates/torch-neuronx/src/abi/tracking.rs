//! Which operators ran where.

use super::status::guard_value;
use neuron_runtime::tracking;
use std::ffi::{CStr, c_char};

/// # Safety
/// `text` is null or a C string.
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

/// Notes that an operator ran on the device, for glue that does not launch a plan.
///
/// # Safety
/// `op` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_track_executed(op: *const c_char) {
    // SAFETY: the caller's contract.
    guard_value((), || tracking::executed_by_name(&unsafe { text(op) }));
}

/// Notes that an operator ran on the CPU and why; true the first time for this operator.
///
/// # Safety
/// `op` and `reason` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_track_fallback(op: *const c_char, reason: *const c_char) -> bool {
    // SAFETY: the caller's contract.
    guard_value(false, || unsafe { tracking::fallback(&text(op), &text(reason)) })
}
