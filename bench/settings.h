// The command line that the benchmarks of attention share: [groups] --threads N --repetitions N
// --only TEXT --json, and the line they begin with. Benchmarks only.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "quire/cpu_info.h"

namespace quire::bench {

inline constexpr int kShortRepetitions = 3;  // of make bench

struct Settings {
  int threads = 2;
  int repetitions = 9;
  bool json = false;
  std::vector<std::string> groups = {};  // none: all
  std::string only = {};                 // of rows, those whose name has this in it

  bool wants(const std::string& group) const {
    return groups.empty() || std::find(groups.begin(), groups.end(), group) != groups.end();
  }
  bool wants(const std::string& group, const std::string& name) const {
    return wants(group) && name.find(only) != std::string::npos;
  }
};

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
    else if (word == "--repetitions" && i + 1 < argc)
      settings.repetitions = std::max(1, std::atoi(argv[++i]));
    else if (word.rfind("--benchmark_min_time=", 0) == 0)  // how short settings are asked for
      settings.repetitions = std::min(settings.repetitions, kShortRepetitions);
    else if (word.rfind("--", 0) != 0)  // other options of Google Benchmark mean nothing here
      settings.groups.push_back(word);
  }
  return settings;
}

inline void print_head(const Settings& settings) {
  if (settings.json) return;
  fmt::print("{}, isa {}, {} threads, medians of {}\n", cpu_info().model,
             kernels::current_table().name, settings.threads, settings.repetitions);
}

}  // namespace quire::bench
