// Counting and distinct values. How large a result is, or what it is checked for, depends on values: compositions of
// device operators around one or two reads.
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "data_dependent.h"

namespace neuron {

namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Runs of equal neighbours: where each begins, which run every element belongs to, how long each is. `differs` tells
// of every element but the first whether it begins a run. `order`: what the elements have been sorted by.
Three runs(const at::Tensor& differs, int64_t n, const at::Tensor& order, bool inverse, bool counts) {
  const auto options = differs.options().dtype(at::kLong);
  const at::Tensor begins = at::cat({at::ones({std::min<int64_t>(n, 1)}, differs.options()), differs});
  const at::Tensor starts = positions(begins);
  at::Tensor member = at::empty({0}, options);
  if (inverse && n > 0) {
    member = begins.cumsum(0, at::kLong).sub_(1);
    member = order.defined() ? at::empty_like(member).scatter_(0, order, member) : member;
  }
  at::Tensor length = at::empty({0}, options);
  if (counts) {
    const at::Tensor ends = at::cat({starts, at::empty({1}, options).fill_(n)});
    length = ends.narrow(0, 1, starts.numel()).sub(starts);
  }
  return {starts, member, length};
}

at::Tensor neighbours_differ(const at::Tensor& rows, int64_t n) {
  const int64_t rest = std::max<int64_t>(n - 1, 0);
  const at::Tensor ne = rows.narrow(0, n - rest, rest).ne(rows.narrow(0, 0, rest));
  return ne.dim() > 1 ? ne.any(1) : ne;
}

Three unique2(const at::Tensor& self, bool /*sorted*/, bool inverse, bool counts) {
  const int64_t n = self.numel();
  const auto [values, order] = self.reshape(-1).sort(/*stable=*/true, 0, false);
  auto [starts, member, length] = runs(neighbours_differ(values, n), n, order, inverse, counts);
  return {values.index_select(0, starts), inverse ? member.reshape(self.sizes()) : member, length};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool inverse) {
  auto [values, member, length] = unique2(self, sorted, inverse, false);
  return {values, member};
}

// The slices along `dim` as rows.
at::Tensor rows_of(const at::Tensor& self, int64_t dim) {
  const int64_t n = self.size(dim);
  TORCH_CHECK(
      n == 0 ? std::count(self.sizes().begin(), self.sizes().end(), 0) == 1 : self.numel() > 0,
      "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  return self.movedim(dim, 0).reshape({n, n > 0 ? self.numel() / n : 0});
}

Three unique_slices_consecutive(const at::Tensor& self, int64_t dim, bool inverse, bool counts) {
  const int64_t n = self.size(dim);
  auto [starts, member, length] = runs(neighbours_differ(rows_of(self, dim), n), n, {}, inverse, counts);
  return {self.index_select(dim, starts), member, length};
}

Three unique_consecutive(const at::Tensor& self, bool inverse, bool counts, std::optional<int64_t> dim) {
  if (dim) {
    return unique_slices_consecutive(self, *dim, inverse, counts);
  }
  const int64_t n = self.numel();
  const at::Tensor flat = self.reshape(-1);
  auto [starts, member, length] = runs(neighbours_differ(flat, n), n, {}, inverse, counts);
  return {flat.index_select(0, starts), inverse ? member.reshape(self.sizes()) : member, length};
}

Three unique_dim(const at::Tensor& self, int64_t dim, bool /*sorted*/, bool inverse, bool counts) {
  const int64_t n = self.size(dim);
  const at::Tensor rows = rows_of(self, dim);
  // By the last column first: every sort keeps the order of those before it.
  at::Tensor order = at::arange(n, rows.options().dtype(at::kLong));
  for (int64_t column = rows.size(1) - 1; column >= 0; --column) {
    const auto sorted = rows.select(1, column).index_select(0, order).sort(/*stable=*/true, 0, false);
    order = order.index_select(0, std::get<1>(sorted));
  }
  const at::Tensor differs = neighbours_differ(rows.index_select(0, order), n);
  auto [starts, member, length] = runs(differs, n, order, inverse, counts);
  return {self.index_select(dim, order.index_select(0, starts)), member, length};
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const auto options = self.options().dtype(at::kLong);
  if (self.dim() == 1 && self.numel() == 0) {
    return at::zeros({minlength}, options);
  }
  TORCH_CHECK(
      self.dim() == 1 && at::isIntegralType(self.scalar_type(), false) && self.min().item<int64_t>() >= 0,
      "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(self.max().item<int64_t>() + 1, minlength);
  const at::Tensor bin = self.to(at::kLong);
  if (!weights || !weights->defined()) {
    return at::zeros({bins}, options).scatter_add_(0, bin, at::ones({bin.numel()}, options));
  }
  TORCH_CHECK(weights->sizes() == self.sizes(), "weights should be 1-d and have the same length as input");
  const auto weight = weights->to(weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble);
  return at::zeros({bins}, weight.options()).scatter_add_(0, bin, weight);
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<c10::SymInt> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(
      repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt, "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) {
    return at::empty_like(repeats);
  }
  TORCH_CHECK(repeats.ge(0).all().item<bool>(), "repeats can not be negative");
  const at::Tensor ends = repeats.cumsum(0, at::kLong);
  const int64_t total = output_size ? output_size->expect_int() : ends[-1].item<int64_t>();
  const at::Tensor places = at::arange(total, ends.options());
  return at::searchsorted(ends, places, /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type());
}

using Edges = std::vector<at::Tensor>;
using Range = std::optional<at::ArrayRef<double>>;

// Evenly spaced edges of the bins of each column.
Edges even_edges(
    const at::Tensor& self, at::IntArrayRef bins, Range range, const std::optional<at::Tensor>& = {}, bool = false) {
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  const int64_t columns = self.size(-1);
  TORCH_CHECK(
      static_cast<int64_t>(bins.size()) == columns && (!range || static_cast<int64_t>(range->size()) == 2 * columns),
      "torch.histogramdd: expected bins and a range for each of the ", columns, " dimensions");
  Edges edges;
  for (int64_t d = 0; d < columns; ++d) {
    double low = 0;
    double high = 1;
    if (range) {
      low = (*range)[2 * d];
      high = (*range)[2 * d + 1];
    } else if (self.numel() > 0) {
      const auto dtype = self.scalar_type();
      TORCH_CHECK_NOT_IMPLEMENTED(
          dtype == at::kFloat || dtype == at::kDouble, "\"histogramdd\" not implemented for '", dtype, "'");
      low = self.select(-1, d).min().item().toDouble();
      high = self.select(-1, d).max().item().toDouble();
    }
    const bool finite = std::isfinite(low) && std::isfinite(high);
    TORCH_CHECK(finite, "torch.histogramdd: dimension ", d, "'s range [", low, ", ", high, "] is not finite");
    TORCH_CHECK(low <= high, "torch.histogramdd: min should not exceed max, but got min ", low, " max ", high);
    TORCH_CHECK(bins[d] > 0, "torch.histogram(): bins must be > 0, but got ", bins[d], " for dimension ", d);
    const double margin = low == high ? 0.5 : 0;
    edges.push_back(at::linspace(low - margin, high + margin, bins[d] + 1, self.options()));
  }
  return edges;
}

at::Tensor count_in_bins(
    const at::Tensor& self, at::TensorList edges, const std::optional<at::Tensor>& weight, bool density) {
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  const int64_t columns = self.size(-1);
  TORCH_CHECK(
      static_cast<int64_t>(edges.size()) == columns, "torch.histogramdd: expected ", columns,
      " sequences of bin edges for a ", columns, "-dimensional histogram but got ", edges.size());
  const bool weighted = weight && weight->defined();
  TORCH_CHECK(
      !weighted || (weight->scalar_type() == self.scalar_type() && weight->numel() * columns == self.numel()),
      "torch.histogramdd: expected weights of the dtype and the leading shape of the input");
  const at::Tensor rows = self.reshape({-1, columns});
  at::Tensor bin = at::zeros({rows.size(0)}, self.options().dtype(at::kLong));
  at::Tensor inside = at::ones({rows.size(0)}, self.options().dtype(at::kBool));
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < columns; ++d) {
    const at::Tensor& edge = edges[d];
    TORCH_CHECK(
        edge.dim() == 1 && edge.numel() > 0 && edge.scalar_type() == self.scalar_type(),
        "torch.histogramdd: bins should have the dtype of the input, one dimension, and at least 1 element");
    const int64_t last = edge.numel() - 1;
    const at::Tensor x = rows.select(1, d).contiguous();
    inside = inside.logical_and(x.ge(edge[0])).logical_and(x.le(edge[last]));
    // The last bin has its upper edge, too.
    bin = bin.mul(last).add(at::searchsorted(edge, x, false, /*right=*/true).sub(1).clamp(0, last - 1));
    shape.push_back(last);
  }
  const at::Tensor amount = weighted ? weight->reshape(-1).where(inside, 0) : inside.to(self.scalar_type());
  bin = bin.where(inside, 0);
  at::Tensor hist =
      at::zeros({c10::multiply_integers(shape)}, self.options()).scatter_add_(0, bin, amount).reshape(shape);
  if (density) {
    hist.div_(hist.sum());
    for (int64_t d = 0; d < columns; ++d) {
      std::vector<int64_t> along(columns, 1);
      along[d] = -1;
      hist.div_(edges[d].diff().reshape(along));
    }
  }
  return hist;
}

at::Tensor histogramdd_from_bin_counts(
    const at::Tensor& self, at::IntArrayRef bins, Range range, const std::optional<at::Tensor>& weight, bool density) {
  return count_in_bins(self, even_edges(self, bins, range), weight, density);
}

std::tuple<at::Tensor, at::Tensor> histogram_of_edges(
    const at::Tensor& self, const at::Tensor& bins, const std::optional<at::Tensor>& weight, bool density) {
  return {count_in_bins(self.reshape({-1, 1}), bins, weight, density), bins.clone()};
}

std::tuple<at::Tensor, at::Tensor> histogram_of_counts(
    const at::Tensor& self, int64_t bins, Range range, const std::optional<at::Tensor>& weight, bool density) {
  const auto edges = even_edges(self.reshape({-1, 1}), {bins}, range);
  return {count_in_bins(self.reshape({-1, 1}), edges, weight, density), edges[0]};
}

} // namespace

void register_counting(torch::Library& aten) {
  aten.impl("_unique2", TORCH_FN(unique2));
  aten.impl("_unique", TORCH_FN(unique));
  aten.impl("unique_dim", TORCH_FN(unique_dim));
  aten.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  aten.impl("unique_dim_consecutive", TORCH_FN(unique_slices_consecutive));
  aten.impl("bincount", TORCH_FN(bincount));
  aten.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  aten.impl("_histogramdd_bin_edges", TORCH_FN(even_edges));
  aten.impl("_histogramdd_from_bin_cts", TORCH_FN(histogramdd_from_bin_counts));
  aten.impl("_histogramdd_from_bin_tensors", TORCH_FN(count_in_bins));
  aten.impl("histogram.bins_tensor", TORCH_FN(histogram_of_edges));
  aten.impl("histogram.bin_ct", TORCH_FN(histogram_of_counts));
  // What their lowerings need to know of results, which PyTorch has no meta kernels for.
  static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  const auto nothing = [](const at::Tensor&, at::Tensor&, at::Tensor&, int64_t) {};
  meta.impl("_cummax_helper", nothing);
  meta.impl("_cummin_helper", nothing);
  meta.impl("_logcumsumexp", [](const at::Tensor& self, int64_t) { return at::empty_like(self); });
  meta.impl("_logcumsumexp.out", [](const at::Tensor& self, int64_t, at::Tensor& out) -> at::Tensor& {
    at::native::resize_output(out, self.sizes());
    return out;
  });
}

} // namespace neuron
