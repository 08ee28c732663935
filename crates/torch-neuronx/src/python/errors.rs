//! Which Python exception a failure of the runtime becomes; `csrc/errors.cpp` has the same table for C++.

use neuron_runtime::{Error, Status};
use pyo3::exceptions::{PyIndexError, PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The exception for a failure.
pub fn exception(error: Error) -> PyErr {
    let message = error.to_string();
    match error.status() {
        Status::IndexError => PyIndexError::new_err(message),
        Status::ValueError => PyValueError::new_err(message),
        Status::TypeError => PyTypeError::new_err(message),
        Status::NotImplemented | Status::Unsupported => PyNotImplementedError::new_err(message),
        Status::OutOfMemory => Python::attach(|py| out_of_memory(py, message).unwrap_or_else(|e| e)),
        // The signal handler's exception is pending in this thread.
        Status::Interrupted => Python::attach(PyErr::fetch),
        Status::Ok | Status::Error => PyRuntimeError::new_err(message),
    }
}

fn out_of_memory(py: Python<'_>, message: String) -> PyResult<PyErr> {
    Ok(PyErr::from_value(py.import("torch")?.getattr("OutOfMemoryError")?.call1((message,))?))
}
