// plan_shards: tries several ways to assign runs of pieces and takes the one that balances well
// enough and sends least; if none balances, pieces are exchanged until one does (refine_owners.h).
// Context_parallel layer.
#include <algorithm>
#include <numeric>
#include <utility>

#include "context_parallel/piece_map.h"
#include "context_parallel/refine_owners.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::context_parallel {
namespace {

using Owners = std::vector<int>;

// The ratio of the largest number to the mean.
template <class T>
double largest_to_mean(const std::vector<T>& numbers) {
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  const double most = static_cast<double>(*std::max_element(numbers.begin(), numbers.end()));
  return sum == 0 ? 1 : most * static_cast<double>(numbers.size()) / sum;
}

ShardReport report_of(const Shards& shards, const PieceMap& map) {
  const auto ranks = static_cast<std::size_t>(shards.ranks());
  ShardReport made{.pairs = std::vector<double>(ranks),
                   .tokens = std::vector<std::int64_t>(ranks),
                   .received = std::vector<std::int64_t>(ranks)};
  for (std::int64_t i = 0; i < shards.pieces(); ++i)
    made.pairs[static_cast<std::size_t>(shards.owners()[static_cast<std::size_t>(i)])] +=
        map.pairs(i);
  const std::vector<std::vector<bool>> needs = map.needs(shards);
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    made.tokens[at] = shards.tokens(rank);
    for (std::int64_t i = 0; i < shards.pieces(); ++i)
      if (shards.owners()[static_cast<std::size_t>(i)] != rank &&
          needs[at][static_cast<std::size_t>(i)])
        made.received[at] += shards.piece(i).size();
  }
  made.balance = largest_to_mean(made.pairs);
  made.token_balance = largest_to_mean(made.tokens);
  const double all = static_cast<double>(shards.ranks() - 1) * static_cast<double>(shards.length());
  const double sent = static_cast<double>(
      std::accumulate(made.received.begin(), made.received.end(), std::int64_t{0}));
  made.share_of_gathering = all == 0 ? 0 : sent / all;
  return made;
}

class Planner {
 public:
  Planner(const PieceMap& map, std::int64_t length, int ranks, std::int64_t piece_length,
          const ShardOptions& options)
      : map_(map), length_(length), piece_length_(piece_length), ranks_(ranks), options_(options) {
    for (std::int64_t i = 0; i < map.pieces(); ++i) all_ += map.pairs(i);
  }

  Shards best() const {
    Owners found = in_turn(1, false);
    double cost = cost_of(found);
    const auto look = [&](Owners owners) {
      const double one = cost_of(owners);
      if (one >= cost) return;
      found = std::move(owners);
      cost = one;
    };
    look(in_turn(1, true));
    look(in_turn(2, false));
    if (cost >= kTooMuch) {  // no runs of pieces balance
      Owners even = heavy_first();
      even_out(even);
      look(refine_owners(map_, found, ranks_, options_));
      look(refine_owners(map_, even, ranks_, options_));
      look(std::move(even));
    }
    return {length_, ranks_, piece_length_, found};
  }

 private:
  // The traffic; plans that do not balance cost more than any that do.
  double cost_of(const Owners& owners) const {
    const ShardReport made = report_of({length_, ranks_, piece_length_, owners}, map_);
    const double over = std::max(0.0, made.balance - options_.balance) +
                        std::max(0.0, made.token_balance - options_.token_balance) / 8;
    return made.share_of_gathering + (over > 0 ? kTooMuch + over : 0);
  }
  static constexpr double kTooMuch = 1000;

  // Assigns runs of pieces of equal weight (visible pairs, or tokens), `turns` for each rank, back
  // and forth: 0 1 2 2 1 0.
  Owners in_turn(int turns, bool by_pairs) const {
    const std::int64_t runs = std::int64_t{ranks_} * turns;
    double total = 0, sum = 0;
    const auto weight = [&](std::int64_t i) { return by_pairs ? map_.pairs(i) : 1.0; };
    for (std::int64_t i = 0; i < map_.pieces(); ++i) total += weight(i);
    Owners owners;
    for (std::int64_t i = 0; i < map_.pieces(); ++i) {
      const double middle = sum + weight(i) / 2;
      sum += weight(i);
      const auto run = static_cast<std::int64_t>(total == 0 ? 0 : middle / total * double(runs));
      const auto in_round = static_cast<int>(std::min(run, runs - 1) % ranks_);
      owners.push_back(std::min(run, runs - 1) / ranks_ % 2 == 0 ? in_round
                                                                 : ranks_ - 1 - in_round);
    }
    return owners;
  }

  // Assigns the heaviest remaining piece to the rank with the least work.
  Owners heavy_first() const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(map_.pieces()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](std::int64_t a, std::int64_t b) {
      return map_.pairs(a) > map_.pairs(b);
    });
    std::vector<double> load(static_cast<std::size_t>(ranks_));
    Owners owners(order.size());
    for (const std::int64_t piece : order) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += map_.pairs(piece);
      owners[static_cast<std::size_t>(piece)] = static_cast<int>(least - load.begin());
    }
    return owners;
  }

  // While the busiest rank has too much, gives away one of its pieces or exchanges two: whichever
  // change leaves the busier of both ranks with least.
  void even_out(Owners& owners) const {
    std::vector<double> load(static_cast<std::size_t>(ranks_));
    for (std::size_t i = 0; i < owners.size(); ++i)
      load[static_cast<std::size_t>(owners[i])] += map_.pairs(static_cast<std::int64_t>(i));
    for (std::size_t step = 0; step < 4 * owners.size(); ++step) {
      const auto most = std::max_element(load.begin(), load.end());
      const int busy = static_cast<int>(most - load.begin());
      if (*most * ranks_ <= options_.balance * all_) return;
      const auto idle = static_cast<int>(std::min_element(load.begin(), load.end()) - load.begin());
      const double gap = *most - load[static_cast<std::size_t>(idle)];
      double best = gap;
      std::pair<std::int64_t, std::int64_t> change{-1, -1};
      for (std::size_t i = 0; i < owners.size(); ++i) {
        if (owners[i] != busy) continue;
        const double given = map_.pairs(static_cast<std::int64_t>(i));
        const auto look = [&](double moved, std::int64_t back) {
          const double left = std::max(gap - moved, moved);
          if (moved <= 0 || left >= best * (1 - 1e-9)) return;
          best = left;
          change = {static_cast<std::int64_t>(i), back};
        };
        look(given, -1);
        for (std::size_t j = 0; j < owners.size(); ++j)
          if (owners[j] == idle)
            look(given - map_.pairs(static_cast<std::int64_t>(j)), static_cast<std::int64_t>(j));
      }
      if (change.first < 0) return;
      double moved = map_.pairs(change.first);
      owners[static_cast<std::size_t>(change.first)] = idle;
      if (change.second >= 0) {
        moved -= map_.pairs(change.second);
        owners[static_cast<std::size_t>(change.second)] = busy;
      }
      load[static_cast<std::size_t>(busy)] -= moved;
      load[static_cast<std::size_t>(idle)] += moved;
    }
  }

  const PieceMap& map_;
  std::int64_t length_, piece_length_;
  int ranks_;
  ShardOptions options_;
  double all_ = 0;
};

// 64 pieces per rank balance well; of many ranks at least 8 each, 2,048 together. 65,536 tokens on
// 4 ranks: 1,024 each; 4,194,304 on 256: 2,048.
std::int64_t piece_length_of(std::int64_t length, int ranks, const ShardOptions& options) {
  if (options.piece_length != 0) return options.piece_length;
  const std::int64_t per_rank = std::clamp(2048 / ranks, 8, 64);
  const std::int64_t units = ceil_div(length, per_rank * ranks * kPieceUnit);
  return std::max<std::int64_t>(1, units) * kPieceUnit;
}

std::int64_t length_of(const char* where, const BlockMask& mask) {
  const auto [q_len, kv_len] = mask.seq_lengths();
  if (q_len != kv_len || mask.q_begin() != 0)
    fail(ErrorKind::value, where,
         "the block mask must be of a sequence with itself; got {} queries from {} on and {} keys",
         q_len, mask.q_begin(), kv_len);
  return q_len;
}

Shards plan(const std::optional<BlockMask>& mask, std::int64_t length, int ranks,
            const ShardOptions& options) {
  const FloatEnv float_env;
  check_size("plan_shards", "the length", length, 0, std::int64_t{1} << 40);
  check_size("plan_shards", "the number of ranks", ranks, 1, 4096);
  check_size("plan_shards", "piece_length", options.piece_length, 0, std::int64_t{1} << 40);
  const std::int64_t piece_length = piece_length_of(length, ranks, options);
  const PieceMap map(mask, length, piece_length);
  return Planner(map, length, ranks, piece_length, options).best();
}

}  // namespace

Shards plan_shards(const BlockMask& mask, int ranks, const ShardOptions& options) {
  return plan(mask, length_of("plan_shards", mask), ranks, options);
}

Shards plan_shards(std::int64_t length, int ranks, const ShardOptions& options) {
  return plan(std::nullopt, length, ranks, options);
}

ShardReport report(const Shards& shards, const BlockMask& mask) {
  if (length_of("report", mask) != shards.length())
    fail(ErrorKind::value, "report", "the block mask is of {} tokens and the shards are of {}",
         mask.seq_lengths().first, shards.length());
  return report_of(shards, PieceMap(mask, shards.length(), shards.piece_length()));
}

}  // namespace quire::context_parallel
