// Faults as data: where, what, and the value used meanwhile.
#include "reference/fault.h"

#include <gtest/gtest.h>

#include "tests/reference/trace.h"

namespace quire::reference {
namespace {

using testing::trace;

Evaluator table_evaluator(std::vector<std::int32_t> values) {
  const Buffer table(values, {.name = "table"});
  return Evaluator(trace([&](auto, auto, auto, auto q, auto) { return table[q]; }));
}

TEST(Fault, IndexOutsideReadsTheNearestElement) {
  Evaluator evaluator = table_evaluator({10, 20, 30});
  for (const auto& [index, value] : {std::pair{3, 30}, {100, 30}, {-4, 10}, {-100, 10}}) {
    EXPECT_EQ(evaluator.run({.q_idx = index}).i, value);
    ASSERT_TRUE(evaluator.fault()) << index;
    EXPECT_EQ(evaluator.fault()->kind, FaultKind::kIndex);
    EXPECT_EQ(evaluator.fault()->index, index);
    EXPECT_EQ(evaluator.fault()->size, 3);
    EXPECT_EQ(evaluator.fault()->node, evaluator.root());
  }
  evaluator.run({.q_idx = 0});
  EXPECT_FALSE(evaluator.fault()) << "a fault belongs to one point";
}

TEST(Fault, EmptyBufferGivesZero) {
  Evaluator evaluator = table_evaluator({});
  EXPECT_EQ(evaluator.run({}).i, 0);
  ASSERT_TRUE(evaluator.fault());
  EXPECT_EQ(fault_text(*evaluator.fault(), {}),
            "[formula] index 0 is outside buffer 'table' of size 0 (axis 0) at b=0, h=0, q_idx=0, "
            "kv_idx=0");
}

TEST(Fault, TextsNameWhatAndWhere) {
  const Buffer slopes(Tensor({4, 8}, DType::f32), {.name = "slopes"});
  Evaluator evaluator(trace([&](auto, auto, auto h, auto, auto kv) { return slopes(h, kv + 5); }));
  const Point point{.b = 0, .h = 3, .q_idx = 5, .kv_idx = 7};
  evaluator.run(point);
  ASSERT_TRUE(evaluator.fault());
  EXPECT_EQ(fault_text(*evaluator.fault(), point),
            "[formula] index 12 is outside buffer 'slopes' of size 8 (axis 1) at b=0, h=3, "
            "q_idx=5, kv_idx=7");
  EXPECT_EQ(fault_error(*evaluator.fault(), point).kind(), ErrorKind::index);
}

TEST(Fault, DivisionByZeroGivesZero) {
  for (const Op op : {Op::kFloorDiv, Op::kMod}) {
    Evaluator evaluator(trace([&](auto, auto, auto, auto q, auto kv) {
      return op == Op::kMod ? q % kv : floor_div(q, kv);
    }));
    const Point point{.b = 1, .h = 2, .q_idx = 5, .kv_idx = 0};
    EXPECT_EQ(evaluator.run(point).i, 0);
    ASSERT_TRUE(evaluator.fault());
    EXPECT_EQ(fault_text(*evaluator.fault(), point),
              "[formula] integer division by zero at b=1, h=2, q_idx=5, kv_idx=0");
    EXPECT_EQ(fault_error(*evaluator.fault(), point).kind(), ErrorKind::value);
  }
}

TEST(Fault, FloatDivisionByZeroIsNone) {
  Evaluator evaluator(
      trace([](auto s, auto, auto, auto, auto) { return floor_div(s, s) + s / s; }));
  evaluator.run({.score = 0});
  EXPECT_FALSE(evaluator.fault());
}

TEST(Fault, CountsInABranchNotTaken) {
  const Buffer table(std::vector<std::int32_t>{1}, {.name = "table"});
  Evaluator evaluator(
      trace([&](auto, auto, auto, auto q, auto) { return where(q < 1, table[q], 0); }));
  EXPECT_EQ(evaluator.run({.q_idx = 4}).i, 0);
  EXPECT_TRUE(evaluator.fault());
}

TEST(Fault, TheFirstNodeWins) {
  const Buffer table(std::vector<std::int32_t>{1}, {.name = "table"});
  Evaluator evaluator(
      trace([&](auto, auto, auto, auto q, auto kv) { return floor_div(q, kv) + table[q]; }));
  evaluator.run({.q_idx = 4, .kv_idx = 0});
  ASSERT_TRUE(evaluator.fault());
  EXPECT_EQ(evaluator.fault()->kind, FaultKind::kDivisionByZero);
}

TEST(Fault, BothSidesOfADotAreChecked) {
  const Buffer a(Tensor({2, 3}, DType::f32), {.name = "a"});
  const Buffer b(Tensor({4, 3}, DType::f32), {.name = "b"});
  Evaluator evaluator(trace([&](auto, auto, auto, auto q, auto kv) { return dot(a[q], b[kv]); }));
  evaluator.run({.q_idx = 1, .kv_idx = 4});
  ASSERT_TRUE(evaluator.fault());
  EXPECT_EQ(evaluator.fault()->buffer, "b");
  evaluator.run({.q_idx = 2, .kv_idx = 4});
  EXPECT_EQ(evaluator.fault()->buffer, "a");
  evaluator.run({.q_idx = 1, .kv_idx = 3});
  EXPECT_FALSE(evaluator.fault());
}

}  // namespace
}  // namespace quire::reference
