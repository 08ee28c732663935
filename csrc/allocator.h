// Device memory as c10 sees it.
#pragma once

#include <cstddef>

namespace neuron {

// Copies between blocks of device memory, in the order of the current stream, without waiting.
void copy_bytes(void* to, const void* from, size_t count);

} // namespace neuron
