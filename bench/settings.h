// The command line that the benchmarks of attention share: [groups] --threads N --repetitions N
// --only TEXT --isa NAME,.. --json, and the line they begin with. Benchmarks only.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "quire/cpu_info.h"
#include "quire/isa.h"

namespace quire::bench {

inline constexpr int kShortRepetitions = 3;  // of make bench

struct Settings {
  int threads = 2;
  int repetitions = 9;
  bool json = false;
  std::vector<std::string> groups = {};  // none: all
  std::string only = {};                 // of rows, those whose name has this in it
  std::vector<std::string> isas = {};    // on which rows are measured; at least one

  bool wants(const std::string& group) const {
    return groups.empty() || std::find(groups.begin(), groups.end(), group) != groups.end();
  }
  bool wants(const std::string& group, const std::string& name) const {
    return wants(group) && name.find(only) != std::string::npos;
  }
};

/// "avx2,avx512", or "all" that this machine has.
inline std::vector<std::string> isas_of(const std::string& text) {
  std::vector<std::string> isas;
  if (text == "all") {
    for (const Isa isa : available_isas()) isas.emplace_back(isa_name(isa));
    return isas;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    isas.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return isas;
}

inline Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json")
      settings.json = true;
    else if (word == "--threads" && i + 1 < argc)
      settings.threads = std::atoi(argv[++i]);
    else if (word == "--only" && i + 1 < argc)
      settings.only = argv[++i];
    else if (word == "--isa" && i + 1 < argc)
      settings.isas = isas_of(argv[++i]);
    else if (word == "--repetitions" && i + 1 < argc)
      settings.repetitions = std::max(1, std::atoi(argv[++i]));
    else if (word.rfind("--benchmark_min_time=", 0) == 0)  // how short settings are asked for
      settings.repetitions = std::min(settings.repetitions, kShortRepetitions);
    else if (word.rfind("--", 0) != 0)  // other options of Google Benchmark mean nothing here
      settings.groups.push_back(word);
  }
  if (settings.isas.empty()) settings.isas = {isa_name(current_isa())};
  return settings;
}

inline void print_head(const Settings& settings) {
  if (settings.json) return;
  fmt::print("{}, isa {}, {} threads, medians of {}\n", cpu_info().model,
             fmt::join(settings.isas, " "), settings.threads, settings.repetitions);
}

}  // namespace quire::bench
