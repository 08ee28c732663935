//! The recorder of StableHLO.

use crate::abi::stablehlo::{Value, record, take};
use neuron_ir::stablehlo::UNSUPPORTED;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

type PyValue<'py> = (u8, Vec<i64>, Option<Bound<'py, PyBytes>>);
type PyRecord<'py> = (&'static str, Option<String>, Option<String>, Vec<PyValue<'py>>, Vec<PyValue<'py>>);

/// Starts or ends the recording of launched calls; with `values` tensors are copied and every launch is waited for.
#[pyfunction]
#[pyo3(signature = (on, values = false))]
fn record_stablehlo(on: bool, values: bool) {
    record(on, values);
}

/// What was recorded since the last call, in order: (operator, text, why there is none, arguments, results). An argument
/// or result is (number of the dtype, sizes, row-major bytes).
#[pyfunction]
fn recorded_stablehlo(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let value = |(dtype, sizes, bytes): Value| -> PyValue<'_> { (dtype, sizes, bytes.map(|b| PyBytes::new(py, &b))) };
    let rows = take().into_iter().map(|r| -> PyRecord<'_> {
        let (text, reason) = match r.text {
            Ok(text) => (Some(text), None),
            Err(reason) => (None, Some(reason)),
        };
        (r.op, text, reason, r.arguments.into_iter().map(value).collect(), r.results.into_iter().map(value).collect())
    });
    PyList::new(py, rows.collect::<Vec<_>>())
}

/// (operator of the IR, reason) of everything without StableHLO form.
#[pyfunction]
fn unsupported_stablehlo() -> Vec<(&'static str, &'static str)> {
    UNSUPPORTED.to_vec()
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(record_stablehlo, module)?)?;
    module.add_function(wrap_pyfunction!(recorded_stablehlo, module)?)?;
    module.add_function(wrap_pyfunction!(unsupported_stablehlo, module)?)
}
