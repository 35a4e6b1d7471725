// Reading a text whose buffers are not all given: names that are indexed become declared buffers.
// Formula layer.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "formula/bound.h"
#include "formula/graph.h"
#include "formula/names.h"
#include "formula/token_stream.h"
#include "quire/explain.h"

namespace quire {

using namespace formula;

namespace {

struct Undeclared {
  int rank = 0;          // of the first use
  int trailing = 0;      // further axes of unknown size, for sum and dot
  bool integer = false;  // stands inside of an index
};

// Names followed by `[` that nobody declared, with the number of indices behind them.
std::map<std::string, Undeclared> find_undeclared(std::string_view text,
                                                  const NamedBuffers& buffers) {
  std::map<std::string, Undeclared> found;
  struct Open {
    std::string name;  // of an indexed buffer; empty for other brackets
    int commas = 0;
    bool reduced = false;  // opened directly by sum( or dot(
  };
  std::vector<Open> open;
  const auto known = [&](std::string_view name) {
    return std::any_of(buffers.begin(), buffers.end(),
                       [&](const auto& b) { return b.first == name; });
  };
  TokenStream tokens(text);
  std::string last;  // the name directly before this token, or of a buffer whose index just closed
  std::map<std::string, int> indices;
  for (; tokens.token().kind != Token::Kind::kEnd; tokens.advance()) {
    const Token& token = tokens.token();
    std::string next;
    if (token.kind == Token::Kind::kName && is_free_name(token.text)) {
      next = std::string(token.text);
      indices[next] = 0;
    } else if (token.is("[")) {
      const bool inside =
          std::any_of(open.begin(), open.end(), [](const Open& o) { return !o.name.empty(); });
      if (!last.empty() && !known(last)) {
        Undeclared& buffer = found[last];
        buffer.integer |= inside;
        if (!open.empty() && open.back().reduced) buffer.trailing = 1;
      }
      open.push_back({last.empty() ? "?" : last});
    } else if (token.is("(")) {
      const bool reduced = token.place >= 3 && (text.substr(token.place - 3, 3) == "sum" ||
                                                text.substr(token.place - 3, 3) == "dot");
      open.push_back({"", 0, reduced});
    } else if (token.is(",")) {
      if (!open.empty()) ++open.back().commas;
    } else if ((token.is("]") || token.is(")")) && !open.empty()) {
      const Open closed = open.back();
      open.pop_back();
      if (!closed.name.empty() && found.contains(closed.name)) {
        indices[closed.name] += closed.commas + 1;
        found[closed.name].rank = std::max(found[closed.name].rank, indices[closed.name]);
        next = closed.name;
      }
    }
    last = next;
  }
  return found;
}

// As large as the indices of all reads ask for, at least 1.
Shape needed_shape(const Formula& formula, const std::vector<Interval>& bounds,
                   const std::string& name, std::size_t rank, std::int64_t most) {
  Shape shape;
  for (std::size_t axis = 0; axis < rank; ++axis) shape.push_back(1);
  const Graph& graph = formula.graph();
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
    const Node& node = graph[id];
    const auto args = graph.args(id);
    for (std::size_t side = 0; side < 2; ++side) {
      if (node.buffers[side] < 0 || graph.buffer(node.buffers[side]).name() != name) continue;
      const std::size_t begin = side == 0 ? 0 : node.split;
      const std::size_t end = node.op == Op::kDot && side == 0 ? node.split : args.size();
      for (std::size_t i = begin; i < end; ++i) {
        const Interval& range = bounds[static_cast<std::size_t>(args[i])];
        const std::int64_t low =
            range.int_lo < 0 ? (range.int_lo < -most ? most : -range.int_lo) : 0;
        const std::int64_t high = range.int_hi >= most ? most : range.int_hi + 1;
        shape[i - begin] = std::max({shape[i - begin], low, high});
      }
    }
  }
  return shape;
}

}  // namespace

Formula parse_undeclared(std::string_view text, const NamedBuffers& buffers,
                         const ExplainOptions& options) {
  constexpr std::int64_t kUnknown = 64;  // a trailing axis, and an index nothing is known of
  constexpr std::int64_t kLarge = std::int64_t{1} << 40;
  const auto missing = find_undeclared(text, buffers);
  if (missing.empty()) return Formula::parse(text, buffers);
  NamedBuffers trial = buffers;
  for (const auto& [name, use] : missing) {
    Shape shape;
    for (int axis = 0; axis < std::min(use.rank + use.trailing, static_cast<int>(kMaxRank)); ++axis)
      shape.push_back(axis == 0 && use.rank > 0 ? kLarge : kUnknown);
    trial.emplace_back(name, Buffer::declare(use.integer ? DType::i64 : DType::f32, shape));
  }
  const Formula sized = Formula::parse(text, trial);
  const Bounder bounder(sized, options.precision, {.read_buffers = false});
  std::vector<Interval> bounds = bounder.make_scratch();
  const auto range = [](std::int64_t size) {
    return IndexRange{0, std::max<std::int64_t>(size, 1) - 1};
  };
  bounder.bound_all(
      {range(options.batch), range(options.heads), range(options.q_len), range(options.kv_len)},
      bounds);
  NamedBuffers all = buffers;
  for (const auto& [name, use] : missing) {
    Shape shape = needed_shape(sized, bounds, name, static_cast<std::size_t>(use.rank), kLarge);
    for (std::int64_t& size : shape) size = size == kLarge ? kUnknown : size;
    if (use.trailing != 0) shape.push_back(kUnknown);
    all.emplace_back(name, Buffer::declare(use.integer ? DType::i64 : DType::f32, shape));
  }
  return Formula::parse(text, all);
}

}  // namespace quire
