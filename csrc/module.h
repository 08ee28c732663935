// Called by the Rust side of the extension module (crates/torch-neuronx/src/lib.rs).
#pragma once

#include <torch/csrc/python_headers.h>

#include "neuron.h"

// Registers the device with PyTorch. The caller holds the interpreter. On failure returns false with the Python
// exception set. Nothing of the device is started.
extern "C" bool neuron_glue_initialize();

// Milliseconds between two events, as a Python float; null with the Python exception set on failure. PyTorch's own
// torch.Event.elapsed_time refuses subclasses.
extern "C" PyObject* neuron_elapsed_time(PyObject* start, PyObject* end);

// Ends the calling thread's recording; lists of tensors. False with the Python exception set on failure; a null graph
// where it cannot be replayed.
extern "C" bool neuron_capture_finish(PyObject* inputs, PyObject* outputs, NeuronGraph** graph);

// The new outputs for these inputs, as a list; None where the inputs have other layouts than the recording's.
extern "C" PyObject* neuron_capture_replay(const NeuronGraph* graph, PyObject* inputs);
