// KVCache: the pages of a layer as tensors, and the scales that tokens share. Cache layer.
#include <cmath>
#include <utility>

#include "cache/kv_cache_state.h"
#include "quant/coded_view.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

// The store of a layer's keys or values, and how many numbers of its rows belong to them.
struct Stored {
  cache::RowStore& rows;
  std::int64_t dim;
};

Stored keys_of(const char* where, KVCache::State& state, std::int64_t layer) {
  const cache::LayerPlace place = state.place(where, layer);
  cache::LayerGroup& group = state.groups[place.group];
  return {group.rows.k(place.layer), group.sizes.head_dim};
}

Stored values_of(const char* where, KVCache::State& state, std::int64_t layer) {
  const cache::LayerPlace place = state.place(where, layer);
  cache::LayerGroup& group = state.groups[place.group];
  return {group.rows.v(place.layer), group.sizes.v_head_dim};
}

constexpr const char* kSetScales = "KVCache::set_scales";

// Checks that attention would accept the codes with these scales, and that every scale is finite.
void check_shared_scales(const char* name, const cache::RowStore& rows,
                         const ConstTensorView& scales) {
  const KVFormat& format = rows.format();
  if (!quant::has_given_scales(format)) {
    fail(ErrorKind::value, kSetScales, "{} has no scales that tokens share; give none for {}",
         format.name(), name);
  }
  KVView view = rows.view(rows.dim());
  view.scales = scales;
  quant::check_coded(kSetScales, name, view, {.batch = 0, .head = 1, .token = 2});
  const Tensor all = contiguous(scales);
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const float one = all.data_as<float>()[i];
    if (!(one >= 0) || !std::isfinite(one))
      fail(ErrorKind::value, kSetScales, "scales must be finite and not negative; got {} in {}",
           one, name);
  }
}

}  // namespace

ConstTensorView KVCache::k_pages(std::int64_t layer) const {
  const Stored keys = keys_of("KVCache::k_pages", *state_, layer);
  return keys.rows.pages(keys.dim);
}

ConstTensorView KVCache::v_pages(std::int64_t layer) const {
  const Stored values = values_of("KVCache::v_pages", *state_, layer);
  return values.rows.pages(values.dim);
}

TensorView KVCache::k_pages(std::int64_t layer) {
  const Stored keys = keys_of("KVCache::k_pages", *state_, layer);
  return keys.rows.pages(keys.dim);
}

TensorView KVCache::v_pages(std::int64_t layer) {
  const Stored values = values_of("KVCache::v_pages", *state_, layer);
  return values.rows.pages(values.dim);
}

TensorView KVCache::k_scales(std::int64_t layer) {
  const Stored keys = keys_of("KVCache::k_scales", *state_, layer);
  return keys.rows.scales(keys.dim);
}

TensorView KVCache::v_scales(std::int64_t layer) {
  const Stored values = values_of("KVCache::v_scales", *state_, layer);
  return values.rows.scales(values.dim);
}

KVView KVCache::keys(std::int64_t layer) const {
  const Stored keys = keys_of("KVCache::keys", *state_, layer);
  return keys.rows.view(keys.dim);
}

KVView KVCache::values(std::int64_t layer) const {
  const Stored values = values_of("KVCache::values", *state_, layer);
  return values.rows.view(values.dim);
}

void KVCache::set_scales(std::int64_t layer, const std::optional<ConstTensorView>& k_scales,
                         const std::optional<ConstTensorView>& v_scales) {
  const FloatEnv float_env;
  const cache::LayerPlace place = state_->place(kSetScales, layer);
  cache::LayerGroup& group = state_->groups[place.group];
  if (v_scales.has_value() && group.sizes.v_in_k)
    fail(ErrorKind::value, kSetScales, "values are columns of keys (v_in_k); give k_scales alone");
  cache::RowStore& k = group.rows.k(place.layer);
  cache::RowStore& v = group.rows.v(place.layer);
  if (k_scales.has_value()) check_shared_scales("k_scales", k, *k_scales);
  if (v_scales.has_value()) check_shared_scales("v_scales", v, *v_scales);
  if (group.pool.free() < group.sizes.n_pages) {
    fail(ErrorKind::value, kSetScales,
         "{} pages of the group are used or cached: scales are set before the first token",
         group.sizes.n_pages - group.pool.free());
  }
  if (k_scales.has_value()) k.set_scales(*k_scales);
  if (v_scales.has_value()) v.set_scales(*v_scales);
}

}  // namespace quire
