// Which implementation torch.nn.functional.scaled_dot_product_attention takes on the device.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>

namespace neuron {
namespace {

bool dense(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.layout() == at::kStrided;
}

// True where the fused kernel and its backward give what the composite implementation gives.
bool fits_fused_kernel(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    bool grouped_heads) {
  if (!dense(query) || !dense(key) || !dense(value) || query.dim() != 4 || key.dim() != 4 || value.dim() != 4) {
    return false;
  }
  const at::ScalarType dtype = query.scalar_type();
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kDouble) {
    return false;
  }
  if (key.scalar_type() != dtype || value.scalar_type() != dtype) {
    return false;
  }
  if (query.sym_numel() == 0 || key.sym_numel() == 0 || value.sym_numel() == 0) {
    return false;
  }
  // The composite implementation broadcasts batches and heads, or reports what does not match.
  const bool batches = query.sym_size(0) == key.sym_size(0) && query.sym_size(0) == value.sym_size(0);
  const bool lengths = query.sym_size(3) == key.sym_size(3) && key.sym_size(2) == value.sym_size(2);
  const bool shared = key.sym_size(1) == value.sym_size(1);
  const bool heads = grouped_heads ? query.sym_size(1) % key.sym_size(1) == 0 : query.sym_size(1) == key.sym_size(1);
  if (!batches || !lengths || !shared || !heads) {
    return false;
  }
  // The fused backward has no gradient for a bias.
  return !mask.has_value() || (dense(*mask) && !(at::GradMode::is_enabled() && mask->requires_grad()));
}

int64_t choose(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double, bool, std::optional<double>, bool grouped_heads) {
  const at::Context& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() && fits_fused_kernel(query, key, value, mask, grouped_heads)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  if (context.userEnabledMathSDP()) {
    return static_cast<int64_t>(at::SDPBackend::math);
  }
  return static_cast<int64_t>(at::SDPBackend::error);
}

} // namespace
} // namespace neuron

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &::neuron::choose)
} // namespace at::native
