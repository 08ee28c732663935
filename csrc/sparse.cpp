#include "sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "fallback.h"

namespace neuron {

namespace {

bool is_coordinate(const at::Tensor& t) {
  return t.layout() == c10::kSparse;
}

at::SparseTensorImpl* coordinates(const at::Tensor& t) {
  return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed(const at::Tensor& t) {
  return static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
}

void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  fall_back(op, stack, "sparse tensors stay with PyTorch's CPU kernels");
}

// Operators of `key` run on the CPU's kernels for `cpu`. The dispatcher prefers a default kernel for all backends to a
// fallback, but those know dense tensors only: where the CPU has its own, the operator is registered by name.
void send_to_cpu(torch::Library& library, c10::DispatchKey key, c10::DispatchKey cpu) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.name.starts_with("aten::") && op && op->hasKernelForDispatchKey(cpu) &&
        !op->hasKernelForDispatchKey(key)) {
      library.impl(
          c10::toString(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
    }
  }
  // As long as the process, like every other registration.
  auto* everything = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  everything->fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}

} // namespace

bool is_sparse(const at::Tensor& t) {
  return is_coordinate(t) || at::sparse_csr::is_sparse_compressed(t);
}

void assign_sparse(const at::Tensor& to, const at::Tensor& from, const MapTensor& f) {
  if (is_coordinate(from)) {
    auto* target = coordinates(to);
    const auto* source = coordinates(from);
    target->raw_resize_(source->sparse_dim(), source->dense_dim(), from.sizes());
    target->set_indices_and_values_unsafe(f(source->indices()), f(source->values()));
    target->set_coalesced(source->coalesced());
  } else {
    const auto* source = compressed(from);
    compressed(to)->set_member_tensors(
        f(source->compressed_indices()), f(source->plain_indices()), f(source->values()), from.sizes());
  }
}

at::Tensor map_sparse(const at::Tensor& t, c10::Device device, const MapTensor& f) {
  const auto backend = device.is_cpu() ? c10::BackendComponent::CPUBit : c10::BackendComponent::PrivateUse1Bit;
  const auto functionality = is_coordinate(t) ? c10::DispatchKey::Sparse : c10::DispatchKey::SparseCsr;
  const c10::DispatchKeySet keys{c10::toRuntimePerBackendFunctionalityKey(functionality, backend)};
  at::Tensor mapped = is_coordinate(t)
                          ? at::detail::make_tensor<at::SparseTensorImpl>(keys, t.dtype())
                          : at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, t.layout(), t.dtype());
  assign_sparse(mapped, t, f);
  return mapped;
}

// What only reads or sets metadata works on the members where they are; everything else is the CPU's.
void register_sparse() {
  static torch::Library coo(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  coo.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  coo.impl("_values", TORCH_FN(at::native::_values_sparse));
  coo.impl("indices", TORCH_FN(at::native::indices_sparse));
  coo.impl("values", TORCH_FN(at::native::values_sparse));
  coo.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  coo.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  coo.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  coo.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  coo.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  coo.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  coo.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  static torch::Library csr(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  csr.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  csr.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  csr.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  csr.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  csr.impl("values", TORCH_FN(at::native::values_sparse_csr));
  csr.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  csr.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  csr.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  send_to_cpu(coo, c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU);
  send_to_cpu(csr, c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU);
}

} // namespace neuron
