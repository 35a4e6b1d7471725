// The names a text may use besides those of the language: the buffers passed to parse() and the
// bindings made so far. Formula layer.
#pragma once
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formula/graph.h"
#include "quire/formula.h"

namespace quire::formula {

struct Symbol {
  const Buffer* buffer = nullptr;  // of a buffer
  NodeId value = kNoNode;          // of a binding
};

class Symbols {
 public:
  /// Throws Error for a name that is not an identifier, is reserved by the language or used twice.
  /// Keeps views of the names.
  explicit Symbols(const NamedBuffers& buffers);

  /// Null if there is no such name.
  const Symbol* find(std::string_view name) const;
  /// `name` must be free and new; a view of it is kept.
  void bind(std::string_view name, NodeId value) { symbols_[name] = {.value = value}; }
  /// The closest of these names and the language's; empty if none is close.
  std::string_view nearest(std::string_view name) const;

 private:
  std::vector<Buffer> buffers_;  // under the names they are bound to
  std::unordered_map<std::string_view, Symbol> symbols_;
};

}  // namespace quire::formula
