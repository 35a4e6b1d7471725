// `quire bench`: a few calls of attention as a share of what this machine can do. Command line
// layer.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/peak_share.h"
#include "bench_rows.h"
#include "commands.h"
#include "machine.h"
#include "number_option.h"
#include "quire/cpu_info.h"
#include "quire/isa.h"
#include "quire/version.h"
#include "terminal.h"

namespace quire::cli {
namespace {

struct BenchArguments {
  bool json = false;
  int repetitions = 7;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

std::string json_row(const BenchRow& row, const bench::PeakShare& found) {
  return fmt::format(
      "{{\"what\": {}, \"problem\": {}, \"ms\": {:.4f}, \"share\": {:.4f}, \"low\": {:.4f}, "
      "\"high\": {:.4f}, \"of\": \"{}\", \"gflops\": {:.2f}, \"gbytes\": {:.2f}}}",
      quoted(row.what), quoted(row.problem.name()), found.seconds * 1e3, found.share, found.low,
      found.high, row.of_stream ? "read" : "peak", row.problem.flops() / found.seconds * 1e-9,
      row.problem.bytes() / found.seconds * 1e-9);
}

void print_json(const Peaks& peaks, std::size_t threads, const std::vector<std::string>& rows) {
  fmt::print("{{\"quire\": \"{}\", \"cpu\": {}, \"isa\": \"{}\", \"threads\": {},\n", version(),
             quoted(cpu_info().model), isa_name(current_isa()), threads);
  fmt::print(" \"peaks\": {{\"f32_gflops\": {:.2f}, \"bf16_gflops\": {:.2f}, \"read_gbytes\": ",
             peaks.f32 * 1e-9, peaks.bf16 * 1e-9);
  fmt::print("{:.2f}}},\n \"rows\": [\n", peaks.read * 1e-9);
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::print("  {}{}\n", rows[i], i + 1 < rows.size() ? "," : "");
  fmt::print(" ]}}\n");
}

void run_bench(const BenchArguments& arguments) {
  const auto executor = default_executor();
  const Peaks peaks = measure_peaks(*executor);
  const std::vector<BenchRow> rows = bench_rows(kernels::current_table().lanes == 1);
  if (!arguments.json) {
    fmt::print("{}, isa {}, {} threads, medians of {}\n{}\n\n", cpu_info().model,
               isa_name(current_isa()), executor->concurrency(), arguments.repetitions,
               to_string(peaks));
  }
  const Progress progress(static_cast<std::int64_t>(rows.size()));
  std::vector<std::string> written;
  for (const BenchRow& row : rows) {
    progress.show(static_cast<std::int64_t>(&row - rows.data()), row.what);
    const bench::PeakShare found =
        bench::measure_share(row.problem, row.of_stream, *executor, arguments.repetitions);
    progress.wipe();
    if (arguments.json)
      written.push_back(json_row(row, found));
    else
      fmt::print("{}", row_text(row, found));
    std::fflush(stdout);
  }
  if (arguments.json) return print_json(peaks, executor->concurrency(), written);
  fmt::print(
      "\n\"of peak\": of the multiply-adds this machine can do; \"of read\": of the time a plain\n"
      "read of keys and values takes. Both are timed beside every repetition.\n");
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand(
      "bench", "Attention on this machine as a share of its measured peaks, in seconds");
  const auto arguments = std::make_shared<BenchArguments>();
  command->add_flag("--json", arguments->json, "One JSON object instead of a table");
  add_number(*command, "--repetitions", arguments->repetitions, "Of each row; the median counts", 1,
             1000)
      ->capture_default_str();
  command->footer(
      "Shorter than `make bench`, which measures everything. Examples:\n"
      "  quire bench\n"
      "  QUIRE_ISA=avx2 quire bench          the share of that ISA's own peak\n"
      "  QUIRE_NUM_THREADS=1 quire bench --json > one.json");
  command->callback([arguments] { run_bench(*arguments); });
}

}  // namespace quire::cli
