//! Which operators ran where.

use super::status::guard_value;
use neuron_runtime::tracking;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

/// The reasons of declared fallbacks as C strings, by operator.
static DECLARED: LazyLock<HashMap<&str, CString>> = LazyLock::new(|| {
    let rows = neuron_aten::DECLARED.iter();
    rows.flat_map(|d| d.names.iter().map(|name| (*name, CString::new(d.reason).unwrap_or_default()))).collect()
});

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

/// Why an operator, named without overload, runs on the CPU by decision; null where it does not.
///
/// # Safety
/// `op` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_declared_fallback(op: *const c_char) -> *const c_char {
    guard_value(std::ptr::null(), || {
        // SAFETY: the caller's contract.
        let name = unsafe { text(op) };
        DECLARED.get(name.as_ref()).map_or(std::ptr::null(), |reason| reason.as_ptr())
    })
}
