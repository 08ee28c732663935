//! Whether a wait should end: the glue asks Python for a pending signal such as Ctrl-C.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Asked every 50 ms of a wait, with no lock held; nonzero ends the wait.
pub type Check = extern "C" fn() -> c_int;

static CHECK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Registers the question; `None` makes waits uninterruptible.
pub fn set_check(check: Option<Check>) {
    CHECK.store(check.map_or(std::ptr::null_mut(), |f| f as *mut ()), Ordering::Release);
}

pub(crate) fn is_pending() -> bool {
    let check = CHECK.load(Ordering::Acquire);
    if check.is_null() {
        return false;
    }
    // SAFETY: the only non-null values stored are functions of this type.
    let check: Check = unsafe { std::mem::transmute(check) };
    check() != 0
}
