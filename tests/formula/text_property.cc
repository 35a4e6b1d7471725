// Random formulas to text and back: parse(print(f)) is f, and so print(parse(print(f))) is
// print(f). Random garbage: an error or a formula, never anything else.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/simplify/simplify.h"
#include "formula/text/print.h"
#include "formula/type_rules.h"
#include "quire/error.h"
#include "quire/formula.h"
#include "tests/support/random_formula.h"

namespace quire {
namespace {

using formula::Graph;
using formula::NodeId;
using testing::below;
using testing::chance;
using Random = std::mt19937_64;

void expect_round_trip(const Formula& f) {
  const std::string text = f.to_string();
  RC_LOG() << text << std::endl;
  const Formula back = Formula::parse(text, formula::printed_names(f.graph()));
  RC_ASSERT(back == f);
  RC_ASSERT(back.to_string() == text);
}

RC_GTEST_PROP(Text, UsualFormulasRoundTrip, (std::uint64_t seed)) {
  Random random(seed);
  testing::RandomFormulaOptions options;
  options.nodes = static_cast<int>(below(random, 40));
  options.faults = chance(random, 50);
  options.extremes = chance(random, 30);
  expect_round_trip(
      testing::random_formula(random, static_cast<ValueType>(below(random, 3)), options).formula);
}

RC_GTEST_PROP(Text, SimplifiedFormulasRoundTrip, (std::uint64_t seed)) {
  Random random(seed);
  testing::RandomFormulaOptions options;
  options.nodes = static_cast<int>(below(random, 40));
  options.extremes = chance(random, 50);
  const auto made =
      testing::random_formula(random, static_cast<ValueType>(below(random, 3)), options);
  expect_round_trip(formula::simplify(made.formula, Precision::kF32));
}

std::int64_t any_int(Random& random) {
  switch (below(random, 4)) {
    case 0:
      return below(random, 5) - 2;
    case 1:
      return static_cast<std::int64_t>(random());
    case 2:
      return (std::int64_t{1} << 53) + below(random, 5) - 2;
    default:
      return chance(random, 50) ? std::numeric_limits<std::int64_t>::min()
                                : std::numeric_limits<std::int64_t>::max();
  }
}

double any_float(Random& random) {
  constexpr double kPowers[] = {0, -0.0, 1, 2, 3, 0.5, -0.5, -1, -2, 4, -4, 1e15, 1e16, -1e22};
  switch (below(random, 4)) {
    case 0:
      return std::bit_cast<double>(random());
    case 1:
      return static_cast<double>(below(random, 2001) - 1000) / 100;
    case 2:
      return kPowers[below(random, std::size(kPowers))];
    default:
      return chance(random, 50) ? std::numeric_limits<double>::infinity() : -5e-324;
  }
}

std::vector<Buffer> any_buffers(Random& random) {
  std::vector<Buffer> buffers = testing::random_buffers(random, 4, {});
  const auto some = [&]() -> const Buffer& {
    return buffers[static_cast<std::size_t>(below(random, 4))];
  };
  // Names that cannot be printed as they are, and one that a binding would like to have.
  if (chance(random, 20)) buffers.push_back(some().renamed("t1"));
  if (chance(random, 20)) buffers.push_back(some().renamed("tanh"));
  if (chance(random, 20)) buffers.push_back(some().renamed("2 \xc3\xa4"));
  if (chance(random, 20)) buffers.push_back(Buffer(std::vector<float>{1, 2}, {.name = "doc"}));
  return buffers;
}

// Any operation on any values made before. Throws Error where the types do not fit.
NodeId any_operation(Random& random, Graph& graph, const std::vector<NodeId>& pool,
                     const std::vector<Buffer>& buffers) {
  const auto pick = [&] {
    // Recent values make depth, all values make sharing.
    const std::int64_t count = static_cast<std::int64_t>(pool.size());
    const std::int64_t back =
        chance(random, 50) ? below(random, std::min<std::int64_t>(count, 4)) : below(random, count);
    return pool[static_cast<std::size_t>(count - 1 - back)];
  };
  const auto indices = [&](std::size_t count) {
    std::vector<NodeId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(pick());
    return ids;
  };
  const Op op = static_cast<Op>(below(random, kOpCount));
  const Buffer& buffer =
      buffers[static_cast<std::size_t>(below(random, static_cast<std::int64_t>(buffers.size())))];
  const std::size_t rank = buffer.shape().size();
  if (formula::is_argument(op)) return make_leaf(graph, op);
  switch (op) {
    case Op::kIntConst:
      return make_int(graph, any_int(random));
    case Op::kFloatConst:
      return make_float(graph, any_float(random));
    case Op::kBoolConst:
      return make_bool(graph, chance(random, 50));
    case Op::kWhere:
    case Op::kClamp: {
      const NodeId a = pick(), b = pick(), c = pick();
      return op == Op::kWhere ? make_where(graph, a, b, c) : make_clamp(graph, a, b, c);
    }
    case Op::kLoad:
      return make_load(graph, buffer, indices(rank));
    case Op::kSum:
      return make_sum(graph, buffer, indices(rank / 2));
    case Op::kDot: {
      const auto a = indices(rank / 2), b = indices(rank / 2);
      return make_dot(graph, buffer, a, buffer, b);
    }
    default:
      break;
  }
  if (formula::op_info(op).arity == 1) return make_unary(graph, op, pick());
  const NodeId a = pick(), b = pick();
  return make_binary(graph, op, a, b);
}

RC_GTEST_PROP(Text, AnyGraphRoundTrips, (std::uint64_t seed)) {
  Random random(seed);
  const std::vector<Buffer> buffers = any_buffers(random);
  Graph graph;
  std::vector<NodeId> pool = {make_leaf(graph, Op::kScore), make_leaf(graph, Op::kQIdx)};
  for (std::int64_t left = 1 + below(random, chance(random, 5) ? 600 : 30); left > 0; --left) {
    try {
      pool.push_back(any_operation(random, graph, pool, buffers));
    } catch (const Error&) {  // types or ranks that do not fit
    }
  }
  const Formula f(graph, pool.back());
  const std::string text = f.to_string();
  RC_LOG() << text << std::endl;
  const Formula back = Formula::parse(text, formula::printed_names(f.graph()));
  RC_ASSERT(back.size() == f.size());
  RC_ASSERT(back.to_string() == text);
  // Equal even by name, where no name had to change.
  const Formula again = Formula::parse(text, formula::printed_names(back.graph()));
  RC_ASSERT(back == again);
  bool same_names = true;
  for (const auto& [name, buffer] : formula::printed_names(f.graph()))
    same_names &= name == buffer.name();
  RC_ASSERT(!same_names || back == f);
}

// Either a formula that round-trips, or an error that shows a printable line and a caret below it.
void expect_error_or_round_trip(const std::string& text, const NamedBuffers& buffers) {
  RC_LOG() << text << std::endl;
  try {
    expect_round_trip(Formula::parse(text, buffers));
  } catch (const Error& error) {
    const std::string what = error.what();
    RC_LOG() << what << std::endl;
    RC_ASSERT(what.starts_with("[parse] "));
    for (const char c : what) RC_ASSERT(c == '\n' || (c >= ' ' && c <= '~'));
    if (what == "[parse] the text is empty") return;
    const std::size_t caret_line = what.rfind('\n') + 1,
                      line = what.rfind('\n', caret_line - 2) + 1;
    RC_ASSERT(what.find_first_not_of(' ', caret_line) == what.size() - 1);
    RC_ASSERT(what.back() == '^');
    const std::size_t caret = what.size() - 1 - caret_line, width = caret_line - 1 - line;
    RC_ASSERT(caret >= 2u && caret <= width);  // at most one behind the end of the line
    RC_ASSERT(width <= 80u);
  }
}

const std::vector<std::string> kPieces = {
    "score", "q_idx", "kv_idx", "h",        "x",     "doc",
    "t0",    "1",     "2.5",    "0x1f",     "1e999", "9223372036854775808",
    "+",     "-",     "*",      "/",        "//",    "%",
    "**",    "<",     "==",     "=",        "&",     "|",
    "^",     "~",     "!",      "not ",     " and ", " or ",
    "(",     ")",     "[",      "]",        ",",     ";",
    "\n",    " ",     "where(", "tanh(",    "sum(",  "dot(",
    "int(",  "min(",  "\xff",   "\xc3\xa4", "$",     "True",
    "nan",   "\t"};

std::string piece(Random& random) {
  return kPieces[static_cast<std::size_t>(
      below(random, static_cast<std::int64_t>(kPieces.size())))];
}

RC_GTEST_PROP(Text, GarbageIsAnErrorOrAFormula, (std::uint64_t seed)) {
  Random random(seed);
  std::string text;
  for (std::int64_t left = below(random, 40); left >= 0; --left) text += piece(random);
  expect_error_or_round_trip(text, {{"doc", Buffer(std::vector<std::int64_t>{1, 2, 3})}});
}

RC_GTEST_PROP(Text, DamagedTextIsAnErrorOrAFormula, (std::uint64_t seed)) {
  Random random(seed);
  const testing::RandomFormula made =
      testing::random_formula(random, static_cast<ValueType>(below(random, 3)), {.extremes = true});
  std::string text = made.formula.to_string();
  for (std::int64_t left = below(random, 3); left >= 0; --left) {
    const std::size_t begin =
        static_cast<std::size_t>(below(random, static_cast<std::int64_t>(text.size()) + 1));
    const std::size_t length = static_cast<std::size_t>(below(random, 6));
    const std::string repeated = text.substr(begin, length);
    switch (below(random, 3)) {
      case 0:
        text.erase(begin, length);
        break;
      case 1:
        text.insert(begin, repeated);
        break;
      default:
        text.replace(begin, chance(random, 50) ? length : 0, piece(random));
        break;
    }
  }
  expect_error_or_round_trip(text, formula::printed_names(made.formula.graph()));
}

}  // namespace
}  // namespace quire
