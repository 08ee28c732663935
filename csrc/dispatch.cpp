#include "dispatch.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <unordered_set>

#include "data_dependent.h"
#include "errors.h"
#include "fallback.h"
#include "generator.h"
#include "register.h"
#include "tensor.h"

namespace neuron {

namespace {

// What stands for the dtype of a result that is no tensor.
constexpr int32_t kAbsentOutput = -1;
constexpr int32_t kIntegerOutput = -2; // its value is in `bytes`

bool is_number(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return is_number(optional->getElementType());
  }
  if (auto list = type->cast<c10::ListType>()) {
    return is_number(list->getElementType());
  }
  return type->kind() == c10::TypeKind::NumberType;
}

// A meta tensor of the same layout.
at::Tensor meta_like(const at::Tensor& t) {
  if (!t.defined() || !is_neuron(t.unsafeGetTensorImpl())) {
    return t; // a host scalar takes part in type promotion as it is
  }
  at::Tensor meta = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

c10::IValue meta_argument(const c10::IValue& v) {
  if (v.isTensor()) {
    return meta_like(v.toTensor());
  }
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& e : v.toListRef()) {
      list.push_back(meta_like(e.toTensor()));
    }
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& e : v.toListRef()) {
      list.push_back(e.isNone() ? std::nullopt : std::optional<at::Tensor>(meta_like(e.toTensor())));
    }
    return list;
  }
  if (v.isDevice()) {
    return c10::Device(c10::DeviceType::Meta);
  }
  return v.isGenerator() ? c10::IValue() : v;
}

// Calls `f(tensor)` for the tensor, or each tensor of the list, that an argument or a return holds.
template <class F>
void each_tensor(const c10::IValue& v, const F& f) {
  if (v.isTensor()) {
    f(v.toTensor());
  } else if (v.isList()) {
    for (const auto& e : v.toListRef()) {
      if (e.isTensor()) {
        f(e.toTensor());
      }
    }
  }
}

// Position of `t` among the device tensors of the call.
int32_t position(const Call& call, const at::Tensor& t) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i]->unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

// Elementwise operators may write over an argument they read; these, which read and write at different places, may not.
// The first argument from which on that holds: those that update their first argument start from it anyway.
size_t first_apart(const std::string& name) {
  static const std::unordered_map<std::string, size_t> names = {
      {"aten::cat", 0},        {"aten::gather", 0},           {"aten::index_select", 0}, {"aten::take", 0},
      {"aten::aminmax", 0},    {"aten::kthvalue", 0},         {"aten::index", 0},        {"aten::scatter", 1},
      {"aten::scatter_", 1},   {"aten::scatter_add", 1},      {"aten::scatter_add_", 1}, {"aten::index_add", 1},
      {"aten::index_add_", 1}, {"aten::index_fill_", 1},      {"aten::index_copy", 1},   {"aten::index_copy_", 1},
      {"aten::put_", 1},       {"aten::_index_put_impl_", 1},
  };
  const auto found = names.find(name);
  return found == names.end() ? SIZE_MAX : found->second;
}

// Raises PyTorch's error where the dtype cannot hold the number.
void check_holds(c10::ScalarType dtype, const c10::Scalar& number) {
  if (c10::isFloat8Type(dtype)) {
    return; // saturates or becomes NaN
  }
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(
      at::kBool, at::kHalf, at::kBFloat16, at::kComplexHalf, dtype, "fill", [&] { (void)number.to<scalar_t>(); });
}

// Fills a complex tensor: its real and its imaginary parts. False where the number is not at hand.
bool fill_complex(const at::Tensor& self, const c10::IValue& number) {
  if (self.is_conj() || self.is_neg() || (number.isTensor() && is_neuron(number.toTensor().unsafeGetTensorImpl()))) {
    return false;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto value = number.isTensor() ? number.toTensor().item()
                     : number.isNone() ? c10::Scalar(0)
                                       : number.toScalar();
  const auto parts = at::view_as_real(self);
  const auto whole = value.toComplexDouble();
  parts.select(-1, 0).fill_(whole.real());
  parts.select(-1, 1).fill_(whole.imag());
  return true;
}

// PyTorch's own refusals of overlapping memory: within what is written, as it is given, ...
void check_internal_overlap(const Signature& signature, c10::ArrayRef<c10::IValue> arguments) {
  for (const auto i : signature.mutated) {
    each_tensor(arguments[i], [](const at::Tensor& written) {
      if (written.defined()) {
        at::assert_no_internal_overlap(written);
      }
    });
  }
}

// ... and between it, once it has its size, and what is read.
void check_overlap(const Signature& signature, c10::ArrayRef<c10::IValue> arguments) {
  for (const auto i : signature.mutated) {
    each_tensor(arguments[i], [&](const at::Tensor& written) {
      if (!written.defined()) {
        return;
      }
      for (size_t j = 0; j < arguments.size(); ++j) {
        if (j == static_cast<size_t>(i)) {
          continue;
        }
        each_tensor(arguments[j], [&](const at::Tensor& read) {
          if (!read.defined()) {
            return;
          }
          if (j >= signature.apart) {
            at::assert_no_overlap(written, read);
          } else if (!read.is_same(written)) {
            at::assert_no_partial_overlap(written, read);
          }
        });
      }
    });
  }
}

} // namespace

Signature::Signature(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    // The numbers of a fused optimizer change from step to step, as scalars do.
    const bool changes = arguments[i].type()->kind() == c10::TypeKind::FloatType && schema.name().ends_with("_") &&
                         schema.name().starts_with("aten::_fused_");
    kinds.push_back(changes || is_number(arguments[i].type()) ? ArgumentKind::Scalar : ArgumentKind::Plain);
    if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) {
      mutated.push_back(static_cast<int32_t>(i));
    }
    if (arguments[i].name() == "generator") {
      generator = static_cast<int32_t>(i);
    }
  }
  for (const auto& r : schema.returns()) {
    int32_t from = -1;
    for (size_t i = 0; r.alias_info() != nullptr && i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr &&
          arguments[i].alias_info()->beforeSets() == r.alias_info()->beforeSets()) {
        from = static_cast<int32_t>(i);
      }
    }
    returns.push_back(from);
  }
  returns_list = returns.size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  // The CPU's kernels that write a number as it is refuse one that the dtype cannot hold, and do not mind overlaps.
  fills = schema.name() == "aten::fill_" || schema.name() == "aten::zero_";
  static const std::unordered_set<std::string> written = {
      "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::index_fill_"};
  for (size_t i = 1; i < kinds.size() && written.count(schema.name()) != 0; ++i) {
    number = kinds[i] == ArgumentKind::Scalar ? static_cast<int32_t>(i) : number;
  }
  // How many elements a range has depends on the numbers; so does how a norm or a variance is computed.
  masks = schema.name() == "aten::index" || schema.name() == "aten::_unsafe_index" ||
          schema.name() == "aten::_index_put_impl_";
  static const std::unordered_set<std::string> numbered = {
      "aten::pow",
      "aten::pow_",
      "aten::linalg_vector_norm",
      "aten::norm",
      "aten::renorm",
      "aten::renorm_",
      "aten::var",
      "aten::std",
      "aten::var_mean",
      "aten::std_mean",
      "aten::segment_reduce",
      "aten::_segment_reduce_backward"};
  values_matter = schema.name().starts_with("aten::arange") || numbered.count(schema.name()) != 0;
  apart = first_apart(schema.name());
  random = generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded);
}

// Runs the meta kernel for the outputs, resizes out= tensors to what it says, and lowers. Null: fall back.
const NeuronPlan* BoxedOperator::build(const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Call& call) {
  const auto arguments = torch::jit::last(stack, signature_.kinds.size());
  torch::jit::Stack meta;
  for (const auto& v : arguments) {
    meta.push_back(meta_argument(v));
  }
  const torch::jit::Stack inputs = meta;
  // An operator that only updates its arguments may lack a meta kernel: what it writes is what it was given.
  const bool known = signature_.returns.empty() && !handle.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  try {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_modes(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
        c10::autocast_dispatch_keyset);
    const std::string name = c10::toString(handle.operator_name());
    if (const int like = like_argument(name); like >= 0) {
      meta = {meta[like].toTensor().contiguous()};
    } else if (!known) {
      const auto equivalent = host_equivalent(name, meta);
      (equivalent ? *equivalent : handle).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
    }
    as_on_cpu(name, inputs, meta);
  } catch (const std::exception& e) {
    // The CPU kernel decides: it raises its own error, or has a kernel where Meta has none.
    const std::string what = e.what();
    call.reason = "its meta kernel refused: " + what.substr(0, what.find('\n'));
    call.unsupported = call.reason.c_str();
    return nullptr;
  }

  // Outputs as (description, owner of its sizes): returns first, then what is mutated without being returned.
  std::vector<NeuronOutput> outputs;
  std::vector<at::Tensor> owners;
  bool resized = false;
  auto add = [&](const at::Tensor& described, const at::Tensor* argument) {
    NeuronOutput o{};
    o.from_argument = -1;
    o.dtype = kAbsentOutput;
    if (argument != nullptr && argument->defined()) {
      o.from_argument = position(call, *argument);
      if (argument->sizes() != described.sizes()) {
        at::native::resize_output(*argument, described.sizes());
        if (argument->is_contiguous() && !described.is_contiguous()) {
          argument->unsafeGetTensorImpl()->set_sizes_and_strides(described.sizes(), described.strides());
        }
        resized = true;
      }
    }
    const at::Tensor& t = o.from_argument >= 0 ? *argument : described;
    if (t.defined()) {
      o.dtype = static_cast<int32_t>(t.scalar_type());
      o.rank = static_cast<int32_t>(t.dim());
      o.contiguous = t.is_contiguous();
      o.bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.dtype().itemsize()));
      owners.push_back(t);
      o.sizes = owners.back().sizes().data();
      o.strides = owners.back().strides().data();
    }
    outputs.push_back(o);
  };
  auto add_mutated = [&](int32_t i) {
    std::vector<at::Tensor> described;
    each_tensor(inputs[i], [&](const at::Tensor& t) { described.push_back(t); });
    size_t k = 0;
    each_tensor(arguments[i], [&](const at::Tensor& t) { add(described[k++], &t); });
  };
  for (size_t r = 0; r < signature_.returns.size(); ++r) {
    if (signature_.returns[r] >= 0) {
      add_mutated(signature_.returns[r]);
    } else if (meta[r].isTensor() || meta[r].isTensorList()) {
      each_tensor(meta[r], [&](const at::Tensor& t) { add(t, nullptr); });
    } else if (meta[r].isInt()) {
      NeuronOutput number{};
      number.from_argument = -1;
      number.dtype = kIntegerOutput;
      number.bytes = meta[r].toInt();
      outputs.push_back(number);
    } else {
      call.unsupported = "a result that is not a tensor";
      return nullptr;
    }
  }
  for (const auto i : signature_.mutated) {
    if (std::find(signature_.returns.begin(), signature_.returns.end(), i) == signature_.returns.end()) {
      add_mutated(i);
    }
  }
  if (resized) { // the layout of an argument changed, and with it the key
    const auto device = call.device;
    call = Call();
    call.read(op_, signature_.kinds, true, signature_.values_matter, arguments);
    call.device = device;
    if (const auto* plan = neuron_plan_find(call.key.data(), call.key.size())) {
      return plan;
    }
  }
  const NeuronPlan* plan = nullptr;
  check(neuron_plan_build(call.key.data(), call.key.size(), outputs.data(), outputs.size(), &plan));
  return plan;
}

// Replaces masks among the indices, the second argument, by positions. One mask that only fills is left: its lowering
// needs no positions. False where there are none to give.
bool BoxedOperator::expand_masks(torch::jit::Stack& stack) const {
  const auto first = stack.size() - signature_.kinds.size();
  const at::Tensor& self = stack[first].toTensor();
  const c10::IValue& indices = stack[first + 1];
  if (!has_masks(indices)) {
    return true;
  }
  const auto list = indices.toListRef();
  const bool fills = !signature_.mutated.empty() && list.size() == 1 && list[0].isTensor() &&
                     list[0].toTensor().scalar_type() == at::kBool &&
                     is_neuron(list[0].toTensor().unsafeGetTensorImpl()) && stack[first + 2].isTensor() &&
                     stack[first + 2].toTensor().numel() == 1 && !stack[first + 3].toBool();
  if (fills) {
    return true;
  }
  auto expanded = without_masks(self, indices);
  if (expanded.isNone()) {
    return false;
  }
  stack[first + 1] = std::move(expanded);
  return true;
}

void BoxedOperator::operator()(
    const c10::OperatorHandle& handle, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  if (signature_.masks && !expand_masks(*stack)) {
    return fall_back(handle, stack, "a mask without dimensions among the indices");
  }
  const auto arguments = torch::jit::last(*stack, signature_.kinds.size());
  const bool mutates = !signature_.mutated.empty();
  if (signature_.fills && arguments[0].toTensor().is_complex() &&
      is_neuron(arguments[0].toTensor().unsafeGetTensorImpl()) &&
      fill_complex(arguments[0].toTensor(), arguments.size() > 1 ? arguments[1] : c10::IValue())) {
    torch::jit::drop(*stack, arguments.size() - 1); // what is left is the tensor, the result
    return;
  }
  Call call;
  call.read(op_, signature_.kinds, mutates, signature_.values_matter, arguments);
  if (call.device < 0) {
    call.device = static_cast<c10::DeviceIndex>(neuron_current_device());
  }
  for (const auto i : signature_.mutated) { // a number may be read from the host, not written there
    each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (t.defined() && !is_neuron(t.unsafeGetTensorImpl())) {
        call.unsupported = "a tensor on another device";
      }
    });
  }
  const NeuronPlan* plan = nullptr;
  if (call.unsupported == nullptr) {
    if (mutates && !signature_.fills) {
      check_internal_overlap(signature_, arguments);
    }
    if (signature_.number >= 0) {
      check_holds(arguments[0].toTensor().scalar_type(), arguments[signature_.number].toScalar());
    }
    plan = neuron_plan_find(call.key.data(), call.key.size());
    if (plan == nullptr) {
      plan = build(handle, *stack, call);
    }
    if (plan != nullptr) {
      call.unsupported = neuron_plan_unsupported(plan);
    }
  }
  if (call.unsupported != nullptr) {
    return fall_back(handle, stack, call.unsupported);
  }
  if (mutates) { // a CPU kernel checks by itself
    check_overlap(signature_, arguments);
  }

  const NeuronOutput* outputs = nullptr;
  const size_t count = neuron_plan_outputs(plan, &outputs);
  c10::SmallVector<void*, 16> addresses;
  for (const auto* t : call.tensors) {
    addresses.push_back(const_cast<void*>(t->const_data_ptr()));
  }
  c10::SmallVector<c10::IValue, 4> results;
  for (size_t i = 0; i < count; ++i) {
    const NeuronOutput& o = outputs[i];
    if (o.from_argument >= 0) {
      results.emplace_back(*call.tensors[o.from_argument]);
    } else if (o.dtype == kIntegerOutput) {
      results.emplace_back(o.bytes);
    } else if (o.dtype < 0) {
      results.emplace_back(at::Tensor());
    } else {
      const auto rank = static_cast<size_t>(o.rank);
      auto t = make_tensor(
          static_cast<c10::ScalarType>(o.dtype), {o.sizes, rank}, {o.strides, rank}, o.contiguous != 0,
          static_cast<size_t>(o.bytes), call.device);
      addresses.push_back(t.mutable_data_ptr());
      results.emplace_back(std::move(t));
    }
  }
  if (const uint64_t values = neuron_plan_random(plan)) {
    std::optional<at::Generator> generator;
    if (signature_.generator >= 0 && arguments[signature_.generator].isGenerator()) {
      generator = arguments[signature_.generator].toGenerator();
    }
    const auto [seed, offset] = reserve_philox(generator, call.device, values);
    call.scalars.push_back({1, seed});
    call.scalars.push_back({1, offset});
  }
  check(neuron_plan_launch(
      plan, addresses.data(), addresses.size(), call.scalars.data(), call.scalars.size(), call.device,
      neuron_current_stream(call.device)));

  if (signature_.returns_list) {
    c10::List<at::Tensor> list;
    for (auto& r : results) {
      list.push_back(std::move(r).toTensor());
    }
    torch::jit::drop(*stack, signature_.kinds.size());
    stack->emplace_back(std::move(list));
    return;
  }
  torch::jit::drop(*stack, signature_.kinds.size());
  for (size_t i = 0; i < signature_.returns.size(); ++i) {
    stack->emplace_back(std::move(results[i]));
  }
}

namespace {

// Libraries live as long as the process: unregistering at exit would race with threads that still run operators.
torch::Library& library(const char* ns) {
  static std::unordered_map<std::string, torch::Library*> libraries;
  auto*& l = libraries[ns];
  if (l == nullptr) {
    l = new torch::Library(torch::Library::IMPL, ns, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  }
  return *l;
}

} // namespace

void register_factories(torch::Library& aten);
void register_copies(torch::Library& aten);
void register_data_dependent(torch::Library& aten);
void register_sparse();
void register_counting(torch::Library& aten);

void register_operators() {
  for (int32_t i = 0; i < neuron_op_count(); ++i) {
    const std::string name = neuron_op_name(i);
    const auto colons = name.find("::");
    if (name.compare(0, colons, "neuron") == 0) {
      continue; // called by the glue itself
    }
    const auto dot = name.find('.');
    const c10::OperatorName parsed(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
    const auto handle = c10::Dispatcher::singleton().findSchema(parsed);
    TORCH_CHECK(handle.has_value(), "operator table: this PyTorch has no operator ", name);
    library(name.substr(0, colons).c_str())
        .impl(
            name.substr(colons + 2).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedOperator>(i, *handle)));
  }
  register_factories(library("aten"));
  register_copies(library("aten"));
  register_data_dependent(library("aten"));
  register_sparse();
  register_counting(library("aten"));
  static torch::Library everything(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  everything.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

} // namespace neuron
