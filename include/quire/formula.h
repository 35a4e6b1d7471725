// Formula: an immutable expression graph with one result, and its text form. mod.h has the two
// kinds of mods made from it. Public; formula layer.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/expr.h"
#include "quire/op.h"

namespace quire {

/// The buffers a text may name, in any order; names must be unique.
using NamedBuffers = std::vector<std::pair<std::string, Buffer>>;

/// The float type a formula is computed in: that of the score.
enum class Precision : std::uint8_t { kF32, kF64 };

class QUIRE_API Formula {
 public:
  /// The value of a traced expression. Copies what it depends on.
  explicit Formula(const ExprBase& expr);
  /// The value of one node of a graph. Copies what it depends on.
  Formula(const formula::Graph& graph, std::int32_t root);

  /// Reads the text form, e.g. `where(q_idx >= kv_idx, score + slopes[h] * (kv_idx - q_idx),
  /// -inf)`. The names score, b, h, q_idx and kv_idx are the arguments of a mod; `d = kv_idx -
  /// q_idx; score + d` binds a name. Throws Error, whose text shows the place with a caret.
  static Formula parse(std::string_view text, const NamedBuffers& buffers = {});

  /// The text form; parsing it with the same named buffers gives an equal formula. A value used in
  /// many places is bound to a name where writing it out would make the text explode.
  std::string to_string() const;

  ValueType type() const;
  /// The buffers it reads, in the order of first use.
  std::vector<Buffer> buffers() const;
  /// The same under the names that to_string() uses: their own, unless two share one or it is not a
  /// valid name.
  NamedBuffers named_buffers() const;
  /// The same formula over other buffers: one per buffers(), in that order, of the same
  /// dtype and rank. Copies the graph; parses nothing. Throws Error for buffers that do not
  /// match.
  Formula with_buffers(std::vector<Buffer> buffers) const;
  /// Number of distinct values (nodes) in it.
  std::size_t size() const;

  const formula::Graph& graph() const { return *graph_; }
  std::int32_t root() const { return root_; }

  /// Same structure, same constants, same buffers.
  friend QUIRE_API bool operator==(const Formula& a, const Formula& b);

 private:
  Formula(std::shared_ptr<const formula::Graph> graph, std::int32_t root)
      : graph_(std::move(graph)), root_(root) {}

  std::shared_ptr<const formula::Graph> graph_;
  std::int32_t root_;
};

}  // namespace quire
