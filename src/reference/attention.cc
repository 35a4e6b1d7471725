// The forward pass, row by row. Reference layer.
#include "reference/attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "reference/scores.h"

namespace quire::reference {

AttentionOutput attention(const AttentionInputs& inputs, const AttentionOptions& options) {
  Scores scores(inputs, options);
  const Sizes& s = scores.sizes();
  AttentionOutput result{
      .out = Tensor({s.batches, s.q_heads, s.q_len, s.v_head_dim}, DType::f64),
      .lse = Tensor({s.batches, s.q_heads, s.q_len}, DType::f64),
      .lse_with_sinks = Tensor({s.batches, s.q_heads, s.q_len}, DType::f64),
      .max_scores = Tensor({s.batches, s.q_heads, s.q_len}, DType::f64),
      .key_weights = Tensor({s.batches, s.q_heads, s.kv_len}, DType::f64),
      .entropy = Tensor({s.batches, s.q_heads, s.q_len}, DType::f64),
  };
  double* out = result.out.data_as<double>();
  double* lse = result.lse.data_as<double>();
  double* lse_with_sinks = result.lse_with_sinks.data_as<double>();
  double* max_scores = result.max_scores.data_as<double>();
  double* entropy = result.entropy.data_as<double>();

  for (std::int64_t b = 0; b < s.batches; ++b)
    for (std::int64_t h = 0; h < s.q_heads; ++h)
      for (std::int64_t q = 0; q < s.q_len; ++q) {
        const Row row{b, h, q};
        const RowSoftmax softmax = scores.weights(row);
        const std::vector<double> factors = scores.dropout(row);
        for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
          const std::size_t i = kv;
          const double p = softmax.p[i] * factors[i];  // a NaN stays one
          if (p == 0) continue;  // hidden or dropped: its value may be anything, NaN included
          const double* v = scores.v(row, kv);
          for (std::int64_t e = 0; e < s.v_head_dim; ++e) out[e] += p * v[e];
        }
        out += s.v_head_dim;
        *lse++ = softmax.lse;
        *lse_with_sinks++ = softmax.lse_with_sink;
        *max_scores++ = softmax.max;
        const auto counted =
            options.key_weights_queries.value_or(std::pair{std::int64_t{0}, s.q_len});
        double* const key_weights =
            result.key_weights.data_as<double>() + (b * s.q_heads + h) * s.kv_len;
        for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
          const double p = softmax.p[kv];
          if (q >= counted.first && q < counted.second) key_weights[kv] += p;
          if (p != 0) *entropy -= p * std::log(p);
        }
        if (options.sinks.has_value()) {
          const double log_p = (*options.sinks)[h] - softmax.lse_with_sink;
          if (log_p > -std::numeric_limits<double>::infinity()) *entropy -= std::exp(log_p) * log_p;
        }
        ++entropy;
      }
  return result;
}

}  // namespace quire::reference
