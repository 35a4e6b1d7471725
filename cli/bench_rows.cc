// The rows of `quire bench`. Command line layer.
#include "bench_rows.h"

#include <fmt/format.h>

#include "terminal.h"

namespace quire::cli {

std::vector<BenchRow> bench_rows(bool small) {
  bench::Problem square;
  square.q_heads = square.kv_heads = small ? 2 : 8;
  square.q_len = square.kv_len = small ? 256 : 1024;
  std::vector<BenchRow> rows;
  const auto add = [&](const char* what, const char* mask, const char* score) {
    rows.push_back({what, square});
    rows.back().problem.mask = mask;
    rows.back().problem.score = score;
  };
  add("prefill", "", "");
  add("prefill, causal", "causal", "");
  add("prefill, causal, ALiBi", "causal", "alibi");
  add("prefill, soft-cap", "", "softcap");
  add("prefill, window of 256", "window 256", "");
  bench::Problem& window = rows.back().problem;
  if (!small) window.q_len = window.kv_len = 4096;
  add("prefill, bf16", "", "");
  bench::Problem& half = rows.back().problem;
  half.q_dtype = half.k_dtype = half.v_dtype = DType::bf16;
  bench::Problem decode;
  decode.q_heads = 32;
  decode.kv_heads = 8;
  decode.q_len = 1;
  decode.kv_len = small ? 1024 : 8192;
  decode.head_dim = decode.v_head_dim = 128;
  decode.batch = small ? 1 : 2;
  rows.push_back({"decode, 4 heads a key head", decode, true});
  decode.q_dtype = decode.k_dtype = decode.v_dtype = DType::bf16;
  decode.batch *= 2;
  rows.push_back({"the same in bf16", decode, true});
  return rows;
}

std::string row_text(const BenchRow& row, const bench::PeakShare& found) {
  const std::string speed =
      row.of_stream ? fmt::format("{:6.1f} GB/s   ", row.problem.bytes() / found.seconds * 1e-9)
                    : fmt::format("{:6.1f} GFLOP/s", row.problem.flops() / found.seconds * 1e-9);
  return fmt::format("{:27} {:9.3f} ms  {}  {:5.1f} % of {} {}\n", row.what, found.seconds * 1e3,
                     speed, 100 * found.share, row.of_stream ? "read" : "peak",
                     bar(found.share, 20));
}

}  // namespace quire::cli
