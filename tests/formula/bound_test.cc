// Bounds of whole formulas over rectangles: masks as users write them, affine ints, the score,
// and the class itself. Buffers in detail: bound_buffer_test.cc.
#include "formula/bound/bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "quire/mod.h"
#include "quire/tensor.h"
#include "tests/support/expect_interval.h"

namespace quire::formula {
namespace {

using testing::expect_floats;
using testing::expect_ints;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Rectangle rectangle(IndexRange q, IndexRange kv) { return {{0, 0}, {0, 0}, q, kv}; }

// The formula that `f` makes of (score, b, h, q, kv).
template <class F>
Formula traced(F f) {
  const quire::detail::ModArguments a = quire::detail::mod_arguments();
  return Formula(quire::detail::to_base(f(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
}

Interval bound_of(const Formula& formula, const Rectangle& r,
                  Precision precision = Precision::kF32) {
  const Bounder bounder(formula, precision);
  std::vector<Interval> scratch = bounder.make_scratch();
  return bounder.bound(r, scratch);
}

Tri classified(const MaskMod& mask, const Rectangle& r) {
  const Bounder bounder(mask.formula(), Precision::kF32);
  std::vector<Interval> scratch = bounder.make_scratch();
  return bounder.classify(r, scratch);
}

TEST(Bound, CausalAndWindow) {
  const MaskMod mask = [](auto, auto, auto q, auto kv) { return (q >= kv) & (q - kv < 256); };
  EXPECT_EQ(classified(mask, rectangle({0, 127}, {128, 255})), Tri::kFalse);
  EXPECT_EQ(classified(mask, rectangle({128, 255}, {0, 127})), Tri::kTrue);
  EXPECT_EQ(classified(mask, rectangle({128, 255}, {128, 255})), Tri::kUnknown);
  EXPECT_EQ(classified(mask, rectangle({255, 255}, {0, 255})), Tri::kTrue);
  EXPECT_EQ(classified(mask, rectangle({256, 256}, {0, 255})), Tri::kUnknown);
  EXPECT_EQ(classified(mask, rectangle({256, 400}, {0, 0})), Tri::kFalse);
  EXPECT_EQ(classified(mask, rectangle({0, 127}, {127, 127})), Tri::kUnknown);
  EXPECT_EQ(classified(mask, rectangle({127, 127}, {0, 127})), Tri::kTrue);
}

TEST(Bound, ComparisonsOfAffineIntsThatShareACoordinate) {
  // q cancels: intervals of the two sides overlap, their difference has one sign.
  const MaskMod always = [](auto, auto, auto q, auto kv) { return 2 * q + 3 > q + q - kv; };
  EXPECT_EQ(classified(always, rectangle({0, 1000}, {0, 1000})), Tri::kTrue);
  const MaskMod diagonal = [](auto, auto h, auto q, auto kv) { return q - kv + h == q - kv + 2; };
  EXPECT_EQ(classified(diagonal, rectangle({0, 9}, {0, 9})), Tri::kFalse);
  EXPECT_EQ(classified(diagonal, {{0, 0}, {2, 2}, {0, 9}, {0, 9}}), Tri::kTrue);
  EXPECT_EQ(classified(diagonal, {{0, 0}, {1, 2}, {0, 9}, {0, 9}}), Tri::kUnknown);
  // Where a side may wrap, the sign of the difference says nothing.
  const MaskMod wraps = [](auto, auto, auto q, auto kv) { return q + kMax - kv >= q - kv; };
  EXPECT_EQ(classified(wraps, rectangle({0, 5}, {0, 5})), Tri::kUnknown);
  EXPECT_EQ(classified(wraps, rectangle({0, 0}, {0, 5})), Tri::kTrue);
}

TEST(Bound, AffineIntsAreExact) {
  const auto affine = [](auto, auto b, auto h, auto q, auto kv) {
    return 3 * (q - kv) + b - (q << 1) + ~h;
  };
  // q - 3 kv + b - h - 1
  expect_ints(bound_of(traced(affine), {{0, 2}, {1, 5}, {10, 20}, {-1, 4}}), 10 - 12 + 0 - 5 - 1,
              20 + 3 + 2 - 1 - 1);
  const auto difference = [](auto, auto, auto, auto q, auto) { return (q + 7) - q; };
  expect_ints(bound_of(traced(difference), rectangle({0, kMax}, {0, 0})), 7, 7);
  const auto back = [](auto, auto, auto, auto q, auto) { return (q + kMax) - kMax; };
  expect_ints(bound_of(traced(back), rectangle({3, 9}, {0, 0})), 3, 9);  // wraps there and back
  const auto beyond = [](auto, auto, auto, auto q, auto) { return q + kMax; };
  expect_ints(bound_of(traced(beyond), rectangle({0, 0}, {0, 0})), kMax, kMax);
  expect_ints(bound_of(traced(beyond), rectangle({0, 1}, {0, 0})), kMin, kMax);
  const auto scaled = [](auto, auto, auto, auto q, auto) { return q * kMin; };
  expect_ints(bound_of(traced(scaled), rectangle({0, 2}, {0, 0})), kMin, kMax);
}

TEST(Bound, BlocksAndPeriods) {
  const MaskMod same_chunk = [](auto, auto, auto q, auto kv) {
    return floor_div(q, 64) == floor_div(kv, 64);
  };
  EXPECT_EQ(classified(same_chunk, rectangle({64, 127}, {64, 127})), Tri::kTrue);
  EXPECT_EQ(classified(same_chunk, rectangle({64, 127}, {128, 255})), Tri::kFalse);
  EXPECT_EQ(classified(same_chunk, rectangle({64, 128}, {64, 127})), Tri::kUnknown);
  const MaskMod dilated = [](auto, auto, auto, auto kv) { return kv % 64 < 8; };
  EXPECT_EQ(classified(dilated, rectangle({0, 0}, {128, 135})), Tri::kTrue);
  EXPECT_EQ(classified(dilated, rectangle({0, 0}, {136, 191})), Tri::kFalse);
  EXPECT_EQ(classified(dilated, rectangle({0, 0}, {191, 192})), Tri::kUnknown);
  const MaskMod sink = [](auto, auto, auto q, auto kv) { return (kv < 4) | (q == kv); };
  EXPECT_EQ(classified(sink, rectangle({0, 99}, {0, 3})), Tri::kTrue);
  EXPECT_EQ(classified(sink, rectangle({7, 7}, {7, 7})), Tri::kTrue);
  EXPECT_EQ(classified(sink, rectangle({0, 6}, {7, 9})), Tri::kFalse);
}

TEST(Bound, FloatsInMasks) {
  const MaskMod mask = [](auto, auto, auto q, auto kv) { return to_float(q - kv) < 3.5; };
  EXPECT_EQ(classified(mask, rectangle({3, 5}, {2, 9})), Tri::kTrue);
  EXPECT_EQ(classified(mask, rectangle({6, 7}, {0, 2})), Tri::kFalse);
  const MaskMod half = [](auto, auto, auto q, auto kv) { return kv <= q * 0.5; };
  EXPECT_EQ(classified(half, rectangle({10, 20}, {0, 5})), Tri::kTrue);
  EXPECT_EQ(classified(half, rectangle({10, 11}, {6, 9})), Tri::kFalse);
}

TEST(Bound, Documents) {
  const Buffer document(std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2, 2});
  const MaskMod mask = [&](auto, auto, auto q, auto kv) {
    return (document[q] == document[kv]) & (q >= kv);
  };
  EXPECT_EQ(classified(mask, rectangle({3, 6}, {3, 3})), Tri::kTrue);
  EXPECT_EQ(classified(mask, rectangle({3, 6}, {0, 2})), Tri::kFalse);
  EXPECT_EQ(classified(mask, rectangle({3, 6}, {2, 3})), Tri::kUnknown);
  EXPECT_EQ(classified(mask, rectangle({7, 9}, {0, 6})), Tri::kFalse);
  const MaskMod itself = [&](auto, auto, auto q, auto) { return document[q] == document[q]; };
  EXPECT_EQ(classified(itself, rectangle({0, 9}, {0, 0})), Tri::kTrue);
}

TEST(Bound, WhereLooksAtPossibleBranchesOnly) {
  const auto f = [](auto, auto, auto, auto q, auto kv) { return where(q >= kv, q, -100 - kv); };
  expect_ints(bound_of(traced(f), rectangle({10, 20}, {0, 9})), 10, 20);
  expect_ints(bound_of(traced(f), rectangle({0, 5}, {7, 9})), -109, -107);
  expect_ints(bound_of(traced(f), rectangle({0, 5}, {5, 9})), -109, 5);
}

TEST(Bound, TheScoreIsAnything) {
  const auto score = [](auto score, auto, auto, auto, auto) { return score; };
  expect_floats(bound_of(traced(score), rectangle({0, 0}, {0, 0})), -kInf, kInf, true);
  const auto capped = [](auto score, auto, auto, auto, auto) { return 30.0 * tanh(score / 30.0); };
  expect_floats(bound_of(traced(capped), rectangle({0, 0}, {0, 0})), -30, 30, true);
  const auto clamped = [](auto score, auto, auto, auto q, auto) {
    return where(score == score, clamp(score, 0, 1), 0.0) + q;
  };
  expect_floats(bound_of(traced(clamped), rectangle({2, 3}, {0, 0})), 2, 4, true);
}

TEST(Bound, Constants) {
  expect_floats(bound_of(Formula(ExprBase::literal(0.1)), rectangle({0, 0}, {0, 0})), 0.1f, 0.1f);
  expect_floats(
      bound_of(Formula(ExprBase::literal(0.1)), rectangle({0, 0}, {0, 0}), Precision::kF64), 0.1,
      0.1);
  expect_floats(bound_of(Formula(ExprBase::literal(1e39)), rectangle({0, 0}, {0, 0})), kInf, kInf);
  expect_floats(bound_of(Formula(ExprBase::literal(kNan)), rectangle({0, 0}, {0, 0})), -kInf, kInf,
                true);
  const Bounder yes(Formula(ExprBase::literal(true)), Precision::kF32);
  std::vector<Interval> scratch = yes.make_scratch();
  EXPECT_EQ(yes.classify(rectangle({0, 0}, {0, 0}), scratch), Tri::kTrue);
}

TEST(Bound, EveryNode) {
  const Formula f = traced([](auto, auto, auto, auto q, auto kv) { return abs(q - kv) <= 3; });
  const Bounder bounder(f, Precision::kF32);
  std::vector<Interval> out(bounder.size());
  bounder.bound_all(rectangle({0, 9}, {4, 6}), out);
  ASSERT_EQ(out.size(), f.graph().size());
  for (NodeId id = 0; id < static_cast<NodeId>(f.graph().size()); ++id) {
    const Interval& r = out[static_cast<std::size_t>(id)];
    EXPECT_EQ(r.type, f.graph()[id].type);
    switch (f.graph()[id].op) {
      case Op::kQIdx:
        expect_ints(r, 0, 9);
        break;
      case Op::kSub:
        expect_ints(r, -6, 5);
        break;
      case Op::kAbs:
        expect_ints(r, 0, 6);
        break;
      default:
        break;
    }
  }
}

// Neither copying nor depth may cost stack: a chain of 60,000 values.
TEST(Bound, DeepFormulas) {
  Graph graph;
  NodeId x = make_leaf(graph, Op::kQIdx);
  const NodeId kv = make_leaf(graph, Op::kKvIdx);
  for (int i = 0; i < 60000; ++i) x = make_binary(graph, i % 2 ? Op::kMin : Op::kMax, x, kv);
  expect_ints(bound_of(Formula(graph, x), rectangle({2, 9}, {3, 5})), 3, 5);
}

TEST(Bound, QueriesFromManyThreads) {
  std::vector<std::int32_t> ids(5000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 100);
  const Buffer document(ids);
  const MaskMod mask = [&](auto, auto, auto q, auto kv) {
    return (document[q] == document[kv]) & (q >= kv);
  };
  const Bounder bounder(mask.formula(), Precision::kF32);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      std::vector<Interval> scratch = bounder.make_scratch();
      for (std::int64_t i = 0; i < 49; ++i) {
        const IndexRange here = {100 * i, 100 * i + 99}, next = {100 * i + 100, 100 * i + 199};
        wrong[t] += bounder.classify(rectangle(here, next), scratch) != Tri::kFalse;
        wrong[t] += bounder.classify(rectangle(here, here), scratch) != Tri::kUnknown;
        wrong[t] +=
            bounder.classify(rectangle({here.last, here.last}, here), scratch) != Tri::kTrue;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace quire::formula
