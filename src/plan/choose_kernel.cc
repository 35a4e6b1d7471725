// Chooses a kernel, and how work is divided, from sizes alone. Plan layer.
#include "plan/choose_kernel.h"

#include <algorithm>
#include <bit>

#include "kernels/decode/decode.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::plan {

Kernel choose_kernel(std::int64_t group, std::int64_t q_len, std::int64_t kv_len) {
  const std::int64_t rows = group * q_len;
  if (rows <= (kv_len >= kLongKeys ? kDecodeRowsLong : kDecodeRowsAlways)) return Kernel::kDecode;
  const std::int64_t lanes =
      group * ((q_len + kernels::kPanel - 1) / kernels::kPanel * kernels::kPanel);
  return lanes > 2 * rows ? Kernel::kDecode : Kernel::kPrefill;
}

Kernel choose_kernel_of_lists(std::int64_t group, const ChosenLists& lists) {
  if (lists.q_len == 1 && lists.together == group) return Kernel::kDecode;
  // A product of 1, 2, 4 or 8 rows with a chosen key costs this many quarters of one in tiles where
  // both take the same time (Zen 5, D = 128).
  constexpr std::int64_t kQuarters[] = {26, 14, 10, 9}, kOfPairs[] = {1400, 700, 350, 180};
  const int rows =
      std::bit_width(static_cast<std::uint64_t>(std::min<std::int64_t>(lists.together, 8))) - 1;
  const std::int64_t quarters = lists.pairs ? kOfPairs[rows] : kQuarters[rows];
  if (lists.keys * quarters < lists.kv_len * 4) return Kernel::kChosen;
  return choose_kernel(group, lists.q_len, lists.kv_len);
}

std::int64_t chosen_queries_at_once(const layout::ChosenKeys& chosen, std::int64_t group,
                                    std::int64_t most_rows) {
  if (chosen.by_head()) return kernels::kMostChosenRows;
  std::int64_t most = kernels::kMostChosenRows;
  for (std::int64_t left = group, rows; left > 0; left -= rows) {
    rows = decode_rows_at_once(left, most_rows);
    most = std::min<std::int64_t>(most, kernels::most_chosen_queries(static_cast<int>(rows)));
  }
  return most;
}

Kernel kernel_of_sequence(const AttentionProblem& problem, std::int64_t sequence,
                          std::int64_t q_len, std::int64_t kv_len) {
  const std::int64_t group = problem.group();
  if (problem.chosen == nullptr) return choose_kernel(group, q_len, kv_len);
  const bool are_bf16 = problem.q_dtype == DType::bf16 && problem.k_dtype == DType::bf16 &&
                        problem.v_dtype == DType::bf16 && problem.k_format.is_plain() &&
                        problem.v_format.is_plain();
  return choose_kernel_of_lists(group,
                                {.q_len = q_len,
                                 .kv_len = kv_len,
                                 .keys = problem.chosen->average_keys(sequence),
                                 .together = problem.chosen->by_head() ? 1 : group,
                                 .pairs = are_bf16 && kernels::current_table().pairs != nullptr});
}

int tiles_per_item(std::int64_t tiles, int most, std::int64_t threads) {
  const std::int64_t even = threads <= 1 ? most : tiles / (4 * threads);
  return static_cast<int>(std::clamp<std::int64_t>(even, 1, most));
}

std::int64_t decode_rows_at_once(std::int64_t rows, std::int64_t most) {
  if (rows <= most) return rows;
  return most == kernels::kDecodeRows ? 8 : most;
}

std::int64_t split_items(std::int64_t pairs, std::int64_t splits, std::int64_t threads) {
  if (threads <= 1 || pairs >= 4 * threads) return 1;
  const std::int64_t wanted = (4 * threads + pairs - 1) / std::max<std::int64_t>(pairs, 1);
  return std::clamp<std::int64_t>(std::min(wanted, splits), 1, std::max<std::int64_t>(splits, 1));
}

bool is_for_one_thread(double multiply_adds) { return multiply_adds <= 0x1p20; }

bool come_from_memory(std::int64_t bytes, std::int64_t l3_bytes) {
  constexpr std::int64_t kNoL3 = std::int64_t{4} << 20, kMostL3 = std::int64_t{32} << 20;
  return bytes > std::max(kNoL3, std::min(l3_bytes, kMostL3) / 4 * 3);
}

}  // namespace quire::plan
