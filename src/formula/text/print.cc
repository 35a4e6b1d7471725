// The printer: measures the fully expanded text, names values where it would become too long, and
// assembles the pieces of node_text.h. Loops only, since graphs may be as deep as they are large.
// Formula layer.
#include "formula/text/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "formula/text/names.h"
#include "formula/text/node_text.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

constexpr std::size_t kMinBound = 7;             // shorter texts are repeated rather than named
constexpr int kMaxBoundLevels = kMaxLevels / 2;  // for a value without a name, if any have names
constexpr std::size_t kHuge = std::size_t{1} << (sizeof(std::size_t) * 5);  // sums of two fit

// Everything `root` depends on, depth first, arguments left to right and before their users: this
// order, and therefore the names, depend only on the formula.
std::vector<NodeId> in_order(const Graph& graph, NodeId root) {
  std::vector<NodeId> order, stack{root};
  std::vector<char> done(graph.size(), 0);
  while (!stack.empty()) {
    const NodeId id = stack.back();
    if (done[id]) {
      stack.pop_back();
      continue;
    }
    const auto args = graph.args(id);
    const std::size_t waiting = stack.size();
    for (std::size_t i = args.size(); i-- > 0;)
      if (!done[args[i]]) stack.push_back(args[i]);
    if (stack.size() != waiting) continue;
    done[id] = 1;
    order.push_back(id);
    stack.pop_back();
  }
  return order;
}

struct TextExtent {
  std::size_t length = 0;
  int levels = 0;
};

class Printer {
 public:
  Printer(const Graph& graph, NodeId root)
      : graph_(graph),
        root_(root),
        nodes_(graph),
        order_(in_order(graph, root)),
        extents_(graph.size()) {}

  std::string run() {
    for (const NodeId id : order_) measure(id);
    std::string text;
    if (extent(root_).length > kMaxExpanded || extent(root_).levels > kMaxLevels) {
      choose_bindings();
      for (const NodeId id : bindings_) {
        text += nodes_.name(id) + " = ";
        write(id, text);
        text += "; ";
      }
    }
    write(root_, text);
    return text;
  }

 private:
  TextExtent& extent(NodeId id) { return extents_[id]; }

  // From the extents of the arguments.
  void measure(NodeId id) {
    pieces_.clear();
    nodes_.append_pieces(id, pieces_);
    TextExtent sum;
    for (const Piece& piece : pieces_) {
      if (piece.value == kNoNode) {
        sum.length += piece.text.size();
        continue;
      }
      const TextExtent part = nodes_.is_bound(piece.value)
                                  ? TextExtent{nodes_.name(piece.value).size(), 0}
                                  : extent(piece.value);
      sum.length = std::min(sum.length + part.length, kHuge);
      sum.levels = std::max(sum.levels, part.levels + piece.levels);
    }
    extent(id) = sum;
  }

  // How often each value is written if only shared values have names. A hidden cast counts as its
  // argument.
  std::vector<std::size_t> count_uses() const {
    std::vector<std::size_t> uses(graph_.size(), 0);
    uses[root_] = 1;
    for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
      const Op op = graph_[*id].op;
      const bool is_cast = formula::is_cast(op);
      for (const NodeId arg : graph_.args(*id)) uses[arg] += is_cast ? uses[*id] : 1;
    }
    return uses;
  }

  void choose_bindings() {
    const std::vector<std::size_t> uses = count_uses();
    std::size_t number = 0;
    for (const NodeId id : order_) {
      measure(id);
      const Node& node = graph_[id];
      const bool is_cast = formula::is_cast(node.op);
      const bool is_shared =
          uses[id] > 1 && node.arg_count > 0 && !is_cast && extent(id).length >= kMinBound;
      if (id == root_ || (!is_shared && extent(id).levels < kMaxBoundLevels)) continue;
      std::string name;
      do {
        name = fmt::format("t{}", number++);
      } while (nodes_.is_buffer_name(name));
      nodes_.bind(id, std::move(name));
      bindings_.push_back(id);
    }
  }

  void write(NodeId root, std::string& text) const {
    std::vector<Piece> waiting, pieces;  // waiting: a stack, the next one last
    const auto open = [&](NodeId id) {
      pieces.clear();
      nodes_.append_pieces(id, pieces);
      waiting.insert(waiting.end(), std::make_move_iterator(pieces.rbegin()),
                     std::make_move_iterator(pieces.rend()));
    };
    open(root);
    while (!waiting.empty()) {
      const Piece piece = std::move(waiting.back());
      waiting.pop_back();
      if (piece.value == kNoNode) {
        text += piece.text;
      } else if (nodes_.is_bound(piece.value)) {
        text += nodes_.name(piece.value);
      } else {
        open(piece.value);
      }
    }
  }

  const Graph& graph_;
  const NodeId root_;
  NodeText nodes_;
  const std::vector<NodeId> order_;
  std::vector<TextExtent> extents_;  // by node
  std::vector<NodeId> bindings_;     // in the order they are written
  std::vector<Piece> pieces_;        // of the node being measured
};

// An identifier as similar to `name` as possible.
std::string as_identifier(std::string_view name) {
  std::string text;
  for (const char c : name) text += is_identifier(std::string{'_', c}) ? c : '_';
  return is_identifier(text) ? text : '_' + text;
}

}  // namespace

std::string print(const Graph& graph, NodeId root) { return Printer(graph, root).run(); }

std::vector<std::pair<std::string, Buffer>> printed_names(const Graph& graph) {
  std::unordered_set<std::string> own, used;  // own: not available for changed names
  for (const Buffer& buffer : graph.buffers()) own.insert(buffer.name());
  std::vector<std::pair<std::string, Buffer>> names;
  for (const Buffer& buffer : graph.buffers()) {
    std::string name = buffer.name();
    if (!is_free_name(name) || used.contains(name)) {
      const std::string stem = as_identifier(name);
      name = stem;
      for (int i = 1; !is_free_name(name) || own.contains(name) || used.contains(name); ++i)
        name = fmt::format("{}_{}", stem, i);
    }
    used.insert(name);
    names.emplace_back(std::move(name), buffer);
  }
  return names;
}

}  // namespace quire::formula
