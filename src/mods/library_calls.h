// Calls functions of quire/mods.h by name: how the gallery makes the library's mods. Mods layer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "quire/mods.h"

namespace quire::mods {

/// name(argument, ...); each argument takes the next number or the next table.
struct LibraryCall {
  std::string name;
  std::vector<std::string> arguments;  // as written
  std::vector<double> numbers = {};
  std::vector<Buffer> tables = {};
};

/// Throws Error unless the text is name(argument, ...).
LibraryCall parse_call(std::string_view text);

/// The formula that the function returns. Throws Error for an unknown name or number of arguments.
Formula call_library(const LibraryCall& call);

}  // namespace quire::mods
