#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>

#include <unordered_map>
#include <unordered_set>

#include "allocator.h"
#include "call.h"
#include "dispatch.h"
#include "errors.h"
#include "generator.h"
#include "sparse.h"
#include "tensor.h"

namespace neuron {

namespace {

// A device tensor and the CPU tensor over its memory.
struct Alias {
  at::Tensor device;
  at::Tensor host;
};

// Operators that PyTorch defines for index, length or section tensors on the host.
bool accepts_host_tensors(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::index.Tensor",
      "aten::_unsafe_index.Tensor",
      "aten::index.Tensor_out",
      "aten::index_put_",
      "aten::index_put",
      "aten::_index_put_impl_",
      "aten::_unsafe_index_put",
      "aten::index_put.out",
      "aten::_pack_padded_sequence",
      "aten::tensor_split.tensor_indices_or_sections",
      "aten::_ctc_loss.Tensor",
      "aten::_ctc_loss_backward.Tensor",
  };
  return names.count(name) != 0;
}

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack), signature_(op) {
    const auto n = op.schema().arguments().size();
    for (auto& v : torch::jit::last(stack, n)) {
      find_devices(v);
    }
    if (device_ < 0) {
      device_ = static_cast<c10::DeviceIndex>(neuron_current_device());
    }
    for (const auto i : signature_.mutated) {
      const auto& v = torch::jit::last(stack, n)[i];
      if (v.isTensor() && v.toTensor().defined() && !is_neuron(v.toTensor().unsafeGetTensorImpl())) {
        other_ = v.toTensor().device();
      }
    }
  }

  // PyTorch's refusal of tensors on different devices.
  void check_devices(const std::string& name) const {
    TORCH_CHECK(
        !other_ || accepts_host_tensors(name),
        "Expected all tensors to be on the same device, but found at least two devices, ",
        c10::Device(c10::DeviceType::PrivateUse1, device_).str(), " and ", other_.value_or(c10::kCPU).str(),
        "! (when executing ", name, ")");
  }

  void run();

 private:
  void find_devices(const c10::IValue& v);
  at::Tensor to_host(const at::Tensor& t);
  at::Tensor add_alias(const at::Tensor& device, at::Tensor host);
  c10::IValue argument(const c10::IValue& v);
  at::Tensor to_device(const at::Tensor& host);
  c10::IValue result(const c10::IValue& v);
  void write_back(const Alias& alias);
  void call_kernel(torch::jit::Stack& arguments);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  Signature signature_;
  c10::DeviceIndex device_ = -1;
  std::optional<c10::Device> other_; // of a tensor that is neither here nor a 0-dimensional CPU tensor
  std::vector<Alias> aliases_;
};

void HostCall::find_devices(const c10::IValue& v) {
  if (v.isList()) {
    for (const auto& e : v.toListRef()) {
      find_devices(e);
    }
  } else if (v.isDevice() && v.toDevice().type() == c10::DeviceType::PrivateUse1) {
    device_ = device_ < 0 ? index_of(v.toDevice()) : device_;
  } else if (v.isTensor() && v.toTensor().defined()) {
    const auto& t = v.toTensor();
    if (t.device().type() == c10::DeviceType::PrivateUse1) {
      if (device_ >= 0 && device_ != t.device().index()) {
        other_ = t.device();
      } else {
        device_ = t.device().index();
      }
    } else if (t.dim() > 0 || t.device().type() != c10::DeviceType::CPU) {
      other_ = t.device();
    }
  }
}

at::Tensor HostCall::to_host(const at::Tensor& t) {
  if (!t.defined() || !is_neuron(t.unsafeGetTensorImpl())) {
    return t;
  }
  for (const auto& a : aliases_) {
    if (a.device.is_same(t)) {
      return a.host;
    }
  }
  if (is_sparse(t)) {
    auto host = map_sparse(t, c10::kCPU, [this](const at::Tensor& member) { return to_host(member); });
    return add_alias(t, std::move(host));
  }
  // Tensors of one storage stay tensors of one storage: CPU kernels look for overlaps.
  c10::Storage shared;
  for (const auto& a : aliases_) {
    if (a.device.has_storage() && a.device.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) {
      shared = a.host.storage();
    }
  }
  return add_alias(t, host_alias(t, shared));
}

at::Tensor HostCall::add_alias(const at::Tensor& device, at::Tensor host) {
  if (device.requires_grad()) { // some kernels keep more for a backward pass
    host.set_requires_grad(true);
  }
  aliases_.push_back({device, std::move(host)});
  return aliases_.back().host;
}

c10::IValue HostCall::argument(const c10::IValue& v) {
  if (v.isTensor()) {
    return to_host(v.toTensor());
  }
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& e : v.toListRef()) {
      list.push_back(to_host(e.toTensor()));
    }
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& e : v.toListRef()) {
      list.push_back(e.isNone() ? std::nullopt : std::optional<at::Tensor>(to_host(e.toTensor())));
    }
    return list;
  }
  if (v.isDevice()) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return v;
}

// A new device tensor with the content of a CPU result, or the argument, or a view of it, that the result is.
at::Tensor HostCall::to_device(const at::Tensor& host) {
  if (!host.defined() || host.device().type() != c10::DeviceType::CPU) {
    return host;
  }
  for (const auto& a : aliases_) {
    if (a.host.is_same(host)) {
      return a.device;
    }
  }
  const c10::Device device_type(c10::DeviceType::PrivateUse1, device_);
  if (is_sparse(host)) {
    return map_sparse(host, device_type, [this](const at::Tensor& member) { return to_device(member); });
  }
  if (host.layout() != c10::kStrided) {
    return host;
  }
  for (const auto& a : aliases_) {
    if (a.host.has_storage() && host.storage().unsafeGetStorageImpl() == a.host.storage().unsafeGetStorageImpl() &&
        host.scalar_type() == a.device.scalar_type()) {
      auto view = at::as_strided(a.device, host.sizes(), host.strides(), host.storage_offset());
      view._set_conj(host.is_conj());
      view._set_neg(host.is_neg());
      return view;
    }
  }
  at::Tensor device = at::empty_strided(host.sizes(), host.strides(), host.options().device(device_type));
  host_alias(device).copy_(host);
  return device;
}

c10::IValue HostCall::result(const c10::IValue& v) {
  if (v.isTensor()) {
    return to_device(v.toTensor());
  }
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& e : v.toListRef()) {
      list.push_back(to_device(e.toTensor()));
    }
    return list;
  }
  return v;
}

// What a CPU kernel did to the metadata of a written argument (out= tensors are resized) happens to the device's too.
void HostCall::write_back(const Alias& alias) {
  auto* impl = alias.device.unsafeGetTensorImpl();
  const auto& host = alias.host;
  if (is_sparse(host)) { // dense members share memory; what else changes is only the business of a written argument
    const auto arguments = torch::jit::last(stack_, op_.schema().arguments().size());
    const bool written = std::any_of(signature_.mutated.begin(), signature_.mutated.end(), [&](int32_t i) {
      return arguments[i].isTensor() && arguments[i].toTensor().is_same(alias.device);
    });
    if (!written) {
      return;
    }
    return assign_sparse(alias.device, host, [this](const at::Tensor& member) { return to_device(member); });
  }
  const bool moved = host.storage().data() != neuron_host_view(alias.device.storage().data());
  if (moved) {
    auto* storage = alias.device.storage().unsafeGetStorageImpl();
    const auto bytes = host.storage().nbytes();
    storage->set_data_ptr_noswap(allocate_block(bytes, device_));
    storage->set_nbytes(bytes);
    std::memcpy(neuron_host_view(storage->data()), host.storage().data(), bytes);
  }
  if (moved || host.sizes() != alias.device.sizes() || host.strides() != alias.device.strides()) {
    impl->set_storage_offset(host.storage_offset());
    impl->set_sizes_and_strides(host.sizes(), host.strides());
  }
}

// Random operators draw from a CPU generator seeded by the device's: reproducible, and the host's is left alone.
void HostCall::call_kernel(torch::jit::Stack& arguments) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  if (!signature_.random) {
    return op_.callBoxed(arguments);
  }
  std::optional<at::Generator> given;
  if (signature_.generator >= 0 && arguments[signature_.generator].isGenerator()) {
    given = arguments[signature_.generator].toGenerator();
    if (given->device().type() == c10::DeviceType::CPU) {
      given.reset();
    }
  }
  const auto [seed, offset] = reserve_philox(given, device_, 4);
  const uint64_t mixed = seed ^ (offset * 0x9E3779B97F4A7C15ULL);
  if (signature_.generator >= 0) {
    arguments[signature_.generator] = at::detail::createCPUGenerator(mixed);
    return op_.callBoxed(arguments);
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state = generator.get_state();
  generator.set_current_seed(mixed);
  try {
    op_.callBoxed(arguments);
  } catch (...) {
    generator.set_state(state);
    throw;
  }
  generator.set_state(state);
}

void HostCall::run() {
  const auto n = op_.schema().arguments().size();
  check_waiting([&] { return neuron_host_access(device_, neuron_current_stream(device_)); });
  torch::jit::Stack arguments;
  for (const auto& v : torch::jit::last(stack_, n)) {
    arguments.push_back(argument(v));
  }
  call_kernel(arguments);
  for (const auto& a : aliases_) {
    write_back(a);
  }
  torch::jit::Stack results;
  for (const auto& v : arguments) {
    results.push_back(result(v));
  }
  torch::jit::drop(stack_, n);
  for (auto& r : results) {
    stack_.push_back(std::move(r));
  }
}

} // namespace

// PyTorch sends convolutions of devices it does not know to operators that have no CPU kernel: the CPU's equivalent.
std::optional<c10::OperatorHandle> host_equivalent(const std::string& name, torch::jit::Stack& stack) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (name == "aten::convolution_overrideable") {
    return dispatcher.findSchemaOrThrow("aten::convolution", "");
  }
  if (name == "aten::convolution_backward_overrideable") {
    const auto arguments = torch::jit::last(stack, 10);
    c10::IValue bias_sizes;
    if (arguments[9].toListRef()[2].toBool()) {
      bias_sizes = std::vector<int64_t>{arguments[0].toTensor().size(1)};
    }
    stack.insert(stack.end() - 7, std::move(bias_sizes));
    return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
  }
  return std::nullopt;
}

namespace {

// The CPU's convolutions keep channels last if either operand has them so, except in double precision.
at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  const bool narrow = at::isFloatingType(input.scalar_type()) ? input.scalar_type() != at::kDouble : input.dim() == 4;
  for (const auto& t : {input, weight}) {
    const auto format = t.suggest_memory_format();
    if (narrow && (format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d)) {
      return format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

} // namespace

int like_argument(const std::string& name) {
  static const std::unordered_map<std::string, int> arguments = {
      {"aten::multi_margin_loss_backward", 1},
      {"aten::multilabel_margin_loss_backward", 1},
      {"aten::_ctc_loss_backward", 1},
  };
  const auto found = arguments.find(name);
  return found == arguments.end() ? -1 : found->second;
}

void as_on_cpu(const std::string& name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack& results) {
  if (name == "aten::convolution_overrideable") {
    const auto format = convolution_format(arguments[0].toTensor(), arguments[1].toTensor());
    results[0] = results[0].toTensor().contiguous(format);
  } else if (name == "aten::multi_margin_loss" && arguments[1].toTensor().dim() == 0) {
    results[0] = results[0].toTensor().reshape({}); // one sample has one loss
  } else if (name == "aten::multilabel_margin_loss_forward" && arguments[1].toTensor().dim() <= 1) {
    results[0] = results[0].toTensor().reshape({});
  } else if (
      (name == "aten::native_batch_norm" || name == "aten::_native_batch_norm_legit") && !arguments[5].toBool()) {
    for (int i = 1; i < 3; ++i) { // nothing is saved
      results[i] = results[i].toTensor().reshape({-1}).narrow(0, 0, 0);
    }
  }
  if (name == "aten::native_layer_norm" || name.ends_with("native_batch_norm") ||
      name.starts_with("aten::_native_batch_norm_legit") || name == "aten::_batch_norm_with_update") {
    // Statistics are single precision only where the parameters are.
    const auto dtype = arguments[0].toTensor().scalar_type();
    const bool mixed = std::any_of(arguments.begin() + 1, arguments.end(), [&](const c10::IValue& v) {
      return v.isTensor() && v.toTensor().defined() && v.toTensor().scalar_type() != dtype;
    });
    for (int i = 1; i < 3 && !mixed; ++i) {
      results[i] = results[i].toTensor().to(dtype);
    }
  }
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason) {
  const std::string name = c10::toString(op.operator_name());
  const auto equivalent = host_equivalent(name, *stack);
  HostCall call(equivalent ? *equivalent : op, *stack);
  call.check_devices(name);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !neuron_fallback_forbidden(), name, " cannot run on the neuron device (", reason,
      ") and the CPU fallback is disabled by NEURON_FALLBACK_ENABLED=0");
  call.run();
  // After the fact: a call that the CPU kernel refuses is an error of the caller's, not a fallback.
  if (neuron_track_fallback(name.c_str(), reason)) {
    TORCH_WARN(name, " runs on the CPU: ", reason, ". See torch_neuronx.get_fallback_ops().");
  }
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const char* declared = neuron_declared_fallback(op.operator_name().name.c_str());
  fall_back(op, stack, declared != nullptr ? declared : "no kernel for this operator");
}

} // namespace neuron
