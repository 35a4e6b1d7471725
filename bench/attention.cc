// flex_attention as a share of what the machine can do: of the multiply-adds it could have done
// (prefill), or of the time a plain read of keys and values takes (decode). The peak is timed
// before and after every repetition, on as many threads; the share is the median.
//
//   attention [group ...] [--only TEXT] [--threads N] [--repetitions N] [--isa NAME,..] [--json]
//   groups: prefill causal dims strided bf16 mods masks decode rows tiny scaling
//   --only TEXT: of these, the rows whose name holds the text
//
//   --isa avx2,avx512: each row on each of these ISAs in turn; all: on all that this machine has.
//   The share is that of the ISA's own peak.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/peak_share.h"
#include "bench/settings.h"
#include "quire/isa.h"

namespace quire::bench {
namespace {

struct Row {
  std::string group, name;
  double milliseconds = 0, share = 0, low = 0, high = 0, gigaflops = 0, gigabytes = 0;
  bool of_stream = false;
};

Row measure(const Problem& problem, const std::string& group, bool of_stream,
            const Settings& settings) {
  const auto executor = make_thread_pool(settings.threads);
  const PeakShare found = measure_share(problem, of_stream, *executor, settings.repetitions);
  return {.group = group,
          .name = problem.name(),
          .milliseconds = found.seconds * 1e3,
          .share = found.share,
          .low = found.low,
          .high = found.high,
          .gigaflops = problem.flops() / found.seconds * 1e-9,
          .gigabytes = problem.bytes() / found.seconds * 1e-9,
          .of_stream = of_stream};
}

void print(const Row& row, const Settings& settings) {
  const char* const isa = kernels::current_table().name;
  if (settings.json) {
    fmt::print(
        "{{\"group\": \"{}\", \"name\": \"{}\", \"isa\": \"{}\", \"ms\": {:.4f}, \"share\": "
        "{:.4f}, \"low\": "
        "{:.4f}, \"high\": {:.4f}, \"gflops\": {:.1f}, \"gbytes\": {:.2f}, \"of\": \"{}\"}}\n",
        row.group, row.name, isa, row.milliseconds, row.share, row.low, row.high, row.gigaflops,
        row.gigabytes, row.of_stream ? "stream" : "fma");
  } else {
    if (settings.isas.size() > 1) fmt::print("{:11} ", isa);
    fmt::print("{:9} {:58} {:9.3f} ms  {:5.3f} of {} ({:.3f}-{:.3f})  {:7.1f} GF/s {:6.1f} GB/s\n",
               row.group, row.name, row.milliseconds, row.share, row.of_stream ? "read" : "peak",
               row.low, row.high, row.gigaflops, row.gigabytes);
  }
  std::fflush(stdout);
}

struct Entry {
  std::string group;
  Problem problem;
  bool of_stream = false;
};

Problem square(std::int64_t length, std::int64_t dim) {
  Problem p;
  p.q_len = p.kv_len = length;
  p.head_dim = p.v_head_dim = dim;
  if (length > 4096) p.q_heads = p.kv_heads = 4;
  return p;
}

Problem with_dtype(Problem p, DType dtype) {
  p.q_dtype = p.k_dtype = p.v_dtype = dtype;
  return p;
}

void add_prefill(std::vector<Entry>& all) {
  for (const std::int64_t length : {512, 2048, 8192}) {
    for (const std::int64_t dim : {64, 128}) {
      Problem p = square(length, dim);
      all.push_back({"prefill", p});
      p.mask = "causal";
      all.push_back({"causal", p});
    }
  }
  for (const std::int64_t dim : {64, 128}) {
    Problem p = square(2048, dim);
    p.heads_inside = true;
    all.push_back({"strided", p});
    p.mask = "causal";
    all.push_back({"strided", p});
    for (const std::int64_t length : {512, 2048, 8192}) {
      for (const char* mask : {"", "causal"}) {
        Problem half = with_dtype(square(length, dim), DType::bf16);
        half.mask = mask;
        all.push_back({"bf16", half});
      }
    }
  }
}

void add_dims(std::vector<Entry>& all) {
  for (const std::int64_t dim : {16, 40, 72, 80, 96, 256})
    all.push_back({"dims", square(2048, dim)});
  for (const auto& [e, ev] : {std::pair<std::int64_t, std::int64_t>{192, 128}, {64, 128}}) {
    Problem p = square(2048, e);
    p.v_head_dim = ev;
    all.push_back({"dims", p});
  }
  all.push_back({"dims", with_dtype(square(2048, 64), DType::f16)});
  Problem mixed = square(2048, 64);
  mixed.k_dtype = mixed.v_dtype = DType::bf16;
  all.push_back({"dims", mixed});
  Problem outside = square(2048, 64);
  outside.dim_outside = true;
  all.push_back({"dims", outside});
  Problem hundred = square(2048, 64);
  hundred.q_len = 100;
  all.push_back({"dims", hundred});
}

void add_mods(std::vector<Entry>& all) {
  all.push_back({"mods", square(2048, 64)});
  for (const char* score :
       {"alibi", "relative bias", "softcap", "dense bias", "twelve operations"}) {
    Problem p = square(2048, 64);
    p.score = score;
    all.push_back({"mods", p});
  }
  for (const char* mask : {"causal everywhere", "window everywhere", "document everywhere"}) {
    Problem p = square(2048, 64);
    p.mask = mask;
    all.push_back({"mods", p});
  }
  for (const std::int64_t block : {128, 64, 16}) {
    Problem p = square(2048, 64);
    p.mask = "causal";
    p.block = block;
    all.push_back({"masks", p});
  }
  Problem window = square(8192, 64);
  window.mask = "window 256";
  all.push_back({"masks", window});
}

void add_decode(std::vector<Entry>& all) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem p = with_dtype(square(8192, 128), dtype);
    p.q_heads = 32;
    p.kv_heads = 8;
    p.q_len = 1;
    p.batch = dtype == DType::f32 ? 10 : 20;
    all.push_back({"decode", p, true});
  }
  for (const std::int64_t rows : {1, 2, 4, 8, 12, 13, 16, 24, 32}) {
    Problem p = square(8192, 128);
    p.q_heads = p.kv_heads = 8;
    p.q_len = rows;
    all.push_back({"rows", p, true});
  }
  Problem tiny = square(16, 64);
  tiny.batch = 256;
  all.push_back({"tiny", tiny});
}

int run(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  print_head(settings);
  std::vector<Entry> all;
  add_prefill(all);
  add_dims(all);
  add_mods(all);
  add_decode(all);
  for (const Entry& entry : all) {
    if (!settings.wants(entry.group, entry.problem.name())) continue;
    for (const std::string& isa : settings.isas) {
      const ScopedIsa chosen(isa);
      print(measure(entry.problem, entry.group, entry.of_stream, settings), settings);
    }
  }
  if (settings.wants("scaling") && !settings.json) {
    Settings one = settings;
    one.threads = 1;
    const double alone = measure(square(2048, 64), "scaling", false, one).milliseconds;
    const double both = measure(square(2048, 64), "scaling", false, settings).milliseconds;
    fmt::print("{:9} 1 -> {} threads: {:.2f} times as fast\n", "scaling", settings.threads,
               alone / both);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
