// PagedAttention: owns its tables and the list of empty pages. Paged layer.
#include "quire/paged_attention.h"

#include <algorithm>

#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

std::int64_t at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) {
    fail(ErrorKind::value, "PagedAttention", "{} must be at least {}; got {}", name, least, value);
  }
  return value;
}

Tensor minus_ones(const Shape& shape) {
  Tensor table = Tensor::empty(shape, DType::i64);
  std::fill_n(table.data_as<std::int64_t>(), table.numel(), -1);
  return table;
}

}  // namespace

PagedAttention::PagedAttention(std::int64_t n_pages, std::int64_t page_size,
                               std::int64_t max_batch_size)
    : page_size_(at_least("page_size", page_size, 1)),
      page_table_(minus_ones(
          {at_least("max_batch_size", max_batch_size, 0), at_least("n_pages", n_pages, 0)})),
      capacity_({max_batch_size}, DType::i64),
      physical_to_logical_(minus_ones({max_batch_size, n_pages})),
      empty_pages_(n_pages) {
  for (std::int64_t i = 0; i < n_pages; ++i) empty_pages_[i] = n_pages - 1 - i;
}

PageTables PagedAttention::tables() {
  return {page_table_.view(), capacity_.view(), physical_to_logical_.view(), page_size_};
}

void PagedAttention::reserve(std::int64_t batch_idx, std::int64_t seq_len) {
  PageTables all = tables();
  const std::int64_t wanted = all.pages_wanted(batch_idx, seq_len);
  const std::int64_t empty = empty_pages_.size();
  if (wanted == 0) return;
  if (wanted > empty) {
    fail(ErrorKind::value, "reserve", "requested {} pages but there are only {} empty pages",
         wanted, empty);
  }
  all.add_pages(batch_idx, std::span(empty_pages_).last(wanted));
  empty_pages_.resize(empty - wanted);
}

void PagedAttention::erase(std::span<const std::int64_t> batch_idx) {
  empty_pages_.reserve(n_pages() + empty_pages_.size());
  const std::vector<std::int64_t> pages = tables().remove_pages(batch_idx);
  empty_pages_.insert(empty_pages_.end(), pages.begin(), pages.end());
}

void PagedAttention::assign(const PagedAssignment& assignment) {
  const FloatEnv float_env;
  tables().assign(assignment);
}

BlockMask PagedAttention::convert_logical_block_mask(const BlockMask& logical,
                                                     const ConvertOptions& options) {
  const FloatEnv float_env;
  return physical_block_mask(logical, tables(), options.batch_idx,
                             get_mask_mod(logical.mask_mod(), options.kv_len));
}

MaskMod PagedAttention::get_mask_mod(const std::optional<MaskMod>& mask_mod,
                                     const std::optional<Buffer>& kv_len) const {
  const FloatEnv float_env;
  return physical_mask_mod(mask_mod.value_or(noop_mask()),
                           Buffer(physical_to_logical_, {.name = "physical_to_logical"}),
                           page_size_, kv_len);
}

ScoreMod PagedAttention::get_score_mod(const std::optional<ScoreMod>& score_mod,
                                       const std::optional<Buffer>& kv_len) const {
  const FloatEnv float_env;
  const ScoreMod same = [](auto score, auto, auto, auto, auto) { return score; };
  return physical_score_mod(score_mod.value_or(same),
                            Buffer(physical_to_logical_, {.name = "physical_to_logical"}),
                            page_size_, kv_len);
}

}  // namespace quire
