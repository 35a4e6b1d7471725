// Derivatives of random formulas: against central differences where the formula is smooth around
// the point, and everywhere, kinks and ties included, against the reference's reverse sweep.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formula/gradient/differentiate.h"
#include "reference/evaluate.h"
#include "tests/formula/site_gradients.h"
#include "tests/support/error_bound.h"
#include "tests/support/point_gradient.h"
#include "tests/support/random_formula.h"

namespace quire::formula {
namespace {

using reference::BufferGradients;
using reference::Evaluator;
using reference::Point;
using testing::below;

constexpr int kPoints = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-14;  // of the largest value on the way: what cancellation can leave

// Buffers in f64, so that an element can be moved by any small step.
std::vector<Tensor> float_tensors(std::mt19937_64& random) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : {Shape{3}, Shape{41}, Shape{2, 5}, Shape{4, 5}, Shape{2, 3, 4}}) {
    Tensor tensor(shape, DType::f64);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data_as<double>()[i] = static_cast<double>(below(random, 8193) - 4096) / 2048;
    tensors.push_back(tensor);
  }
  return tensors;
}

std::vector<Buffer> buffers_of(std::mt19937_64& random, const std::vector<Tensor>& tensors) {
  std::vector<Buffer> buffers;
  for (const Tensor& tensor : tensors)
    buffers.emplace_back(
        tensor, BufferOptions{"f" + std::to_string(buffers.size()), testing::chance(random, 80)});
  buffers.emplace_back(std::vector<std::int64_t>{3, 1, 4, 1, 5, 9, 2, 6}, BufferOptions{"i0"});
  return buffers;
}

Point point_of(std::mt19937_64& random) {
  const testing::Extents e;
  return {.b = below(random, e.b),
          .h = below(random, e.h),
          .q_idx = below(random, e.q),
          .kv_idx = below(random, e.kv),
          .score = static_cast<double>(below(random, 8193) - 4096) / 1024};
}

double sign(double x) { return (x > 0) - (x < 0); }

// What a formula decides at a point: its integers and bools, the steps its floats stand on and the
// sides of its kinks.
struct Decisions {
  std::vector<double> all;
  std::vector<double> phases;  // arguments of sin and cos
  bool on_kink = false;
};

// No kink between the two, and no sine that swings to and fro between them.
bool is_smooth_between(const Decisions& a, const Decisions& b) {
  if (a.on_kink || b.on_kink || a.all != b.all) return false;
  for (std::size_t i = 0; i < a.phases.size(); ++i)
    if (!(std::fabs(a.phases[i] - b.phases[i]) < 0.1)) return false;
  return true;
}

Decisions decisions_of(const Evaluator& values) {
  Decisions d;
  const auto side = [&](double x) {
    d.all.push_back(sign(x));
    d.on_kink = d.on_kink || x == 0;
  };
  const Graph& graph = values.graph();
  for (const NodeId id : values.nodes()) {
    const Node& node = graph[id];
    const auto arg = [&](std::size_t i) { return values[graph.arg(id, i)].f; };
    if (node.type != ValueType::kFloat) {
      d.all.push_back(static_cast<double>(values[id].i));
      continue;
    }
    switch (node.op) {
      case Op::kFloor:
      case Op::kCeil:
      case Op::kRound:
      case Op::kTrunc:
      case Op::kSign:
      case Op::kFloorDiv:
        d.all.push_back(values[id].f);
        break;
      case Op::kAbs:
      case Op::kRelu:
        side(arg(0));
        break;
      case Op::kMin:
      case Op::kMax:
        side(arg(0) - arg(1));
        break;
      case Op::kMod:
        d.all.push_back(std::floor(arg(0) / arg(1)));
        break;
      case Op::kClamp:
        side(arg(0) - arg(1));
        side(arg(0) - arg(2));
        side(arg(1) - arg(2));
        break;
      case Op::kSin:
      case Op::kCos:
        d.phases.push_back(arg(0));
        break;
      default:
        break;
    }
  }
  return d;
}

double largest_float(const Evaluator& values) {
  double largest = 0;
  for (const NodeId id : values.nodes())
    if (std::isfinite(values[id].f)) largest = std::max(largest, std::fabs(values[id].f));
  return largest;
}

// What rounding may do to the value of a formula in f64: what it may do in f32, scaled, and the
// last bits of the largest value on the way (f32 and f64 can agree on 2^60 + score).
double noise_of(reference::BoundedEvaluator& bounded, const Point& point) {
  bounded.run(point);
  if (bounded.bound().uncertain) return kInfinity;
  return bounded.bound().error * 0x1p-28 + largest_float(bounded.evaluator()) * 0x1p-50;
}

struct Difference {
  double slope = 0;
  double error = 0;
  bool usable = false;
};

// The slope at step 0 by central differences of three widths, extrapolated from the two narrow
// ones; their disagreement is the error. `run_at(step)` evaluates with something moved by `step`.
// Usable if the formula is smooth between the outermost points. `noise`: how wrong a value may be.
template <class Run>
Difference central_difference(Evaluator& values, double noise, const Run& run_at) {
  constexpr double kWidest = 0x1p-15;
  Difference result;
  if (!std::isfinite(run_at(0.0))) return result;
  const Decisions here = decisions_of(values);
  double slopes[3] = {};
  for (const int i : {0, 1, 2}) {
    const double step = kWidest / (1 << i);
    double ends[2] = {};
    for (const int up : {0, 1}) {
      ends[up] = run_at(up ? step : -step);
      if (!is_smooth_between(here, decisions_of(values)) || !std::isfinite(ends[up])) return result;
    }
    slopes[i] = (ends[1] - ends[0]) / (2 * step);
  }
  run_at(0.0);
  result.slope = slopes[2] + (slopes[2] - slopes[1]) / 3;
  result.error =
      std::fabs(slopes[2] - slopes[1]) + std::fabs(slopes[1] - slopes[0]) + noise / (kWidest / 4);
  result.usable = true;
  return result;
}

// How many comparisons said something. A wild point (where the two widths disagree) says nothing,
// nor does a NaN (0 * inf, from a branch not taken or from beyond a saturated tanh); a slope of 0
// says little.
struct Tally {
  int points = 0, flat = 0, compared = 0;

  // `roundoff`: of the derivative's own evaluation, absolute.
  void compare(const Difference& expected, double actual, double roundoff) {
    ++points;
    if (!expected.usable || !std::isfinite(actual + expected.error + roundoff)) return;
    const double scale = std::max(std::fabs(expected.slope), std::fabs(actual));
    if (scale == 0) {
      ++flat;
      return;
    }
    const double tolerance = expected.error + roundoff + 1e-6 * scale;
    if (tolerance > 0.01 * scale) return;
    ++compared;
    RC_ASSERT(std::fabs(expected.slope - actual) <= tolerance);
  }
  double share() const { return static_cast<double>(compared) / std::max(1, points - flat); }
};

struct Case {
  std::vector<Tensor> tensors;
  Formula formula;
  Derivatives derivatives;
};

Case make_case(std::mt19937_64& random, testing::RandomFormulaOptions options) {
  std::vector<Tensor> tensors = float_tensors(random);
  options.nodes = 1 + static_cast<int>(below(random, 20));
  options.buffers = buffers_of(random, tensors);
  const Formula formula = testing::random_formula(random, ValueType::kFloat, options).formula;
  RC_LOG() << formula.to_string() << "\n";
  return {std::move(tensors), formula, differentiate(formula, Precision::kF64)};
}

void compare_score_slopes(std::mt19937_64& random, const testing::RandomFormulaOptions& options,
                          Tally& tally) {
  const Case made = make_case(random, options);
  const Formula d_score = made.derivatives.formula(made.derivatives.d_score);
  Evaluator values(made.formula), slope(d_score);
  reference::BoundedEvaluator value_bound(made.formula), slope_bound(d_score);
  for (int i = 0; i < kPoints; ++i) {
    const Point point = point_of(random);
    const auto run_at = [&](double step) {
      Point moved = point;
      moved.score += step;
      return values.run(moved).f;
    };
    const double actual = slope.run(point).f;
    tally.compare(central_difference(values, noise_of(value_bound, point), run_at), actual,
                  noise_of(slope_bound, point));
  }
}

// Moves one element that some site reads at the point.
void compare_element_slopes(std::mt19937_64& random, const testing::RandomFormulaOptions& options,
                            Tally& tally) {
  Case made = make_case(random, options);
  if (made.derivatives.sites.empty()) return;
  Evaluator values(made.formula);
  reference::BoundedEvaluator value_bound(made.formula);
  SiteGradients gradients(made.derivatives);
  for (int i = 0; i < kPoints; ++i) {
    const Point point = point_of(random);
    const BufferGradients& all = gradients.run(point);
    const auto& site = made.derivatives.sites[random() % made.derivatives.sites.size()];
    const auto element = gradients.some_element(site);
    if (!element) continue;
    const Buffer& buffer = made.derivatives.graph.buffer(site.buffer);
    Tensor& tensor = made.tensors[static_cast<std::size_t>(buffer.name()[1] - '0')];
    double& moving = tensor.data_as<double>()[*element];
    const double original = moving;
    const auto run_at = [&](double step) {
      moving = original + step;
      return values.run(point).f;
    };
    const double noise = noise_of(value_bound, point);
    const Difference expected = central_difference(values, noise, run_at);
    moving = original;
    tally.compare(expected,
                  all[static_cast<std::size_t>(site.buffer)][static_cast<std::size_t>(*element)],
                  kRounding * largest_float(gradients.values()));
  }
}

std::mt19937_64 any_random() {
  return std::mt19937_64(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
}

TEST(DifferentiateProperty, ScoreSlopesOfSmoothFormulas) {
  Tally tally;
  EXPECT_TRUE(rc::check("smooth formulas, score", [&] {
    std::mt19937_64 random = any_random();
    compare_score_slopes(random, {.discontinuous = false, .kinks = false}, tally);
  }));
  EXPECT_GT(tally.share(), 0.7) << tally.compared << " of " << tally.points - tally.flat;
  EXPECT_GT(tally.compared, tally.points / 4);
}

TEST(DifferentiateProperty, ScoreSlopesOfAnyFormula) {
  Tally tally;
  EXPECT_TRUE(rc::check("any formulas, score", [&] {
    std::mt19937_64 random = any_random();
    compare_score_slopes(random, {}, tally);
  }));
  EXPECT_GT(tally.share(), 0.5) << tally.compared << " of " << tally.points - tally.flat;
  EXPECT_GT(tally.compared, tally.points / 5);
}

TEST(DifferentiateProperty, ElementSlopes) {
  Tally tally;
  EXPECT_TRUE(rc::check("any formulas, elements of buffers", [&] {
    std::mt19937_64 random = any_random();
    compare_element_slopes(random, {}, tally);
  }));
  EXPECT_GT(tally.share(), 0.5) << tally.compared << " of " << tally.points - tally.flat;
  EXPECT_GT(tally.compared, tally.points / 5);
}

bool is_finite(double d_score, const BufferGradients& gradients) {
  bool finite = std::isfinite(d_score);
  for (const auto& gradient : gradients)
    for (const double x : gradient) finite = finite && std::isfinite(x);
  return finite;
}

bool close(double a, double b, double roundoff) {
  return a == b || std::fabs(a - b) <= 1e-9 * std::max(std::fabs(a), std::fabs(b)) + roundoff;
}

// At small whole scores and elements, ties and kinks abound. A non-finite derivative is not
// compared: where the reference stops at a zero the formula goes on to 0 * inf.
TEST(DifferentiateProperty, AgreesWithTheReverseSweep) {
  int points = 0, compared = 0;
  EXPECT_TRUE(rc::check("reverse sweep", [&] {
    std::mt19937_64 random = any_random();
    Case made = make_case(random, {});
    for (Tensor& tensor : made.tensors)
      for (std::int64_t i = 0; i < tensor.numel(); ++i)
        tensor.data_as<double>()[i] = std::round(tensor.data_as<double>()[i]);
    const Formula value = made.derivatives.formula(made.derivatives.value);
    Evaluator values(value);
    SiteGradients gradients(made.derivatives);
    reference::PointGradient sweep(value.graph());
    for (int i = 0; i < kPoints; ++i) {
      Point point = point_of(random);
      point.score = std::round(point.score);
      values.run(point);
      BufferGradients expected =
          zero_gradients(value.graph(), reference::WhichBuffers::kWantGradient);
      const double expected_score = sweep.sweep(values, 1.0, expected);
      const BufferGradients& actual = gradients.run(point);
      ++points;
      if (!is_finite(gradients.d_score(), actual) || !is_finite(expected_score, expected)) continue;
      ++compared;
      const double roundoff = kRounding * largest_float(gradients.values());
      RC_ASSERT(close(expected_score, gradients.d_score(), roundoff));
      for (std::size_t buffer = 0; buffer < expected.size(); ++buffer) {
        RC_ASSERT(expected[buffer].size() == actual[buffer].size());
        for (std::size_t k = 0; k < actual[buffer].size(); ++k)
          RC_ASSERT(close(expected[buffer][k], actual[buffer][k], roundoff));
      }
    }
  }));
  EXPECT_GT(compared, points * 0.7) << compared << " of " << points;
}

}  // namespace
}  // namespace quire::formula
