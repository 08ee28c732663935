//! Recording graphs and replaying them.

use crate::abi::graph::NeuronGraph;
use crate::capture::record;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

#[expect(improper_ctypes, reason = "C++ only passes the pointer on")]
unsafe extern "C" {
    /// `csrc/module.h`: ends the recording; null with the Python exception set, or with `graph` null and none set where
    /// the recording cannot be replayed.
    fn neuron_capture_finish(inputs: *mut PyObject, outputs: *mut PyObject, graph: *mut *mut NeuronGraph) -> bool;
    /// `csrc/module.h`: a new reference to a list of the new outputs, or to None where the inputs have other layouts; null
    /// with the Python exception set on failure.
    fn neuron_capture_replay(graph: *const NeuronGraph, inputs: *mut PyObject) -> *mut PyObject;
}

/// A graph that can be replayed.
#[pyclass(frozen, module = "torch_neuronx._C")]
struct CapturedGraph {
    graph: Box<NeuronGraph>,
}

#[pymethods]
impl CapturedGraph {
    /// The new outputs for a list of input tensors; None where their layouts are not those of the recording.
    fn replay<'py>(&self, inputs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the graph is alive, the caller holds the interpreter, and the result is a new reference or null.
        unsafe {
            Bound::from_owned_ptr_or_err(inputs.py(), neuron_capture_replay(&raw const *self.graph, inputs.as_ptr()))
        }
    }

    /// (operators recorded, programs, kernels, bytes of temporaries).
    fn summary(&self) -> (usize, usize, usize, usize) {
        let s = self.graph.graph.summary();
        (s.operators, s.programs, s.kernels, s.scratch)
    }

    /// The StableHLO of its programs.
    fn stablehlo(&self) -> PyResult<Vec<String>> {
        self.graph.graph.stablehlo().map_err(PyNotImplementedError::new_err)
    }

    /// The Neuron IR of its programs.
    fn text(&self) -> String {
        self.graph.graph.text()
    }
}

/// Starts recording what this thread launches.
#[pyfunction]
fn capture_begin() -> PyResult<()> {
    if record::begin() { Ok(()) } else { Err(PyRuntimeError::new_err("this thread records already")) }
}

/// How often something happened, since the recording began, that a replay would not repeat.
#[pyfunction]
fn capture_foreign_events() -> u64 {
    record::foreign_events()
}

/// Ends recording without a graph.
#[pyfunction]
fn capture_abandon() {
    record::end();
}

/// Ends recording: the graph that makes `outputs` of `inputs`, lists of tensors, or None and why
/// it cannot be replayed.
#[pyfunction]
fn capture_finish(inputs: &Bound<'_, PyAny>, outputs: &Bound<'_, PyAny>) -> PyResult<(Option<CapturedGraph>, String)> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: both are live lists, and the caller holds the interpreter.
    if !unsafe { neuron_capture_finish(inputs.as_ptr(), outputs.as_ptr(), &raw mut graph) } {
        return Err(PyErr::fetch(inputs.py()));
    }
    if graph.is_null() {
        return Ok((None, crate::abi::status::message()));
    }
    // SAFETY: made by `Box::into_raw`, and given away here once.
    Ok((Some(CapturedGraph { graph: unsafe { Box::from_raw(graph) } }), String::new()))
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CapturedGraph>()?;
    module.add_function(wrap_pyfunction!(capture_begin, module)?)?;
    module.add_function(wrap_pyfunction!(capture_foreign_events, module)?)?;
    module.add_function(wrap_pyfunction!(capture_abandon, module)?)?;
    module.add_function(wrap_pyfunction!(capture_finish, module)?)
}
