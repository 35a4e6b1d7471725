// The attention that `quire demo` computes in several ways: a small batch of sequences, dense,
// packed and paged, compared with plain loops in f64. Command line layer.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/executor.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::cli {

/// Outputs are one [1, heads, length, dim] per sequence.
class DemoBatch {
 public:
  static constexpr const char* kRule = "score + slopes[h] * (kv_idx - q_idx)";  // and causal
  static constexpr std::int64_t kPage = 16;

  DemoBatch();

  /// "37, 0, 100 and 163".
  std::string lengths_text() const;

  std::vector<Tensor> dense(Executor* executor = nullptr) const;  // one call per sequence
  std::vector<Tensor> jagged() const;                             // one call, packed
  std::vector<Tensor> paged() const;  // one call over a pool whose pages were dealt out in turn

  /// Compared with reference::attention.
  double largest_error(const std::vector<Tensor>& outs) const;

  /// For the last sequence: names, and errors relative to the slope of reference::attention along a
  /// random line.
  std::vector<std::pair<std::string, double>> gradient_errors() const;

 private:
  std::size_t sequences() const { return begins_.size() - 1; }
  std::int64_t length(std::size_t i) const { return begins_[i + 1] - begins_[i]; }
  ConstTensorView sequence(const Tensor& values, std::size_t i) const;  // [1, H, L, D]

  std::vector<std::int64_t> begins_;
  Tensor q_, k_, v_;  // [tokens, heads, dim]
  ScoreMod alibi_;
};

/// Compares all of them with memcmp.
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

}  // namespace quire::cli
