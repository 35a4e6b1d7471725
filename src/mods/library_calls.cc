// The list of functions with their argument counts. Mods layer.
#include "mods/library_calls.h"

#include <algorithm>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mods {
namespace {

struct Function {
  std::string_view name;
  std::size_t numbers, tables;
  Formula (*call)(const LibraryCall& call);
};

std::int64_t integer(const LibraryCall& call, std::size_t i) {
  return static_cast<std::int64_t>(call.numbers[i]);
}

const Function kFunctions[] = {
    {"causal", 0, 0, [](const LibraryCall&) { return causal().formula(); }},
    {"causal_bottom_right", 2, 0,
     [](const LibraryCall& c) {
       return causal_bottom_right(integer(c, 0), integer(c, 1)).formula();
     }},
    {"sliding_window", 1, 0,
     [](const LibraryCall& c) { return sliding_window(integer(c, 0)).formula(); }},
    {"sliding_window", 2, 0,
     [](const LibraryCall& c) { return sliding_window(integer(c, 0), integer(c, 1)).formula(); }},
    {"document", 0, 1, [](const LibraryCall& c) { return document(c.tables[0]).formula(); }},
    {"prefix_lm", 1, 0, [](const LibraryCall& c) { return prefix_lm(integer(c, 0)).formula(); }},
    {"padding", 0, 1, [](const LibraryCall& c) { return padding(c.tables[0]).formula(); }},
    {"shared_prefix", 1, 1,
     [](const LibraryCall& c) { return shared_prefix(integer(c, 0), c.tables[0]).formula(); }},
    {"tree", 1, 1, [](const LibraryCall& c) { return tree(c.tables[0], integer(c, 0)).formula(); }},
    {"attention_sink", 1, 0,
     [](const LibraryCall& c) { return attention_sink(integer(c, 0)).formula(); }},
    {"streaming", 2, 0,
     [](const LibraryCall& c) { return streaming(integer(c, 0), integer(c, 1)).formula(); }},
    {"chunked", 1, 0, [](const LibraryCall& c) { return chunked(integer(c, 0)).formula(); }},
    {"alibi", 1, 0, [](const LibraryCall& c) { return alibi(integer(c, 0)).formula(); }},
    {"softcap", 1, 0, [](const LibraryCall& c) { return softcap(c.numbers[0]).formula(); }},
    {"relative_bias", 0, 1,
     [](const LibraryCall& c) { return relative_bias(c.tables[0]).formula(); }},
    {"bias_2d", 0, 1, [](const LibraryCall& c) { return bias_2d(c.tables[0]).formula(); }},
};

}  // namespace

LibraryCall parse_call(std::string_view text) {
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')')
    fail(ErrorKind::value, "gallery", "a function is name(argument, ...); got {}", text);
  LibraryCall call{std::string(text.substr(0, open)), {}};
  std::string_view list = text.substr(open + 1, text.size() - open - 2);
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    call.arguments.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    while (list.starts_with(' ')) list.remove_prefix(1);
  }
  return call;
}

Formula call_library(const LibraryCall& call) {
  for (const Function& function : kFunctions) {
    const bool fits =
        function.numbers == call.numbers.size() && function.tables == call.tables.size();
    if (function.name == call.name && fits) return function.call(call);
  }
  fail(ErrorKind::value, "gallery", "no function '{}' of {} numbers and {} tables", call.name,
       call.numbers.size(), call.tables.size());
}

}  // namespace quire::mods
