// fail: throws the Error with which the library rejects an argument; its text begins with the name
// of the function that was called. Runtime layer.
#pragma once
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "quire/error.h"

namespace quire {

/// Throws Error "[where] text". `where` is the public name of what was called.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, std::string_view where, fmt::format_string<Args...> text,
                       Args&&... args) {
  throw Error(kind, fmt::format("[{}] {}", where, fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace quire
