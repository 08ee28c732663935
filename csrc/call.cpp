#include "call.h"

#include <ATen/core/List.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "tensor.h"

namespace neuron {

namespace {

NeuronScalar integer(int64_t v) {
  return {1, std::bit_cast<uint64_t>(v)};
}

NeuronScalar floating(double v) {
  return {0, std::bit_cast<uint64_t>(v)};
}

// The value of a 0-dimensional CPU tensor. Python numbers arrive as double, int64 and bool: read without a dispatch.
NeuronScalar host_scalar(const at::Tensor& t) {
  switch (t.is_neg() ? c10::ScalarType::Undefined : t.scalar_type()) {
    case c10::ScalarType::Double:
      return floating(*static_cast<const double*>(t.const_data_ptr()));
    case c10::ScalarType::Float:
      return floating(*static_cast<const float*>(t.const_data_ptr()));
    case c10::ScalarType::Long:
      return integer(*static_cast<const int64_t*>(t.const_data_ptr()));
    case c10::ScalarType::Bool:
      return integer(*static_cast<const bool*>(t.const_data_ptr()));
    default:
      return c10::isFloatingType(t.scalar_type()) ? floating(t.item().toDouble()) : integer(t.item().toLong());
  }
}

} // namespace

void Call::tensor(const at::Tensor& t, bool mutates) {
  auto* impl = t.unsafeGetTensorImpl();
  if (!t.defined()) {
    return push(Tag::None, 0);
  }
  const auto dtype = static_cast<uint64_t>(t.scalar_type());
  uint64_t flags = 0;
  if (!is_neuron(impl)) {
    if (impl->dim() != 0 || impl->device_type() != c10::DeviceType::CPU) {
      foreign = &t;
      unsupported = "a tensor on another device";
      return;
    }
    if (c10::isComplexType(t.scalar_type())) {
      unsupported = "a complex scalar";
      return;
    }
    flags = kHostScalar | (impl->is_wrapped_number() ? kWrapped : 0);
    scalars.push_back(host_scalar(t));
    return push(Tag::Tensor, dtype | flags << 16);
  }
  const auto index = impl->device().index();
  if (device < 0) {
    device = index;
  } else if (device != index) {
    foreign = &t;
    unsupported = "a tensor on another device";
    return;
  }
  if (t.is_conj() || t.is_neg() || t.layout() != c10::kStrided) {
    unsupported = "a conjugate, negative or non-strided view";
    return;
  }
  uint64_t alias = 0;
  if (mutates) {
    for (size_t i = 0; i < tensors.size() && alias == 0; ++i) {
      if (t.numel() > 0 && tensors[i]->const_data_ptr() == t.const_data_ptr()) {
        alias = i + 1;
      }
    }
  }
  const auto sizes = impl->sizes();
  const bool contiguous = impl->is_contiguous();
  flags = (contiguous ? kContiguous : 0) | (impl->is_wrapped_number() ? kWrapped : 0);
  push(Tag::Tensor, dtype | sizes.size() << 8 | flags << 16 | alias << 24);
  key.append(sizes.begin(), sizes.end());
  if (!contiguous) {
    const auto strides = impl->strides();
    key.append(strides.begin(), strides.end());
  }
  tensors.push_back(&t);
}

void Call::scalar(const c10::IValue& v) {
  // 0, 1 and 2 are told apart from other values: operators leave out a step, or square instead of raising to a power.
  // -0.0 is no constant: it keeps its sign.
  auto special = [](auto x) {
    return uint64_t{x == 0 && !std::signbit(x)} << 8 | uint64_t{x == 1} << 9 | uint64_t{x == 2} << 10;
  };
  const uint64_t keyed = uint64_t{values_matter_} << 11;
  if (v.isDouble()) {
    push(Tag::Scalar, 1 | special(v.toDouble()) | keyed);
    scalars.push_back(floating(v.toDouble()));
  } else if (v.isBool()) {
    push(Tag::Scalar, 2 | special(int{v.toBool()}) | keyed);
    scalars.push_back(integer(v.toBool()));
  } else if (v.isInt()) {
    push(Tag::Scalar, special(v.toInt()) | keyed);
    scalars.push_back(integer(v.toInt()));
  } else {
    unsupported = "a complex or symbolic scalar";
    return;
  }
  if (values_matter_) {
    key.push_back(scalars.back().bits);
  }
}

void Call::value(const c10::IValue& v, ArgumentKind kind, bool mutates) {
  if (v.isTensor()) {
    tensor(v.toTensor(), mutates);
  } else if (v.isNone() || v.isGenerator()) {
    push(Tag::None, 0);
  } else if (kind == ArgumentKind::Scalar && !v.isList()) {
    scalar(v);
  } else if (v.isInt()) {
    push(Tag::Int, 0);
    key.push_back(std::bit_cast<uint64_t>(v.toInt()));
  } else if (v.isBool()) {
    push(Tag::Bool, v.toBool());
  } else if (v.isDouble()) {
    push(Tag::Float, 0);
    key.push_back(std::bit_cast<uint64_t>(v.toDouble()));
  } else if (v.isList()) {
    // One walk for every list type: elements are read in place, without a copy of the list.
    const auto list = v.toListRef();
    const bool records = kind == ArgumentKind::Scalar || (!list.empty() && (list[0].isTensor() || list[0].isNone()));
    const Tag tag = records || list.empty() ? Tag::List
                    : list[0].isInt()       ? Tag::IntList
                    : list[0].isDouble()    ? Tag::FloatList
                    : list[0].isBool()      ? Tag::BoolList
                                            : Tag::None;
    if (tag == Tag::None) {
      unsupported = "a list of an unusual type";
      return;
    }
    push(tag, list.size());
    for (const auto& e : list) {
      if (records) {
        value(e, kind, mutates);
      } else if (tag == Tag::FloatList) {
        key.push_back(std::bit_cast<uint64_t>(e.toDouble()));
      } else {
        key.push_back(std::bit_cast<uint64_t>(tag == Tag::BoolList ? int64_t(e.toBool()) : e.toInt()));
      }
    }
  } else if (v.isString()) {
    const auto& s = v.toStringRef();
    push(Tag::String, s.size());
    const auto words = (s.size() + 7) / 8;
    const auto at = key.size();
    key.append(words, 0);
    std::memcpy(key.data() + at, s.data(), s.size());
  } else if (v.isDevice()) {
    push(Tag::None, 0); // factories: the device is that of the result, which the adapter has already
    if (device < 0) {
      device = index_of(v.toDevice());
    }
  } else {
    unsupported = "an argument of an unusual type";
  }
}

void Call::read(
    int32_t op, c10::ArrayRef<ArgumentKind> kinds, bool mutates, bool values_matter,
    c10::ArrayRef<c10::IValue> arguments) {
  values_matter_ = values_matter;
  key.push_back(static_cast<uint64_t>(op) | static_cast<uint64_t>(arguments.size()) << 32);
  for (size_t i = 0; i < arguments.size() && unsupported == nullptr; ++i) {
    value(arguments[i], kinds[i], mutates);
  }
}

} // namespace neuron
