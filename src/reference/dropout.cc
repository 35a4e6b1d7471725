// Philox4x32-10, one counter at a time. Reference layer.
#include "reference/dropout.h"

namespace quire::reference {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto [x, y, z, w] = counter;
  auto left = static_cast<std::uint32_t>(key), right = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = 0xD2511F53ull * x, third = 0xCD9E8D57ull * z;
    x = static_cast<std::uint32_t>(third >> 32) ^ y ^ left;
    y = static_cast<std::uint32_t>(third);
    z = static_cast<std::uint32_t>(first >> 32) ^ w ^ right;
    w = static_cast<std::uint32_t>(first);
    left += 0x9E3779B9u;   // the golden ratio
    right += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {x, y, z, w};
}

std::vector<double> dropout_factors(const Dropout& dropout, const WeightRow& row,
                                    std::int64_t kv_len) {
  std::vector<double> factors(kv_len, 1.0);
  if (dropout.p == 0) return factors;
  const auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  for (std::int64_t kv = 0; kv < kv_len; ++kv) {
    const auto words =
        philox({low(kv / 64 * 16 + kv % 16), low(row.q_idx), low(row.h), low(row.b)}, dropout.seed);
    const bool kept = words[kv / 16 % 4] >= dropout.p * 4294967296.0;
    factors[kv] = kept ? 1 / (1 - dropout.p) : 0;
  }
  return factors;
}

}  // namespace quire::reference
