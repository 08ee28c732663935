//! Device and pinned memory.

use super::errors::exception;
use neuron_runtime::stats::{Stat, Stats};
use neuron_runtime::{device, pinned};
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn metrics<'py>(py: Python<'py>, stat: &Stat) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("current", stat.current)?;
    dict.set_item("peak", stat.peak)?;
    dict.set_item("allocated", stat.allocated)?;
    dict.set_item("freed", stat.freed)?;
    Ok(dict)
}

fn pools<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, stat) in ["all", "small_pool", "large_pool"].into_iter().zip(stats) {
        dict.set_item(name, metrics(py, stat)?)?;
    }
    Ok(dict)
}

/// Two dictionaries: quantity to pool to metric to number, and counter to number.
#[pyfunction]
fn memory_stats(py: Python<'_>, index: i32) -> PyResult<(Bound<'_, PyDict>, Bound<'_, PyDict>)> {
    let stats = device::memory_stats(index).map_err(exception)?;
    let quantities = PyDict::new(py);
    for (name, of) in [
        ("allocation", &stats.allocation),
        ("segment", &stats.segment),
        ("active", &stats.active),
        ("inactive_split", &stats.inactive_split),
        ("allocated_bytes", &stats.allocated_bytes),
        ("reserved_bytes", &stats.reserved_bytes),
        ("active_bytes", &stats.active_bytes),
        ("inactive_split_bytes", &stats.inactive_split_bytes),
        ("requested_bytes", &stats.requested_bytes),
    ] {
        quantities.set_item(name, pools(py, of)?)?;
    }
    let counters = PyDict::new(py);
    for (name, number) in [
        ("num_alloc_retries", stats.num_alloc_retries),
        ("num_ooms", stats.num_ooms),
        ("num_tensor_frees", stats.num_tensor_frees),
        ("allocation_requests", stats.num_allocation_requests),
        ("num_device_alloc", stats.num_device_alloc),
        ("num_device_free", stats.num_device_free),
        ("max_split_size", stats.max_split_size),
    ] {
        counters.set_item(name, number)?;
    }
    Ok((quantities, counters))
}

/// (free, total) bytes.
#[pyfunction]
fn memory_info(index: i32) -> PyResult<(u64, u64)> {
    device::memory_info(index).map_err(exception)
}

/// Of one device, or of every device for -1.
#[pyfunction]
fn empty_cache(py: Python<'_>, index: i32) -> PyResult<()> {
    if index != -1 {
        device::check(index).map_err(exception)?;
    }
    if let Some(runtime) = device::started() {
        let chosen = runtime.devices().iter().filter(|d| index == -1 || index == d.queue.device());
        py.detach(|| chosen.for_each(|d| d.memory.empty_cache(&d.queue)));
    }
    Ok(())
}

#[pyfunction]
fn reset_peak_memory_stats(index: i32) -> PyResult<()> {
    with_memory(index, |d| d.memory.reset_peak_stats())
}

#[pyfunction]
fn reset_accumulated_memory_stats(index: i32) -> PyResult<()> {
    with_memory(index, |d| d.memory.reset_accumulated_stats())
}

fn with_memory(index: i32, act: impl FnOnce(&device::Device)) -> PyResult<()> {
    device::check(index).map_err(exception)?;
    if let Some(runtime) = device::started() {
        act(runtime.device(index).map_err(exception)?);
    }
    Ok(())
}

/// Flat, with the keys of `torch.cuda.host_memory_stats`.
#[pyfunction]
fn host_memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = pinned::stats();
    let dict = PyDict::new(py);
    for (name, stat) in [
        ("active_requests", &stats.allocations),
        ("active_bytes", &stats.allocated_bytes),
        ("allocations", &stats.segments),
        ("allocated_bytes", &stats.reserved_bytes),
    ] {
        for (metric, number) in metrics(py, stat)?.iter() {
            dict.set_item(format!("{name}.{metric}"), number)?;
        }
    }
    dict.set_item("num_host_alloc", stats.num_host_alloc)?;
    dict.set_item("num_host_free", stats.num_host_free)?;
    Ok(dict)
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(memory_info, module)?)?;
    module.add_function(wrap_pyfunction!(empty_cache, module)?)?;
    module.add_function(wrap_pyfunction!(reset_peak_memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(reset_accumulated_memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(host_memory_stats, module)?)
}
