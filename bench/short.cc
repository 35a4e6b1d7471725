// Short calls, where most of the users are: whole calls, planning included, over pages against the
// same keys in dense tensors; chunks of few queries over many keys, and lengths of 16 to 8,192, as
// shares of what the machine can do.
//
//   short [group ...] [--only TEXT] [--threads N] [--repetitions N] [--json]
//   groups: pages encoder chunk curve
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "bench/paged_problem.h"
#include "bench/peak_share.h"
#include "bench/problem.h"
#include "bench/settings.h"
#include "quire/flex_attention.h"

namespace quire::bench {
namespace {

// Whole calls: what a step of decoding pays when its plan serves one layer.
void measure_call(const PagedProblem& p, const Settings& settings) {
  if (!settings.wants("pages", p.name())) return;
  const auto executor = make_thread_pool(settings.threads);
  const PagedTensors t(p);
  const AttentionOptions options{.enable_gqa = true, .executor = executor.get()};
  print_ratio(
      settings, "call, " + p.name(), "x dense", [&] { flex_attention(t.q, t.keys(), options); },
      [&] { flex_attention(t.q, t.k.view(), t.v.view(), options); });
}

void measure_problem(const Problem& problem, const std::string& group, const Settings& settings) {
  if (!settings.wants(group, problem.name())) return;
  const auto executor = make_thread_pool(settings.threads);
  const PeakShare found = measure_share(problem, false, *executor, settings.repetitions);
  print(settings, fmt::format("{}, {}", group, problem.name()), "of the peak", found.share,
        found.low, found.high);
}

Problem square(std::int64_t length, std::int64_t dim, DType dtype, const char* mask) {
  Problem p;
  p.q_len = p.kv_len = length;
  p.head_dim = p.v_head_dim = dim;
  p.q_dtype = p.k_dtype = p.v_dtype = dtype;
  p.mask = mask;
  if (length > 2048) p.q_heads = p.kv_heads = 4;
  return p;
}

int run(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  print_head(settings);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t batch : {1, 4, 16})
      for (const std::int64_t length : {128, 512, 2048})
        measure_call({.batch = batch, .kv_len = length, .page_size = 32, .dtype = dtype}, settings);
    Problem encoder = square(128, 64, dtype, "");
    encoder.batch = 8;
    encoder.q_heads = encoder.kv_heads = 12;
    measure_problem(encoder, "encoder", settings);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t queries : {32, 64, 128}) {
      Problem chunk = square(8192, 128, dtype, "");
      chunk.q_len = queries;
      chunk.q_heads = chunk.kv_heads = 8;
      measure_problem(chunk, "chunk", settings);
      chunk.batch = 4;
      measure_problem(chunk, "chunk", settings);
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t dim : {64, 128})
      for (const char* mask : {"", "causal"})
        for (std::int64_t length = 16; length <= 8192; length *= 2)
          measure_problem(square(length, dim, dtype, mask), "curve", settings);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
