// Advanced indexing with masks and with indices on the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace neuron {

// Row-major positions of the elements that are not zero.
at::Tensor positions(const at::Tensor& self);

// True if some index is a mask, or not on the device.
bool has_masks(const c10::IValue& indices);

// The indices with masks replaced by the positions they select, all on the device of `self`. None where a mask has no
// dimension: that has no equivalent in positions.
c10::IValue without_masks(const at::Tensor& self, const c10::IValue& indices);

} // namespace neuron
