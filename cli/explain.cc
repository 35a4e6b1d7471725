// `quire explain FORMULA`: parsed and simplified form, derivatives, classes, tile program.
#include "quire/explain.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

struct Arguments {
  std::string formula;
  std::vector<std::string> buffers;
  ExplainOptions options;
  bool f64 = false;
};

[[noreturn]] void bad_buffer(const std::string& text) {
  throw CLI::ValidationError(
      "--buffer", fmt::format("must look like doc=i64[2048] or table=f32[8, 64]; got '{}'", text));
}

// "doc=i64[2048]"
std::pair<std::string, Buffer> parse_buffer(const std::string& text) {
  const std::size_t equals = text.find('='), open = text.find('[');
  if (equals == std::string::npos || open == std::string::npos || open < equals ||
      text.back() != ']')
    bad_buffer(text);
  const DType dtype = parse_dtype(text.substr(equals + 1, open - equals - 1));
  Shape shape;
  const char* at = text.data() + open + 1;
  const char* const end = text.data() + text.size() - 1;
  while (at != end) {
    while (at != end && (*at == ' ' || *at == ',')) ++at;
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0) bad_buffer(text);
    shape.push_back(size);
    at = next;
  }
  return {text.substr(0, equals), Buffer::declare(dtype, shape)};
}

void print_explanation(const Arguments& arguments) {
  NamedBuffers buffers;
  for (const std::string& text : arguments.buffers) buffers.push_back(parse_buffer(text));
  ExplainOptions options = arguments.options;
  if (arguments.f64) options.precision = Precision::kF64;
  fmt::print("{}", explain(parse_undeclared(arguments.formula, buffers, options), options));
}

}  // namespace

void add_explain(CLI::App& app) {
  auto* command = app.add_subcommand(
      "explain",
      "What Quire makes of a formula: simplified form, derivatives, classes, tile program");
  const auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("formula", arguments->formula, "e.g. \"score + slopes[h] * (kv_idx - q_idx)\"")
      ->required();
  command->add_option(
      "--buffer", arguments->buffers,
      "A captured buffer, e.g. doc=i64[2048]; others that are indexed are declared as f32");
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    command->add_option(name, value, what)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
        ->capture_default_str();
  };
  size("--batch", arguments->options.batch, "b runs below this");
  size("--heads", arguments->options.heads, "h runs below this");
  size("--q", arguments->options.q_len, "q_idx runs below this");
  size("--kv", arguments->options.kv_len, "kv_idx runs below this");
  command->add_flag("--f64", arguments->f64, "Scores in f64");
  command->add_flag("--decode", arguments->options.decode, "Keys across the lanes, as in decoding");
  command->callback([arguments] { print_explanation(*arguments); });
}

}  // namespace quire::cli
