// `quire draw FORMULA`: draws a mask, or a score mod as a heat map, in the terminal, as SVG or as
// PNG. Command line layer.
#include "quire/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "commands.h"
#include "formula_arguments.h"
#include "number_option.h"
#include "output_file.h"
#include "quire/error.h"
#include "terminal.h"

namespace quire::cli {
namespace {

constexpr mods::GallerySizes kDefaultSizes = {.q_len = 64, .kv_len = 64};
constexpr int kMargin = 16;  // columns for positions and frame next to the cells

struct DrawArguments {
  FormulaArguments formula;
  DrawOptions options;
  std::optional<std::int64_t> block, kv_block;
  std::optional<float> score;
  std::optional<int> width;
  std::string svg, png;
  bool ascii = false, list = false;
};

void write_file(const std::string& path, std::span<const char> bytes) {
  OutputFile file("draw", path);
  file.stream().write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.keep();
}

// Draws a block mask, a mask mod or a score mod to all requested outputs.
template <class... What>
void draw_all(const DrawArguments& arguments, const DrawOptions& options, const What&... what) {
  if (!arguments.svg.empty()) write_file(arguments.svg, draw_svg(what..., options));
  if (!arguments.png.empty()) {
    const std::vector<std::uint8_t> bytes = draw_png(what..., options);
    write_file(arguments.png, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (arguments.svg.empty() && arguments.png.empty()) fmt::print("{}", draw(what..., options));
}

void print_list() {
  for (const mods::GalleryEntry& entry : mods::gallery())
    fmt::print("@{:<26} {:<6} {}\n", entry.name,
               entry.kind == mods::GalleryEntry::Kind::kMask ? "mask" : "score", entry.description);
}

void check_fits(bool mask, const DrawArguments& arguments) {
  if (mask && arguments.score.has_value())
    throw Error(ErrorKind::value, "[draw] --score is for score mods; the formula is a mask");
  if (!mask && (arguments.block.has_value() || arguments.kv_block.has_value()))
    throw Error(ErrorKind::value, "[draw] --block is for masks; the formula is a score mod");
}

void draw_formula(const DrawArguments& arguments) {
  mods::GallerySizes defaults = kDefaultSizes;
  defaults.batch = arguments.options.b + 1;
  defaults.heads = arguments.options.h + 1;
  const FormulaSource source = read_formula(arguments.formula, defaults);
  const Formula formula = parse_formula(source);
  const bool mask = formula.type() == ValueType::kBool;
  check_fits(mask, arguments);
  DrawOptions options = arguments.options;
  options.batch = source.sizes.batch;
  options.heads = source.sizes.heads;
  options.score = arguments.score.value_or(0);
  if (!source.name.empty() && options.title.empty())
    options.title = source.name + ": " + formula.to_string();
  options.width = arguments.width.value_or(std::clamp(terminal_columns(1000) - kMargin, 8, 64));
  if (arguments.ascii || wants_ascii())
    options.style = DrawStyle::kAscii;
  else if (wants_colour())
    options.style = DrawStyle::kColour;
  const auto [q_len, kv_len, heads, batch] = source.sizes;
  if (!mask) return draw_all(arguments, options, ScoreMod(formula), q_len, kv_len);
  if (!arguments.block.has_value() && !arguments.kv_block.has_value())
    return draw_all(arguments, options, MaskMod(formula), q_len, kv_len);
  const std::int64_t block = arguments.block.value_or(BlockSize().q);
  const BlockSize size(block, arguments.kv_block.value_or(block));
  draw_all(arguments, options,
           create_block_mask(MaskMod(formula), batch, heads, q_len, kv_len,
                             {.block_size = size, .q_begin = options.q_begin}));
}

}  // namespace

void add_draw(CLI::App& app) {
  auto* command = app.add_subcommand(
      "draw", "A picture of a mask, or of what a score mod adds: in the terminal, as SVG or PNG");
  const auto arguments = std::make_shared<DrawArguments>();
  CLI::Option* formula = add_formula_arguments(*command, arguments->formula, kDefaultSizes);
  const auto number = [&](const char* names, auto& value, const char* what, std::int64_t least,
                          std::int64_t most = kMostTokens) {
    return add_number(*command, names, value, what, least, most);
  };
  number("--b", arguments->options.b, "Which b is drawn", 0)->capture_default_str();
  number("--h,--head", arguments->options.h, "Which h is drawn", 0)->capture_default_str();
  number("--q-begin", arguments->options.q_begin, "q_idx of the first row", 0)
      ->capture_default_str();
  number("--block", arguments->block,
         "Blocks of this many queries and keys, as\ncreate_block_mask makes them; otherwise "
         "elements,\n"
         "or blocks as large as a cell",
         1);
  number("--kv-block", arguments->kv_block, "Keys of a block, if not as many as queries", 1);
  command
      ->add_option("--score", arguments->score,
                   "Of a score mod: the score that something is\nadded to, 0 if not given")
      ->type_name("X");
  command->add_option("--title", arguments->options.title, "Instead of the formula")
      ->type_name("TEXT");
  command->add_option("--svg", arguments->svg, "Write an SVG file; - is stdout")->type_name("FILE");
  command->add_option("--png", arguments->png, "Write a PNG file (if built with libpng)")
      ->type_name("FILE");
  number("--width", arguments->width, "Columns in the terminal; 64, or what it has room for", 8,
         1000);
  number("--cells", arguments->options.cells, "Most cells along an axis of an SVG or PNG", 8, 2048);
  command->add_flag("--ascii", arguments->ascii, "No other characters than ASCII, no colours");
  add_colour_option(*command);
  command->add_flag("--list", arguments->list, "List the gallery");
  command->footer(
      "A formula that is true or false is a mask; one that is a number is a score mod, and the\n"
      "picture shows what it adds to the score. Colours only on a terminal and without NO_COLOR,\n"
      "if --color does not say otherwise. Examples:\n"
      "  quire draw \"(q_idx >= kv_idx) & (q_idx - kv_idx < 256)\" --q 4096 --kv 4096\n"
      "  quire draw \"doc[q_idx] == doc[kv_idx]\" --buffer \"doc=i32[64]: kv_idx // 24\"\n"
      "  quire draw @sliding_window --q 1024 --kv 1024 --block 64\n"
      "  quire draw @alibi --head 3 --svg alibi.svg");
  command->callback([arguments, formula] {
    if (arguments->list && formula->count() > 0)
      throw CLI::ValidationError("--list", "lists the gallery and takes no formula");
    if (arguments->list) return print_list();
    if (arguments->formula.formula.empty()) throw CLI::RequiredError("formula");
    check_different("--png", {arguments->svg, arguments->png});
    draw_formula(*arguments);
  });
}

}  // namespace quire::cli
