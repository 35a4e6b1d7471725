// Sorts sequences by the memory of their first keys and groups neighbours. Plan layer.
#include "plan/shared_prefixes.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "kernels/decode/decode.h"
#include "plan/choose_kernel.h"

namespace quire::plan {
namespace {

using kernels::kTileKeys;

// Sequences with the same memory at these positions probably share everything before them.
constexpr std::array<std::int64_t, 4> kLooks{kTileKeys - 1, 1023, 4095, 16383};

struct Candidate {
  std::array<std::int64_t, kLooks.size()> places;
  std::int32_t b;
};

class PrefixFinder {
 public:
  explicit PrefixFinder(const ForwardRequest& request) : request_(request) {}

  SharedPrefixes find() {
    list_candidates();
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& x, const Candidate& y) {
      return std::tie(x.places, x.b) < std::tie(y.places, y.b);
    });
    for (std::size_t i = 0; i < candidates_.size();) i = add_prefix(i);
    return std::move(found_);
  }

 private:
  std::int64_t rows(std::int64_t b) const { return request_.group() * request_.queries->length(b); }

  // Sequences that decode and leave room for another in a group.
  void list_candidates() {
    const layout::KeyLayout& keys = *request_.layout;
    for (std::int64_t b = 0; b < request_.batch; ++b) {
      const std::int64_t length = keys.length(b), queries = request_.queries->length(b);
      if (length < kTileKeys || queries == 0 || 2 * rows(b) > kPrefixRows) continue;
      if (choose_kernel(request_.group(), queries, length) != Kernel::kDecode) continue;
      Candidate& one = candidates_.emplace_back();
      one.b = static_cast<std::int32_t>(b);
      for (std::size_t i = 0; i < kLooks.size(); ++i)
        one.places[i] = kLooks[i] < length ? keys.place(b, kLooks[i]) : -1;
      if (one.places[0] < 0) candidates_.pop_back();  // the first keys were released
    }
  }

  // Tiles that candidate `at` shares with the one before it.
  std::int64_t shared_with_last(std::size_t at) const {
    const Candidate &last = candidates_[at - 1], &one = candidates_[at];
    if (last.places[0] != one.places[0]) return 0;
    return request_.layout->shared_keys(last.b, one.b) / kTileKeys;
  }

  // Extends a group from candidate `at` while the savings grow, without taking a candidate that
  // shares more with its successor; returns the next candidate.
  std::size_t add_prefix(std::size_t at) {
    const std::int64_t leader = candidates_[at].b;
    SharedPrefix prefix{.first = static_cast<std::int64_t>(found_.members.size()),
                        .count = 1,
                        .rows = rows(leader),
                        .tiles = request_.layout->length(leader) / kTileKeys};
    std::size_t end = at + 1;
    for (; end < candidates_.size(); ++end) {
      const std::int64_t b = candidates_[end].b;
      if (candidates_[end].places[0] != candidates_[at].places[0]) break;
      if (prefix.rows + rows(b) > kPrefixRows) break;
      const std::int64_t tiles =
          std::min(prefix.tiles, request_.layout->shared_keys(leader, b) / kTileKeys);
      if (tiles * prefix.count <= prefix.tiles * (prefix.count - 1)) break;
      if (end + 1 < candidates_.size() && shared_with_last(end + 1) > tiles) break;
      prefix.tiles = tiles;
      prefix.rows += rows(b);
      ++prefix.count;
    }
    if (prefix.count > 1) {
      for (std::size_t i = at; i < end; ++i) found_.members.push_back(candidates_[i].b);
      found_.prefixes.push_back(prefix);
    }
    return end;
  }

  const ForwardRequest& request_;
  std::vector<Candidate> candidates_;
  SharedPrefixes found_;
};

}  // namespace

SharedPrefixes find_shared_prefixes(const ForwardRequest& request) {
  if (!request.layout->may_share()) return {};
  return PrefixFinder(request).find();
}

}  // namespace quire::plan
