// What kinds of blocks a dense mask has, and random rules and sizes to compare by. Tests only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "tests/support/random_formula.h"

namespace quire::testing {

/// The kind of one block of a dense mask, element by element.
inline BlockKind dense_kind(const Tensor& dense, std::int64_t b, std::int64_t h, std::int64_t row,
                            std::int64_t col, BlockSize size) {
  const std::int64_t q_len = dense.dim(2), kv_len = dense.dim(3);
  bool any = false, all = true;
  for (std::int64_t q = row * size.q; q < std::min(q_len, (row + 1) * size.q); ++q) {
    for (std::int64_t kv = col * size.kv; kv < std::min(kv_len, (col + 1) * size.kv); ++kv) {
      const bool visible = dense.at<bool>({b, h, q, kv});
      any |= visible;
      all &= visible;
    }
  }
  if (!any) return BlockKind::kEmpty;
  if (!all) return BlockKind::kPartial;
  const bool cut = (row + 1) * size.q > q_len || (col + 1) * size.kv > kv_len;
  return cut ? BlockKind::kFullToEdge : BlockKind::kFull;
}

/// The first block of a mask that differs from the dense one, as text; nothing if all are equal.
inline std::optional<std::string> first_difference(const BlockMask& mask, const Tensor& dense) {
  if (mask.shape() != dense.shape()) return "shape " + quire::to_string(mask.shape());
  for (std::int64_t b = 0; b < mask.batch(); ++b) {
    for (std::int64_t h = 0; h < mask.heads(); ++h) {
      for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
        for (std::int64_t col = 0; col < mask.kv_blocks(); ++col) {
          const BlockKind wanted = dense_kind(dense, b, h, row, col, mask.block_size());
          const BlockKind got = mask.kind(b, h, row, col);
          if (wanted == got) continue;
          return "block " + std::to_string(b) + "," + std::to_string(h) + "," +
                 std::to_string(row) + "," + std::to_string(col) + " is " +
                 std::to_string(static_cast<int>(got)) + ", not " +
                 std::to_string(static_cast<int>(wanted));
        }
      }
    }
  }
  return std::nullopt;
}

/// A rule over a random size: a random formula, random bits, or a rule made of the usual parts.
struct RandomMask {
  MaskMod mod;
  std::int64_t batch, heads, q_len, kv_len, q_begin;
  BlockSize block_size;

  BlockMask build(std::int64_t from = 0, std::int64_t rows = -1) const {
    return create_block_mask(mod, batch, heads, rows < 0 ? q_len : rows, kv_len,
                             {.block_size = block_size, .q_begin = q_begin + from});
  }
  Tensor dense() const {
    return evaluate(mod, {batch, heads, q_len, kv_len}, {.q_begin = q_begin});
  }
};

/// Without floats an f64 reference decides every element as we do, who take floats of masks as f32.
inline MaskMod random_mask_mod(std::mt19937_64& random, const Extents& extents,
                               bool floats = true) {
  const std::int64_t style = below(random, 4);
  if (style == 0) {  // noise, dense or thin
    Tensor bits({extents.b, extents.h, extents.q, extents.kv}, DType::boolean);
    const std::int64_t percent = below(random, 101);
    for (std::int64_t i = 0; i < bits.numel(); ++i)
      bits.data_as<bool>()[i] = below(random, 100) < percent;
    const Buffer buffer(bits, {.name = "bits"});
    return [&](auto b, auto h, auto q, auto kv) { return buffer(b, h, q, kv); };
  }
  if (style == 1) {  // documents, a window, some heads wider
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::max(extents.q, extents.kv)));
    std::int32_t id = 0;
    for (std::int32_t& one : ids) one = id += chance(random, 4);
    const Buffer doc(ids, {.name = "doc"});
    const std::int64_t window = 1 + below(random, extents.kv);
    return [&](auto b, auto h, auto q, auto kv) {
      return (doc[q] == doc[kv]) & (q - kv < window * (h + 1)) & (q + b >= kv);
    };
  }
  RandomFormulaOptions options;
  options.nodes = static_cast<int>(1 + below(random, 14));
  options.extents = extents;
  options.floats = floats;
  options.score = false;
  return MaskMod(random_formula(random, ValueType::kBool, options).formula);
}

inline RandomMask random_mask(std::mt19937_64& random, std::int64_t longest) {
  constexpr BlockSize kSizes[] = {1, 7, 16, 64, 128, {128, 64}, {3, 130}, {40, 8}};
  const std::int64_t batch = 1 + below(random, 2), heads = 1 + below(random, 3);
  const std::int64_t q_len = 1 + below(random, longest), kv_len = 1 + below(random, longest);
  const std::int64_t q_begin = chance(random, 30) ? below(random, 50) : 0;
  return {random_mask_mod(random, {batch, heads, q_begin + q_len, kv_len}),
          batch,
          heads,
          q_len,
          kv_len,
          q_begin,
          kSizes[below(random, std::size(kSizes))]};
}

}  // namespace quire::testing
