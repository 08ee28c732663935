// Operators whose result shapes depend on values. They are compositions of device operators around one read of a count.
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include "data_dependent.h"
#include "internal.h"
#include "tensor.h"

namespace neuron {

namespace {

bool is_mask(const at::Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
}

// Coordinates of the elements that are not zero: a row for each dimension.
at::Tensor coordinates(const at::Tensor& self) {
  constexpr int64_t kBlock = 4096; // Op::TRUE_BLOCK
  static const int32_t true_counts = internal_operator("neuron::true_counts");
  static const int32_t true_positions = internal_operator("neuron::true_positions");
  const auto options = self.options().dtype(at::kLong);
  if (self.numel() == 0) {
    return at::empty({self.dim(), 0}, options);
  }
  const auto device = self.device().index();
  const at::Tensor counts = at::empty({(self.numel() + kBlock - 1) / kBlock + 1}, options);
  const Operand mask{&self, self.scalar_type()};
  launch_internal(true_counts, {mask, {&counts, at::kLong}}, device);
  const at::Tensor found = at::empty({self.dim(), counts[-1].item<int64_t>()}, options);
  if (found.numel() > 0) {
    launch_internal(true_positions, {mask, {&counts, at::kLong}, {&found, at::kLong}}, device);
  }
  return found;
}

} // namespace

at::Tensor positions(const at::Tensor& self) {
  return coordinates(self.reshape(-1))[0];
}

namespace {

at::Tensor& give(const at::Tensor& result, at::Tensor& out) {
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor nonzero(const at::Tensor& self) {
  if (self.dim() == 0) {
    return coordinates(self.reshape(1)).narrow(0, 0, 0).t();
  }
  return coordinates(c10::isComplexType(self.scalar_type()) ? self.ne(0) : self).t();
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(
      out.scalar_type() == at::kLong, "nonzero: expected out tensor to have scalar type Long, but got ",
      out.scalar_type());
  return give(neuron::nonzero(self), out);
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto expanded = at::broadcast_tensors({self, mask});
  return expanded[0].reshape(-1).index_select(0, positions(expanded[1]));
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(
      out.scalar_type() == self.scalar_type(), "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  return give(neuron::masked_select(self, mask), out);
}

// Counts per bin, of integers too. Equal bounds mean those of the data.
at::Tensor histc(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  TORCH_CHECK(bins > 0, "torch.histc: bins must be > 0");
  double low = min.toDouble();
  double high = max.toDouble();
  if (low == high && self.numel() > 0) {
    low = self.min().item().toDouble();
    high = self.max().item().toDouble();
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "range of [", low, ", ", high, "] is not finite");
  TORCH_CHECK(low < high, "torch.histc: max must be larger than min");
  // As on the CPU every step rounds to the dtype, the bounds too.
  const auto dtype = self.is_floating_point() ? self.scalar_type() : at::kFloat;
  const at::Tensor values = self.reshape(-1).to(dtype);
  const at::Tensor bounds = at::cat({at::full({1}, low, values.options()), at::full({1}, high, values.options())});
  const at::Tensor least = bounds.narrow(0, 0, 1);
  const at::Tensor most = bounds.narrow(0, 1, 1);
  const at::Tensor inside = values.ge(least).logical_and_(values.le(most));
  // The upper bound belongs to the last bin.
  const at::Tensor place = values.sub(least).mul_(bins).div_(most.sub(least));
  const at::Tensor bin = place.floor_().clamp_(0, bins - 1).to(at::kLong);
  return at::empty({bins}, self.options()).zero_().scatter_add_(0, bin.where(inside, 0), inside.to(self.scalar_type()));
}

at::Tensor& histc_out(
    const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max, at::Tensor& out) {
  TORCH_CHECK(
      self.scalar_type() == out.scalar_type(),
      "torch.histogram: input tensor and hist tensor should have the same dtype");
  return give(neuron::histc(self, bins, min, max), out);
}

// The device has no nested tensors. PyTorch asks this before it makes one of a padded batch, and else keeps the
// padding.
bool nested_from_mask_left_aligned(const at::Tensor& /*t*/, const at::Tensor& /*mask*/) {
  return false;
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(
      self.device() == other.device(),
      "Expected all tensors to be on the same device, but found at least two "
      "devices, ",
      self.device(), " and ", other.device(), "! (when executing aten::equal)");
  TORCH_CHECK(
      self.scalar_type() == other.scalar_type(), "Expected object of data type ", self.dtype(), " but got data type ",
      other.dtype(), " for argument 'other' in call to equal");
  return self.sizes() == other.sizes() && (self.numel() == 0 || self.eq(other).all().item<bool>());
}

} // namespace

bool has_masks(const c10::IValue& indices) {
  for (const auto& v : indices.toListRef()) {
    if (v.isTensor() && v.toTensor().defined() &&
        (is_mask(v.toTensor()) || !is_neuron(v.toTensor().unsafeGetTensorImpl()))) {
      return true;
    }
  }
  return false;
}

c10::IValue without_masks(const at::Tensor& self, const c10::IValue& indices) {
  c10::List<std::optional<at::Tensor>> expanded;
  int64_t dim = 0;
  for (const auto& v : indices.toListRef()) {
    const bool present = v.isTensor() && v.toTensor().defined();
    const at::Tensor index = present ? v.toTensor().to(self.device()) : at::Tensor();
    if (!is_mask(index)) {
      expanded.push_back(index.defined() ? std::optional<at::Tensor>(index) : std::nullopt);
      ++dim;
      continue;
    }
    for (int64_t d = 0; d < index.dim(); ++d, ++dim) {
      TORCH_CHECK_INDEX(
          dim < self.dim() && index.size(d) == self.size(dim), "The shape of the mask ", index.sizes(), " at index ", d,
          " does not match the shape of the indexed tensor ", self.sizes(), " at index ", dim);
    }
    if (index.dim() == 0) { // a mask over no dimension selects the whole or nothing, along a new one
      return c10::IValue();
    }
    const at::Tensor columns = neuron::nonzero(index);
    for (int64_t d = 0; d < index.dim(); ++d) {
      expanded.push_back(columns.select(1, d));
    }
  }
  return expanded;
}

void register_data_dependent(torch::Library& aten) {
  aten.impl("nonzero", TORCH_FN(nonzero));
  aten.impl("nonzero.out", TORCH_FN(nonzero_out));
  aten.impl("masked_select", TORCH_FN(masked_select));
  aten.impl("masked_select.out", TORCH_FN(masked_select_out));
  aten.impl("histc", TORCH_FN(histc));
  aten.impl("histc.out", TORCH_FN(histc_out));
  aten.impl("equal", TORCH_FN(equal));
  aten.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_from_mask_left_aligned));
}

} // namespace neuron
