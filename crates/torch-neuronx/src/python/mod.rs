//! The functions of `torch_neuronx._C`. Thin: what a name means is documented where the package exports it.

use pyo3::prelude::*;

unsafe extern "C" {
    /// `csrc/module.h`: registers the device with PyTorch; false with the Python exception set on failure.
    safe fn neuron_glue_initialize() -> bool;
}

#[pymodule(name = "_C")]
fn extension(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !neuron_glue_initialize() {
        return Err(PyErr::fetch(_module.py()));
    }
    Ok(())
}
