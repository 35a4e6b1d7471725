// What a slower link costs: two ranks (threads with a core each) over a link of some Gbit/s,
// against the larger of what computing takes without a limit and what the bytes take on the link
// alone. Also what the pieces cost without any link, against one process on as many cores.
//
//   context_parallel [--length N] [--heads N] [--dim N] [--gbits N] [--repetitions N]
#include "quire/context_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/mods.h"

namespace quire::bench {
namespace {

namespace cp = context_parallel;

struct Arguments {
  std::int64_t length = 16384, heads = 4, dim = 64, repetitions = 3;
  double gbits = 1;
};

Arguments arguments_of(int argc, char** argv) {
  Arguments found;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (name == "--length") found.length = static_cast<std::int64_t>(value);
    if (name == "--heads") found.heads = static_cast<std::int64_t>(value);
    if (name == "--dim") found.dim = static_cast<std::int64_t>(value);
    if (name == "--repetitions") found.repetitions = static_cast<std::int64_t>(value);
    if (name == "--gbits") found.gbits = value;
  }
  return found;
}

Tensor numbers(const Shape& shape, unsigned seed) {
  Tensor made(shape, DType::f32);
  for (std::int64_t i = 0; i < made.numel(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    made.data_as<float>()[i] = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return made;
}

template <class Work>
double seconds_of(std::int64_t repetitions, Work work) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

int run(int argc, char** argv) {
  const Arguments given = arguments_of(argc, argv);
  constexpr int kRanks = 2;
  const Tensor q = numbers({1, given.heads, given.length, given.dim}, 1);
  const Tensor k = numbers(q.shape(), 2), v = numbers(q.shape(), 3);
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, given.length, given.length);
  const cp::Shards shards = cp::plan_shards(mask, kRanks);
  std::vector<Tensor> parts;
  for (int rank = 0; rank < kRanks; ++rank)
    for (const Tensor* one : {&q, &k, &v}) parts.push_back(cp::shard(*one, shards, rank));
  const auto spread = [&](double bytes_per_second) {
    return seconds_of(given.repetitions, [&] {
      const auto group = make_thread_group(kRanks, {.bytes_per_second = bytes_per_second});
      std::vector<std::thread> threads;
      for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          SerialExecutor serial;
          const Tensor* const mine = parts.data() + 3 * rank;
          cp::flex_attention(mine[0], mine[1], mine[2], shards,
                             *group[static_cast<std::size_t>(rank)],
                             {.block_mask = mask, .executor = &serial});
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  };
  const auto two = make_thread_pool(kRanks);
  const double alone = seconds_of(given.repetitions, [&] {
    flex_attention(q, k, v, {.block_mask = mask, .executor = two.get()});
  });
  const double compute = spread(0);
  std::int64_t most = 0;
  for (const std::int64_t tokens : cp::report(shards, mask).received) most = std::max(most, tokens);
  const double bytes = static_cast<double>(most * given.heads * given.dim * 2) * sizeof(float);
  fmt::print("causal, {} tokens, {} heads of {}, f32, {} ranks of one core each\n", given.length,
             given.heads, given.dim, kRanks);
  fmt::print("one process on {} cores {:.3f} s; {} ranks without a limit {:.3f} s: {:.3f} x\n",
             kRanks, alone, kRanks, compute, compute / alone);
  for (const double gbits : {given.gbits, given.gbits / 4, given.gbits * 4}) {
    const double link = gbits * 1e9 / 8, transfer = bytes / link, total = spread(link);
    fmt::print(
        "{:g} Gbit/s: transfer {:.3f} s, compute {:.3f} s, together {:.3f} s: {:.3f} x the "
        "larger\n",
        gbits, transfer, compute, total, total / std::max(transfer, compute));
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
