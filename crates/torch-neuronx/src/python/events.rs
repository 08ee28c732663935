//! Time between events.

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

unsafe extern "C" {
    /// `csrc/module.h`: a new reference to a float, or null with the Python exception set.
    fn neuron_elapsed_time(start: *mut PyObject, end: *mut PyObject) -> *mut PyObject;
}

#[pyfunction]
fn elapsed_time<'py>(start: &Bound<'py, PyAny>, end: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: both are live objects, the caller holds the interpreter, and the result is a new reference or null.
    unsafe { Bound::from_owned_ptr_or_err(start.py(), neuron_elapsed_time(start.as_ptr(), end.as_ptr())) }
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(elapsed_time, module)?)
}
