// Copies between devices and the host, and reading a single value.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include "call.h"
#include "errors.h"
#include "internal.h"
#include "neuron.h"
#include "tensor.h"

namespace neuron {

namespace {

// Complex tensors copy as pairs of reals; conjugate and negative views, and dtypes without kernels, through the host.
bool has_kernel(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kBFloat16:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
      return t.layout() == c10::kStrided && !t.is_conj() && !t.is_neg();
    default:
      return false;
  }
}

bool on_device(const at::Tensor& t) {
  return is_neuron(t.unsafeGetTensorImpl());
}

void wait_for(c10::DeviceIndex device) {
  check_waiting([&] { return neuron_host_access(device, neuron_current_stream(device)); });
}

// What a copy without conversion treats an element as: the kernels keep the bits of all but half floats, whose NaNs
// they make canonical, and do not know complex numbers.
c10::ScalarType bits_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
    case at::kFloat:
    case at::kDouble:
      return dtype;
    default:
      break;
  }
  const auto width = c10::elementSize(dtype);
  return width == 1 ? at::kByte : width == 2 ? at::kShort : width == 4 ? at::kInt : at::kLong;
}

// Makes work launched from now on on `device`'s stream wait for what `other`'s stream has been given.
void order_after(c10::DeviceIndex device, c10::DeviceIndex other) {
  NeuronEvent* event = nullptr;
  check(neuron_event_create(other, false, &event));
  const auto status = neuron_event_record(event, other, neuron_current_stream(other));
  const auto blocked = status == NEURON_OK ? neuron_event_block(event, device, neuron_current_stream(device)) : status;
  neuron_event_destroy(event);
  check(blocked);
}

// Copies by a plan of these layouts; either side may be host memory.
void launch_copy(const at::Tensor& to, const at::Tensor& from, c10::DeviceIndex device, bool same_bits) {
  const auto as = [&](const at::Tensor& t) {
    return Operand{&t, same_bits ? bits_of(t.scalar_type()) : t.scalar_type()};
  };
  static const int32_t copy = internal_operator("neuron::copy");
  launch_internal(copy, {as(from), as(to)}, device);
}

// Copies what has no kernel: the CPU's copy over the device's memory.
void copy_on_host(const at::Tensor& to, const at::Tensor& from) {
  for (const auto* t : {&to, &from}) {
    if (on_device(*t)) {
      wait_for(t->device().index());
    }
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto host = on_device(to) ? host_alias(to) : to;
  host.copy_(on_device(from) ? host_alias(from) : from);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(source.defined(), "src is undefined");
  if (self.is_same(source)) {
    return self;
  }
  const at::Tensor from = source.sizes() == self.sizes() ? source : source.expand_as(self);
  if (self.numel() == 0) {
    return self;
  }
  at::assert_no_internal_overlap(self);
  if (on_device(self) && on_device(from)) {
    at::assert_no_partial_overlap(self, from);
  }
  // One value from the host becomes a constant of the launch: nothing to wait for.
  if (on_device(self) && !on_device(from) && source.numel() == 1 && has_kernel(self) && has_kernel(from)) {
    self.fill_(source.item());
    return self;
  }
  const bool same_bits = self.scalar_type() == from.scalar_type() && self.is_conj() == from.is_conj() &&
                         self.is_neg() == from.is_neg() && self.dtype().itemsize() <= 8;
  const auto plain = [](const at::Tensor& t) { return !t.is_conj() && !t.is_neg(); };
  if (!same_bits && self.is_complex() && plain(self) && plain(from)) {
    const at::Tensor parts = at::view_as_real(self);
    if (from.is_complex()) {
      parts.copy_(at::view_as_real(from), non_blocking);
    } else {
      parts.select(-1, 0).copy_(from, non_blocking);
      parts.select(-1, 1).zero_();
    }
    return self;
  }
  if (!same_bits && !(has_kernel(self) && has_kernel(from))) {
    copy_on_host(self, from);
    return self;
  }
  if (self.device().type() != from.device().type()) {
    const auto& host = on_device(self) ? from : self;
    const auto device = on_device(self) ? self.device().index() : from.device().index();
    TORCH_CHECK(
        host.device().type() == c10::DeviceType::CPU, "cannot copy between ", self.device(), " and ", from.device());
    const bool asynchronous = non_blocking && neuron_host_is_pinned(host.const_data_ptr());
    launch_copy(self, from, device, same_bits);
    if (asynchronous) {
      check(neuron_host_record(host.storage().mutable_data(), device, neuron_current_stream(device)));
    } else {
      wait_for(device);
    }
    return self;
  }
  const auto device = self.device().index();
  const auto other = from.device().index();
  if (device != other) {
    order_after(device, other);
  }
  launch_copy(self, from, device, same_bits);
  if (device != other) {
    order_after(other, device); // the source may be overwritten or freed only after the copy
  }
  return self;
}

at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor to = dst;
  return copy_(to, self, non_blocking);
}

at::Tensor _copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor to = dst;
  if (to.sizes() != self.sizes()) {
    to.resize_(self.sizes());
  }
  return copy_(to, self, false);
}

c10::Scalar _local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  wait_for(self.device().index());
  return at::native::_local_scalar_dense_cpu(host_alias(self));
}

} // namespace

void register_copies(torch::Library& aten) {
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_copy_from", TORCH_FN(_copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(_copy_from_and_resize));
  aten.impl("_local_scalar_dense", TORCH_FN(_local_scalar_dense));
}

} // namespace neuron
