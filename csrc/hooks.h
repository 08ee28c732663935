// What ATen asks any accelerator: availability, the current device, generators, pinned memory.
#pragma once

namespace neuron {

void register_hooks();

} // namespace neuron
