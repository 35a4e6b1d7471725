// The softmax of one row of scores, with its corners. Reference layer.
#pragma once
#include <span>
#include <vector>

namespace quire::reference {

struct RowSoftmax {
  std::vector<double> p;  // exactly 0 where the score is -inf
  double max = 0;         // -inf for a row with nothing to attend to; NaN if a score is
  double lse = 0;         // log of the sum of exp(score); -inf for a row with nothing to attend to
};

/// -inf is a key that is not there. A NaN or +inf makes p NaN wherever there is a key, and lse NaN.
RowSoftmax row_softmax(std::span<const double> scores);

}  // namespace quire::reference
