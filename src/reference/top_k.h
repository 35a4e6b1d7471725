// top_k_keys in plain f64 loops: its specification. Reference layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::reference {

/// As quire::top_k_keys: q [B, L, heads, D], k [B or 1, S, D], weights [B, L, heads].
struct TopKInputs {
  ConstTensorView q, k, weights;
};

/// The sums of all pairs, f64 [B, L, S]; -inf where the rule hides a key.
Tensor index_sums(const TopKInputs& inputs, const std::optional<MaskMod>& mask_mod = std::nullopt,
                  std::int64_t q_begin = 0);

/// i32 [B, L, top_k] from these sums: the largest that are not -inf, ties to the smaller key.
Tensor top_k_of_sums(const Tensor& sums, std::int64_t top_k);

}  // namespace quire::reference
