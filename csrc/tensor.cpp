#include "tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include "allocator.h"
#include "neuron.h"

namespace neuron {

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : static_cast<c10::DeviceIndex>(neuron_current_device());
}

at::Tensor make_tensor(
    c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, bool contiguous, size_t bytes,
    c10::DeviceIndex device) {
  static c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocate_block(bytes, device), allocator, /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  if (!contiguous) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  } else if (sizes.size() != 1 || sizes[0] != 0) {
    tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(sizes);
  }
  return tensor;
}

at::Tensor host_alias(const at::Tensor& t, c10::Storage storage) {
  if (!storage) {
    const c10::Storage& own = t.storage();
    storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), own.nbytes(),
        c10::DataPtr(neuron_host_view(own.data()), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
        /*resizable=*/true);
  }
  auto host = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  auto* impl = host.unsafeGetTensorImpl();
  impl->set_storage_offset(t.storage_offset());
  impl->set_sizes_and_strides(t.sizes(), t.strides());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  host._set_conj(t.is_conj());
  host._set_neg(t.is_neg());
  return host;
}

} // namespace neuron
