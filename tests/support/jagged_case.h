// Jagged batches for tests: random values with NaN in every hole, and what flex_attention gives for
// each sequence alone. Tests only.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/jagged.h"
#include "quire/tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {

struct JaggedCase {
  std::vector<std::int64_t> q_lengths, kv_lengths;
  std::int64_t q_heads = 2, kv_heads = 2, head_dim = 16, v_head_dim = 16;
  DType dtype = DType::f32;
  JaggedOrder q_order = JaggedOrder::kTokens, k_order = JaggedOrder::kTokens,
              v_order = JaggedOrder::kTokens;
  bool q_holes = false, kv_holes = false;  // after every sequence, before the first, at the end
  bool wide_rows = false;                  // values are every second element of their memory
  bool i32 = false;                        // offsets and lengths
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};
  bool asks_for_b = false;  // a mod does

  std::string to_string() const;
  JaggedAttentionOptions options() const;
};

/// One of q, k, v, with its memory.
struct JaggedValues {
  Tensor memory, offsets, lengths;
  Jagged jagged;
  std::vector<std::int64_t> begin, length;
};

struct JaggedTensors {
  JaggedValues q, k, v;

  JaggedTensors(const JaggedCase& c, std::uint64_t seed);
};

struct JaggedResult {
  Tensor out, lse, max_scores;
};

JaggedResult run_jagged(const JaggedCase& c, const JaggedTensors& t, Executor* executor = nullptr);
/// Sequence i by itself through the dense flex_attention: [1, heads, its q_len, dim] and [1, heads,
/// its q_len].
JaggedResult run_alone(const JaggedCase& c, const JaggedTensors& t, std::int64_t i);

/// The rows of sequence i in a jagged result, in the shapes of run_alone.
JaggedResult part_of(const JaggedResult& all, const JaggedCase& c, const JaggedTensors& t,
                     std::int64_t i);

bool same_bits(const JaggedResult& a, const JaggedResult& b);

/// The first sequence whose rows are not those of run_alone; -1 if there is none.
std::int64_t first_different(const JaggedResult& all, const JaggedCase& c, const JaggedTensors& t);

}  // namespace quire::testing
