// `quire explain FORMULA`: parsed and simplified form, derivatives, classes, tile program; with
// --mask also how its block mask is proved. Command line layer.
#include "quire/explain.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "commands.h"
#include "explain_mask.h"
#include "formula_arguments.h"
#include "number_option.h"
#include "quire/block_mask.h"

namespace quire::cli {
namespace {

struct ExplainArguments {
  FormulaArguments formula;
  ExplainOptions options;
  std::int64_t block = BlockSize().q;
  bool f64 = false, mask = false;
};

void print_explanation(const ExplainArguments& arguments) {
  const ExplainOptions defaults;
  const FormulaSource source = read_formula(
      arguments.formula, {defaults.q_len, defaults.kv_len, defaults.heads, defaults.batch});
  ExplainOptions options = arguments.options;
  options.batch = source.sizes.batch;
  options.heads = source.sizes.heads;
  options.q_len = source.sizes.q_len;
  options.kv_len = source.sizes.kv_len;
  if (arguments.f64) options.precision = Precision::kF64;
  const Formula formula = parse_undeclared(source.text, source.buffers, options);
  std::string text = explain(formula, options);
  if (arguments.mask) text += explain_mask(formula, options, arguments.block);
  fmt::print("{}", text);
}

}  // namespace

void add_explain(CLI::App& app) {
  auto* command = app.add_subcommand(
      "explain",
      "What Quire makes of a formula: simplified form, derivatives, classes, tile program");
  const auto arguments = std::make_shared<ExplainArguments>();
  const ExplainOptions& sizes = arguments->options;
  add_formula_arguments(*command, arguments->formula,
                        {sizes.q_len, sizes.kv_len, sizes.heads, sizes.batch})
      ->required();
  command->add_flag("--f64", arguments->f64, "Scores in f64");
  command->add_flag("--decode", arguments->options.decode, "Keys across the lanes, as in decoding");
  command->add_flag("--mask", arguments->mask, "Also how the block mask of a mask is proved");
  add_number(*command, "--block", arguments->block, "With --mask: queries and keys of a block")
      ->capture_default_str();
  command->footer(
      "Buffers that are indexed and not given with --buffer are declared as f32. Examples:\n"
      "  quire explain \"score + slopes[h] * (kv_idx - q_idx)\"\n"
      "  quire explain \"q_idx >= kv_idx\" --mask --q 65536 --kv 65536\n"
      "  quire explain \"doc[q_idx] == doc[kv_idx]\" --buffer doc=doc.npy --mask\n"
      "  quire explain @t5_bias --decode");
  command->callback([arguments] { print_explanation(*arguments); });
}

}  // namespace quire::cli
