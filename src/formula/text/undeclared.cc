// Parses a text whose buffers are not all given: names that are indexed become declared buffers.
// Formula layer.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "formula/bound/bound.h"
#include "formula/graph.h"
#include "formula/text/lexer.h"
#include "formula/text/names.h"
#include "quire/explain.h"
#include "runtime/float_env.h"

namespace quire {

using namespace formula;

namespace {

struct Undeclared {
  int rank = 0;           // largest number of indices after the name
  bool trailing = false;  // used in sum or dot, which add over one more axis
  bool integer = false;   // used inside an index
};
using Missing = std::map<std::string, Undeclared, std::less<>>;

// Walks the tokens and keeps, for every open bracket, what it belongs to.
class Scan {
 public:
  Scan(std::string_view text, const NamedBuffers& buffers) : tokens_(text) {
    for (const auto& [name, buffer] : buffers) known_.insert(name);
  }

  Missing run() {
    for (; tokens_.token().kind != Token::Kind::kEnd; tokens_.advance()) take(tokens_.token());
    return std::move(missing_);
  }

 private:
  // A name and its indices so far; empty unless the previous token belongs to it.
  struct Chain {
    std::string name;
    int indices = 0;
  };
  struct Open {
    Chain chain;  // `[` after a name; empty for other brackets
    int commas = 0;
    bool reduces = false;  // sum( or dot(
  };

  bool in_index() const {
    return std::any_of(open_.begin(), open_.end(),
                       [](const Open& o) { return !o.chain.name.empty(); });
  }
  bool in_reduction() const { return !open_.empty() && open_.back().reduces; }

  void take(const Token& token) {
    Chain next;
    const bool was_reduction = word_ == "sum" || word_ == "dot";
    word_ = token.kind == Token::Kind::kName ? token.text : std::string_view();
    if (token.kind == Token::Kind::kName && is_free_name(token.text) &&
        !known_.contains(token.text)) {
      next.name = std::string(token.text);
      const bool indexed = tokens_.following().is("[");
      if (indexed || in_reduction()) note(next.name);
    } else if (token.is("[")) {
      open_.push_back({last_});
    } else if (token.is("(")) {
      open_.push_back({{}, 0, was_reduction});
    } else if (token.is(",") && !open_.empty()) {
      ++open_.back().commas;
    } else if ((token.is("]") || token.is(")")) && !open_.empty()) {
      next = close();
    }
    last_ = next;
  }

  void note(const std::string& name) {
    Undeclared& buffer = missing_[name];
    buffer.integer |= in_index();
    buffer.trailing |= in_reduction();
  }

  // What `]` closes may be indexed further: name[i][j].
  Chain close() {
    Open closed = open_.back();
    open_.pop_back();
    if (closed.chain.name.empty()) return {};
    closed.chain.indices += closed.commas + 1;
    if (const auto at = missing_.find(closed.chain.name); at != missing_.end())
      at->second.rank = std::max(at->second.rank, closed.chain.indices);
    return closed.chain;
  }

  TokenStream tokens_;
  std::set<std::string, std::less<>> known_;
  Missing missing_;
  std::vector<Open> open_;
  Chain last_;
  std::string_view word_;
};

NamedBuffers with_declared(const NamedBuffers& buffers, const Missing& missing,
                           const std::map<std::string, Shape>& shapes) {
  NamedBuffers all = buffers;
  for (const auto& [name, use] : missing)
    all.emplace_back(name, Buffer::declare(use.integer ? DType::i64 : DType::f32, shapes.at(name)));
  return all;
}

constexpr std::int64_t kUnknown = 64;  // size of a trailing axis, and of one whose index is unknown

// Grows sizes to what the indices of one read need.
void grow(Shape& shape, std::span<const NodeId> indices, const std::vector<Interval>& bounds) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    const Interval& range = bounds[indices[axis]];
    const bool known = range.int_lo >= -kFar && range.int_hi <= kFar;
    shape[axis] = known ? std::max({shape[axis], -range.int_lo, range.int_hi + 1})
                        : std::max(shape[axis], kUnknown);
  }
}

}  // namespace

Formula parse_undeclared(std::string_view text, const NamedBuffers& buffers,
                         const ExplainOptions& options) {
  const FloatEnv float_env;
  const Missing missing = Scan(text, buffers).run();
  if (missing.empty()) return Formula::parse(text, buffers);
  // First with arbitrary sizes, to find the indices; then with the sizes they need.
  std::map<std::string, Shape> shapes;
  for (const auto& [name, use] : missing) {
    Shape& shape = shapes[name];
    for (int axis = 0; axis < use.rank + (use.trailing ? 1 : 0); ++axis) shape.push_back(1);
    if (use.trailing) shape[use.rank] = kUnknown;
  }
  const Formula trial = Formula::parse(text, with_declared(buffers, missing, shapes));
  const Bounder bounder(trial, options.precision, {.read_buffers = false});
  std::vector<Interval> bounds = bounder.make_scratch();
  const auto range = [](std::int64_t size) {
    return IndexRange{0, std::max<std::int64_t>(size, 1) - 1};
  };
  bounder.bound_all(
      {range(options.batch), range(options.heads), range(options.q_len), range(options.kv_len)},
      bounds);
  const Graph& graph = trial.graph();
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
    const Node& node = graph[id];
    if (node.op < Op::kLoad) continue;
    const auto args = graph.args(id);
    const std::size_t split = node.op == Op::kDot ? node.split : args.size();
    const auto note = [&](std::int32_t buffer, std::span<const NodeId> indices) {
      const auto at = shapes.find(graph.buffer(buffer).name());
      if (at != shapes.end()) grow(at->second, indices, bounds);
    };
    note(node.buffers[0], args.first(split));
    if (node.op == Op::kDot) note(node.buffers[1], args.subspan(split));
  }
  return Formula::parse(text, with_declared(buffers, missing, shapes));
}

}  // namespace quire
