//! The functions of `torch_neuronx._C`.
//!
//! Thin: each asks the runtime one thing. What the names mean to a user is documented in the package that exports them.
//! Streams and generators are not here: PyTorch's own classes reach them through `csrc`.

mod capture;
mod devices;
mod errors;
mod events;
mod memory;
mod stablehlo;
pub mod stack;
mod tracking;

use pyo3::prelude::*;

unsafe extern "C" {
    /// `csrc/module.h`: registers the device with PyTorch; false, with the Python exception set, on failure.
    safe fn neuron_glue_initialize() -> bool;
}

/// `torch_neuronx._C`; importing it makes the device known to PyTorch.
#[pymodule(name = "_C")]
fn extension(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !neuron_glue_initialize() {
        return Err(PyErr::fetch(module.py()));
    }
    capture::add(module)?;
    devices::add(module)?;
    events::add(module)?;
    memory::add(module)?;
    stablehlo::add(module)?;
    tracking::add(module)
}
