// One operator call, flattened for Rust: a key of 64-bit words that says everything but addresses and scalar values.
//
// word 0: operator | arguments << 32, then a record per argument, whose first word is tag | payload << 8:
//   None                                       nothing follows; also an undefined tensor, and any generator
//   Tensor    dtype:8 rank:8 flags:8 alias:32  (1 + an earlier tensor at the same address, or 0) sizes, then strides
//   unless contiguous Scalar    kind:8 (0 int, 1 float, 2 bool) zero:1 one:1 two:1 keyed:1; value in `scalars`, and if
//   keyed in the next word Int       -                                the value Bool      the value Float     - bits of
//   the double IntList, FloatList, BoolList   length      the values List      length                           a
//   record per element (tensors, optional tensors or Scalars) String    bytes                            the bytes,
//   padded with zeros
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "neuron.h"

namespace neuron {

enum class Tag : uint8_t {
  None = 0,
  Tensor = 1,
  Scalar = 2,
  Int = 3,
  Bool = 4,
  Float = 5,
  IntList = 6,
  FloatList = 7,
  BoolList = 8,
  List = 9,
  String = 10,
};

// Flags of a tensor record.
constexpr uint64_t kContiguous = 1;
constexpr uint64_t kHostScalar = 2; // a 0-dimensional CPU tensor: its value is in `scalars`
constexpr uint64_t kWrapped = 4; // a Python number wrapped into a tensor: weak in type promotion

// How an argument of the schema is read.
enum class ArgumentKind : uint8_t { Plain, Scalar };

struct Call {
  c10::SmallVector<uint64_t, 96> key;
  c10::SmallVector<const at::Tensor*, 8> tensors; // the device tensors, in order
  c10::SmallVector<NeuronScalar, 8> scalars;
  c10::DeviceIndex device = -1;
  std::string reason; // owns `unsupported` where that is not a literal
  const char* unsupported = nullptr; // why this call cannot be described: it runs on the CPU

  const at::Tensor* foreign = nullptr; // a tensor that is not on `device` and not a host scalar

  void read(
      int32_t op, c10::ArrayRef<ArgumentKind> kinds, bool mutates, bool values_matter,
      c10::ArrayRef<c10::IValue> arguments);

 private:
  bool values_matter_ = false;
  void tensor(const at::Tensor& t, bool mutates);
  void value(const c10::IValue& v, ArgumentKind kind, bool mutates);
  void scalar(const c10::IValue& v);
  void push(Tag tag, uint64_t payload) {
    key.push_back(static_cast<uint64_t>(tag) | payload << 8);
  }
};

} // namespace neuron
