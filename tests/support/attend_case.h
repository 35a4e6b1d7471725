// A KVCache with random rows, and each token of an attend against flex_attention over its sequence
// alone, bit for bit. Tests only.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"
#include "tests/support/random_tensor.h"

namespace quire::testing {

/// A cache whose slots without a token are NaN in the first layer.
struct AttendHarness {
  explicit AttendHarness(const KVCacheOptions& options, std::uint64_t seed = 1);

  /// Tokens with random keys and values.
  void append(SequenceId sequence, std::int64_t count);
  SequenceId create(std::int64_t length);

  /// [1, heads, length, dim] of a sequence, zeros where pages were released.
  Tensor dense(const ConstTensorView& pages, SequenceId sequence, std::int64_t group = 0) const;

  KVCache cache;
  std::mt19937_64 random;
};

/// Attends with random queries; names the first sequence of the step whose out, lse or max_scores
/// differ, or is empty.
std::string different_from_alone(AttendHarness& harness, const std::vector<NewTokens>& step,
                                 std::int64_t q_heads, AttendOptions options);

}  // namespace quire::testing
