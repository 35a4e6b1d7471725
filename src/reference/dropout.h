// The dropout factor of each weight, by definition: a second implementation of the Philox4x32-10 of
// Salmon et al. that shares nothing with kernels/. Reference layer.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace quire::reference {

/// Weights are dropped with probability p, after the row sum was taken.
struct Dropout {
  double p = 0;  // in 0..1
  std::uint64_t seed = 0;
};

/// The four words of a counter.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key);

/// The row of the attention matrix that a weight is in.
struct WeightRow {
  std::int64_t b = 0, h = 0, q_idx = 0;
};

/// The factors of a row's weights: 0, or 1 / (1 - p). A weight is kept if its
/// word, number kv_idx / 16 % 4 of the counter (kv_idx / 64 * 16 + kv_idx %
/// 16, q_idx, h, b), is at least p * 2^32. Each index counts with its low 32
/// bits.
std::vector<double> dropout_factors(const Dropout& dropout, const WeightRow& row,
                                    std::int64_t kv_len);

}  // namespace quire::reference
