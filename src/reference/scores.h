// The rows of the attention matrix: checked inputs as f64, the score of each (query, key) pair
// after scale, score mod and mask, and the softmax of a row. Used by forward and backward.
// Reference layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/tensor.h"
#include "reference/attention.h"
#include "reference/evaluate.h"

namespace quire::reference {

struct Sizes {
  std::int64_t batches = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
  std::int64_t head_dim = 0, v_head_dim = 0;
};

/// A row of the attention matrix.
struct Row {
  std::int64_t b = 0, h = 0, q = 0;
};

class Scores {
 public:
  /// Throws Error for shapes and dtypes that do not fit.
  Scores(const AttentionInputs& inputs, const AttentionOptions& options);

  const Sizes& sizes() const { return sizes_; }
  double scale() const { return scale_; }

  // Rows of the inputs, [E] or [Ev]; the key head follows from the row's.
  const double* q(const Row& row) const;
  const double* k(const Row& row, std::int64_t kv) const;
  const double* v(const Row& row, std::int64_t kv) const;
  /// The same place in a tensor of k's or v's shape (a gradient).
  double* same_place(Tensor& like_kv, const Row& row, std::int64_t kv) const;

  /// The scores of a row, one per key: -inf where the mask hides it. Throws the first fault of a
  /// visible element.
  std::vector<double> row(const Row& row);

  /// By what dropout multiplies the weights of a row, one per key.
  std::vector<double> dropout(const Row& row) const;

  /// The score mod's evaluator, run at an element; null if there is no score mod.
  Evaluator* run_score_mod(const Row& row, std::int64_t kv);

 private:
  std::vector<bool> chosen(const Row& row) const;
  Point point(const Row& row, std::int64_t kv) const;
  double dot(const Row& row, std::int64_t kv) const;

  Sizes sizes_;
  double scale_;
  Dropout dropout_;
  std::int64_t b_begin_;
  std::vector<std::int64_t> q_begin_;  // one per batch
  Tensor q_, k_, v_;                   // f64, row-major
  std::optional<Tensor> key_indices_;  // i64, row-major
  std::optional<Evaluator> score_mod_, mask_mod_;
};

/// "[1, 2, 3, 4]" against what it should be; `name` goes into the text.
void require_shape(const char* name, const Shape& shape, const Shape& wanted);

struct RowSoftmax {
  std::vector<double> p;  // exactly 0 where the score is -inf
  double max = 0;         // -inf for a row with nothing to attend to; NaN if a score is
  double lse = 0;         // log of the sum of exp(score); -inf for a row with nothing to attend to
};

/// -inf is a key that is not there. A NaN or +inf makes p NaN wherever there is a key, and lse NaN.
RowSoftmax row_softmax(std::span<const double> scores);

}  // namespace quire::reference
