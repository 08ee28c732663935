#include "internal.h"

#include <cstring>

#include "call.h"
#include "errors.h"
#include "neuron.h"

namespace neuron {

int32_t internal_operator(const char* name) {
  for (int32_t i = 0; i < neuron_op_count(); ++i) {
    if (std::strcmp(neuron_op_name(i), name) == 0) {
      return i;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "the operator table has no ", name);
}

void launch_internal(int32_t op, std::initializer_list<Operand> operands, c10::DeviceIndex device) {
  c10::SmallVector<uint64_t, 48> key;
  c10::SmallVector<void*, 4> addresses;
  key.push_back(static_cast<uint64_t>(op) | static_cast<uint64_t>(operands.size()) << 32);
  for (const auto& [t, dtype] : operands) {
    const bool contiguous = t->is_contiguous();
    key.push_back(
        static_cast<uint64_t>(Tag::Tensor) | static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(t->dim()) << 16 |
        (contiguous ? kContiguous : 0) << 24);
    key.append(t->sizes().begin(), t->sizes().end());
    if (!contiguous) {
      key.append(t->strides().begin(), t->strides().end());
    }
    addresses.push_back(const_cast<void*>(t->const_data_ptr()));
  }
  const NeuronPlan* plan = neuron_plan_find(key.data(), key.size());
  if (plan == nullptr) {
    const auto& [written, dtype] = *(operands.end() - 1);
    NeuronOutput output{};
    output.from_argument = static_cast<int32_t>(operands.size()) - 1;
    output.dtype = static_cast<int32_t>(dtype);
    output.rank = static_cast<int32_t>(written->dim());
    output.contiguous = written->is_contiguous();
    output.sizes = written->sizes().data();
    output.strides = written->strides().data();
    check(neuron_plan_build(key.data(), key.size(), &output, 1, &plan));
  }
  TORCH_INTERNAL_ASSERT(neuron_plan_unsupported(plan) == nullptr, neuron_plan_unsupported(plan));
  check(
      neuron_plan_launch(plan, addresses.data(), addresses.size(), nullptr, 0, device, neuron_current_stream(device)));
}

} // namespace neuron
