// Making device tensors, and looking at them from the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron {

// An uninitialised dense tensor. `bytes` is the size of its storage.
at::Tensor make_tensor(
    c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, bool contiguous, size_t bytes,
    c10::DeviceIndex device);

inline bool is_neuron(const c10::TensorImpl* t) {
  return t->device_type() == c10::DeviceType::PrivateUse1;
}

// Index of the device, the current one where the device has none.
c10::DeviceIndex index_of(c10::Device device);

// A CPU tensor over the same memory, with the same sizes, strides, conjugate and negative bits. The caller has waited
// for the device. Its storage may be resized by a CPU kernel; it then no longer is the device's memory.
// `storage`: the host storage over the memory of `t` if there is one already.
at::Tensor host_alias(const at::Tensor& t, c10::Storage storage = {});

} // namespace neuron
