//! Devices and the runtime's state.

use super::errors::exception;
use neuron_runtime::{device, stream};
use pyo3::prelude::*;
use std::time::Duration;

#[pyfunction]
fn device_count() -> i32 {
    device::count()
}

#[pyfunction]
fn is_initialized() -> bool {
    device::started().is_some()
}

#[pyfunction]
fn is_in_bad_fork() -> bool {
    device::is_forked()
}

#[pyfunction]
fn init(py: Python<'_>) -> PyResult<()> {
    py.detach(|| device::runtime().map(drop)).map_err(exception)
}

#[pyfunction]
fn shutdown(py: Python<'_>) {
    py.detach(device::shut_down);
}

#[pyfunction]
fn current_device() -> i32 {
    stream::current_device()
}

#[pyfunction]
fn set_device(index: i32) -> PyResult<()> {
    device::set_current(index).map_err(exception)
}

#[pyfunction]
fn check_device(index: i32) -> PyResult<()> {
    device::check(index).map_err(exception)
}

#[pyfunction]
fn device_name() -> PyResult<&'static str> {
    device::configuration().map(|c| c.target.name).map_err(exception)
}

#[pyfunction]
fn stream_priority(id: u64) -> i32 {
    stream::priority(id)
}

/// The clock that `sleep` counts: a NeuronCore's.
const CYCLES_PER_MICROSECOND: u64 = 1_400;

/// Occupies the current stream; returns at once.
#[pyfunction]
fn sleep(py: Python<'_>, cycles: u64) -> PyResult<()> {
    let index = stream::current_device();
    let time = Duration::from_micros(cycles / CYCLES_PER_MICROSECOND);
    let submit = || {
        let queue = &device::get(index)?.queue;
        queue.run_host(stream::current(index), u64::MAX, move || {
            std::thread::sleep(time);
            Ok(())
        })
    };
    py.detach(submit).map_err(exception)
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(device_count, module)?)?;
    module.add_function(wrap_pyfunction!(is_initialized, module)?)?;
    module.add_function(wrap_pyfunction!(is_in_bad_fork, module)?)?;
    module.add_function(wrap_pyfunction!(init, module)?)?;
    module.add_function(wrap_pyfunction!(shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(current_device, module)?)?;
    module.add_function(wrap_pyfunction!(set_device, module)?)?;
    module.add_function(wrap_pyfunction!(check_device, module)?)?;
    module.add_function(wrap_pyfunction!(device_name, module)?)?;
    module.add_function(wrap_pyfunction!(stream_priority, module)?)?;
    module.add_function(wrap_pyfunction!(sleep, module)?)
}
