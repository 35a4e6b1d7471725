// detail::apply: a mod as part of another, with other values in the places of its arguments.
#include <gtest/gtest.h>

#include "quire/mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using detail::apply;
using quire::testing::expect_error;

TEST(Apply, ReplacesAllArgumentsAtOnce) {
  const MaskMod causal = MaskMod::parse("q_idx >= kv_idx");
  const MaskMod swapped = [&](auto b, auto h, auto q, auto kv) {
    return BoolExpr(apply(causal.formula(), {ExprBase::literal(0.0), b, h, kv, q}));
  };
  EXPECT_EQ(swapped.to_string(), "kv_idx >= q_idx");
  const ScoreMod bent = ScoreMod::parse("score * h + b");
  const ScoreMod mod = [&](auto score, auto b, auto h, auto q, auto kv) {
    return FloatExpr(apply(bent.formula(), {score + 1, h, b, q, kv})) - kv;
  };
  EXPECT_EQ(mod.to_string(), ScoreMod::parse("(score + 1) * b + h - kv_idx").to_string());
}

TEST(Apply, TakesNumbersAndConvertsThem) {
  const ScoreMod mod = ScoreMod::parse("score + q_idx");
  const ExprBase two = ExprBase::literal(std::int64_t{2});
  EXPECT_EQ(Formula(apply(mod.formula(), {two, two, two, two, two})).to_string(),
            Formula::parse("2.0 + 2").to_string());
  EXPECT_EQ(Formula(apply(mod.formula(), {two, two, two, ExprBase::literal(true), two})).type(),
            ValueType::kFloat);
}

TEST(Apply, RefusesAFloatForAnIndex) {
  const MaskMod mask = MaskMod::parse("q_idx >= kv_idx");
  const ExprBase half = ExprBase::literal(0.5), one = ExprBase::literal(std::int64_t{1});
  expect_error(ErrorKind::type, "[formula] b, h, q_idx and kv_idx of a mod must be integers", [&] {
    apply(mask.formula(), {half, one, one, half, one});
  });
}

}  // namespace
}  // namespace quire
