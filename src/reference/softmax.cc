// Subtract the maximum, exponentiate, divide by the sum. Reference layer.
#include "reference/softmax.h"

#include <cmath>
#include <limits>

namespace quire::reference {

RowSoftmax row_softmax(std::span<const double> scores) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  RowSoftmax row{std::vector<double>(scores.size(), 0.0), kNothing, kNothing};
  for (const double score : scores)
    if (score > row.max || std::isnan(score)) row.max = score;  // a NaN stays: nothing is larger
  if (row.max == kNothing) return row;

  double sum = 0;
  for (std::size_t kv = 0; kv < scores.size(); ++kv) {
    if (scores[kv] == kNothing) continue;
    row.p[kv] = std::exp(scores[kv] - row.max);
    sum += row.p[kv];
  }
  for (std::size_t kv = 0; kv < scores.size(); ++kv)
    if (scores[kv] != kNothing) row.p[kv] /= sum;
  row.lse = row.max + std::log(sum);
  return row;
}

}  // namespace quire::reference
