// Called by the Rust side of the extension module (crates/torch-neuronx/src/lib.rs).
#pragma once

// Registers the device with PyTorch. The caller holds the interpreter. On failure returns false with the Python
// exception set. Nothing of the device is started.
extern "C" bool neuron_glue_initialize();
