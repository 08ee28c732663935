// Called by the Rust side of the extension module (crates/torch-neuronx/src/lib.rs).
#pragma once

#include <torch/csrc/python_headers.h>

// Registers the device with PyTorch. The caller holds the interpreter. On failure returns false with the Python
// exception set. Nothing of the device is started.
extern "C" bool neuron_glue_initialize();

// Milliseconds between two events, as a Python float; null with the Python exception set on failure. PyTorch's own
// torch.Event.elapsed_time refuses subclasses.
extern "C" PyObject* neuron_elapsed_time(PyObject* start, PyObject* end);
