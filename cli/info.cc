// `quire info`: the CPU, the ISA chosen and why, threads, caches.
#include <fmt/format.h>

#include <string>

#include "commands.h"
#include "quire/cpu_info.h"
#include "quire/executor.h"
#include "quire/isa.h"

namespace quire::cli {
namespace {

std::string size_text(std::int64_t bytes) {
  if (bytes <= 0) return "unknown";
  return bytes % (1 << 20) == 0 ? fmt::format("{} MiB", bytes >> 20)
                                : fmt::format("{} KiB", bytes >> 10);
}

void print_info() {
  const CpuInfo cpu = cpu_info();
  const IsaChoice choice = isa_choice();
  const int threads = get_num_threads();  // throws before anything is printed
  std::string isas, features;
  for (const Isa isa : available_isas())
    isas += fmt::format("{}{}", isas.empty() ? "" : " ", isa_name(isa));
  for (const std::string& feature : cpu.features)
    features += (features.empty() ? "" : " ") + feature;
  fmt::print("quire      {}\n", QUIRE_VERSION);
  fmt::print("cpu        {}\n", cpu.model);
  fmt::print("features   {}\n", features.empty() ? "unknown" : features);
  fmt::print("isa        {} ({})\n", isa_name(choice.isa), choice.why);
  fmt::print("available  {} (force one with QUIRE_ISA)\n", isas);
  fmt::print("threads    {} of {} CPUs (QUIRE_NUM_THREADS)\n", threads, cpu.logical_cpus);
  fmt::print("caches     L1d {}, L2 {}, L3 {}\n", size_text(cpu.l1d_bytes), size_text(cpu.l2_bytes),
             size_text(cpu.l3_bytes));
}

}  // namespace

void add_info(CLI::App& app) {
  app.add_subcommand("info", "CPU, ISA chosen and why, threads, caches")->callback(print_info);
}

}  // namespace quire::cli
