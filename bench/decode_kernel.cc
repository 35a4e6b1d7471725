// The decode kernel beside a read of the same memory: what share of the machine's bandwidth one
// thread or two reach. 32 query heads over 8 key heads (or another group), D = 128, 8,192 keys,
// more than 600 MB of keys and values, each repetition timed next to a plain read; the counter
// of_stream is the median of the ratios.
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
#include <thread>
#include <vector>

#include "kernels/decode/decode.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"

namespace quire {
namespace {

constexpr int kKeys = 8192, kDims = 128;
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

// As fast as this core reads: vectors of 32 bytes where there are any.
std::uint64_t read_by_words(const char* at, std::size_t bytes) {
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i < bytes; i += sizeof(sums)) {
    std::uint64_t x[32];
    std::memcpy(x, at + i, sizeof(sums));
    for (int j = 0; j < 32; ++j) sums[j] ^= x[j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), std::uint64_t{0});
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint64_t read_by_vectors(const char* at, std::size_t bytes) {
  using Vector [[gnu::vector_size(32)]] = std::uint64_t;
  Vector sums[4] = {};
  for (std::size_t i = 0; i < bytes; i += sizeof(sums))
    for (std::size_t j = 0; j < 4; ++j)
      sums[j] ^= *reinterpret_cast<const Vector*>(at + i + j * sizeof(Vector));
  const Vector sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}
#endif
std::uint64_t read_all(const char* at, std::size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return read_by_vectors(at, bytes);
#endif
  return read_by_words(at, bytes);
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
    const std::int64_t count = kBytes / (kKeys * kDims * element);
    std::vector<std::int64_t> order(count * per_item);
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (page != 0) std::shuffle(order.begin(), order.end(), std::mt19937(2));
    for (std::int64_t i = 0; i < count * per_item; ++i) {
      const std::int64_t begin = i % per_item * length, offset = order[i] * length * kDims;
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

// What each of `threads` threads does with its share, and the time they take, on average.
template <class F>
double timed(int threads, const F& work) {
  std::vector<double> times(threads);
  std::vector<std::thread> others;
  const auto run = [&](int thread) {
    const double start = seconds();
    work(thread);
    times[thread] = seconds() - start;
  };
  for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& other : others) other.join();
  return std::accumulate(times.begin(), times.end(), 0.0) / threads;
}

struct Problem {
  DType dtype;
  int group, page, threads;
};

kernels::ForwardCall make_call(const Problem& problem) {
  kernels::ForwardCall call;
  call.table = &kernels::current_table();
  call.q_rows = call.k_rows = call.v_rows = call.out_rows = {problem.dtype, kDims, 1};
  call.dims = call.value_dims = kDims;
  call.scale = 1 / 11.3137085;
  call.pairs = problem.dtype == DType::bf16 && call.table->pairs != nullptr;
  return call;
}

void decode(benchmark::State& state, DType dtype) {
  const Problem problem{dtype, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                        static_cast<int>(state.range(2))};
  Memory k(kBytes), v(kBytes);
  fill(k.data.get(), kBytes, dtype);
  fill(v.data.get(), kBytes, dtype);
  const Work work(dtype_size(dtype), problem.group, problem.page);
  std::vector<char> q(static_cast<std::size_t>(problem.group) * kDims * dtype_size(dtype));
  fill(q.data(), q.size(), dtype);
  kernels::ForwardCall call = make_call(problem);
  call.q = q.data();
  call.k = k.data.get();
  call.v = v.data.get();
  std::vector<std::vector<char>> outs(problem.threads, q);
  const std::size_t scratch_bytes = kernels::decode_scratch_bytes(call, problem.group);
  std::vector<Memory> scratch;
  for (int i = 0; i < problem.threads; ++i) scratch.emplace_back(scratch_bytes);
  const std::size_t share = kBytes / static_cast<std::size_t>(problem.threads);
  std::vector<double> shares, rates;
  for (auto _ : state) {
    const double read = timed(problem.threads, [&](int thread) {
      const std::size_t at = share * static_cast<std::size_t>(thread);
      benchmark::DoNotOptimize(read_all(k.data.get() + at, share));
      benchmark::DoNotOptimize(read_all(v.data.get() + at, share));
    });
    const double decoded = timed(problem.threads, [&](int thread) {
      const std::size_t index = thread;
      kernels::ForwardCall own = call;
      own.out = outs[index].data();
      kernels::TileFault fault;
      for (std::size_t i = index; i < work.items.size(); i += scratch.size())
        kernels::decode(own, work.items[i], scratch[index].data.get(), fault);
    });
    shares.push_back(read / decoded);
    rates.push_back(2 * kBytes / read / 1e9);
    state.SetIterationTime(decoded);
  }
  std::sort(shares.begin(), shares.end());
  std::sort(rates.begin(), rates.end());
  state.counters["of_stream"] = shares[shares.size() / 2];
  state.counters["stream_GBs"] = rates[rates.size() / 2];
}

void cases(benchmark::internal::Benchmark* bench) {
  for (const int threads : {2, 1}) {
    for (const int group : {4, 1, 8}) bench->Args({group, 0, threads});
    for (const int page : {128, 16}) bench->Args({4, page, threads});
  }
  bench->ArgNames({"group", "page", "threads"})->UseManualTime()->Iterations(15);
}

BENCHMARK_CAPTURE(decode, f32, DType::f32)->Apply(cases);
BENCHMARK_CAPTURE(decode, bf16, DType::bf16)->Apply(cases);
BENCHMARK_CAPTURE(decode, f16, DType::f16)->Apply(cases);

}  // namespace
}  // namespace quire
