// Reserves pages once, then for each layer: write the new rows, attend, continue. Positions enter
// through ALiBi.
#include "forward.h"

#include <quire/attend.h>
#include <quire/mods.h>
#include <quire/tensor_view.h>

#include <vector>

namespace engine {

using quire::ConstTensorView;
using quire::DType;

quire::KVCacheOptions cache_options(const ModelSizes& sizes, std::int64_t page_size,
                                    std::int64_t n_pages) {
  return {.layers = sizes.layers,
          .kv_heads = sizes.kv_heads,
          .head_dim = sizes.head_dim,
          .page_size = page_size,
          .n_pages = n_pages};
}

Rows forward(const Model& model, quire::KVCache& cache, std::span<const quire::NewTokens> step) {
  const ModelSizes& sizes = model.sizes();
  cache.append(step);
  std::vector<std::int64_t> ids;
  for (const quire::NewTokens& tokens : step)
    ids.insert(ids.end(), tokens.ids.begin(), tokens.ids.end());
  Rows x = model.embed(ids);
  const std::int64_t n = std::ssize(ids);
  const quire::Shape kv_rows{n, sizes.kv_heads, sizes.head_dim};
  const quire::Shape q_rows{n, sizes.q_heads, sizes.head_dim};
  quire::AttendPlan plan(cache, step, {.q_heads = sizes.q_heads},
                         {.score_mod = quire::mods::alibi(sizes.q_heads)});
  Rows attention(n * sizes.q_heads * sizes.head_dim);
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const Model::Projections p = model.project(layer, x);
    cache.write(layer, step, {p.k.data(), DType::f32, kv_rows}, {p.v.data(), DType::f32, kv_rows});
    plan.run(cache, layer, ConstTensorView(p.q.data(), DType::f32, q_rows),
             {.out = quire::TensorView(attention.data(), DType::f32, q_rows)});
    model.finish_layer(layer, attention, x);
  }
  return x;
}

}  // namespace engine
