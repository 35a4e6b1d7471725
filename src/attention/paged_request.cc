// Page tables to layouts, rules to masks. Attention layer.
#include "attention/paged_request.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attention/forward_request.h"
#include "attention/function_names.h"
#include "attention/validate.h"
#include "layout/paged_layout.h"
#include "mask/sequence_masks.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

void check_integers(const char* name, const ConstTensorView& view, std::size_t rank) {
  if (view.dtype() != DType::i32 && view.dtype() != DType::i64)
    fail(ErrorKind::type, names::kFlexAttention, "{} must be i32 or i64; got {}", name,
         dtype_name(view.dtype()));
  if (view.rank() != rank) {
    fail(ErrorKind::value, names::kFlexAttention, "{} must have {} axes; got {}", name, rank,
         to_string(view.shape()));
  }
}

std::int64_t integer_at(const ConstTensorView& view, std::int64_t offset) {
  return view.dtype() == DType::i32 ? view.data_as<std::int32_t>()[offset]
                                    : view.data_as<std::int64_t>()[offset];
}

void check_pools(const PagedKeys& keys) {
  for (const ConstTensorView* view : {&keys.k, &keys.v}) {
    if (view->rank() != 4) {
      fail(ErrorKind::value, names::kFlexAttention,
           "paged keys and values must be [pages, heads, page_size, dim]; got {}",
           to_string(view->shape()));
    }
  }
  if (keys.k.dim(0) != keys.v.dim(0) || keys.k.dim(1) != keys.v.dim(1) ||
      keys.k.dim(2) != keys.v.dim(2)) {
    fail(ErrorKind::value, names::kFlexAttention,
         "key and value must have the same pages, heads and page size; got {} and {}",
         to_string(keys.k.shape()), to_string(keys.v.shape()));
  }
  if (keys.k.dim(2) < 1)
    fail(ErrorKind::value, names::kFlexAttention, "the page size must be at least 1; got 0");
}

// Lengths and live pages of all sequences.
struct Table {
  std::vector<std::int64_t> lengths, pages;
  std::int64_t longest = 0;
};

Table read_table(const PagedKeys& keys, std::int64_t batch) {
  check_integers("page_table", keys.page_table, 2);
  check_integers("lengths", keys.lengths, 1);
  if (keys.page_table.dim(0) != batch || keys.lengths.dim(0) != batch) {
    fail(ErrorKind::value, names::kFlexAttention,
         "{} sequences need as many page table rows and lengths; got {} and {}", batch,
         keys.page_table.dim(0), keys.lengths.dim(0));
  }
  const std::int64_t pool = keys.k.dim(0), page_size = keys.k.dim(2);
  Table table;
  table.lengths.reserve(static_cast<std::size_t>(batch));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = integer_at(keys.lengths, b * keys.lengths.stride(0));
    if (length < 0)
      fail(ErrorKind::value, names::kFlexAttention,
           "lengths must not be negative; sequence {} has {}", b, length);
    const std::int64_t pages = ceil_div(length, page_size);
    if (pages > keys.page_table.dim(1)) {
      fail(ErrorKind::value, names::kFlexAttention,
           "sequence {} has {} keys; {} pages of {} hold fewer", b, length, keys.page_table.dim(1),
           page_size);
    }
    table.lengths.push_back(length);
    table.longest = std::max(table.longest, length);
    for (std::int64_t i = 0; i < pages; ++i) {
      const std::int64_t page = integer_at(
          keys.page_table, b * keys.page_table.stride(0) + i * keys.page_table.stride(1));
      if (page < 0 || page >= pool) {
        fail(ErrorKind::index, names::kFlexAttention,
             "page {} of sequence {} is outside a pool of {}; got {}", i, b, pool, page);
      }
      table.pages.push_back(page);
    }
  }
  return table;
}

void check_mask(const BlockMask& mask, const AttentionShape& shape,
                const PagedKeysOptions& options) {
  const auto [q_len, kv_len] = mask.seq_lengths();
  if (q_len != shape.q_len || kv_len < shape.kv_len) {
    fail(ErrorKind::value, names::kFlexAttention,
         "the block mask was made for {} queries and {} keys; got {}, and a longest sequence of {}",
         q_len, kv_len, shape.q_len, shape.kv_len);
  }
  // The rest is as of a dense call of the mask's own length.
  AttentionShape dense = shape;
  dense.kv_len = kv_len;
  validate(names::kFlexAttention, dense,
           {.block_mask = mask, .enable_gqa = true, .q_begin = options.q_begin});
}

plan::MaskSource mask_source(const PagedKeysOptions& options, const AttentionShape& shape,
                             const std::vector<std::int64_t>& lengths,
                             const std::vector<std::int64_t>& q_begin) {
  if (options.block_mask.has_value()) {
    if (options.mask_mod.has_value())
      fail(ErrorKind::value, names::kFlexAttention, "give mask_mod or block_mask, not both");
    check_mask(*options.block_mask, shape, options);
    return *options.block_mask;
  }
  if (!options.mask_mod.has_value()) return {};
  const std::vector<std::int64_t> q_lengths(lengths.size(), shape.q_len);
  std::vector<std::int64_t> begins = q_begin;
  if (begins.size() == 1) begins.assign(lengths.size(), q_begin[0]);
  mask::SequenceMasks made = mask::create_sequence_masks(
      names::kFlexAttention, *options.mask_mod, shape.q_heads,
      {.q = q_lengths, .kv = lengths, .q_begin = begins}, {.executor = options.executor});
  return {*options.mask_mod, std::move(made.masks), std::move(made.which)};
}

}  // namespace

plan::ForwardRequest paged_request(const ConstTensorView& q, const PagedKeys& keys,
                                   const PagedKeysOptions& options) {
  check_pools(keys);
  if (q.rank() != 4) {
    fail(ErrorKind::value, names::kFlexAttention,
         "query must be [batch, heads, length, dim]; got {}", to_string(q.shape()));
  }
  if (q.dim(3) != keys.k.dim(3)) {
    fail(ErrorKind::value, names::kFlexAttention,
         "query and key must have the same head dim; got {} and {}", q.dim(3), keys.k.dim(3));
  }
  Table table = read_table(keys, q.dim(0));
  const AttentionShape shape{.batch = q.dim(0),
                             .q_heads = q.dim(1),
                             .q_len = q.dim(2),
                             .head_dim = q.dim(3),
                             .kv_batch = q.dim(0),
                             .kv_heads = keys.k.dim(1),
                             .kv_len = table.longest,
                             .v_head_dim = keys.v.dim(3),
                             .q_dtype = q.dtype(),
                             .k_dtype = keys.k.dtype(),
                             .v_dtype = keys.v.dtype()};
  FlexAttentionOptions dense{.score_mod = options.score_mod,
                             .scale = options.scale,
                             .enable_gqa = options.enable_gqa,
                             .q_begin = options.q_begin,
                             .executor = options.executor};
  validate(names::kFlexAttention, shape, dense);
  plan::ForwardRequest request = forward_request(shape, dense);
  if (options.q_begin.empty() && options.block_mask.has_value())
    request.q_begin = {options.block_mask->q_begin()};
  request.block_mask = mask_source(options, shape, table.lengths, request.q_begin);
  request.layout =
      std::make_shared<layout::PagedLayout>(keys.k.dim(2), std::move(table.pages), table.lengths);
  return request;
}

}  // namespace quire::attention
