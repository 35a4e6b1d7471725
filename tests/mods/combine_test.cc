// noop_mask, and_masks, or_masks: of none, one, many, given in each of the ways.
#include <gtest/gtest.h>

#include <vector>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"

namespace quire {
namespace {

using testing::expect_mask;

const MaskMod kCausal = [](auto, auto, auto q, auto kv) { return q >= kv; };
const MaskMod kNear = [](auto, auto, auto q, auto kv) { return q - kv < 3; };
const MaskMod kEven = [](auto, auto h, auto, auto kv) { return (kv + h) % 2 == 0; };

TEST(Combine, NoopShowsEverything) {
  expect_mask(noop_mask(), [](auto...) { return true; });
  EXPECT_EQ(noop_mask().to_string(), "True");
}

TEST(Combine, OfNone) {
  expect_mask(and_masks(), [](auto...) { return true; });
  expect_mask(or_masks(), [](auto...) { return false; });
  expect_mask(and_masks(std::span<const MaskMod>()), [](auto...) { return true; });
  expect_mask(or_masks(std::span<const MaskMod>()), [](auto...) { return false; });
}

TEST(Combine, OfOneIsThatOne) {
  EXPECT_EQ(and_masks(kCausal).formula(), kCausal.formula());
  EXPECT_EQ(or_masks({kCausal}).formula(), kCausal.formula());
}

TEST(Combine, OfMany) {
  expect_mask(and_masks(kCausal, kNear, kEven), [](auto, auto h, auto q, auto kv) {
    return q >= kv && q - kv < 3 && (kv + h) % 2 == 0;
  });
  expect_mask(or_masks(kCausal, kEven),
              [](auto, auto h, auto q, auto kv) { return q >= kv || (kv + h) % 2 == 0; });
}

TEST(Combine, EveryWayGivesTheSameFormula) {
  const std::vector<MaskMod> masks = {kCausal, kNear, kEven};
  const Formula expected_and = (kCausal & kNear & kEven).formula();
  EXPECT_EQ(and_masks(masks).formula(), expected_and);
  EXPECT_EQ(and_masks({kCausal, kNear, kEven}).formula(), expected_and);
  EXPECT_EQ(and_masks(kCausal, kNear, kEven).formula(), expected_and);
  const Formula expected_or = (kCausal | kNear | kEven).formula();
  EXPECT_EQ(or_masks(masks).formula(), expected_or);
  EXPECT_EQ(or_masks({kCausal, kNear, kEven}).formula(), expected_or);
  EXPECT_EQ(or_masks(kCausal, kNear, kEven).formula(), expected_or);
}

TEST(Combine, TakesLambdas) {
  const auto first = [](auto, auto, auto, auto kv) { return kv < 2; };
  expect_mask(or_masks(kCausal, first),
              [](auto, auto, auto q, auto kv) { return q >= kv || kv < 2; });
}

}  // namespace
}  // namespace quire
