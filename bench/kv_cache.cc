// What the books of a KVCache cost: a decode step of 256 sequences, forks, prefixes, evictions,
// each with 1,000 and with 100,000 pages in turn. Rows are small, so that moving them does not hide
// the books. Numbers are medians; the ratio says whether a call's time follows the pool.
//
//   kv_cache [--repetitions N] [--only TEXT]
#include "quire/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "quire/cpu_info.h"

namespace quire::bench {
namespace {

constexpr std::int64_t kSequences = 256, kPageSize = 16;

std::vector<std::int64_t> counting(std::int64_t n, std::int64_t first) {
  std::vector<std::int64_t> ids(n);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<std::int64_t>(i);
  return ids;
}

// Calls `run` with a number that grows, `inner` times; seconds per call.
struct Case {
  std::string name;
  int inner;
  std::function<void(KVCache&)> prepare;
  std::function<void(KVCache&, std::int64_t)> run;
};

struct Batch {
  std::vector<NewTokens> step;
  SequenceId first;
  std::vector<std::int64_t> ids = {7};
};

void fill_batch(KVCache& cache, Batch& batch, std::int64_t length) {
  batch.step.clear();
  for (std::int64_t i = 0; i < kSequences; ++i) {
    batch.step.push_back({cache.create(), 1, batch.ids});
    cache.append(batch.step.back().sequence, length + i % kPageSize);
  }
}

// 32 tokens each, then back: no more pages than the small pool has.
void decode(KVCache& cache, Batch& batch, std::int64_t i) {
  cache.append(batch.step);
  if (i % 16 != 15) return;
  for (const NewTokens& one : batch.step)
    cache.truncate(one.sequence, cache.length(one.sequence) - 16);
}

void write_full(KVCache& cache, SequenceId sequence, const std::vector<std::int64_t>& ids) {
  const NewTokens step[] = {{sequence, std::ssize(ids), ids}};
  cache.append(step);
  cache.mark_written(step);
}

std::vector<Case> cases() {
  static Batch small, large;  // of the two pools
  const auto batch = [](const KVCache& cache) -> Batch& {
    return cache.options().n_pages < 10000 ? small : large;
  };
  const auto none = [](KVCache&) {};
  std::vector<Case> all;
  all.push_back({"append, decode step of 256 sequences", 64,
                 [=](KVCache& c) { fill_batch(c, batch(c), 16); },
                 [=](KVCache& c, std::int64_t i) { decode(c, batch(c), i); }});
  all.push_back({"append 256 tokens with ids, release", 100, none,
                 [ids = counting(256, 0)](KVCache& c, std::int64_t i) {
                   const SequenceId a = c.create(static_cast<std::uint64_t>(i));
                   c.append(a, 256, ids);
                   c.release(a);
                 }});
  all.push_back({"create_with_prefix of 256 tokens found", 100,
                 [](KVCache& c) { write_full(c, c.create(), counting(256, 0)); },
                 [ids = counting(260, 0)](KVCache& c, std::int64_t) {
                   c.release(c.create_with_prefix(ids).sequence);
                 }});
  all.push_back({"fork at 250 of 256 tokens, append, release", 100,
                 [=](KVCache& c) {
                   batch(c).first = c.create();
                   write_full(c, batch(c).first, counting(256, 0));
                 },
                 [=](KVCache& c, std::int64_t) {
                   const SequenceId b = c.fork(batch(c).first, 250);
                   c.append(b, 1);
                   c.release(b);
                 }});
  all.push_back({"7 drafts appended, 3 of them kept and committed, cut", 100,
                 [=](KVCache& c) {
                   batch(c).first = c.create();
                   write_full(c, batch(c).first, counting(250, 0));
                 },
                 [=, ids = counting(7, 0)](KVCache& c, std::int64_t) {
                   const NewTokens step[] = {{batch(c).first, 7, ids, true}};
                   c.append(step);
                   c.mark_written(step);
                   const std::int64_t path[] = {250, 252, 255};
                   c.keep(batch(c).first, 250, path);
                   c.commit(batch(c).first, 253);
                   c.truncate(batch(c).first, 250);
                 }});
  all.push_back({"can_reserve of 256 sequences", 64,
                 [=](KVCache& c) { fill_batch(c, batch(c), 16); },
                 [=](KVCache& c, std::int64_t) { c.can_reserve(batch(c).step); }});
  all.push_back({"16 pages written and evicted", 200,
                 [](KVCache& c) {
                   const std::int64_t n = c.options().n_pages;
                   for (std::int64_t i = 0; i < n / 16; ++i) {
                     const SequenceId a = c.create();
                     write_full(c, a, counting(16 * kPageSize, 1000 * i));
                     c.release(a);
                   }
                 },
                 [](KVCache& c, std::int64_t i) {
                   const SequenceId a = c.create();
                   write_full(c, a, counting(16 * kPageSize, -1000 * (i + 1)));
                   c.release(a);
                 }});
  return all;
}

void measure(const Case& one, int repetitions) {
  std::vector<KVCache> caches;
  for (const std::int64_t pages : {1000, 100000}) {
    caches.emplace_back(
        KVCacheOptions{.kv_heads = 1, .head_dim = 8, .page_size = kPageSize, .n_pages = pages});
    one.prepare(caches.back());
  }
  std::vector<double> times[2], ratios;
  std::int64_t number[2] = {0, 0};
  for (int i = -1; i < repetitions; ++i) {
    double seconds[2];
    for (std::size_t which = 0; which < 2; ++which) {
      const double start = now();
      for (int j = 0; j < one.inner; ++j) one.run(caches[which], number[which]++);
      seconds[which] = (now() - start) / one.inner;
      if (i >= 0) times[which].push_back(seconds[which]);
    }
    if (i >= 0) ratios.push_back(seconds[1] / seconds[0]);
  }
  fmt::print("{:46} {:9.2f} us  {:9.2f} us  {:5.2f}\n", one.name, median(times[0]) * 1e6,
             median(times[1]) * 1e6, median(ratios));
}

int run(int argc, char** argv) {
  int repetitions = 101;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--repetitions") repetitions = std::max(1, std::atoi(argv[i + 1]));
    if (word == "--only") only = argv[i + 1];
  }
  fmt::print("{}, medians of {}\n{:46} {:>12}  {:>12}  {:>5}\n", cpu_info().model, repetitions, "",
             "1,000 pages", "100,000", "ratio");
  for (const Case& one : cases())
    if (one.name.find(only) != std::string::npos) measure(one, repetitions);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
