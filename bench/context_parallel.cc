// What a slower link costs: two ranks (threads with a core each) over a link of some Gbit/s,
// against the larger of what computing takes without a limit and what the bytes take on the link
// alone, where keys travel and where heads do. Also what either costs without a limit, against one
// process on as many cores.
//
//   context_parallel [--length N] [--heads N] [--dim N] [--gbits N] [--repetitions N] [--check 1]
//
// --check 1: fails where a forward pass takes more than 1.15 x the larger.
#include "quire/context_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/mods.h"

namespace quire::bench {
namespace {

namespace cp = context_parallel;

struct Arguments {
  std::int64_t length = 16384, heads = 4, dim = 64, repetitions = 3;
  double gbits = 1;
  bool checks = false;
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
    if (name == "--check") found.checks = value != 0;
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

constexpr int kRanks = 2;

// One call on every rank, a thread and a core each.
class Spread {
 public:
  Spread(const Arguments& given, const BlockMask& mask)
      : mask_(mask), shards_(cp::plan_shards(mask, kRanks)), repetitions_(given.repetitions) {
    const Shape shape{1, given.heads, given.length, given.dim};
    AuxOutput aux;
    for (unsigned i = 0; i < 4; ++i) whole_.push_back(numbers(shape, i + 1));  // q, k, v, d_out
    whole_.push_back(
        quire::flex_attention(whole_[0], whole_[1], whole_[2],
                              {.block_mask = mask, .return_aux = {.lse = true}, .aux = &aux}));
    whole_.push_back(*aux.lse);
    for (int rank = 0; rank < kRanks; ++rank)
      for (const Tensor& one : whole_) parts_.push_back(cp::shard(one, shards_, rank));
  }

  const std::vector<Tensor>& whole() const { return whole_; }
  cp::Traffic traffic(cp::Exchange exchange) const {
    const auto shape = AttentionShape::of(whole_[0], whole_[1], whole_[2]);
    return cp::traffic(shards_, mask_, shape, exchange);
  }
  /// Of the bytes that travel, what goes to the rank that receives most: tokens of heads are even.
  double share_of_busiest(cp::Exchange exchange) const {
    if (exchange == cp::Exchange::kHeads) return 1.0 / kRanks;
    const std::vector<std::int64_t> received = cp::report(shards_, mask_).received;
    std::int64_t sum = 0;
    for (const std::int64_t one : received) sum += one;
    return static_cast<double>(*std::max_element(received.begin(), received.end())) /
           static_cast<double>(sum);
  }
  double seconds(cp::Exchange exchange, bool is_backward, double bytes_per_second) const {
    return seconds_of(repetitions_, [&] {
      const auto group = make_thread_group(kRanks, {.bytes_per_second = bytes_per_second});
      std::vector<std::thread> threads;
      for (int rank = 0; rank < kRanks; ++rank)
        threads.emplace_back([&, rank] {
          call(rank, *group[static_cast<std::size_t>(rank)], exchange, is_backward);
        });
      for (std::thread& thread : threads) thread.join();
    });
  }

 private:
  void call(int rank, Communicator& group, cp::Exchange exchange, bool is_backward) const {
    SerialExecutor serial;
    const Tensor* const mine = parts_.data() + whole_.size() * static_cast<std::size_t>(rank);
    const cp::Options options{.block_mask = mask_, .exchange = exchange, .executor = &serial};
    if (!is_backward) {
      cp::flex_attention(mine[0], mine[1], mine[2], shards_, group, options);
      return;
    }
    cp::flex_attention_backward({.q = mine[0],
                                 .k = mine[1],
                                 .v = mine[2],
                                 .out = mine[4],
                                 .lse = mine[5],
                                 .d_out = mine[3]},
                                shards_, group, options);
  }

  BlockMask mask_;
  cp::Shards shards_;
  std::int64_t repetitions_;
  std::vector<Tensor> whole_, parts_;
};

int run(int argc, char** argv) {
  const Arguments given = arguments_of(argc, argv);
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, given.length, given.length);
  const Spread spread(given, mask);
  const std::vector<Tensor>& t = spread.whole();
  const auto two = make_thread_pool(kRanks);
  const double alone[] = {
      seconds_of(
          given.repetitions,
          [&] { flex_attention(t[0], t[1], t[2], {.block_mask = mask, .executor = two.get()}); }),
      seconds_of(given.repetitions, [&] {
        flex_attention_backward(
            {.q = t[0], .k = t[1], .v = t[2], .out = t[4], .lse = t[5], .d_out = t[3]},
            {.forward = {.block_mask = mask, .executor = two.get()}});
      })};
  fmt::print("causal, {} tokens, {} heads of {}, f32, {} ranks of one core each\n", given.length,
             given.heads, given.dim, kRanks);
  bool holds = true;
  for (const bool is_backward : {false, true}) {
    fmt::print("{}: one process on {} cores {:.3f} s\n", is_backward ? "backward" : "forward",
               kRanks, alone[is_backward ? 1 : 0]);
    for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
      const char* const name = exchange == cp::Exchange::kKeys ? "keys" : "heads";
      const double compute = spread.seconds(exchange, is_backward, 0);
      const cp::Traffic sent = spread.traffic(exchange);
      const double bytes = static_cast<double>(is_backward ? sent.backward : sent.forward) *
                           spread.share_of_busiest(exchange);
      fmt::print("  {} travel, no limit: {:.3f} s, {:.3f} x one process; {:.1f} MB to a rank\n",
                 name, compute, compute / alone[is_backward ? 1 : 0], bytes / 1e6);
      if (is_backward) continue;
      for (const double gbits : {given.gbits, given.gbits / 4, given.gbits / 8}) {
        const double link = gbits * 1e9 / 8, transfer = bytes / link;
        const double together = spread.seconds(exchange, is_backward, link);
        const double ratio = together / std::max(transfer, compute);
        holds = holds && ratio <= 1.15;
        fmt::print("    {:g} Gbit/s: transfer {:.3f} s, together {:.3f} s: {:.3f} x the larger\n",
                   gbits, transfer, together, ratio);
      }
    }
  }
  return holds || !given.checks ? 0 : 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
