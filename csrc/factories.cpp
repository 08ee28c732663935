// Hand-written operators that make tensors or change their metadata: no element is touched here.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "allocator.h"
#include "errors.h"
#include "neuron.h"
#include "tensor.h"

namespace neuron {

namespace {

c10::Device device_or_current(std::optional<c10::Device> device) {
  c10::Device d = device.value_or(c10::Device(c10::DeviceType::PrivateUse1));
  TORCH_CHECK(d.type() == c10::DeviceType::PrivateUse1, "expected a neuron device, got ", d);
  d.set_index(index_of(d));
  check(neuron_check_device(d.index()));
  return d;
}

at::Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(
      layout.value_or(c10::kStrided) == c10::kStrided, "the neuron device has strided tensors only, got ",
      layout.value_or(c10::kStrided));
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK_VALUE(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  const auto bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  return make_tensor(type, sizes, strides, /*contiguous=*/false, bytes, device_or_current(device).index());
}

at::Tensor empty(
    c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(
      layout.value_or(c10::kStrided) == c10::kStrided, "the neuron device has strided tensors only, got ",
      layout.value_or(c10::kStrided));
  at::detail::check_size_nonnegative(sizes);
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  const auto bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  auto tensor = make_tensor(type, sizes, {}, /*contiguous=*/true, bytes, device_or_current(device).index());
  const auto format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  if (format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  }
  return tensor;
}

// Gives the storage `bytes`, keeping what it holds.
void grow(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() < bytes) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  at::detail::check_size_nonnegative(sizes);
  if (self.sizes() != sizes) {
    const auto bytes =
        at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset());
    if (!c10::multiply_integers(sizes)) {
      impl->set_sizes_contiguous(sizes);
    } else {
      grow(self.storage(), bytes);
      impl->set_sizes_contiguous(sizes);
    }
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  TORCH_CHECK(
      source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
      "\" to a storage on different device \"", source.device(),
      "\".  This is no longer allowed; the devices must match.");
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(
      strides.empty() || strides.size() == sizes.size(), "unequal size length (", sizes.size(), ") and stride length (",
      strides.size(), ")");
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  if (self.numel() > 0) {
    grow(
        self.storage(),
        at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(), offset));
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, elements, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), 0, allocate_block(0, self.device().index()),
      c10::GetAllocator(c10::DeviceType::PrivateUse1), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  check(neuron_record_stream(self.storage().mutable_data(), stream.device_index(), static_cast<uint64_t>(stream.id())));
}

// Tensors of the host and of the device can take each other's place behind one TensorImpl: that is how Module.to()
// moves parameters, which keeps tied weights tied and optimizers' references good.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto plain = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && !t.is_quantized() &&
           (t.device().type() == c10::DeviceType::CPU || t.device().type() == c10::DeviceType::PrivateUse1);
  };
  return plain(self) && plain(from);
}

} // namespace

void register_factories(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  aten.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  aten.impl("set_", TORCH_FN(set_empty));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  aten.impl("record_stream", TORCH_FN(record_stream));
}

} // namespace neuron
