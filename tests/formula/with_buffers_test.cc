// Formula::with_buffers, Formula::named_buffers and Buffer::share: the same formula over other
// memory.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "quire/evaluate.h"
#include "quire/formula.h"
#include "quire/mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using quire::testing::expect_error;

Buffer floats(std::vector<float> values) { return Buffer(values); }

float first(const Formula& formula) {
  const Tensor scores({1, 1, 1, 1}, DType::f32);
  return evaluate(ScoreMod(formula), scores).at<float>({0, 0, 0, 0});
}

TEST(WithBuffers, ReadsTheOthers) {
  const Formula formula =
      Formula::parse("score + a[h] - 2 * c[h]", {{"a", floats({7})}, {"c", floats({1})}});
  EXPECT_EQ(first(formula), 5);
  const Formula other = formula.with_buffers({floats({70, 0}), floats({10})});
  EXPECT_EQ(first(other), 50);
  EXPECT_EQ(first(formula), 5);
  EXPECT_EQ(other.buffers()[0].shape(), Shape({2}));
  EXPECT_FALSE(formula == other);
  EXPECT_TRUE(formula == formula.with_buffers(formula.buffers()));
}

TEST(WithBuffers, RefusesWhatDoesNotFit) {
  const Formula formula = Formula::parse("score + a[h]", {{"a", floats({7})}});
  expect_error(ErrorKind::value, "[with_buffers] the formula reads 1 buffers; got 0",
               [&] { formula.with_buffers({}); });
  expect_error(ErrorKind::type,
               "[with_buffers] buffer 'a' must be f32 of rank 1; got f64 of rank 1",
               [&] { formula.with_buffers({Buffer(std::vector<double>{1})}); });
  expect_error(ErrorKind::value,
               "[with_buffers] buffer 'a' must be f32 of rank 1; got f32 of rank 2", [&] {
                 formula.with_buffers({Buffer(Tensor({1, 1}, DType::f32))});
               });
}

TEST(WithBuffers, ChecksWhatDotLeaves) {
  const auto table = [](std::int64_t n) {
    return Buffer(Tensor({2, n}, DType::f32), {.name = "t"});
  };
  const Formula formula = Formula::parse("dot(x[h], y[h])", {{"x", table(3)}, {"y", table(3)}});
  EXPECT_NO_THROW(formula.with_buffers({table(5), table(5)}));
  expect_error(ErrorKind::value,
               "[formula] 'dot' needs equal shapes; 't' leaves [5] and 't' leaves [4]", [&] {
                 formula.with_buffers({table(5), table(4)});
               });
}

TEST(NamedBuffers, AreThoseOfTheText) {
  const Buffer a = floats({1}), b = floats({2});
  const ScoreMod mod([&](auto score, auto, auto h, auto, auto) { return score + a[h] * b[h]; });
  const NamedBuffers named = mod.formula().named_buffers();
  ASSERT_EQ(named.size(), 2u);
  EXPECT_NE(named[0].first, named[1].first);
  EXPECT_EQ(ScoreMod::parse(mod.to_string(), named).to_string(), mod.to_string());
}

TEST(BufferShare, KeepsTheOwnerUntilTheLastFormulaIsGone) {
  auto owner = std::make_shared<const std::vector<float>>(std::vector<float>{3});
  const std::weak_ptr<const std::vector<float>> watch = owner;
  const ConstTensorView view(owner->data(), DType::f32, {1});
  auto formula = std::make_unique<Formula>(
      Formula::parse("score + a[h]", {{"a", Buffer::share(view, std::move(owner))}}));
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(first(*formula), 3);
  formula.reset();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace quire
