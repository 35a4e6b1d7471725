// What `bench` and `demo` measure, and how a row of results is printed. Command line layer.
#pragma once
#include <string>
#include <vector>

#include "bench/peak_share.h"

namespace quire::cli {

struct BenchRow {
  std::string what;  // in a few words
  bench::Problem problem;
  bool of_stream = false;  // limited by memory bandwidth
};

/// `small` for one lane: a fraction of the work.
std::vector<BenchRow> bench_rows(bool small);

/// One line, with a bar.
std::string row_text(const BenchRow& row, const bench::PeakShare& found);

}  // namespace quire::cli
