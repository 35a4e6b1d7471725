// CPU, ISA, threads, caches and measured peaks. Command line layer.
#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "bench/measure.h"
#include "quire/cpu_info.h"
#include "quire/isa.h"
#include "quire/tensor.h"

namespace quire::cli {
namespace {

constexpr int kRepetitions = 5;  // the best one counts: disturbances only slow down

std::string size_text(std::int64_t bytes) {
  if (bytes <= 0) return "unknown";
  return bytes % (1 << 20) == 0 ? fmt::format("{} MiB", bytes >> 20)
                                : fmt::format("{} KiB", bytes >> 10);
}

double read_speed(Executor& executor) {
  const std::int64_t mib = 1 << 20;
  // Much larger than the caches, if affordable.
  const std::int64_t bytes =
      std::clamp(4 * std::max(cpu_info().l3_bytes, cpu_info().l2_bytes), 64 * mib, 256 * mib);
  const Tensor memory({bytes}, DType::u8);
  const std::size_t parts = executor.concurrency();
  const std::size_t part = bytes / parts / 1024 * 1024;
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const double start = bench::now();
    executor.run(parts, [&](std::size_t at, std::size_t) {
      const kernels::PeakFunctions& peaks = *kernels::current_table().peaks;
      volatile float sink = peaks.read(static_cast<const char*>(memory.data()) + at * part, part);
      (void)sink;
    });
    best = std::max(best, static_cast<double>(part * parts) / (bench::now() - start));
  }
  return best;
}

}  // namespace

Peaks measure_peaks(Executor& executor) {
  Peaks peaks;
  const bool has_pairs = kernels::current_table().peaks->pairs_bf16 != nullptr;
  for (int i = 0; i < kRepetitions; ++i) {
    peaks.f32 = std::max(peaks.f32, bench::peak(executor, false));
    if (has_pairs) peaks.bf16 = std::max(peaks.bf16, bench::peak(executor, true));
  }
  peaks.read = read_speed(executor);
  return peaks;
}

std::string to_string(const Peaks& peaks) {
  const std::string pairs =
      peaks.bf16 > 0 ? fmt::format("bf16 {:.0f} GFLOP/s, ", peaks.bf16 * 1e-9) : "";
  return fmt::format("f32 {:.{}f} GFLOP/s, {}memory {:.1f} GB/s", peaks.f32 * 1e-9,
                     peaks.f32 < 10e9 ? 1 : 0, pairs, peaks.read * 1e-9);
}

std::string machine_text(Executor& executor) {
  const CpuInfo cpu = cpu_info();
  const IsaChoice choice = isa_choice();
  std::string isas, features;
  for (const Isa isa : available_isas())
    isas += fmt::format("{}{}", isas.empty() ? "" : " ", isa_name(isa));
  for (const std::string& feature : cpu.features)
    features += (features.empty() ? "" : " ") + feature;
  std::string text = fmt::format("cpu        {}\n", cpu.model);
  text += fmt::format("features   {}\n", features.empty() ? "unknown" : features);
  text += fmt::format("isa        {} ({})\n", isa_name(choice.isa), choice.why);
  text += fmt::format("available  {} (force one with QUIRE_ISA)\n", isas);
  text += fmt::format("threads    {} of {} CPUs (QUIRE_NUM_THREADS)\n", executor.concurrency(),
                      cpu.logical_cpus);
  text += fmt::format("caches     L1d {}, L2 {}, L3 {}\n", size_text(cpu.l1d_bytes),
                      size_text(cpu.l2_bytes), size_text(cpu.l3_bytes));
  return text + fmt::format("peaks      {} (measured now)\n", to_string(measure_peaks(executor)));
}

}  // namespace quire::cli
