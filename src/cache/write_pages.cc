// Copies rows of tokens to slots of pages, token by token; many tokens in chunks on the executor.
// Cache layer.
#include "quire/write_pages.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/run_parallel.h"
#include "tensor/convert.h"
#include "tensor/index_view.h"

namespace quire {
namespace {

constexpr const char* kWhere = "write_pages";
/// Bytes that one thread writes before others are woken.
constexpr std::int64_t kChunkBytes = std::int64_t{64} << 10;

void check(const ConstTensorView& rows, const ConstTensorView& slots, const TensorView& pages) {
  if (rows.rank() != 3 || pages.rank() != 4 || rows.dim(1) != pages.dim(1) ||
      rows.dim(2) != pages.dim(3)) {
    fail(ErrorKind::value, kWhere,
         "rows must be [tokens, heads, dim] and pages [pages, heads, page_size, dim]; got {} and "
         "{}",
         to_string(rows.shape()), to_string(pages.shape()));
  }
  check_indices(kWhere, "slots", slots);
  if (slots.rank() != 1 || slots.dim(0) != rows.dim(0)) {
    fail(ErrorKind::value, kWhere, "slots must be one for each of {} rows; got {}", rows.dim(0),
         to_string(slots.shape()));
  }
  const bool floats = is_floating(rows.dtype()) && is_floating(pages.dtype());
  if (!floats && rows.dtype() != pages.dtype()) {
    fail(ErrorKind::type, kWhere, "rows and pages must be floats, or of one dtype; got {} and {}",
         dtype_name(rows.dtype()), dtype_name(pages.dtype()));
  }
  if (pages.dim(3) > 1 && pages.stride(3) != 1) {
    fail(ErrorKind::value, kWhere,
         "the numbers of a row of pages must lie side by side; got a stride of {}",
         pages.stride(3));
  }
}

// All heads of one token.
void write_token(const ConstTensorView& rows, std::int64_t token, const TensorView& pages,
                 std::int64_t slot) {
  const std::int64_t size = pages.dim(2), dim = rows.dim(2);
  const auto from_bytes = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  const auto to_bytes = static_cast<std::int64_t>(dtype_size(pages.dtype()));
  const bool is_copy = rows.dtype() == pages.dtype() && (dim <= 1 || rows.stride(2) == 1);
  const auto* from =
      static_cast<const std::byte*>(rows.data()) + token * rows.stride(0) * from_bytes;
  auto* to = static_cast<std::byte*>(pages.data()) +
             (slot / size * pages.stride(0) + slot % size * pages.stride(2)) * to_bytes;
  for (std::int64_t head = 0; head < rows.dim(1); ++head) {
    if (is_copy)
      std::memcpy(to, from, dim * to_bytes);
    else
      copy_elements({from, rows.dtype(), {dim}, {rows.stride(2)}}, pages.dtype(), to);
    from += rows.stride(1) * from_bytes;
    to += pages.stride(1) * to_bytes;
  }
}

}  // namespace

void write_pages(const ConstTensorView& rows, const ConstTensorView& slots, const TensorView& pages,
                 Executor* executor) {
  const FloatEnv float_env;
  check(rows, slots, pages);
  const std::int64_t tokens = rows.dim(0), room = pages.dim(0) * pages.dim(2);
  const auto slot_of = [numbers = IndexView(slots), step = slots.stride(0)](std::int64_t row) {
    return numbers[row * step];
  };
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (slot_of(i) < room) continue;
    fail(ErrorKind::index, kWhere, "slot {} of row {} is outside {} pages of {}", slot_of(i), i,
         pages.dim(0), pages.dim(2));
  }
  const auto write = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (const std::int64_t slot = slot_of(i); slot >= 0) write_token(rows, i, pages, slot);
  };
  const std::int64_t token_bytes = std::max<std::int64_t>(
      rows.dim(1) * rows.dim(2) * static_cast<std::int64_t>(dtype_size(pages.dtype())), 1);
  const std::int64_t chunk = std::max<std::int64_t>(kChunkBytes / token_bytes, 1);
  if (tokens <= chunk) return write(0, tokens);
  run_parallel(*executor_of(executor), ceil_div(tokens, chunk), [&](std::size_t i, std::size_t) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * chunk;
    write(begin, std::min(begin + chunk, tokens));
  });
}

}  // namespace quire
