// Formulas, sizes and buffers from a command line. Command line layer.
#include "formula_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "npy.h"
#include "number_option.h"
#include "quire/buffer.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

[[noreturn]] void bad_buffer(const std::string& text) {
  throw CLI::ValidationError("--buffer",
                             fmt::format("must look like doc=doc.npy, doc=1,1,2, doc=i64[2048] or "
                                         "\"doc=i64[2048]: kv_idx // 512\"; got '{}'",
                                         text));
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

// "doc=doc.npy", "doc=i64[2048]", "doc=i64[kv_len]: kv_idx // 512" or "doc=1, 1, 2".
std::pair<std::string, Buffer> read_buffer(const std::string& text,
                                           const mods::GallerySizes& sizes) {
  const std::size_t equals = text.find('=');
  if (text.ends_with(".npy") && equals != std::string::npos && equals != 0)
    return {trimmed(text.substr(0, equals)), Buffer(read_npy(trimmed(text.substr(equals + 1))))};
  std::optional<std::pair<std::string, Buffer>> table = mods::read_table(text, sizes);
  if (!table.has_value()) bad_buffer(text);
  return *std::move(table);
}

}  // namespace

void add_buffer_option(CLI::App& command, std::vector<std::string>& buffers) {
  command
      .add_option("--buffer", buffers,
                  "What a formula reads by name; as often as needed:\n"
                  "  doc=doc.npy      the array in a file\n"
                  "  doc=1,1,2,2      these numbers: i64, or f32 with a point\n"
                  "  \"doc=i32[4096]: kv_idx // 512\"    filled by a formula of\n"
                  "                   kv_idx (the last axis), q_idx (the one\n"
                  "                   before it), h and b, and of the sizes\n"
                  "                   kv_len, q_len, heads and batch\n"
                  "  doc=i32[4096]    no contents: enough for explain")
      ->type_name("NAME=WHAT")
      ->allow_extra_args(false);
}

CLI::Option* add_formula_arguments(CLI::App& command, FormulaArguments& arguments,
                                   const mods::GallerySizes& defaults) {
  CLI::Option* formula =
      command
          .add_option("formula", arguments.formula,
                      "e.g. \"score + slopes[h] * (kv_idx - q_idx)\", or @name of\n"
                      "the gallery (quire draw --list)")
          ->type_name("");
  add_buffer_option(command, arguments.buffers);
  const auto size = [&](const char* name, std::optional<std::int64_t>& value, const char* what,
                        std::int64_t otherwise) {
    add_number(command, name, value, what)->default_str(std::to_string(otherwise));
  };
  size("--batch", arguments.batch, "b runs below this", defaults.batch);
  size("--heads", arguments.heads, "h runs below this", defaults.heads);
  size("--q", arguments.q_len, "q_idx runs below this", defaults.q_len);
  size("--kv", arguments.kv_len, "kv_idx runs below this", defaults.kv_len);
  return formula;
}

FormulaSource read_formula(const FormulaArguments& arguments, const mods::GallerySizes& defaults) {
  FormulaSource source;
  const bool named = arguments.formula.starts_with('@');
  if (named) source.name = arguments.formula.substr(1);
  const mods::GalleryEntry* entry = named ? &mods::gallery_entry(source.name) : nullptr;
  const mods::GallerySizes& otherwise = named ? entry->sizes : defaults;
  source.sizes.batch = arguments.batch.value_or(otherwise.batch);
  source.sizes.heads = arguments.heads.value_or(otherwise.heads);
  source.sizes.q_len = arguments.q_len.value_or(otherwise.q_len);
  source.sizes.kv_len = arguments.kv_len.value_or(otherwise.kv_len);
  source.text = named ? entry->full_text(source.sizes) : arguments.formula;
  if (named) source.buffers = entry->buffers(source.sizes);
  for (const std::string& text : arguments.buffers) {
    auto [name, buffer] = read_buffer(text, source.sizes);
    const auto same = std::ranges::find(source.buffers, name, &NamedBuffers::value_type::first);
    if (same != source.buffers.end() && named)
      same->second = buffer;
    else
      source.buffers.emplace_back(name, buffer);
  }
  return source;
}

Formula parse_formula(const FormulaSource& source) {
  try {
    return Formula::parse(source.text, source.buffers);
  } catch (const Error& error) {
    const std::string text = error.what(), begin = "[parse] unknown name '";
    if (!text.starts_with(begin)) throw;
    const std::string name =
        text.substr(begin.size(), text.find('\'', begin.size()) - begin.size());
    if (source.text.find(name + "[") == std::string::npos) throw;
    throw Error(error.kind(),
                fmt::format("{}\n  if {} is a buffer, give it: --buffer {}=file.npy, or "
                            "--buffer \"{}=i32[4096]: kv_idx // 512\"",
                            text, name, name, name));
  }
}

}  // namespace quire::cli
