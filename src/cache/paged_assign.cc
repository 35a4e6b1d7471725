// PageTables::assign: copies keys and values to their slots, row by row; the only temporary is a
// list of slots. Cache layer.
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "quire/page_tables.h"
#include "runtime/executor_of.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/run_parallel.h"

namespace quire {
namespace {

constexpr const char* kAssign = "assign";
constexpr std::int64_t kSerialBytes =
    1 << 20;  // copied by one thread in the time others take to wake

void check_rank(const char* name, const ConstTensorView& view, std::size_t rank) {
  if (view.rank() != rank)
    fail(ErrorKind::value, kAssign, "{} must have {} axes; got {}", name, rank,
         to_string(view.shape()));
}

void check_same(const char* what, std::int64_t a, std::int64_t b) {
  if (a != b) fail(ErrorKind::value, kAssign, "{} must be equal; got {} and {}", what, a, b);
}

void check_integers(const char* name, const ConstTensorView& view) {
  if (is_floating(view.dtype()) || view.dtype() == DType::boolean)
    fail(ErrorKind::type, kAssign, "{} must be integers; got {}", name, dtype_name(view.dtype()));
}

void check_pair(const char* name, const ConstTensorView& val, const ConstTensorView& cache) {
  for (const auto& [what, axis] : {std::pair{"heads", 1}, std::pair{"dims", 3}}) {
    if (val.dim(axis) != cache.dim(axis))
      fail(ErrorKind::value, kAssign,
           "the {0} of {1}_val and {1}_cache must be equal; got {2} and {3}", what, name,
           val.dim(axis), cache.dim(axis));
  }
  if (val.dtype() != cache.dtype()) {
    fail(ErrorKind::type, kAssign,
         "{0}_val and {0}_cache must have the same dtype; got {1} and {2}", name,
         dtype_name(val.dtype()), dtype_name(cache.dtype()));
  }
}

void check_shapes(const PagedAssignment& all) {
  check_rank("batch_idx", all.batch_idx, 1);
  check_rank("input_pos", all.input_pos, 2);
  check_rank("k_val", all.k_val, 4);
  check_rank("v_val", all.v_val, 4);
  check_rank("k_cache", all.k_cache, 4);
  check_rank("v_cache", all.v_cache, 4);
  check_integers("batch_idx", all.batch_idx);
  check_integers("input_pos", all.input_pos);
  check_same("the batch sizes of k_val and batch_idx", all.k_val.dim(0), all.batch_idx.dim(0));
  check_same("the batch sizes of k_val and input_pos", all.k_val.dim(0), all.input_pos.dim(0));
  check_same("the lengths of k_val and input_pos", all.k_val.dim(2), all.input_pos.dim(1));
  check_same("the batch sizes of k_val and v_val", all.k_val.dim(0), all.v_val.dim(0));
  check_same("the lengths of k_val and v_val", all.k_val.dim(2), all.v_val.dim(2));
  check_pair("k", all.k_val, all.k_cache);
  check_pair("v", all.v_val, all.v_cache);
}

void copy_row(std::byte* to, std::int64_t to_step, const std::byte* from, std::int64_t from_step,
              std::int64_t dims, std::size_t size) {
  for (std::int64_t d = 0; d < dims; ++d) {
    std::memcpy(to, from, size);
    from += from_step;
    to += to_step;
  }
}

// Copies the rows of one head, [B, S] of them, to rows places[i] of the cache; rows that are
// consecutive on both sides are copied at once.
void copy_head(const ConstTensorView& val, const TensorView& cache, std::int64_t head,
               const std::vector<std::int64_t>& places) {
  const std::int64_t size = dtype_size(val.dtype());
  const Shape &from = val.strides(), &to = cache.strides();
  const std::int64_t dims = val.dim(3), tokens = val.dim(2), rows = std::ssize(places);
  const bool is_run = (from[3] == 1 && to[3] == 1) || dims == 1;
  const bool rows_follow = is_run && from[2] == dims && to[2] == dims;
  for (std::int64_t batch = 0; batch < cache.dim(0); ++batch) {
    auto* const out = static_cast<std::byte*>(cache.data()) + (batch * to[0] + head * to[1]) * size;
    for (std::int64_t i = 0, count = 1; i < rows; i += count) {
      const std::int64_t* const place = &places[i];
      const std::int64_t left = rows_follow ? tokens - i % tokens : 1;
      for (count = 1; count < left && place[count] == place[0] + count;) ++count;
      const auto* const in = static_cast<const std::byte*>(val.data()) +
                             (i / tokens * from[0] + head * from[1] + i % tokens * from[2]) * size;
      std::byte* const row = out + place[0] * to[2] * size;
      if (is_run)
        std::memcpy(row, in, count * dims * size);
      else
        copy_row(row, to[3] * size, in, from[3] * size, dims, size);
    }
  }
}

}  // namespace

void PageTables::assign(const PagedAssignment& all) const {
  const FloatEnv float_env;
  check_shapes(all);
  const std::int64_t batch = all.k_val.dim(0), tokens = all.k_val.dim(2);
  const std::int64_t slots = std::min(all.k_cache.dim(2), all.v_cache.dim(2));
  std::vector<std::int64_t> places;
  places.reserve(batch * tokens);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t b = checked_batch("assign", all.batch_idx.load_int({i}));
    const std::int64_t* const table = row(page_table_, b);
    for (std::int64_t s = 0; s < tokens; ++s) {
      const std::int64_t position = all.input_pos.load_int({i, s}), at = position / page_size_;
      const std::int64_t page =
          position < 0 || at >= n_pages() ? -1 : table[at * page_table_.strides()[1]];
      if (page < 0) {
        fail(ErrorKind::value, kAssign,
             "position {} of batch entry {} has no page: reserve it first", position, b);
      }
      const std::int64_t offset = position % page_size_;
      if (offset >= slots || page > (slots - 1 - offset) / page_size_) {
        fail(ErrorKind::index, kAssign, "page {} lies outside a cache of {} keys", page, slots);
      }
      places.push_back(page * page_size_ + offset);
    }
  }
  const std::size_t heads_of_k = all.k_val.dim(1);
  const std::size_t heads = heads_of_k + all.v_val.dim(1);
  const auto copy = [&](std::size_t i, std::size_t) {
    if (i < heads_of_k)
      copy_head(all.k_val, all.k_cache, static_cast<std::int64_t>(i), places);
    else
      copy_head(all.v_val, all.v_cache, static_cast<std::int64_t>(i - heads_of_k), places);
  };
  const auto bytes = [](const ConstTensorView& view) {
    return view.numel() * static_cast<std::int64_t>(dtype_size(view.dtype()));
  };
  if (bytes(all.k_val) + bytes(all.v_val) <= kSerialBytes) {
    for (std::size_t i = 0; i < heads; ++i) copy(i, 0);
  } else {
    run_parallel(*executor_of(all.executor), heads, copy);
  }
}

}  // namespace quire
