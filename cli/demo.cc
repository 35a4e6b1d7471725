// `quire demo`: a tour of what Quire does, each part computed and checked here and now. The report
// with pictures is `make demo`.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bench_rows.h"
#include "commands.h"
#include "machine.h"
#include "quire/draw.h"
#include "quire/error.h"
#include "quire/isa.h"
#include "quire/jagged.h"
#include "reference/attention.h"
#include "terminal.h"

namespace quire::cli {
namespace {

constexpr const char* kAlibi = "score + slopes[h] * (kv_idx - q_idx)";
constexpr std::int64_t kHeads = 4, kDim = 32;

Tensor random(const Shape& shape, std::uint64_t seed) {
  Tensor values = Tensor::empty(shape, DType::f32);
  bench::fill(values, seed);
  return values;
}

bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  const Tensor x = contiguous(a), y = contiguous(b);
  return x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.numel()) * sizeof(float)) == 0;
}

// Prints "what: yes" and keeps whether anything was a no.
class Findings {
 public:
  void say(const std::string& what, bool good) {
    fmt::print("  {:48} {}\n", what + ":", good ? "yes" : "NO");
    good_ &= good;
  }
  bool good() const { return good_; }

 private:
  bool good_ = true;
};

void show_masks() {
  fmt::print("{}", heading("Masks are formulas, and can be drawn"));
  DrawOptions options{.width = 32};
  if (wants_colour()) options.style = DrawStyle::kColour;
  for (const char* name : {"sliding_window", "document", "natten_2d"}) {
    const mods::GalleryEntry& entry = mods::gallery_entry(name);
    options.title = fmt::format("{}: {}", name, entry.description);
    fmt::print("\n{}", draw(entry.mask_mod(), entry.sizes.q_len, entry.sizes.kv_len, options));
  }
}

// Sequences of a batch, packed; each computed alone for comparison.
struct Batch {
  std::vector<std::int64_t> begins = {0, 37, 37, 137, 300};  // one is empty
  Tensor q = random({300, kHeads, kDim}, 1), k = random({300, kHeads, kDim}, 2),
         v = random({300, kHeads, kDim}, 3);
  Tensor offsets = Tensor::from(begins);
  ScoreMod alibi = ScoreMod::parse(kAlibi, {{"slopes", Buffer(mods::alibi_slopes(kHeads))}});

  ConstTensorView sequence(const Tensor& values, std::size_t i) const {  // [1, H, L, D]
    return std::as_const(values)
        .view()
        .slice(0, begins[i], begins[i + 1])
        .transpose(0, 1)
        .unsqueeze(0);
  }
  Jagged jagged(const Tensor& values) const { return {.values = values, .offsets = offsets}; }

  Tensor dense(std::size_t i, Executor* executor = nullptr) const {
    const std::int64_t length = begins[i + 1] - begins[i];
    return flex_attention(sequence(q, i), sequence(k, i), sequence(v, i),
                          {.score_mod = alibi,
                           .block_mask = create_block_mask(mods::causal(), 1, 1, length, length),
                           .executor = executor});
  }
};

double largest_error(const Batch& batch) {
  double error = 0;
  for (std::size_t i = 0; i + 1 < batch.begins.size(); ++i) {
    const Tensor out = batch.dense(i);
    const Tensor exact =
        reference::attention(
            {batch.sequence(batch.q, i), batch.sequence(batch.k, i), batch.sequence(batch.v, i)},
            {.score_mod = batch.alibi, .mask_mod = mods::causal()})
            .out;
    for (std::int64_t j = 0; j < out.numel(); ++j)
      error = std::max(error, std::fabs(exact.data_as<double>()[j] -
                                        static_cast<double>(out.data_as<float>()[j])));
  }
  return error;
}

void show_attention(Findings& findings) {
  fmt::print("{}", heading("Attention with a rule of one's own: the same bits everywhere"));
  fmt::print("  causal, and {}\n", kAlibi);
  const Batch batch;
  const Tensor packed =
      flex_attention(batch.jagged(batch.q), batch.jagged(batch.k), batch.jagged(batch.v),
                     {.score_mod = batch.alibi, .mask_mod = mods::causal()});
  const double error = largest_error(batch);
  fmt::print("  largest error against plain loops in f64:         {:.1e}\n", error);
  findings.say("within 1e-6", error < 1e-6);
  bool jagged = true, threads = true, isas = true;
  SerialExecutor one;
  for (std::size_t i = 0; i + 1 < batch.begins.size(); ++i) {
    const Tensor alone = batch.dense(i);
    jagged &= same_bits(alone, batch.sequence(packed, i));
    threads &= same_bits(alone, batch.dense(i, &one));
    for (const Isa isa : available_isas()) {
      const ScopedIsa use(isa);
      isas &= same_bits(alone, batch.dense(i));
    }
  }
  findings.say("dense and jagged, bits equal", jagged);
  findings.say("all threads and one, bits equal", threads);
  findings.say("every ISA of this CPU, bits equal", isas);
}

void show_million(Findings& findings) {
  fmt::print("{}", heading("A mask over a million tokens is proved, not filled in"));
  constexpr std::int64_t kLength = 1 << 20;
  const MaskMod rule =
      MaskMod::parse("(q_idx >= kv_idx) & ((q_idx - kv_idx < 4096) | (kv_idx < 64))");
  const auto start = std::chrono::steady_clock::now();
  const BlockMask mask = create_block_mask(rule, 1, 1, kLength, kLength);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  fmt::print("  {}\n", rule.to_string());
  fmt::print("  {} x {} tokens: {:.1f} ms, {:.0f} KiB, {:.2f} % never computed\n", kLength, kLength,
             time.count(), static_cast<double>(mask.nbytes()) / 1024, mask.sparsity());
  using enum BlockKind;
  findings.say("far behind: hidden; inside the window: full",
               mask.kind(0, 0, 8000, 4000) == kEmpty && mask.kind(0, 0, 8000, 7990) == kFull);
}

void show_mistake(Findings& findings) {
  fmt::print("{}", heading("A mistake is shown where it is"));
  try {
    ScoreMod::parse("score + slope[h] * (kv_idx - q)", {{"slopes", Buffer(std::vector{1.f})}});
    findings.say("refused", false);
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
  }
}

void show_speed() {
  fmt::print("{}", heading("Speed, as a share of what this machine can do"));
  const auto executor = default_executor();
  const Progress progress(3);
  std::int64_t done = 0;
  for (const BenchRow& row : bench_rows(kernels::current_table().lanes == 1)) {
    if (row.what != "prefill" && row.what != "prefill, causal" && !row.what.starts_with("decode"))
      continue;
    progress.show(done++, row.what);
    const bench::PeakShare found = bench::measure_share(row.problem, row.of_stream, *executor, 5);
    progress.wipe();
    fmt::print("  {}", row_text(row, found));
    std::fflush(stdout);
  }
}

void run_demo() {
  Findings findings;
  fmt::print(
      "Quire {}: programmable attention for CPUs. The rule that changes a score or hides a key\n"
      "is a one-line formula; its block mask is proved, and it runs inside the attention kernel.\n",
      QUIRE_VERSION);
  fmt::print("{}{}", heading("This machine"), machine_text(*default_executor()));
  show_masks();
  show_attention(findings);
  show_million(findings);
  show_mistake(findings);
  show_speed();
  fmt::print("{}", heading("What to try next"));
  for (const auto& [command, what] :
       {std::pair{"quire draw \"abs(q_idx - kv_idx) < 9\"",
                  "your own mask; draw --list: the gallery"},
        {"quire explain \"20 * tanh(score / 20)\"", "what becomes of a formula"},
        {"quire attend q.npy k.npy v.npy -o out.npy", "attention over your own arrays"},
        {"quire bench", "more rows of the table above"},
        {"make demo", "the tour as a report with pictures, from a clone"}})
    fmt::print("  {:46} {}\n", command, what);
  if (!findings.good()) throw Error(ErrorKind::runtime, "[demo] something above is NO");
}

}  // namespace

void add_demo(CLI::App& app) {
  auto* command =
      app.add_subcommand("demo", "A tour in the terminal: masks, bits, a million tokens, speed");
  command->footer(
      "Takes seconds. Exit code 1 if something it shows is wrong. Colours only on a terminal and\n"
      "without NO_COLOR.\n"
      "  quire demo");
  command->callback(run_demo);
}

}  // namespace quire::cli
