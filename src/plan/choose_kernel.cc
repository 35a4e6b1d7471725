// Chooses kernels and cuts from sizes. Plan layer.
#include "plan/choose_kernel.h"

#include <algorithm>

#include "kernels/decode/decode.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::plan {

Kernel choose_kernel(std::int64_t group, std::int64_t q_len, std::int64_t kv_len) {
  const std::int64_t rows = group * q_len;
  if (rows <= (kv_len >= kLongKeys ? kDecodeRowsLong : kDecodeRowsAlways)) return Kernel::kDecode;
  const std::int64_t lanes =
      group * ((q_len + kernels::kPanel - 1) / kernels::kPanel * kernels::kPanel);
  return lanes > 2 * rows ? Kernel::kDecode : Kernel::kPrefill;
}

int tiles_per_item(std::int64_t tiles, int most, std::int64_t threads) {
  const std::int64_t even = threads <= 1 ? most : tiles / (4 * threads);
  return static_cast<int>(std::clamp<std::int64_t>(even, 1, most));
}

std::int64_t decode_rows_at_once(std::int64_t rows) {
  return rows <= kernels::kDecodeRows ? rows : 8;
}

std::int64_t split_items(std::int64_t pairs, std::int64_t splits, std::int64_t threads) {
  if (threads <= 1 || pairs >= 4 * threads) return 1;
  const std::int64_t wanted = (4 * threads + pairs - 1) / std::max<std::int64_t>(pairs, 1);
  return std::clamp<std::int64_t>(std::min(wanted, splits), 1, std::max<std::int64_t>(splits, 1));
}

bool is_for_one_thread(double multiply_adds) { return multiply_adds <= 0x1p20; }

}  // namespace quire::plan
