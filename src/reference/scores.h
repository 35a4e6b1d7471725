// The rows of the attention matrix: checked inputs as f64, the score of each (query, key) pair
// after scale, score mod and mask, and the softmax of a row. Used by forward and backward.
// Reference layer.
#pragma once
#include <cstdint>
#include <limits>
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

struct RowSoftmax {
  std::vector<double> p;  // 0 where the score is -inf; the sum, the sink's p included, is 1
  // With a weight mod: p are the weights, max is unknown, lse is their sum.
  double max = 0;  // -inf for a row with nothing to attend to; NaN if a score is
  double lse = 0;  // log of the sum of exp(score); -inf for a row with nothing to attend to
  double lse_with_sink = 0;  // with the sink included
  double sink_p = 0;
};

class Scores {
 public:
  /// Throws Error for shapes and dtypes that do not fit.
  Scores(const AttentionInputs& inputs, const AttentionOptions& options);

  const Sizes& sizes() const { return sizes_; }
  double scale() const { return scale_; }

  // Rows of the inputs, [E] or [Ev]; the key head follows from the row's head.
  const double* q(const Row& row) const;
  const double* k(const Row& row, std::int64_t kv) const;
  const double* v(const Row& row, std::int64_t kv) const;
  /// The corresponding row of a tensor of k's or v's shape (a gradient).
  double* same_place(Tensor& like_kv, const Row& row, std::int64_t kv) const;

  /// The scores of a row, one per key: -inf where the mask hides it. Throws the first fault of a
  /// visible element.
  std::vector<double> row(const Row& row);

  /// The weights of a row: by softmax, or by the weight mod.
  RowSoftmax weights(const Row& row);
  /// Whether the mask hides it.
  bool is_hidden(const Row& row, std::int64_t kv);
  bool has_weight_mod() const { return weight_mod_.has_value(); }
  bool normalizes() const { return normalize_; }
  /// Runs the weight mod's evaluator at an element with this score (after the score mod).
  Evaluator& run_weight_mod(const Row& row, std::int64_t kv, double score);

  /// Rotates a row of q or k, or rotates it back; does nothing without rope.
  void rotate(double* row, std::int64_t position, bool back) const;
  std::int64_t q_idx(const Row& row) const;

  /// The dropout factors of a row's weights, one per key.
  std::vector<double> dropout(const Row& row) const;

  /// The logit of the row's head; -inf without sinks.
  double sink(const Row& row) const;

  /// Runs the score mod's evaluator at an element; null if there is no score mod.
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
  std::vector<double> sinks_;          // one per query head, or none
  Tensor q_, k_, v_;                   // f64, row-major
  std::optional<Tensor> key_indices_;  // i64, row-major
  std::optional<Evaluator> score_mod_, mask_mod_, weight_mod_;
  bool normalize_ = false;
  std::optional<Rope> rope_;
};

/// Throws Error with both shapes unless they are equal; `name` is part of the text.
void require_shape(const char* name, const Shape& shape, const Shape& wanted);

/// A score or sink of -inf does not exist. A NaN or +inf among the scores makes p NaN wherever
/// there is a key, and lse NaN. A sink of +inf gives p = 0.
RowSoftmax row_softmax(std::span<const double> scores,
                       double sink = -std::numeric_limits<double>::infinity());

}  // namespace quire::reference
