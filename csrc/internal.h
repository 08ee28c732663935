// Operators of the table that PyTorch has no name for: the glue calls them itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace neuron {

// A tensor, on the device or in host memory, and the dtype its elements count as.
struct Operand {
  const at::Tensor* tensor;
  c10::ScalarType dtype;
};

// The number of an operator of the table.
int32_t internal_operator(const char* name);

// Launches it on the current stream of `device`. The last operand is written, the others are read.
void launch_internal(int32_t op, std::initializer_list<Operand> operands, c10::DeviceIndex device);

} // namespace neuron
