// The CPU fallback: an operator without a lowering runs on ATen's CPU kernel over the device's own memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>

namespace neuron {

// Runs the operator on the CPU and leaves device tensors on the stack. `reason` is what get_fallback_ops() reports.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason);

// The operator whose CPU and meta kernels stand for those that `name` lacks; its arguments take the place of the given.
std::optional<c10::OperatorHandle> host_equivalent(const std::string& name, torch::jit::Stack& stack);

// The argument whose meta copy, made contiguous, is the result of an operator without meta kernel; or -1.
int like_argument(const std::string& name);

// Corrects layouts and types of meta results where the CPU's kernel for these arguments gives others.
void as_on_cpu(const std::string& name, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack& results);

// The boxed fallback registered for every operator without a kernel of its own.
void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace neuron
