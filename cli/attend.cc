// `quire attend q.npy k.npy v.npy -o out.npy`: attention over arrays in files. Command line layer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "computed_share.h"
#include "formula_arguments.h"
#include "npy.h"
#include "number_option.h"
#include "output_file.h"
#include "quire/error.h"
#include "quire/flex_attention.h"
#include "terminal.h"

namespace quire::cli {
namespace {

struct AttendArguments {
  std::string q, k, v, out, lse, max_scores;
  std::string score, mask;
  std::vector<std::string> buffers;
  std::optional<double> scale;
  std::int64_t q_begin = 0, block = BlockSize().q;
  bool causal = false;
};

// What is computed: tensors of rank 4, whatever the rank in the files.
struct Call {
  Tensor q, k, v;
  std::size_t rank = 4;  // of q in its file
  std::optional<ScoreMod> score = {};
  std::optional<BlockMask> mask = {};
  std::optional<double> scale = {};
  std::int64_t q_begin = 0;
};

struct Results {
  Tensor out;
  std::optional<Tensor> lse, max_scores;
};

// Adds the missing leading axes to [L, E] and [H, L, E].
Tensor with_rank_4(const Tensor& tensor, const std::string& path) {
  if (tensor.rank() < 2 || tensor.rank() > 4) {
    throw Error(ErrorKind::value,
                fmt::format("[attend] '{}' must be [length, dim], [heads, length, dim] or [batch, "
                            "heads, length, dim]; got {}",
                            path, to_string(tensor.shape())));
  }
  Shape shape = tensor.shape();
  while (shape.rank() < 4) shape.insert(0, 1);
  return tensor.reshape(shape);
}

Tensor with_rank(const Tensor& tensor, std::size_t rank) {
  Shape shape = tensor.shape();
  while (shape.rank() > rank) shape.erase(0);
  return tensor.reshape(shape);
}

Formula formula_of(const std::string& text, const AttendArguments& arguments, const Call& call) {
  FormulaArguments given;
  given.formula = text;
  given.buffers = arguments.buffers;
  given.batch = call.q.dim(0);
  given.heads = call.q.dim(1);
  given.q_len = std::max<std::int64_t>(call.q.dim(2), 1);
  given.kv_len = std::max<std::int64_t>(call.k.dim(2), 1);
  return parse_formula(read_formula(given, {}));
}

// "-" is stdin.
Tensor read_array(const std::string& path) { return read_npy(path == "-" ? "/dev/stdin" : path); }

Call read_call(const AttendArguments& arguments) {
  const Tensor q = read_array(arguments.q), k = read_array(arguments.k),
               v = read_array(arguments.v);
  Call call{.q = with_rank_4(q, arguments.q),
            .k = with_rank_4(k, arguments.k),
            .v = with_rank_4(v, arguments.v),
            .rank = q.rank()};
  (void)AttentionShape::of(call.q, call.k, call.v);  // checked before their sizes are used
  call.scale = arguments.scale;
  call.q_begin = arguments.q_begin;
  if (!arguments.score.empty()) call.score = ScoreMod(formula_of(arguments.score, arguments, call));
  std::optional<MaskMod> rule;
  if (!arguments.mask.empty()) rule = MaskMod(formula_of(arguments.mask, arguments, call));
  if (arguments.causal) rule = rule.has_value() ? *rule & mods::causal() : mods::causal();
  if (rule.has_value()) {
    call.mask = create_block_mask(*rule, call.q.dim(0), call.q.dim(1), call.q.dim(2), call.k.dim(2),
                                  {.block_size = arguments.block, .q_begin = call.q_begin});
  }
  return call;
}

FlexAttentionOptions options_of(const Call& call, AuxRequest wanted, AuxOutput& aux) {
  FlexAttentionOptions options{.score_mod = call.score,
                               .block_mask = call.mask,
                               .scale = call.scale,
                               .enable_gqa = true,
                               .return_aux = wanted,
                               .aux = &aux};
  if (!call.mask.has_value()) options.q_begin = {call.q_begin};
  return options;
}

// Copies [B, H, rows, ..] to [B, H, L, ..] from row `begin` on.
void put_rows(const Tensor& part, std::int64_t begin, Tensor& whole) {
  const std::size_t row =
      part.rank() == 4 ? part.dim(3) * dtype_size(part.dtype()) : dtype_size(part.dtype());
  const std::int64_t rows = part.dim(2);
  for (std::int64_t i = 0; i < part.dim(0) * part.dim(1); ++i) {
    std::memcpy(static_cast<char*>(whole.data()) + (i * whole.dim(2) + begin) * row,
                static_cast<const char*>(part.data()) + i * rows * row, rows * row);
  }
}

// In a terminal, long calls are cut along the queries to show progress, which does not change a
// bit.
Results attend(const Call& call, AuxRequest wanted) {
  constexpr std::int64_t kLeast = 512;
  const std::int64_t q_len = call.q.dim(2);
  const std::int64_t rows = std::max(kLeast, (q_len / 40 + 63) / 64 * 64);
  const Progress progress(q_len);
  AuxOutput aux;
  if (!progress.is_shown() || q_len <= 2 * rows) {
    Tensor out = flex_attention(call.q, call.k, call.v, options_of(call, wanted, aux));
    return {std::move(out), aux.lse, aux.max_scores};
  }
  Results results;
  for (std::int64_t begin = 0; begin < q_len; begin += rows) {
    progress.show(begin, fmt::format("query {} of {}", begin, q_len));
    const std::int64_t end = std::min(begin + rows, q_len);
    Call part = call;
    part.q_begin = call.q_begin + begin;
    if (call.mask.has_value()) part.mask = call.mask->rows(begin, end);
    const Tensor out = flex_attention(std::as_const(call.q).view().slice(2, begin, end), call.k,
                                      call.v, options_of(part, wanted, aux));
    const auto put = [&](const Tensor& from, Tensor& to) {
      Shape shape = from.shape();
      shape[2] = q_len;
      if (begin == 0) to = Tensor(shape, from.dtype());
      put_rows(from, begin, to);
    };
    put(out, results.out);
    if (wanted.lse) put(*aux.lse, results.lse.has_value() ? *results.lse : results.lse.emplace());
    if (wanted.max_scores)
      put(*aux.max_scores,
          results.max_scores.has_value() ? *results.max_scores : results.max_scores.emplace());
  }
  return results;
}

// Rejects combinations that no file contents could make right.
void check_names(const AttendArguments& arguments) {
  const auto said_twice = [](std::vector<std::string> names) {
    std::erase(names, "");
    std::ranges::sort(names);
    const auto same = std::ranges::adjacent_find(names);
    return same == names.end() ? "" : *same;
  };
  if (said_twice({arguments.q, arguments.k, arguments.v}) == "-")
    throw CLI::ValidationError("-", "only one array can come from stdin");
  check_different("--out", {arguments.out, arguments.lse, arguments.max_scores});
  if (arguments.scale.has_value() && !std::isfinite(*arguments.scale))
    throw CLI::ValidationError("--scale", fmt::format("must be finite; got {}", *arguments.scale));
}

void run_attend(const AttendArguments& arguments) {
  check_names(arguments);
  const Call call = read_call(arguments);
  // All are opened before anything is computed, and all are written before any is replaced.
  std::vector<std::pair<std::unique_ptr<OutputFile>, Tensor>> files;
  const auto open = [&](const std::string& path) {
    files.emplace_back(path.empty() ? nullptr : std::make_unique<OutputFile>("attend", path),
                       Tensor());
  };
  for (const std::string& path : {arguments.out, arguments.lse, arguments.max_scores}) open(path);
  const AuxRequest wanted{.lse = !arguments.lse.empty(),
                          .max_scores = !arguments.max_scores.empty()};
  const auto start = std::chrono::steady_clock::now();
  const Results results = attend(call, wanted);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const Tensor out = with_rank(results.out, call.rank);
  files[0].second = out;
  if (wanted.lse) files[1].second = with_rank(*results.lse, call.rank - 1);
  if (wanted.max_scores) files[2].second = with_rank(*results.max_scores, call.rank - 1);
  for (const auto& [file, values] : files)
    if (file != nullptr) write_npy(file->stream(), values);
  for (const auto& [file, values] : files)
    if (file != nullptr) file->keep();
  const std::string hidden = call.mask.has_value()
                                 ? fmt::format(", {:.2f} % of the scores never computed",
                                               100 * (1 - computed_share(*call.mask)))
                                 : "";
  const bool taken = arguments.out == "-" || arguments.lse == "-" || arguments.max_scores == "-";
  fmt::print(taken ? stderr : stdout, "{}: {} {} in {:.2f} ms{}\n",
             arguments.out == "-" ? "stdout" : arguments.out, dtype_name(out.dtype()),
             to_string(out.shape()), time.count(), hidden);
}

}  // namespace

void add_attend(CLI::App& app) {
  auto* command = app.add_subcommand(
      "attend", "Attention over .npy files: softmax(score mod(q k^T * scale)) v under a mask");
  const auto arguments = std::make_shared<AttendArguments>();
  const auto input = [&](const char* name, std::string& path, const char* what) {
    command->add_option(name, path, what)->required()->type_name("FILE");
  };
  const auto output = [&](const char* names, std::string& path, const char* what) {
    return command->add_option(names, path, what)->type_name("FILE");
  };
  const auto rule = [&](const char* name, std::string& text, const char* what) {
    command->add_option(name, text, what)->type_name("FORMULA");
  };
  input("q", arguments->q,
        "f32, f64, bf16 or f16 of shape [length, dim],\n"
        "[heads, length, dim] or [batch, heads, length, dim]");
  input("k", arguments->k, "As many axes; heads may be fewer, by a whole factor");
  input("v", arguments->v, "As k, with a dim of its own");
  output("-o,--out", arguments->out, "Write the result, in q's dtype")->required();
  output("--lse", arguments->lse, "Write the natural log of each row's sum of exp");
  output("--max-scores", arguments->max_scores, "Write each row's largest score");
  rule("--score", arguments->score,
       "How a score is changed, e.g. \"20 * tanh(score / 20)\",\n"
       "or @name of the gallery (quire draw --list)");
  rule("--mask", arguments->mask,
       "Which keys a query sees, e.g. \"q_idx - kv_idx < 256\",\n"
       "or @name");
  command->add_flag("--causal", arguments->causal, "Also: q_idx >= kv_idx");
  add_buffer_option(*command, arguments->buffers);
  command->add_option("--scale", arguments->scale, "Of the scores; 1 / sqrt(dim) if not given")
      ->type_name("X");
  add_number(*command, "--q-begin", arguments->q_begin, "q_idx of the first query", 0)
      ->capture_default_str();
  add_number(*command, "--block", arguments->block, "Queries and keys of a block of the mask")
      ->capture_default_str();
  command->footer(
      "Files are those of numpy.save, in C or Fortran order; bf16 as ml_dtypes writes it. A FILE\n"
      "that is - is stdin or stdout. Examples:\n"
      "  quire attend q.npy k.npy v.npy --causal -o out.npy\n"
      "  quire attend q.npy k.npy v.npy --score \"20 * tanh(score / 20)\" -o out.npy --lse "
      "lse.npy\n"
      "  quire attend q.npy k.npy v.npy --mask \"doc[q_idx] == doc[kv_idx]\" --buffer doc=doc.npy "
      "\\\n"
      "      -o out.npy\n"
      "  quire attend last.npy k.npy v.npy --causal --q-begin 4095 -o out.npy     one decode step");
  command->callback([arguments] { run_attend(*arguments); });
}

}  // namespace quire::cli
