// The work of a forward call as tasks: long sequences are cut into several, short ones grouped.
// Every sequence goes to the kernel that suits its own lengths. Depends on sizes, masks and the
// number of threads only; bits never depend on it. Plan layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/choose_kernel.h"
#include "plan/forward_request.h"
#include "plan/shared_prefixes.h"
#include "plan/visible_keys.h"

namespace quire::plan {

/// Query tiles (prefill) or query rows (decode) [first, first + count) of the heads that share a
/// key head, head after head; where queries chose their keys, query after query. Decode: splits
/// [split_begin, split_end).
struct ForwardTask {
  Kernel kernel = Kernel::kPrefill;
  std::int32_t b = 0, kv_head = 0, count = 0;
  std::int64_t first = 0;
  std::int64_t split_begin = 0, split_end = 0;
  std::int64_t states = -1;     // decode, cut: where its states begin
  std::int64_t state_step = 0;  // merges: from split to split
  std::int64_t work = 0;        // keys, once for every tile of queries or group of rows
  // Decode: keys that were walked together with others. Splits begin after those that lie entirely
  // in the prefix.
  std::int64_t prefix_tiles = 0;
  std::int64_t prefix_states = -1;  // where its rows' states of split 0 begin
  std::int64_t prefix_step = 0;     // from split to split
};

/// Splits [split_begin, split_end) of the tiles that the members of a shared prefix walk together.
struct PrefixTask {
  std::int32_t prefix = 0, kv_head = 0;
  std::int64_t split_begin = 0, split_end = 0;
  std::int64_t states = 0;  // [split][row]
};

struct ForwardTasks {
  std::vector<ForwardTask> tasks;    // long ones first, so that threads end together
  std::vector<ForwardTask> merges;   // after all tasks: rows whose splits were cut, a few at a time
  std::vector<PrefixTask> prefixes;  // before all tasks
  SharedPrefixes shared;
  std::vector<std::int64_t> claims;               // first task of each claim, and the end
  std::int64_t state_elements = 0;                // of all tasks that were cut
  int most_tiles = 0;                             // of a prefill task
  std::int32_t most_rows = kernels::kDecodeRows;  // of a decode item, or more
  bool has_prefill = false, has_decode = false, has_chosen = false;
};

/// Which tasks a thread takes at once: the first of each claim, and the end. Short ones lie side by
/// side in memory and are best done in a row, up to 2,048 keys, while every thread still gets 16
/// claims. 4,096 tasks of 16 keys, 2 threads: 128 each. 4,096 of 8,192 keys: 1. 100 of 16: 3.
std::vector<std::int64_t> claim_tasks(std::span<const ForwardTask> tasks, std::int64_t threads);

/// `visible`: null if everything is. request.queries and request.layout are set.
ForwardTasks make_tasks(const ForwardRequest& request, const VisibleKeys* visible,
                        std::int64_t threads);

}  // namespace quire::plan
