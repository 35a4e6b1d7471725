// Options that are whole numbers: their limits are checked, and the help shows a plain N. Command
// line layer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace quire::cli {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // limit of a size on the command line

/// `value`: an integer or an optional one.
template <class T>
CLI::Option* add_number(CLI::App& command, const std::string& names, T& value,
                        const std::string& what, std::int64_t least = 1,
                        std::int64_t most = kMostTokens) {
  return command.add_option(names, value, what)
      ->type_name("N")
      ->check(CLI::Range(least, most).description(""));
}

}  // namespace quire::cli
