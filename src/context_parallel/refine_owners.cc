// Simulated annealing over moves of one piece and exchanges of two, with its own random numbers.
// Context_parallel layer.
#include "context_parallel/refine_owners.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quire::context_parallel {
namespace {

class Search {
 public:
  Search(const PieceMap& map, std::vector<int> owners, int ranks, const ShardOptions& options)
      : map_(map),
        pieces_(map.pieces()),
        ranks_(ranks),
        options_(options),
        owners_(std::move(owners)),
        load_(static_cast<std::size_t>(ranks)),
        tokens_(static_cast<std::size_t>(ranks)),
        seen_(static_cast<std::size_t>(ranks * pieces_)) {
    for (std::int64_t i = 0; i < pieces_; ++i) all_ += map_.pairs(i);
    for (std::int64_t i = 0; i < pieces_; ++i) count(i, owner(i), 1);
    for (std::int64_t i = 0; i < pieces_; ++i)
      for (int rank = 0; rank < ranks_; ++rank)
        if (rank != owner(i) && seen(rank, i) > 0) ++sent_;
  }

  std::vector<int> run() {
    constexpr double kFirst = 0.02, kLast = 0.0002;
    const std::int64_t steps = 3'000'000 / std::max<std::int64_t>(pieces_, 1);
    std::vector<int> best = owners_;
    double at = cost(), least = at, heat = kFirst;
    const double cooling = std::pow(kLast / kFirst, 1.0 / static_cast<double>(steps));
    for (std::int64_t step = 0; step < steps; ++step, heat *= cooling) {
      const std::int64_t i = random(pieces_), j = random(pieces_);
      const int from = owner(i), other = owner(j);
      const bool exchanges = random(2) == 0;
      const int to = exchanges ? other : static_cast<int>(random(ranks_));
      if (to == from) continue;
      move(i, to);
      if (exchanges) move(j, from);
      const double now = cost();
      if (now <= at || chance() < std::exp((at - now) / heat)) {
        at = now;
        if (at < least) {
          least = at;
          best = owners_;
        }
        continue;
      }
      if (exchanges) move(j, to);
      move(i, from);
    }
    return best;
  }

 private:
  int owner(std::int64_t piece) const { return owners_[static_cast<std::size_t>(piece)]; }
  // How many pieces of a rank's queries see a piece of keys.
  int& seen(int rank, std::int64_t piece) {
    return seen_[static_cast<std::size_t>(rank * pieces_ + piece)];
  }
  void count(std::int64_t piece, int rank, int by) {
    load_[static_cast<std::size_t>(rank)] += by * map_.pairs(piece);
    tokens_[static_cast<std::size_t>(rank)] += by;
    for (std::int64_t kv = 0; kv < pieces_; ++kv)
      if (map_.sees(piece, kv)) seen(rank, kv) += by;
  }

  // Moves a piece, its queries and keys, to another rank.
  void move(std::int64_t piece, int to) {
    const int from = owner(piece);
    if (from == to) return;
    for (std::int64_t kv = 0; kv < pieces_; ++kv) {
      if (!map_.sees(piece, kv)) continue;
      if (owner(kv) != from && seen(from, kv) == 1) --sent_;
      if (owner(kv) != to && seen(to, kv) == 0) ++sent_;
    }
    count(piece, from, -1);
    count(piece, to, 1);
    if (seen(from, piece) > 0) ++sent_;
    if (seen(to, piece) > 0) --sent_;
    owners_[static_cast<std::size_t>(piece)] = to;
  }

  // The share of gathering, plus a large penalty for imbalance beyond what is wanted, plus a small
  // one for every piece that does not follow another piece of its rank.
  double cost() const {
    const double ranks = ranks_, pieces = static_cast<double>(pieces_);
    const double most = *std::max_element(load_.begin(), load_.end());
    const double most_tokens = *std::max_element(tokens_.begin(), tokens_.end());
    const double over = all_ == 0 ? 0 : std::max(0.0, most * ranks / all_ - options_.balance);
    const double over_tokens = std::max(0.0, most_tokens * ranks / pieces - options_.token_balance);
    std::int64_t breaks = 0;
    for (std::int64_t i = 1; i < pieces_; ++i) breaks += owner(i) != owner(i - 1) ? 1 : 0;
    return static_cast<double>(sent_) / ((ranks - 1) * pieces) + 5 * over + over_tokens +
           0.1 * static_cast<double>(breaks) / pieces;
  }

  std::uint64_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  std::int64_t random(std::int64_t below) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(below));
  }
  double chance() { return static_cast<double>(next()) / 2147483648.0; }

  const PieceMap& map_;
  std::int64_t pieces_;
  int ranks_;
  ShardOptions options_;
  std::vector<int> owners_;
  std::vector<double> load_, tokens_;
  std::vector<int> seen_;  // [rank][piece]
  std::int64_t sent_ = 0;  // pieces of keys, once for each rank that receives them
  double all_ = 0;
  std::uint64_t state_ = 88172645463325252u;
};

}  // namespace

std::vector<int> refine_owners(const PieceMap& map, std::vector<int> owners, int ranks,
                               const ShardOptions& options) {
  if (ranks < 2 || map.pieces() < 2) return owners;
  return Search(map, std::move(owners), ranks, options).run();
}

}  // namespace quire::context_parallel
