// `quire info`: the CPU, the ISA chosen and why, threads, caches, measured peaks. Command line
// layer.
#include <fmt/format.h>

#include "commands.h"
#include "machine.h"
#include "quire/version.h"

namespace quire::cli {

void add_info(CLI::App& app) {
  auto* command =
      app.add_subcommand("info", "CPU, ISA chosen and why, threads, caches, measured peaks");
  command->footer(
      "The peaks are what this machine can do at best on as many threads: multiply-adds on\n"
      "registers, and reading memory. Measured anew each time, in a fifth of a second. Examples:\n"
      "  quire info\n"
      "  QUIRE_ISA=avx2 QUIRE_NUM_THREADS=1 quire info");
  command->callback([] {
    const std::string text =
        machine_text(*default_executor());  // throws before anything is printed
    fmt::print("quire      {}\n{}", version(), text);
  });
}

}  // namespace quire::cli
