// What the extension module calls once, when it is loaded.
#pragma once

namespace neuron {

// Registers the operators of the Rust table, the hand-written ones and the CPU fallback for PrivateUse1.
void register_operators();

} // namespace neuron
