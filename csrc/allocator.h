// Device memory as c10 sees it.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace neuron {

// Memory of `device` in the order of the calling thread's current stream of that device; null for 0 bytes. Tells the
// profiler, as does freeing it.
c10::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device);

// Copies between blocks of device memory, in the order of the current stream, without waiting.
void copy_bytes(void* to, const void* from, size_t count);

} // namespace neuron
