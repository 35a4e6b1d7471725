// The decode kernel beside a read of the same memory: what share of the machine's bandwidth one
// thread reaches. 32 query heads over 8 key heads (or another group), D = 128, 8,192 keys, more
// than 600 MB of keys and values, each repetition timed next to a plain read; the counter of_stream
// is the median of the ratios.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/decode.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"

namespace quire {
namespace {

constexpr int kHeads = 8, kKeys = 8192, kDims = 128;
constexpr std::size_t kBytes = std::size_t{320} << 20;  // of keys, and of values

struct Memory {
  explicit Memory(std::size_t bytes)
      : data(static_cast<char*>(std::aligned_alloc(std::size_t{2} << 20, bytes)), &std::free) {
    madvise(data.get(), bytes, MADV_HUGEPAGE);
  }
  std::unique_ptr<char, decltype(&std::free)> data;
};

// Numbers of a normal size in every type: the high byte of a 16-bit float, or of an f32, decides.
void fill(char* at, std::size_t bytes, DType dtype) {
  std::mt19937 random(1);
  for (std::size_t i = 0; i < bytes; i += 4) {
    std::uint32_t bits = random();
    if (dtype == DType::f32) bits = (bits & 0x807fffffu) | 0x3f000000u;
    if (dtype == DType::bf16) bits = (bits & 0x807f807fu) | 0x3f003f00u;
    if (dtype == DType::f16) bits = (bits & 0x83ff83ffu) | 0x38003800u;
    std::memcpy(at + i, &bits, 4);
  }
}

std::uint64_t read_all(const char* at, std::size_t bytes) {
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i < bytes; i += sizeof(sums)) {
    std::uint64_t x[32];
    std::memcpy(x, at + i, sizeof(sums));
    for (int j = 0; j < 32; ++j) sums[j] ^= x[j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), std::uint64_t{0});
}

// Of this thread: what other processes take does not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// One (batch, key head) after the other; pages of `page` keys in random order, 0: none.
struct Work {
  std::vector<kernels::KeySpan> spans;
  std::vector<kernels::QueryRow> rows;
  std::vector<kernels::DecodeItem> items;

  Work(std::size_t element, int group, int page) {
    const std::int64_t length = page == 0 ? kKeys : page, per_item = kKeys / length;
    const auto count = static_cast<std::int64_t>(kBytes / (kKeys * kDims * element));
    std::vector<std::int64_t> order(static_cast<std::size_t>(count * per_item));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (page != 0) std::shuffle(order.begin(), order.end(), std::mt19937(2));
    for (std::int64_t i = 0; i < count * per_item; ++i) {
      const std::int64_t begin = i % per_item * length,
                         offset = order[static_cast<std::size_t>(i)] * length * kDims;
      spans.push_back({begin, begin + length, offset, offset});
    }
    for (int g = 0; g < group; ++g) {
      kernels::QueryRow row{.b = 0,
                            .h = g,
                            .q_idx = kKeys - 1,
                            .q_offset = std::int64_t{g} * kDims,
                            .out_offset = std::int64_t{g} * kDims,
                            .stat_offset = g,
                            .visible = {nullptr, -1}};
      rows.push_back(row);
    }
    for (std::int64_t i = 0; i < count; ++i)
      items.push_back({.keys = {spans.data() + i * per_item, per_item, kKeys},
                       .rows = rows.data(),
                       .row_count = group,
                       .split_begin = 0,
                       .split_end = kKeys / kernels::kSplitKeys,
                       .states = nullptr});
  }
};

void decode(benchmark::State& state, DType dtype) {
  const int group = static_cast<int>(state.range(0)), page = static_cast<int>(state.range(1));
  Memory k(kBytes), v(kBytes);
  fill(k.data.get(), kBytes, dtype);
  fill(v.data.get(), kBytes, dtype);
  const Work work(dtype_size(dtype), group, page);
  std::vector<char> q(static_cast<std::size_t>(group) * kDims * dtype_size(dtype)), out(q.size());
  fill(q.data(), q.size(), dtype);
  const kernels::KernelTable& table = kernels::current_table();
  kernels::ForwardCall call;
  call.table = &table;
  call.q = q.data();
  call.k = k.data.get();
  call.v = v.data.get();
  call.out = out.data();
  call.q_rows = call.k_rows = call.v_rows = call.out_rows = {dtype, kDims, 1};
  call.dims = call.value_dims = kDims;
  call.scale = 1 / 11.3137085;
  call.pairs = dtype == DType::bf16 && table.pairs != nullptr;
  Memory scratch(kernels::decode_scratch_bytes(call, group));
  std::vector<double> shares, rates;
  for (auto _ : state) {
    const double start = seconds();
    benchmark::DoNotOptimize(read_all(k.data.get(), kBytes));
    benchmark::DoNotOptimize(read_all(v.data.get(), kBytes));
    const double read = seconds();
    kernels::TileFault fault;
    for (const kernels::DecodeItem& item : work.items)
      kernels::decode(call, item, scratch.data.get(), fault);
    const double end = seconds();
    shares.push_back((read - start) / (end - read));
    rates.push_back(2 * kBytes / (read - start) / 1e9);
    state.SetIterationTime(end - read);
  }
  std::sort(shares.begin(), shares.end());
  std::sort(rates.begin(), rates.end());
  state.counters["of_stream"] = shares[shares.size() / 2];
  state.counters["stream_GBs"] = rates[rates.size() / 2];
}

void cases(benchmark::internal::Benchmark* bench) {
  for (const int group : {4, 1, 8}) bench->Args({group, 0});
  for (const int page : {128, 16}) bench->Args({4, page});
  bench->ArgNames({"group", "page"})->UseManualTime()->Iterations(15);
}

BENCHMARK_CAPTURE(decode, f32, DType::f32)->Apply(cases);
BENCHMARK_CAPTURE(decode, bf16, DType::bf16)->Apply(cases);
BENCHMARK_CAPTURE(decode, f16, DType::f16)->Apply(cases);

}  // namespace
}  // namespace quire
