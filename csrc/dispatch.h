// The boxed adapter: every operator of the Rust table goes through it.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "call.h"

namespace neuron {

// How the returns of a schema relate to its arguments, and how its arguments are read: computed once per operator.
struct Signature {
  c10::SmallVector<ArgumentKind, 8> kinds;
  c10::SmallVector<int32_t, 4> returns;   // argument a return aliases, or -1
  c10::SmallVector<int32_t, 4> mutated;   // arguments that are written
  bool returns_list = false;              // the one return is a list of tensors
  bool values_matter = false;             // shapes depend on the values of Scalars: they belong to the key
  bool masks = false;                     // the second argument holds indices, which may be masks
  bool random = false;                    // takes a generator, or is tagged as random
  bool fills = false;                     // writes one number everywhere: overlaps do not matter
  int32_t number = -1;                    // argument that is written as it is
  int32_t generator = -1;                 // argument that is one
  size_t apart;                           // arguments from here on may not share any memory with what is written

  explicit Signature(const c10::OperatorHandle& op);
};

class BoxedOperator final : public c10::OperatorKernel {
 public:
  BoxedOperator(int32_t op, const c10::OperatorHandle& handle)
      : op_(op), name_(neuron_op_name(op)), signature_(handle) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  const NeuronPlan* build(const c10::OperatorHandle& handle, const torch::jit::Stack& arguments, Call& call);

  bool expand_masks(torch::jit::Stack& stack) const;

  int32_t op_;
  const char* name_;
  Signature signature_;
};

} // namespace neuron
