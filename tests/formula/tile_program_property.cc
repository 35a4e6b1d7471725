// Random formulas through tile programs: on the ISA under test, for every assignment of lanes and
// any tile shape, the bits of the same graph evaluated node by node with the scalar ISA; within the
// running error bound of the f64 evaluator; inside `bound`; the same after simplification; the same
// faults as the reference.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "formula/bound/bound.h"
#include "formula/build.h"
#include "formula/compile/compile.h"
#include "formula/simplify/simplify.h"
#include "formula/type_rules.h"
#include "reference/arithmetic.h"
#include "tests/support/error_bound.h"
#include "tests/support/random_formula.h"
#include "tests/support/tile_harness.h"

namespace quire::formula {
namespace {

using testing::below;
using testing::chance;
using testing::Extents;
using testing::run_tiles;
using testing::same_bits;
using testing::TileAxes;
using testing::TileResult;
using testing::TileRunOptions;

constexpr Extents kExtents{.b = 2, .h = 3, .q = 70, .kv = 300};

// A score that is a function of its place, with the values that break things mixed in.
struct Scores {
  std::uint64_t seed;
  bool special;

  double operator()(std::int64_t h, std::int64_t q, std::int64_t kv) const {
    std::uint64_t x =
        seed + static_cast<std::uint64_t>((h * 1000 + q) * 1000 + kv) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    if (special && x % 16 == 0) {
      constexpr float kSpecial[] = {0.f,    -0.f,   1.f,      -1.f,      1e30f,
                                    -1e30f, 1e-40f, INFINITY, -INFINITY, NAN};
      return kSpecial[x / 16 % 10];
    }
    return static_cast<float>(static_cast<double>(x >> 40) * 0x1p-24 * 16 - 8);
  }
};

struct Case {
  testing::RandomFormula mod;
  std::optional<testing::RandomFormula> mask;
  Rectangle extents, region;
  Scores scores;

  CompileRequest request() const {
    return {.score_mod = &mod.formula, .mask_mod = mask ? &mask->formula : nullptr};
  }
};

IndexRange range_in(std::mt19937_64& random, std::int64_t extent, std::int64_t most) {
  const std::int64_t size = 1 + below(random, std::min(extent, most));
  const std::int64_t first = below(random, extent - size + 1);
  return {first, first + size - 1};
}

Case random_case(std::mt19937_64& random, bool faults) {
  const testing::RandomFormulaOptions options{.nodes = 1 + static_cast<int>(below(random, 30)),
                                              .extents = kExtents,
                                              .faults = faults,
                                              .extremes = chance(random, 20),
                                              .strided = chance(random, 30)};
  Case c{.mod = testing::random_formula(random, ValueType::kFloat, options),
         .mask = {},
         .extents = {{0, kExtents.b - 1},
                     {0, kExtents.h - 1},
                     {0, kExtents.q - 1},
                     {0, kExtents.kv - 1}},
         .region = {},
         .scores = {random(), chance(random, 30)}};
  if (chance(random, 40)) {
    testing::RandomFormulaOptions mask_options = options;
    mask_options.score = false;
    mask_options.nodes = 1 + static_cast<int>(below(random, 12));
    c.mask = testing::random_formula(random, ValueType::kBool, mask_options);
  }
  const std::int64_t b = below(random, kExtents.b), h = below(random, kExtents.h);
  c.region = {{b, b}, {h, h}, range_in(random, kExtents.q, 70), range_in(random, kExtents.kv, 150)};
  return c;
}

TileRunOptions random_shape(std::mt19937_64& random, TileAxes axes) {
  constexpr int kRows[] = {256, 64, 37, 16, 5, 1};
  return {.axes = axes,
          .isa = current_isa(),
          .max_rows = kRows[below(random, 6)],
          .groups = axes == TileAxes::kPrefill ? 1 + static_cast<int>(below(random, 2))
                                               : 1 + static_cast<int>(below(random, 4)),
          .panels_apart = chance(random, 50)};
}

TileResult node_by_node(const Case& c, Precision precision = Precision::kF32) {
  return run_tiles(
      c.request(), c.extents, c.region, c.scores,
      {.isa = Isa::scalar, .precision = precision, .node_by_node = true, .max_rows = 64});
}

void expect_same(const TileResult& got, const TileResult& expected, const Case& c,
                 const char* what) {
  for (std::size_t i = 0; i < expected.scores.size(); ++i) {
    if (same_bits(got.scores[i], expected.scores[i])) continue;
    const auto width = static_cast<std::size_t>(c.region.kv.last - c.region.kv.first + 1);
    RC_LOG() << what << ": " << c.mod.formula.to_string()
             << (c.mask ? "\nmask: " + c.mask->formula.to_string() : "") << "\nat q "
             << c.region.q.first + static_cast<std::int64_t>(i / width) << " kv "
             << c.region.kv.first + static_cast<std::int64_t>(i % width) << " got " << got.scores[i]
             << " expected " << expected.scores[i] << "\n";
    RC_FAIL("bits differ");
  }
  for (std::size_t i = 0; i < expected.lane_max.size(); ++i) {
    if (got.lane_max[i] == expected.lane_max[i]) continue;
    RC_LOG() << what << ": " << c.mod.formula.to_string() << "\nmax of row " << i << " got "
             << got.lane_max[i] << " expected " << expected.lane_max[i] << "\n";
    RC_FAIL("max differs");
  }
}

RC_GTEST_PROP(TileProgram, has_the_bits_of_the_scalar_isa_node_by_node, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const Case c = random_case(random, chance(random, 20));
  const TileResult expected = node_by_node(c);
  for (const TileAxes axes : {TileAxes::kPrefill, TileAxes::kDecode, TileAxes::kDecodePairs}) {
    const TileRunOptions shape = random_shape(random, axes);
    expect_same(run_tiles(c.request(), c.extents, c.region, c.scores, shape), expected, c,
                "hoisted");
  }
  const Formula simple = simplify(c.mod.formula, Precision::kF32);
  const CompileRequest request{.score_mod = &simple, .mask_mod = c.request().mask_mod};
  expect_same(
      run_tiles(request, c.extents, c.region, c.scores, random_shape(random, TileAxes::kPrefill)),
      expected, c, "simplified");
}

// The mask reads the very value the score mod gives, which must then be kept, not fused away.
TEST(TileProgram, AMaskMayShareTheValueOfTheScoreMod) {
  const Formula mod = Formula::parse("q_idx * 0.5 + kv_idx * 0.25");
  const Formula mask =
      Formula::parse("(q_idx * 0.5 + kv_idx * 0.25 < 30.0) & (kv_idx * 2.0 > q_idx)");
  const Rectangle all{{0, 0}, {0, 0}, {0, 69}, {0, 99}};
  for (const bool node_by_node : {false, true}) {
    const TileResult got =
        run_tiles({.score_mod = &mod, .mask_mod = &mask}, all, all, Scores{1, false},
                  {.isa = current_isa(), .node_by_node = node_by_node});
    for (int q = 0; q < 70; ++q)
      for (int kv = 0; kv < 100; ++kv) {
        const double value = q * 0.5 + kv * 0.25;
        const bool visible = value < 30 && kv * 2 > q;
        ASSERT_EQ(got.scores[static_cast<std::size_t>(q * 100 + kv)], visible ? value : -INFINITY);
      }
  }
}

// Also where they are tiny: gelu_tanh(-8.0) is a divisor like any other.
TEST(TileProgram, FunctionsInF64KeepTheirDigits) {
  const Rectangle all{{0, 0}, {0, 0}, {0, 0}, {0, 640}};
  const auto score = [](std::int64_t, std::int64_t, std::int64_t kv) {
    return (static_cast<double>(kv) - 320) / 16 + 0x1p-30;
  };
  for (int code = 0; code < kOpCount; ++code) {
    const Op op = static_cast<Op>(code);
    if (!is_float_function(op)) continue;
    Graph graph;
    const NodeId argument = make_leaf(graph, Op::kScore);
    const Formula mod(graph, make_unary(graph, op, argument));
    const TileResult got = run_tiles({.score_mod = &mod}, all, all, score,
                                     {.isa = current_isa(), .precision = Precision::kF64});
    for (std::int64_t kv = 0; kv <= 640; ++kv) {
      const double x = score(0, 0, kv), want = reference::float_unary(op, x);
      const double value = got.scores[static_cast<std::size_t>(kv)];
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(value)) << mod.to_string() << " at " << x;
      else
        ASSERT_LE(std::fabs(value - want), 1e-13 * std::fabs(want))
            << mod.to_string() << " at " << x;
    }
  }
}

RC_GTEST_PROP(TileProgram, f64_is_the_same_for_any_tile_shape, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  Case c = random_case(random, false);
  c.region.q = range_in(random, kExtents.q, 10);
  c.region.kv = range_in(random, kExtents.kv, 40);
  const TileResult expected = node_by_node(c, Precision::kF64);
  for (const TileAxes axes : {TileAxes::kPrefill, TileAxes::kDecode}) {
    TileRunOptions shape = random_shape(random, axes);
    shape.precision = Precision::kF64;
    expect_same(run_tiles(c.request(), c.extents, c.region, c.scores, shape), expected, c, "f64");
  }
}

RC_GTEST_PROP(TileProgram, is_within_the_error_bound_and_inside_bound, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const Case c = random_case(random, false);
  const TileResult got = run_tiles({.score_mod = &c.mod.formula}, c.extents, c.region, c.scores,
                                   random_shape(random, TileAxes::kPrefill));
  reference::BoundedEvaluator reference(c.mod.formula);
  const Bounder bounder(c.mod.formula, Precision::kF32);
  auto scratch = bounder.make_scratch();
  const Interval interval = bounder.bound(c.region, scratch);
  const std::int64_t width = c.region.kv.last - c.region.kv.first + 1;
  for (const double x : got.scores) {
    if (interval.contains_float(x)) continue;
    RC_LOG() << c.mod.formula.to_string() << "\nvalue " << x << " outside " << interval.float_lo
             << ".." << interval.float_hi << "\n";
    RC_FAIL("outside bound");
  }
  int checked = 0;
  for (int i = 0; i < 40; ++i) {
    const auto at = below(random, static_cast<std::int64_t>(got.scores.size()));
    const std::int64_t q = c.region.q.first + at / width, kv = c.region.kv.first + at % width;
    const double score = c.scores(c.region.h.first, q, kv);
    const double exact = reference.run({c.region.b.first, c.region.h.first, q, kv, score}).f;
    const double value = got.scores[static_cast<std::size_t>(at)];
    if (reference.bound().uncertain) continue;
    ++checked;
    const bool same = value == exact || (std::isnan(value) && std::isnan(exact));
    if (same || std::abs(value - exact) <= reference.bound().error) continue;
    RC_LOG() << c.mod.formula.to_string() << "\nat h " << c.region.h.first << " q " << q << " kv "
             << kv << " score " << score << ": got " << value << " exact " << exact
             << " error bound " << reference.bound().error << "\n";
    RC_FAIL("outside the error bound");
  }
  RC_TAG(checked >= 20 ? "most points checked"
         : checked > 0 ? "some points checked"
                       : "all points uncertain");
}

RC_GTEST_PROP(TileProgram, masks_are_those_of_the_reference, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const testing::RandomFormula mask =
      testing::random_formula(random, ValueType::kBool,
                              {.nodes = 1 + static_cast<int>(below(random, 20)),
                               .extents = kExtents,
                               .floats = false,
                               .score = false});
  const Rectangle extents{{0, 1}, {0, kExtents.h - 1}, {0, kExtents.q - 1}, {0, kExtents.kv - 1}};
  const Rectangle region{
      {1, 1}, {1, 1}, range_in(random, kExtents.q, 70), range_in(random, kExtents.kv, 90)};
  const CompileRequest request{.mask_mod = &mask.formula, .mask_only = true};
  reference::Evaluator reference(mask.formula);
  for (const TileAxes axes : {TileAxes::kPrefill, TileAxes::kDecode}) {
    const TileResult got = run_tiles(request, extents, region, {}, random_shape(random, axes));
    std::size_t i = 0;
    for (std::int64_t q = region.q.first; q <= region.q.last; ++q) {
      for (std::int64_t kv = region.kv.first; kv <= region.kv.last; ++kv, ++i) {
        if (got.visible[i] == reference.run({1, 1, q, kv, 0}).truth()) continue;
        RC_LOG() << mask.formula.to_string() << "\nat q " << q << " kv " << kv << "\n";
        RC_FAIL("mask differs");
      }
    }
  }
}

RC_GTEST_PROP(TileProgram, reports_the_first_fault_of_a_visible_element, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const testing::RandomFormulaOptions options{.nodes = 1 + static_cast<int>(below(random, 12)),
                                              .extents = kExtents,
                                              .faults = true,
                                              .floats = false,
                                              .score = false};
  const testing::RandomFormula mod = testing::random_formula(random, ValueType::kFloat, options);
  const testing::RandomFormula mask = testing::random_formula(random, ValueType::kBool, options);
  const Rectangle extents{{0, 1}, {0, kExtents.h - 1}, {0, kExtents.q - 1}, {0, kExtents.kv - 1}};
  const Rectangle region{
      {0, 0}, {0, 1}, range_in(random, kExtents.q, 12), range_in(random, kExtents.kv, 90)};
  const CompileRequest request{.score_mod = &mod.formula, .mask_mod = &mask.formula};
  reference::Evaluator mod_values(mod.formula), mask_values(mask.formula);
  std::optional<reference::Point> first;
  for (std::int64_t h = 0; h <= 1 && !first; ++h)
    for (std::int64_t q = region.q.first; q <= region.q.last && !first; ++q)
      for (std::int64_t kv = region.kv.first; kv <= region.kv.last && !first; ++kv) {
        const reference::Point at{0, h, q, kv, 0};
        const bool visible = mask_values.run(at).truth();
        mod_values.run(at);
        if (visible && (mask_values.fault() || mod_values.fault())) first = at;
      }
  RC_TAG(first ? "fault" : "none");
  for (const TileAxes axes : {TileAxes::kPrefill, TileAxes::kDecode, TileAxes::kDecodePairs}) {
    const TileResult got =
        run_tiles(request, extents, region, Scores{1, false}, random_shape(random, axes));
    RC_LOG() << mod.formula.to_string() << "\nmask " << mask.formula.to_string() << "\n";
    RC_ASSERT(got.fault.found == first.has_value());
    if (!first) continue;
    RC_ASSERT(got.fault.at[1] == first->h);
    RC_ASSERT(got.fault.at[2] == first->q_idx);
    RC_ASSERT(got.fault.at[3] == first->kv_idx);
  }
}

}  // namespace
}  // namespace quire::formula
