// Divides sequences into items, and groups items into what a thread claims at once. Plan layer.
#include "plan/forward_tasks.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "kernels/decode/decode.h"
#include "kernels/prefill/prefill.h"
#include "layout/chosen_keys.h"
#include "runtime/ceil_div.h"
#include "runtime/cpu_info.h"

namespace quire::plan {

using kernels::kQueryTile;
using kernels::kSplitKeys;

namespace {

std::int64_t chunks_of(std::int64_t rows, std::int64_t most) {
  std::int64_t chunks = 0;
  for (std::int64_t first = 0; first < rows; first += decode_rows_at_once(rows - first, most))
    ++chunks;
  return chunks;
}

// Tasks with more keys are sorted by their work.
constexpr std::int64_t kShortWork = 256;

// Whether several heads of a page of keys lie in one page of virtual memory. Where a TLB miss comes
// with every few keys, misses take half the time of decoding; if the heads take turns split by
// split, one miss serves them all.
bool heads_share_memory(const ForwardRequest& request) {
  constexpr std::int64_t kMemoryPage = 4096;
  const std::int64_t row =
      request.k_format.is_plain()
          ? request.head_dim * static_cast<std::int64_t>(dtype_size(request.k_dtype))
          : request.k_format.code_bytes(request.head_dim);
  const std::int64_t keys = request.layout->page_size();
  return keys > 0 && request.kv_heads > 1 && keys < kMemoryPage / std::max<std::int64_t>(row, 1);
}

class TaskMaker {
 public:
  TaskMaker(const ForwardRequest& request, const VisibleKeys* visible, std::int64_t threads)
      : request_(request),
        visible_(visible),
        threads_(threads),
        group_(request.group()),
        heads_are_apart_(request.layout->heads_are_apart()),
        heads_in_turn_(!heads_are_apart_ && heads_share_memory(request)) {
    keys_.reserve(static_cast<std::size_t>(request.batch));
    queries_.reserve(static_cast<std::size_t>(request.batch));
    for (std::int64_t b = 0; b < request.batch; ++b) {
      keys_.push_back(request.layout->length(b));
      queries_.push_back(request.queries->length(b));
    }
  }

  ForwardTasks make() {
    std::int64_t tasks = 0;
    for (std::int64_t b = 0; b < request_.batch; ++b) {
      tasks += units(b) * request_.kv_heads;
      all_work_ += static_cast<double>(units(b) * request_.kv_heads) * static_cast<double>(keys(b));
    }
    made_.tasks.reserve(tasks);
    const bool is_small = is_for_one_thread(multiply_adds());
    if (request_.chosen == nullptr && request_.states == KeptStates::kNone && !is_small)
      add_prefixes();
    for (const std::int32_t b : by_length()) {
      switch (kernel(b)) {
        case Kernel::kPrefill:
          add_prefill(b);
          break;
        case Kernel::kDecode:
          add_decode(b);
          break;
        case Kernel::kChosen:
          add_chosen(b);
          break;
      }
    }
    order();
    made_.claims = is_small
                       ? std::vector<std::int64_t>{0, static_cast<std::int64_t>(made_.tasks.size())}
                       : claim_tasks(made_.tasks, threads_);
    return std::move(made_);
  }

 private:
  std::int64_t keys(std::int64_t b) const { return keys_[static_cast<std::size_t>(b)]; }
  std::int64_t queries(std::int64_t b) const { return queries_[static_cast<std::size_t>(b)]; }
  Kernel kernel(std::int64_t b) const {
    if (request_.states == KeptStates::kSplits) return Kernel::kDecode;
    return kernel_of_sequence(request_, b, queries(b), keys(b));
  }
  // The most passes over the keys that the queries of one key head take.
  std::int64_t units(std::int64_t b) const {
    return kernel(b) == Kernel::kPrefill ? group_ * ceil_div(queries(b), kQueryTile)
                                         : chunks_of(group_ * queries(b), request_.decode_rows);
  }
  double multiply_adds() const {
    double pairs = 0;
    for (std::int64_t b = 0; b < request_.batch; ++b)
      pairs += static_cast<double>(queries(b)) * static_cast<double>(keys(b));
    return pairs * static_cast<double>(request_.q_heads) *
           static_cast<double>(request_.head_dim + request_.v_head_dim);
  }
  // How many units of this sequence's length the whole batch amounts to.
  std::int64_t units_of_batch(std::int64_t b) const {
    constexpr double kMany = 1e15;
    const auto length = static_cast<double>(std::max<std::int64_t>(keys(b), 1));
    return static_cast<std::int64_t>(std::min(all_work_ / length, kMany));
  }

  void add_prefixes();
  void use_prefix(std::int64_t b, std::int64_t kv_head, ForwardTask& task) const;
  void add_prefill(std::int64_t b);
  void add_decode(std::int64_t b);
  void add_merges(const ForwardTask& cut, std::int64_t state);
  void add_chosen(std::int64_t b);
  std::vector<std::int32_t> by_length() const;
  void order();

  const ForwardRequest& request_;
  const VisibleKeys* visible_;
  std::vector<std::int64_t> keys_, queries_;  // of each sequence
  std::int64_t threads_, group_;
  bool heads_are_apart_, heads_in_turn_;  // decode: head by head; split by split
  double all_work_ = 0;                   // keys, once per unit
  struct Membership {
    std::int64_t prefix = -1, row = 0;
  };
  std::vector<Membership> member_of_;        // of each sequence; empty: of none
  std::vector<std::int64_t> prefix_states_;  // of key head 0 of each prefix
  ForwardTasks made_;
};

void TaskMaker::add_prefill(std::int64_t b) {
  const std::int64_t q_tiles = ceil_div(queries(b), kQueryTile), tiles = group_ * q_tiles;
  const int most = kernels::query_tiles_per_item(
      static_cast<int>(request_.head_dim), static_cast<int>(request_.v_head_dim), l2_cache_bytes());
  const int per_item = tiles_per_item(units_of_batch(b), most, threads_);
  for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
    for (std::int64_t first = 0; first < tiles; first += per_item) {
      const std::int64_t count = std::min<std::int64_t>(per_item, tiles - first);
      ForwardTask task{.kernel = Kernel::kPrefill,
                       .b = static_cast<std::int32_t>(b),
                       .kv_head = static_cast<std::int32_t>(kv_head),
                       .count = static_cast<std::int32_t>(count),
                       .first = first};
      if (visible_ == nullptr) task.work = count * keys(b);
      for (std::int64_t i = first; visible_ != nullptr && i < first + count; ++i)
        task.work += visible_->keys(b, kv_head * group_ + i / q_tiles, i % q_tiles);
      made_.tasks.push_back(task);
      made_.most_tiles = std::max(made_.most_tiles, static_cast<int>(count));
      made_.has_prefill = true;
    }
  }
}

// The prefixes, cut like long sequences when there are few.
void TaskMaker::add_prefixes() {
  made_.shared = find_shared_prefixes(request_);
  const auto& [prefixes, members] = made_.shared;
  if (prefixes.empty()) return;
  member_of_.resize(request_.batch);
  const std::int64_t state = kernels::decode_state_size(static_cast<int>(request_.v_head_dim));
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const SharedPrefix& prefix = prefixes[i];
    std::int64_t row = 0;
    for (std::int64_t m = prefix.first; m < prefix.first + prefix.count; ++m) {
      const std::int32_t b = members[m];
      member_of_[b] = {static_cast<std::int64_t>(i), row};
      row += group_ * queries(b);
    }
    const std::int64_t splits = ceil_div(prefix.tiles, kernels::kSplitTiles);
    const std::int64_t pairs = static_cast<std::int64_t>(prefixes.size()) * request_.kv_heads;
    const std::int64_t cuts = split_items(pairs, splits, threads_);
    prefix_states_.push_back(made_.state_elements);
    made_.most_rows =
        std::max(made_.most_rows,
                 static_cast<std::int32_t>(decode_rows_at_once(prefix.rows, request_.decode_rows)));
    for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
      for (std::int64_t cut = 0; cut < cuts; ++cut) {
        const std::int64_t begin = splits * cut / cuts;
        made_.prefixes.push_back({.prefix = static_cast<std::int32_t>(i),
                                  .kv_head = static_cast<std::int32_t>(kv_head),
                                  .split_begin = begin,
                                  .split_end = splits * (cut + 1) / cuts,
                                  .states = made_.state_elements + begin * prefix.rows * state});
      }
      made_.state_elements += splits * prefix.rows * state;
    }
  }
}

void TaskMaker::use_prefix(std::int64_t b, std::int64_t kv_head, ForwardTask& task) const {
  if (member_of_.empty() || member_of_[b].prefix < 0) return;
  const Membership& member = member_of_[b];
  const std::size_t at = member.prefix;
  const SharedPrefix& prefix = made_.shared.prefixes[at];
  const std::int64_t state = kernels::decode_state_size(static_cast<int>(request_.v_head_dim));
  const std::int64_t splits = ceil_div(prefix.tiles, kernels::kSplitTiles);
  task.prefix_tiles = prefix.tiles;
  task.prefix_step = prefix.rows * state;
  task.prefix_states =
      prefix_states_[at] + kv_head * splits * task.prefix_step + (member.row + task.first) * state;
  task.split_begin = prefix.tiles / kernels::kSplitTiles;
}

void TaskMaker::add_decode(std::int64_t b) {
  const std::int64_t rows = group_ * queries(b), splits = ceil_div(keys(b), kSplitKeys);
  const std::int64_t state = kernels::decode_state_size(static_cast<int>(request_.v_head_dim));
  for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
    for (std::int64_t first = 0; first < rows;) {
      ForwardTask task{.kernel = Kernel::kDecode,
                       .b = static_cast<std::int32_t>(b),
                       .kv_head = static_cast<std::int32_t>(kv_head),
                       .count = static_cast<std::int32_t>(
                           decode_rows_at_once(rows - first, request_.decode_rows)),
                       .first = first,
                       .split_end = splits};
      use_prefix(b, kv_head, task);
      const std::int64_t own_begin = task.split_begin, own = splits - own_begin;
      const std::int64_t cuts = heads_in_turn_ ? std::max<std::int64_t>(own, 1)
                                               : split_items(units_of_batch(b), own, threads_);
      const bool keeps = cuts > 1 || request_.states == KeptStates::kSplits;
      if (keeps) {
        task.states = made_.state_elements;
        add_merges(task, state);
        made_.state_elements += own * task.count * state;
      }
      for (std::int64_t cut = 0; cut < cuts; ++cut) {
        task.split_begin = own_begin + own * cut / cuts;
        task.split_end = own_begin + own * (cut + 1) / cuts;
        task.work = std::min(task.split_end * kSplitKeys, keys(b)) - task.split_begin * kSplitKeys;
        made_.tasks.push_back(task);
        if (keeps) task.states += (task.split_end - task.split_begin) * task.count * state;
      }
      made_.has_decode = true;
      made_.most_rows = std::max(made_.most_rows, task.count);
      first += task.count;
    }
  }
}

// A few rows at a time, so that threads share the states of many rows: 64 splits of 16 rows of 512
// values are 2 MiB.
void TaskMaker::add_merges(const ForwardTask& cut, std::int64_t state) {
  constexpr std::int32_t kMergeRows = 4;
  for (std::int32_t row = 0; row < cut.count; row += kMergeRows) {
    ForwardTask some = cut;
    some.count = std::min(kMergeRows, cut.count - row);
    some.first += row;
    some.states += row * state;
    some.state_step = cut.count * state;
    if (some.prefix_states >= 0) some.prefix_states += row * state;
    made_.merges.push_back(some);
  }
}

// As many queries at a time as take turns at keys, whole ones if there are enough.
void TaskMaker::add_chosen(std::int64_t b) {
  const std::int64_t rows = group_ * queries(b);
  const std::int64_t even = rows * request_.kv_heads / (8 * threads_);
  const std::int64_t most =
      chosen_queries_at_once(*request_.chosen, group_, request_.decode_rows) * group_;
  std::int64_t at_once = std::clamp<std::int64_t>(even, 1, most);
  if (at_once > group_) at_once -= at_once % group_;
  for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
    for (std::int64_t first = 0, count; first < rows; first += count) {
      count = std::min(at_once, rows - first);
      if (at_once < group_) count = std::min(count, group_ - first % group_);
      made_.tasks.push_back({.kernel = Kernel::kChosen,
                             .b = static_cast<std::int32_t>(b),
                             .kv_head = static_cast<std::int32_t>(kv_head),
                             .count = static_cast<std::int32_t>(count),
                             .first = first,
                             .split_end = ceil_div(keys(b), kSplitKeys),
                             .work = count * request_.chosen->average_keys(b)});
      made_.has_decode = made_.has_chosen = true;
      made_.most_rows =
          std::max(made_.most_rows,
                   static_cast<std::int32_t>(decode_rows_at_once(group_, request_.decode_rows)));
    }
  }
}

// Sorts sequences by the order of their tasks, if all of them decode: sorting tasks would take
// longer.
std::vector<std::int32_t> TaskMaker::by_length() const {
  std::vector<std::int32_t> order(request_.batch);
  std::iota(order.begin(), order.end(), 0);
  const auto length = [this](std::int32_t b) { return keys(b) > kShortWork ? keys(b) : 0; };
  std::sort(order.begin(), order.end(), [length](std::int32_t x, std::int32_t y) {
    return length(x) != length(y) ? length(x) > length(y) : x < y;
  });
  return order;
}

// Long tasks first; equal ones in order, or with heads in turn. Short ones, which are claimed
// several at a time, stay in the order of their memory. Where every head has its own part of a
// pool, one head after the other: pages in random order miss the TLB, and the page tables of one
// part stay in the caches.
void TaskMaker::order() {
  const auto is_long = [](const ForwardTask& task) { return task.work > kShortWork; };
  if (std::none_of(made_.tasks.begin(), made_.tasks.end(), is_long)) return;
  const auto before = [this, is_long](const ForwardTask& x, const ForwardTask& y) {
    const std::int64_t x_work = is_long(x) ? x.work : 0, y_work = is_long(y) ? y.work : 0;
    if (heads_are_apart_)
      return std::tie(x.kv_head, y_work, x.b, x.first, x.split_begin) <
             std::tie(y.kv_head, x_work, y.b, y.first, y.split_begin);
    if (heads_in_turn_)
      return std::tie(y_work, x.b, x.split_begin, x.kv_head, x.first) <
             std::tie(x_work, y.b, y.split_begin, y.kv_head, y.first);
    return std::tie(y_work, x.b, x.kv_head, x.first, x.split_begin) <
           std::tie(x_work, y.b, y.kv_head, y.first, y.split_begin);
  };
  if (!std::is_sorted(made_.tasks.begin(), made_.tasks.end(), before))
    std::sort(made_.tasks.begin(), made_.tasks.end(), before);
}

}  // namespace

std::vector<std::int64_t> claim_tasks(std::span<const ForwardTask> tasks, std::int64_t threads) {
  constexpr std::int64_t kClaimWork = 2048;
  const std::int64_t count = tasks.size();
  const std::int64_t most = std::max<std::int64_t>(1, count / (16 * threads));
  std::vector<std::int64_t> claims;
  std::int64_t work = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t more = tasks[i].work;
    if (claims.empty() || i - claims.back() == most || work + more > kClaimWork) {
      claims.push_back(i);
      work = 0;
    }
    work += more;
  }
  claims.push_back(count);
  return claims;
}

ForwardTasks make_tasks(const ForwardRequest& request, const VisibleKeys* visible,
                        std::int64_t threads) {
  return TaskMaker(request, visible, threads).make();
}

}  // namespace quire::plan
