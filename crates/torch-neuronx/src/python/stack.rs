//! Where in Python an operator is issued, for errors that surface later.

use neuron_runtime::env;
use pyo3::prelude::*;
use std::sync::LazyLock;

/// `TORCH_NEURONX_ENABLE_STACK_TRACE`, read once; a bad value is reported where all of them are, when devices start.
static ENABLED: LazyLock<bool> = LazyLock::new(|| env::flag(env::ENABLE_STACK_TRACE).unwrap_or(false));

/// The Python frames of the calling thread, outermost first, as Python prints them; `None` unless enabled, and for
/// threads without any, such as those of a backward pass.
pub fn issued_at() -> Option<Box<str>> {
    if !*ENABLED {
        return None;
    }
    // Operators run without the interpreter's lock, and this one holds no lock of the runtime yet.
    let text = Python::try_attach(|py| -> PyResult<String> {
        let lines: Vec<String> = py.import("traceback")?.call_method0("format_stack")?.extract()?;
        Ok(lines.concat())
    })?;
    text.ok().filter(|t| !t.is_empty()).map(String::into_boxed_str)
}
