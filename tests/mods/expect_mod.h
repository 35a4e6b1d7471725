// Compares a mod, element by element, with a plain function of the positions, over odd shapes.
// Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "quire/evaluate.h"
#include "quire/function_ref.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::testing {

using MaskRule = FunctionRef<bool(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)>;
using ScoreRule = FunctionRef<double(double score, std::int64_t b, std::int64_t h, std::int64_t q,
                                     std::int64_t kv)>;

/// Every element of `shape` [B, H, q_len, kv_len]; stops at the first that differs.
inline void expect_mask(const MaskMod& mod, const Shape& shape, MaskRule rule) {
  const Tensor mask = evaluate(mod, shape);
  const bool* visible = mask.data_as<bool>();
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t q = 0; q < shape[2]; ++q)
        for (std::int64_t kv = 0; kv < shape[3]; ++kv)
          ASSERT_EQ(*visible++, rule(b, h, q, kv))
              << "b " << b << " h " << h << " q " << q << " kv " << kv << " of " << to_string(shape)
              << "\n"
              << mod.to_string();
}

/// The same for shapes of all kinds: one element, one row, tall, wide, no key.
inline void expect_mask(const MaskMod& mod, MaskRule rule) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 2, 1, 257}, Shape{2, 1, 113, 203},
                             Shape{1, 3, 257, 131}, Shape{1, 1, 5, 0}})
    expect_mask(mod, shape, rule);
}

/// f32 scores of both signs, the same for equal shapes.
inline Tensor some_scores(const Shape& shape) {
  Tensor scores(shape, DType::f32);
  for (std::int64_t i = 0; i < scores.numel(); ++i)
    scores.data_as<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i)) * 20);
  return scores;
}

/// Every element within `ulps` f32 steps of the larger of the rule's value and the score.
inline void expect_scores(const ScoreMod& mod, const Shape& shape, double ulps, ScoreRule rule) {
  const Tensor scores = some_scores(shape);
  const Tensor result = evaluate(mod, scores);
  const float *before = scores.data_as<float>(), *after = result.data_as<float>();
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t q = 0; q < shape[2]; ++q)
        for (std::int64_t kv = 0; kv < shape[3]; ++kv, ++before, ++after) {
          const double expected = rule(*before, b, h, q, kv);
          if (expected == *after) continue;  // infinities too
          const double scale = std::max(std::abs(expected), std::abs(static_cast<double>(*before)));
          ASSERT_NEAR(*after, expected, ulps * 0x1p-23 * scale)
              << "b " << b << " h " << h << " q " << q << " kv " << kv << " of " << to_string(shape)
              << "\n"
              << mod.to_string();
        }
}

}  // namespace quire::testing
