//! Which operators ran where.

use neuron_runtime::tracking;
use pyo3::prelude::*;

#[pyfunction]
fn executed_ops() -> Vec<String> {
    tracking::executed_ops()
}

/// (operator, reason, how often) for every reason of every operator.
#[pyfunction]
fn fallback_ops() -> Vec<(String, String, u64)> {
    let rows = tracking::fallback_ops().into_iter().flat_map(|(op, fallback)| {
        fallback.reasons.into_iter().map(move |(reason, count)| (op.clone(), reason, count))
    });
    rows.collect()
}

/// (launches that ran as part of a fused run, runs compiled) so far.
#[pyfunction]
fn fusion_counters() -> (u64, u64) {
    neuron_runtime::fusion::counters()
}

#[pyfunction]
fn clear_op_tracking() {
    tracking::reset();
}

/// (operator without overload, reason) of everything that runs on the CPU by decision.
#[pyfunction]
fn declared_fallbacks() -> Vec<(&'static str, &'static str)> {
    neuron_aten::DECLARED.iter().flat_map(|d| d.names.iter().map(|name| (*name, d.reason))).collect()
}

/// Adds the functions of this file.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(executed_ops, module)?)?;
    module.add_function(wrap_pyfunction!(fallback_ops, module)?)?;
    module.add_function(wrap_pyfunction!(declared_fallbacks, module)?)?;
    module.add_function(wrap_pyfunction!(fusion_counters, module)?)?;
    module.add_function(wrap_pyfunction!(clear_op_tracking, module)?)
}
