// Which weights dropout drops, and by what it multiplies the rest: the rule every kernel, shape and
// ISA shares. Part of the definition of a row's result, like attention_order.h. Plain data: every
// ISA's object includes this. Kernels layer.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) gives four
// 32-bit words for a counter of four words and a key of two:
//   key     = (low, high half of the seed)
//   counter = (kv_idx / 64 * 16 + kv_idx % 16, q_idx, h, b), the low 32 bits of each
//   word    = kv_idx / 16 % 4
// so that the words of a counter belong to the same place in four units of 16 keys, and no kernel
// has to shuffle them: 16 lanes are 16 queries (prefill) or 16 keys (decode). Positions 2^34 keys
// or 2^32 queries apart have the same words.
//
// A weight is kept if word >= p * 2^32, as real numbers, and then multiplied by 1 / (1 - p),
// computed in f64 and rounded to the compute type; else it becomes +0. This happens after the sum
// of the tile was taken (l, lse and max_scores know nothing of it) and before the products with
// values; bf16 pairs: before the weight is rounded to bf16. A dropped weight is a weight of 0: the
// row kernel does not read its value. p = 1 drops everything; a row with a visible NaN stays NaN.
#pragma once
#include <cstdint>

namespace quire::kernels {

struct Dropout;

inline constexpr int kDropoutKeys = 64;  // keys that share 16 counters

struct DropoutRule {
  uint32_t last_dropped = 0;  // words up to this one drop their weight
  uint32_t key[2] = {};
  double scale = 1;  // factor of weights that are kept
};

/// Where the words of a tile come from: the counters of its keys begin at `counter`; the other
/// parts of the counter are the same for all of them.
struct DropoutPlace {
  uint32_t counter = 0;  // of the tile's first key
  uint32_t q_idx = 0, h = 0, b = 0;
};

/// For 0 < p <= 1.
DropoutRule dropout_rule(const Dropout& dropout) noexcept;
/// For the tile that begins at `key`, a multiple of kDropoutKeys.
DropoutPlace dropout_place(int64_t b, int64_t h, int64_t q_idx, int64_t key) noexcept;

}  // namespace quire::kernels
