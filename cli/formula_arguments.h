// What `draw`, `explain` and `attend` have in common: a formula (or the name of one in the
// gallery), the sizes its indices run over, and its buffers. Command line layer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/formula.h"
#include "quire/mods.h"

namespace quire::cli {

struct FormulaArguments {
  std::string formula;
  std::vector<std::string> buffers;
  std::optional<std::int64_t> batch, heads, q_len, kv_len;
};

/// Adds only --buffer.
void add_buffer_option(CLI::App& command, std::vector<std::string>& buffers);

/// Adds the formula, --buffer, --batch, --heads, --q and --kv; `defaults` are shown in the help.
CLI::Option* add_formula_arguments(CLI::App& command, FormulaArguments& arguments,
                                   const mods::GallerySizes& defaults);

/// A text to be parsed, and its buffers.
struct FormulaSource {
  std::string text;
  NamedBuffers buffers;
  mods::GallerySizes sizes;
  std::string name;  // in the gallery; empty for a formula given as text
};

/// Sizes that were not given are those of the gallery's entry, or the defaults. Throws
/// CLI::ValidationError for a --buffer that cannot be read, Error for one that cannot be filled.
FormulaSource read_formula(const FormulaArguments& arguments, const mods::GallerySizes& defaults);

/// Formula::parse. For an indexed name that was not given, the error says how to give it.
Formula parse_formula(const FormulaSource& source);

}  // namespace quire::cli
