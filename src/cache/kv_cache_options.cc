// The options of a KVCache: turns sizes into one group, or groups into sizes. Cache layer.
#include "cache/kv_cache_options.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cache/group_rows.h"
#include "cache/page.h"
#include "cache/prefix_index.h"
#include "kernels/attention_order.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/memory.h"

namespace quire::cache {
namespace {

constexpr std::int64_t kMostSize = std::numeric_limits<std::int32_t>::max();
constexpr const char* kWhere = "KVCache";

void check_format(const char* name, const KVFormat& format, std::int64_t dim) {
  try {
    format.code_bytes(dim);
  } catch (const Error& error) {
    fail(error.kind(), kWhere, "{}: {}", name, error.what());
  }
}

void check_formats(KVLayerGroup& group) {
  if (group.v_in_k) {
    if (group.v_head_dim > group.head_dim)
      fail(ErrorKind::value, kWhere, "with v_in_k, v_head_dim must be at most head_dim, {}; got {}",
           group.head_dim, group.v_head_dim);
    if (group.v_format.is_plain()) group.v_format = group.k_format;
    if (group.v_format != group.k_format)
      fail(ErrorKind::value, kWhere, "with v_in_k, v_format must be k_format, {}; got {}",
           group.k_format.name(), group.v_format.name());
    if (group.k_format.rotation(group.head_dim) != group.k_format.rotation(group.v_head_dim))
      fail(ErrorKind::value, kWhere,
           "with v_in_k, hadamard must rotate the same blocks of keys and values; head dims of {} "
           "and {} have blocks of {} and {}",
           group.head_dim, group.v_head_dim, group.k_format.rotation(group.head_dim),
           group.k_format.rotation(group.v_head_dim));
  }
  check_format("k_format", group.k_format, group.head_dim);
  check_format("v_format", group.v_format, group.v_head_dim);
}

void check_group(KVLayerGroup& group) {
  if (group.v_head_dim == 0) group.v_head_dim = group.head_dim;
  check_size(kWhere, "kv_heads", group.kv_heads, 1, kMostSize);
  check_size(kWhere, "head_dim", group.head_dim, 1, kernels::kMostHeadDim);
  check_size(kWhere, "v_head_dim", group.v_head_dim, 1, kernels::kMostHeadDim);
  check_size(kWhere, "n_pages", group.n_pages, 0, kMostSize);
  check_size(kWhere, "window", group.window, 0, std::numeric_limits<std::int64_t>::max() / 2);
  check_size(kWhere, "sink_tokens", group.sink_tokens, 0,
             std::numeric_limits<std::int64_t>::max() / 2);
  if (group.sink_tokens > 0 && group.window == 0)
    fail(ErrorKind::value, kWhere, "sink_tokens are for groups with a window; got {} without",
         group.sink_tokens);
  if (!is_floating(group.dtype)) {
    fail(ErrorKind::type, kWhere, "dtype must be f32, f64, bf16 or f16; got {}",
         dtype_name(group.dtype));
  }
  check_formats(group);
}

// Checks that each layer 0, 1, ... is in exactly one group.
std::int64_t count_layers(const std::vector<KVLayerGroup>& groups) {
  std::vector<std::int64_t> all;
  for (const KVLayerGroup& group : groups) {
    if (group.layers.empty())
      fail(ErrorKind::value, kWhere, "a group of layers must have at least one");
    all.insert(all.end(), group.layers.begin(), group.layers.end());
  }
  std::ranges::sort(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == static_cast<std::int64_t>(i)) continue;
    fail(ErrorKind::value, kWhere,
         "the layers of all groups together must be 0..{}, each once; got {} in the place of {}",
         all.size() - 1, all[i], i);
  }
  return std::ssize(all);
}

// The options describe either one group by sizes or several by `groups`, not both.
void check_sizes_or_groups(const KVCacheOptions& options) {
  const KVCacheOptions none;
  const KVLayerGroup& first = options.groups.front();
  const auto fits = [](std::int64_t size, std::int64_t not_given, std::int64_t filled_in) {
    return size == not_given || size == filled_in;
  };
  if (fits(options.kv_heads, none.kv_heads, first.kv_heads) &&
      fits(options.head_dim, none.head_dim, first.head_dim) &&
      fits(options.v_head_dim, none.v_head_dim, first.v_head_dim) &&
      (options.dtype == none.dtype || options.dtype == first.dtype) &&
      (options.k_format == none.k_format || options.k_format == first.k_format) &&
      (options.v_format == none.v_format || options.v_format == first.v_format) &&
      (options.v_in_k == none.v_in_k || options.v_in_k == first.v_in_k)) {
    return;
  }
  fail(
      ErrorKind::value, kWhere,
      "kv_heads, head_dim, v_head_dim, dtype, formats and v_in_k are those of the groups; give one "
      "or the other");
}

// Besides rows: a Page per page, and for each node of the index its ids, pages and up to 8 buckets.
void check_memory(const KVCacheOptions& options) {
  const auto times = saturating_product;
  std::int64_t rows = 0, pages = 0;
  for (const KVLayerGroup& group : options.groups) {
    const std::int64_t some = times(group.n_pages * options.page_size, token_bytes(group));
    rows = rows > std::numeric_limits<std::int64_t>::max() - some
               ? std::numeric_limits<std::int64_t>::max()
               : rows + some;
    pages += group.n_pages;
  }
  const std::int64_t books = std::int64_t{sizeof(Page)} + std::int64_t{sizeof(PrefixNode)} +
                             (8 + std::ssize(options.groups)) * std::int64_t{sizeof(std::int32_t)};
  require_memory(kWhere, "the pool", std::max(rows, times(pages, options.page_size * 8 + books)));
}

}  // namespace

KVCacheOptions checked_options(KVCacheOptions options) {
  if (options.page_hash == nullptr) options.page_hash = default_page_hash;
  check_size(kWhere, "page_size", options.page_size, 1, kMostSize);
  check_size(kWhere, "n_pages", options.n_pages, 0, kMostSize);
  if (options.groups.empty()) {
    check_size(kWhere, "layers", options.layers, 1, kMostSize);
    KVLayerGroup all{.kv_heads = options.kv_heads,
                     .head_dim = options.head_dim,
                     .v_head_dim = options.v_head_dim,
                     .dtype = options.dtype,
                     .k_format = options.k_format,
                     .v_format = options.v_format,
                     .v_in_k = options.v_in_k,
                     .n_pages = options.n_pages};
    check_group(all);
    // Before a list of that length is made: there is no memory for so many layers either.
    require_memory(
        kWhere, "the pool",
        saturating_product(
            saturating_product(options.n_pages * options.page_size, options.layers),
            all.kv_heads *
                (row_bytes(all.k_format, all.head_dim, all.dtype) +
                 (all.v_in_k ? 0 : row_bytes(all.v_format, all.v_head_dim, all.dtype)))));
    all.layers.resize(options.layers);
    std::iota(all.layers.begin(), all.layers.end(), std::int64_t{0});
    options.groups.push_back(std::move(all));
  } else {
    std::int64_t pages = 0;
    for (KVLayerGroup& group : options.groups) {
      if (group.n_pages == 0) group.n_pages = options.n_pages;
      check_group(group);
      pages += group.n_pages;
    }
    const std::int64_t layers = count_layers(options.groups);
    if (options.layers != 1 && options.layers != layers)
      fail(ErrorKind::value, kWhere, "the groups have {} layers; got layers = {}", layers,
           options.layers);
    check_sizes_or_groups(options);
    options.layers = layers;
    check_size(kWhere, "n_pages of all groups", pages, 0, kMostSize);
    options.n_pages = pages;
  }
  const KVLayerGroup& first = options.groups.front();
  options.kv_heads = first.kv_heads;
  options.head_dim = first.head_dim;
  options.v_head_dim = first.v_head_dim;
  options.dtype = first.dtype;
  options.k_format = first.k_format;
  options.v_format = first.v_format;
  options.v_in_k = first.v_in_k;
  check_memory(options);
  return options;
}

}  // namespace quire::cache
