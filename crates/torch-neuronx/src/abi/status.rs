//! Failures: their status, and their message per thread.

use neuron_runtime::{Error, Status, executor, interrupt};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the message of the calling thread's last failure.
#[cold]
pub fn set_message(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // At thread exit there is nobody left to read it.
    let _ = MESSAGE.try_with(|m| m.replace(text));
}

/// The message of the calling thread's last failure.
pub fn message() -> String {
    MESSAGE.try_with(|m| m.borrow().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Runs the body of an entry point that can fail.
#[inline]
pub fn guard(body: impl FnOnce() -> Result<(), Error>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(error)) => {
            set_message(&error.to_string());
            error.status()
        }
        Err(payload) => {
            set_message(&format!("internal error: {}", executor::panic_message(&*payload)));
            Status::Error
        }
    }
}

/// Runs the body of an entry point that cannot fail; `default` if it panics.
#[inline]
pub fn guard_value<T>(default: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(default)
}

/// Writes a result through a pointer the caller passed.
///
/// # Safety
/// `to` is null or valid for writing.
pub unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Error> {
    if to.is_null() {
        return Err(Error::Value("a result pointer is null".to_string()));
    }
    // SAFETY: not null, so valid as the caller promised.
    unsafe { to.write(value) };
    Ok(())
}

/// The message of the calling thread's last failure, valid until its next.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_error_message() -> *const c_char {
    guard_value(c"".as_ptr(), || MESSAGE.try_with(|m| m.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}

/// Registers what long waits ask every 50 ms; a nonzero answer ends the wait with `NEURON_INTERRUPTED`.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_set_interrupt_check(check: Option<interrupt::Check>) {
    interrupt::set_check(check);
}
