// `quire demo`: a tour of what Quire does; everything shown is computed and checked on the spot.
// The report with pictures is `make demo`. Command line layer.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <vector>

#include "bench_rows.h"
#include "commands.h"
#include "demo_batch.h"
#include "machine.h"
#include "quire/block_mask.h"
#include "quire/draw.h"
#include "quire/error.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "quire/version.h"
#include "terminal.h"

namespace quire::cli {
namespace {

// Prints "what: yes" and remembers whether anything was a no.
class Findings {
 public:
  void say(const std::string& what, bool good) {
    fmt::print("  {:55} {}\n", what + ":", good ? "yes" : "NO");
    good_ &= good;
  }
  bool good() const { return good_; }

 private:
  bool good_ = true;
};

void show_masks() {
  fmt::print("{}", heading("Masks are formulas, and can be drawn"));
  DrawOptions options{.width = 32};
  if (wants_ascii())
    options.style = DrawStyle::kAscii;
  else if (wants_colour())
    options.style = DrawStyle::kColour;
  for (const char* name : {"sliding_window", "document", "natten_2d"}) {
    const mods::GalleryEntry& entry = mods::gallery_entry(name);
    options.title = fmt::format("{}: {}", name, entry.description);
    fmt::print("\n{}", draw(entry.mask_mod(), entry.sizes.q_len, entry.sizes.kv_len, options));
  }
}

void show_attention(Findings& findings) {
  fmt::print("{}", heading("One rule over dense, jagged and paged keys: the same bits"));
  const DemoBatch batch;
  fmt::print("  causal, and {}; sequences of {} tokens\n", DemoBatch::kRule, batch.lengths_text());
  const std::vector<Tensor> dense = batch.dense();
  const auto layout = [&](const std::string& name, const std::vector<Tensor>& outs) {
    const double error = batch.largest_error(outs);
    findings.say(fmt::format("{:18} error against f64 {:.1e}, bits equal", name, error),
                 error < 1e-6 && same_bits(outs, dense));
  };
  layout("dense, one by one", dense);
  layout("jagged, one call", batch.jagged());
  layout(fmt::format("pages of {} tokens", DemoBatch::kPage), batch.paged());
  SerialExecutor one;
  findings.say("all threads and one, bits equal", same_bits(batch.dense(&one), dense));
  bool isas = true;
  for (const Isa isa : available_isas()) {
    const ScopedIsa use(isa);
    isas &= same_bits(batch.dense(), dense);
  }
  findings.say("every ISA of this CPU, bits equal", isas);
}

void show_gradients(Findings& findings) {
  fmt::print("{}", heading("Its gradients, those of the captured table included"));
  const DemoBatch batch;
  for (const auto& [name, error] : batch.gradient_errors())
    findings.say(fmt::format("of {:15} error against f64 {:.1e}, within 1e-5", name, error),
                 error < 1e-5);
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
      version());
  fmt::print("{}{}", heading("This machine"), machine_text(*default_executor()));
  show_masks();
  show_attention(findings);
  show_gradients(findings);
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
  auto* command = app.add_subcommand(
      "demo", "A tour in the terminal: masks, layouts, bits, gradients, a million tokens, speed");
  add_colour_option(*command);
  command->footer(
      "Takes seconds. Exit code 1 if something it shows is wrong. Colours only on a terminal and\n"
      "without NO_COLOR, if --color does not say otherwise. The same with pictures, as one HTML "
      "file:\n"
      "make demo, in a clone of the sources. Examples:\n"
      "  quire demo\n"
      "  quire demo --color always | less -R");
  command->callback(run_demo);
}

}  // namespace quire::cli
