// One step of the model over a cache: new tokens of many sequences in, x of each token out.
#pragma once
#include <quire/kv_cache.h>

#include <span>

#include "model.h"

namespace engine {

// A cache for a model; n_pages and page_size are the engine's choice.
quire::KVCacheOptions cache_options(const ModelSizes& sizes, std::int64_t page_size,
                                    std::int64_t n_pages);

// Appends the tokens of `step` (with ids) to the cache and runs them through all layers. Returns x
// after the last, [tokens, width], in the order of the step. Throws quire::Error, changing nothing,
// if there are not enough pages.
Rows forward(const Model& model, quire::KVCache& cache, std::span<const quire::NewTokens> step);

}  // namespace engine
