// All sums written out, then sorted. Reference layer.
#include "reference/top_k.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "reference/evaluate.h"

namespace quire::reference {

Tensor index_sums(const TopKInputs& inputs, const std::optional<MaskMod>& mask_mod,
                  std::int64_t q_begin) {
  const Tensor q = to(inputs.q, DType::f64), k = to(inputs.k, DType::f64),
               w = to(inputs.weights, DType::f64);
  std::optional<Evaluator> mask;
  if (mask_mod.has_value()) mask.emplace(mask_mod->formula());
  Tensor sums({q.dim(0), q.dim(1), k.dim(1)}, DType::f64);
  double* to = sums.data_as<double>();
  for (std::int64_t b = 0; b < q.dim(0); ++b)
    for (std::int64_t row = 0; row < q.dim(1); ++row)
      for (std::int64_t key = 0; key < k.dim(1); ++key, ++to) {
        const Point at{.b = b, .h = 0, .q_idx = q_begin + row, .kv_idx = key, .score = 0};
        if (mask && !mask->run(at).truth()) {
          *to = -std::numeric_limits<double>::infinity();
          continue;
        }
        for (std::int64_t h = 0; h < q.dim(2); ++h) {
          double dot = 0;
          for (std::int64_t d = 0; d < q.dim(3); ++d)
            dot += q.at<double>({b, row, h, d}) * k.at<double>({k.dim(0) == 1 ? 0 : b, key, d});
          *to += w.at<double>({b, row, h}) * std::max(dot, 0.0);
        }
      }
  return sums;
}

Tensor top_k_of_sums(const Tensor& sums, std::int64_t top_k) {
  const std::int64_t keys = sums.dim(2), rows = sums.dim(0) * sums.dim(1);
  Tensor lists({sums.dim(0), sums.dim(1), top_k}, DType::i32);
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* const of = sums.data_as<double>() + row * keys;
    std::vector<std::int32_t> order;
    for (std::int64_t key = 0; key < keys; ++key)
      if (of[key] != -std::numeric_limits<double>::infinity())
        order.push_back(static_cast<std::int32_t>(key));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t x, std::int32_t y) { return of[x] > of[y]; });
    if (std::ssize(order) > top_k) order.resize(top_k);
    std::sort(order.begin(), order.end());
    order.resize(top_k, -1);
    std::copy(order.begin(), order.end(), lists.data_as<std::int32_t>() + row * top_k);
  }
  return lists;
}

}  // namespace quire::reference
