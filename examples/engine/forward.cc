// Books once, then for each layer: write the new rows, attend, go on. Positions come in by ALiBi.
#include "forward.h"

#include <quire/mods.h>
#include <quire/paged.h>
#include <quire/tensor.h>

#include <vector>

namespace engine {
namespace {

using quire::ConstTensorView;
using quire::DType;

// Attention of a step's new tokens, [tokens, q_heads, head_dim], over all that their sequences
// hold.
Rows attention(const Model& model, const quire::KVCache& cache, std::int64_t layer,
               std::span<const quire::NewTokens> step, const Rows& q) {
  const ModelSizes& sizes = model.sizes();
  const std::int64_t row = sizes.q_heads * sizes.head_dim;
  Rows result;
  std::int64_t first = 0;
  for (const quire::NewTokens& tokens : step) {
    const quire::SequenceView view = cache.view(tokens.sequence);
    const std::int64_t length[] = {view.length}, n_pages = std::ssize(view.pages);
    const quire::PagedKeys keys{cache.k_pages(layer), cache.v_pages(layer),
                                ConstTensorView(view.pages.data(), DType::i32, {1, n_pages}),
                                ConstTensorView(length, DType::i64, {1})};
    const ConstTensorView queries(q.data() + first * row, DType::f32,
                                  {1, tokens.count, sizes.q_heads, sizes.head_dim});
    const quire::Tensor out = quire::flex_attention(queries.transpose(1, 2), keys,
                                                    {.score_mod = quire::mods::alibi(sizes.q_heads),
                                                     .mask_mod = quire::mods::causal(),
                                                     .enable_gqa = true,
                                                     .q_begin = {view.length - tokens.count}});
    const quire::Tensor by_token = quire::contiguous(out.view().transpose(1, 2));
    const auto* values = by_token.data_as<float>();
    result.insert(result.end(), values, values + tokens.count * row);
    first += tokens.count;
  }
  return result;
}

}  // namespace

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
  const quire::Shape rows{std::ssize(ids), sizes.kv_heads, sizes.head_dim};
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const Model::Projections p = model.project(layer, x);
    cache.write(layer, step, {p.k.data(), DType::f32, rows}, {p.v.data(), DType::f32, rows});
    model.finish_layer(layer, attention(model, cache, layer, step, p.q), x);
  }
  return x;
}

}  // namespace engine
