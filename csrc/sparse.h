// Sparse tensors: their members are dense device tensors, their operators are the CPU's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace neuron {

using MapTensor = std::function<at::Tensor(const at::Tensor&)>;

bool is_sparse(const at::Tensor& t);

// A sparse tensor of the same layout and metadata on another device, whose indices and values are `f` of these.
at::Tensor map_sparse(const at::Tensor& t, c10::Device device, const MapTensor& f);

// Makes `to` what `from` is, with `f` of its indices and values.
void assign_sparse(const at::Tensor& to, const at::Tensor& from, const MapTensor& f);

} // namespace neuron
