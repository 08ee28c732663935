// The CPU fallback: an operator without a lowering runs on ATen's CPU kernel over the device's own memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace neuron {

// Runs the operator on the CPU and leaves device tensors on the stack. `reason` is what get_fallback_ops() reports.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason);

// The boxed fallback registered for every operator without a kernel of its own.
void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace neuron
