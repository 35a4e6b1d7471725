// Lookup of buffers and bindings by name. Formula layer.
#include "formula/text/symbols.h"

#include <algorithm>

#include "formula/text/names.h"
#include "formula/text/parse_error.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {

Symbols::Symbols(const NamedBuffers& buffers) {
  buffers_.reserve(buffers.size());  // symbols point at them
  for (const auto& [name, buffer] : buffers) {
    if (!is_identifier(name)) {
      fail(ErrorKind::value, "parse", "a buffer's name must be an identifier; got {}",
           quoted(name));
    }
    if (!is_free_name(name)) {
      fail(ErrorKind::value, "parse", "a buffer may not be called {}; the language uses that name",
           quoted(name));
    }
    if (symbols_.contains(name))
      fail(ErrorKind::value, "parse", "two buffers are called {}", quoted(name));
    buffers_.push_back(buffer.renamed(name));
    symbols_[name] = {.buffer = &buffers_.back()};
  }
}

const Symbol* Symbols::find(std::string_view name) const {
  const auto found = symbols_.find(name);
  return found == symbols_.end() ? nullptr : &found->second;
}

std::string_view Symbols::nearest(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [known, symbol] : symbols_) names.push_back(known);
  std::sort(names.begin(), names.end());  // so that ties are always resolved the same way
  return nearest_name(name, names);
}

}  // namespace quire::formula
