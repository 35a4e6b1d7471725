// The C interface: the cache of keys and values. C API layer.
#include "quire/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

using quire::c_api::refuse;

void check_zero(const char* function, const char* name, std::int32_t zero) {
  if (zero != 0) refuse(function, "{}.zero must be 0; got {}", name, zero);
}

std::span<const std::int64_t> list(const char* function, const char* name, const std::int64_t* data,
                                   std::size_t count) {
  if (count == 0) return {};
  c_api::require(data, function, name);
  c_api::check_count(count, function, fmt::format("the number of {}", name).c_str());
  return {data, count};
}

KVFormat format_of(const char* name) { return name == nullptr ? KVFormat{} : KVFormat::of(name); }

KVLayerGroup group_of(const char* function, const quire_kv_layer_group* given) {
  const auto of = c_api::versioned(given, function, "a group of options.groups",
                                   offsetof(quire_kv_layer_group, k_format));
  check_zero(function, "group", of.zero);
  check_zero(function, "group", of.zero2);
  const auto layers = list(function, "layers of a group", of.layers, of.layer_count);
  return {.layers = {layers.begin(), layers.end()},
          .kv_heads = of.kv_heads,
          .head_dim = of.head_dim,
          .v_head_dim = of.v_head_dim,
          .dtype = c_api::dtype(of.dtype, function, "dtype of a group"),
          .k_format = format_of(of.k_format),
          .v_format = format_of(of.v_format),
          .v_in_k = c_api::flag(of.v_in_k, function, "v_in_k of a group"),
          .window = of.window,
          .sink_tokens = of.sink_tokens,
          .n_pages = of.n_pages};
}

KVCacheOptions options_of(const char* function, const quire_kv_cache_options* given) {
  const auto of =
      c_api::versioned(given, function, "options", offsetof(quire_kv_cache_options, k_format));
  check_zero(function, "options", of.zero);
  check_zero(function, "options", of.zero2);
  KVCacheOptions options{.page_size = of.page_size == 0 ? 16 : of.page_size, .n_pages = of.n_pages};
  if (of.group_count == 0) {
    if (of.groups != nullptr)
      refuse(function, "options.groups is given, and options.group_count is 0");
    options.layers = of.layers;
    options.kv_heads = of.kv_heads;
    options.head_dim = of.head_dim;
    options.v_head_dim = of.v_head_dim;
    options.dtype = c_api::dtype(of.dtype, function, "options.dtype");
    options.k_format = format_of(of.k_format);
    options.v_format = format_of(of.v_format);
    options.v_in_k = c_api::flag(of.v_in_k, function, "options.v_in_k");
    return options;
  }
  if (of.layers != 0 || of.kv_heads != 0 || of.head_dim != 0 || of.v_head_dim != 0 ||
      of.dtype != 0 || of.k_format != nullptr || of.v_format != nullptr || of.v_in_k != 0)
    refuse(function,
           "layers, kv_heads, head_dim, v_head_dim, dtype, formats and v_in_k are those of "
           "the groups, and 0 in options");
  c_api::check_count(of.group_count, function, "options.group_count");
  c_api::require(of.groups, function, "options.groups");
  for (std::size_t i = 0; i < of.group_count; ++i) {
    c_api::require(of.groups[i], function, fmt::format("options.groups[{}]", i).c_str());
    options.groups.push_back(group_of(function, of.groups[i]));
  }
  return options;
}

// Calls body(KVCache&) for a handle that is not null.
template <class Cache, class Body>
[[gnu::always_inline]] inline quire_status with_cache(Cache* cache, const char* function,
                                                      const Body& body) {
  return c_api::guarded([&] {
    c_api::require(cache, function, "cache");
    body(cache->cache);
  });
}

// Fills in the part of the caller's struct that the caller's version has.
template <class Struct>
void give(const char* function, const char* name, Struct* to, Struct filled,
          std::size_t first = sizeof(Struct)) {
  c_api::require(to, function, name);
  const std::size_t known = to->size;
  if (known < first) refuse(function, "{}.size must be at least {}; got {}", name, first, known);
  filled.size = known;
  std::memcpy(to, &filled, std::min(known, sizeof(Struct)));
}

// Gives a view of a layer's memory.
[[gnu::always_inline]] inline quire_status give_view(quire_kv_cache* cache,
                                                     TensorView (KVCache::*view)(std::int64_t),
                                                     std::int64_t layer, quire_tensor* to,
                                                     const char* function) {
  return with_cache(cache, function, [&](KVCache& of) {
    const TensorView memory = (of.*view)(layer);
    c_api::require(to, function, "pages");
    *to = {};
    to->size = sizeof(quire_tensor);
    to->data = memory.data();
    to->dtype = static_cast<quire_dtype>(memory.dtype());
    to->rank = static_cast<std::int32_t>(memory.rank());
    std::ranges::copy(memory.shape(), to->shape);
    std::ranges::copy(memory.strides(), to->strides);
  });
}

// Adapts a C callback to C++.
struct Sink {
  const char* function;
  quire_byte_sink call;
  void* user;

  void operator()(std::span<const std::byte> bytes) const {
    const std::int32_t result = call(user, bytes.data(), bytes.size());
    if (result != 0)
      throw Error(ErrorKind::runtime, fmt::format("[{}] sink returned {}", function, result));
  }
};

struct Source {
  const char* function;
  quire_byte_source call;
  void* user;

  std::size_t operator()(std::span<std::byte> bytes) const {
    return call(user, bytes.data(), bytes.size());
  }
};

}  // namespace

quire_status quire_kv_cache_create(const quire_kv_cache_options* options, quire_kv_cache** cache) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_kv_cache_create";
    c_api::require(cache, kName, "cache");
    *cache = nullptr;
    *cache = new quire_kv_cache{KVCache(options_of(kName, options))};
  });
}

void quire_kv_cache_free(quire_kv_cache* cache) { delete cache; }

quire_status quire_kv_cache_create_sequence(quire_kv_cache* cache, uint64_t salt,
                                            quire_sequence* sequence) {
  constexpr const char* kName = "quire_kv_cache_create_sequence";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(sequence, kName, "sequence");
    *sequence = c_api::sequence(of.create(salt));
  });
}

quire_status quire_kv_cache_create_with_prefix(quire_kv_cache* cache, const int64_t* ids,
                                               size_t id_count, uint64_t salt,
                                               quire_sequence* sequence, int64_t* found) {
  constexpr const char* kName = "quire_kv_cache_create_with_prefix";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(sequence, kName, "sequence");
    c_api::require(found, kName, "found");
    const CreatedSequence made = of.create_with_prefix(list(kName, "ids", ids, id_count), salt);
    *sequence = c_api::sequence(made.sequence);
    *found = made.found;
  });
}

quire_status quire_kv_cache_cached_prefix(const quire_kv_cache* cache, const int64_t* ids,
                                          size_t id_count, uint64_t salt, int64_t* found) {
  constexpr const char* kName = "quire_kv_cache_cached_prefix";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(found, kName, "found");
    *found = of.cached_prefix(list(kName, "ids", ids, id_count), salt);
  });
}

quire_status quire_kv_cache_fork(quire_kv_cache* cache, quire_sequence sequence, int64_t position,
                                 quire_sequence* fork) {
  constexpr const char* kName = "quire_kv_cache_fork";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(fork, kName, "fork");
    const SequenceId id = c_api::sequence(sequence);
    *fork = c_api::sequence(position == -1 ? of.fork(id) : of.fork(id, position));
  });
}

quire_status quire_kv_cache_release(quire_kv_cache* cache, quire_sequence sequence) {
  return with_cache(cache, "quire_kv_cache_release",
                    [&](KVCache& of) { of.release(c_api::sequence(sequence)); });
}

quire_status quire_kv_cache_truncate(quire_kv_cache* cache, quire_sequence sequence,
                                     int64_t length) {
  return with_cache(cache, "quire_kv_cache_truncate",
                    [&](KVCache& of) { of.truncate(c_api::sequence(sequence), length); });
}

quire_status quire_kv_cache_release_before(quire_kv_cache* cache, quire_sequence sequence,
                                           int64_t position) {
  return with_cache(cache, "quire_kv_cache_release_before",
                    [&](KVCache& of) { of.release_before(c_api::sequence(sequence), position); });
}

quire_status quire_kv_cache_release_between(quire_kv_cache* cache, quire_sequence sequence,
                                            int64_t begin, int64_t end) {
  return with_cache(cache, "quire_kv_cache_release_between", [&](KVCache& of) {
    of.release_between(c_api::sequence(sequence), begin, end);
  });
}

quire_status quire_kv_cache_keep(quire_kv_cache* cache, const quire_kept_tokens* kept) {
  constexpr const char* kName = "quire_kv_cache_keep";
  return with_cache(cache, kName, [&](KVCache& of) {
    const auto given = c_api::versioned(kept, kName, "kept");
    std::vector<KeptTokens> step;
    c_api::check_count(given.sequence_count, kName, "kept.sequence_count");
    if (given.sequence_count > 0) {
      c_api::require(given.sequences, kName, "kept.sequences");
      c_api::require(given.begins, kName, "kept.begins");
      c_api::require(given.positions, kName, "kept.positions");
      c_api::require(given.position_counts, kName, "kept.position_counts");
    }
    for (std::size_t i = 0; i < given.sequence_count; ++i) {
      step.push_back({.sequence = c_api::sequence(given.sequences[i]),
                      .begin = given.begins[i],
                      .positions = list(kName, "positions of kept", given.positions[i],
                                        given.position_counts[i])});
    }
    of.keep(step);
  });
}

quire_status quire_kv_cache_commit(quire_kv_cache* cache, quire_sequence sequence, int64_t length) {
  return with_cache(cache, "quire_kv_cache_commit",
                    [&](KVCache& of) { of.commit(c_api::sequence(sequence), length); });
}

quire_status quire_kv_cache_can_reserve(const quire_kv_cache* cache, const quire_step* step,
                                        int32_t* can) {
  constexpr const char* kName = "quire_kv_cache_can_reserve";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(can, kName, "can");
    *can = of.can_reserve(c_api::step(step, kName)) ? 1 : 0;
  });
}

quire_status quire_kv_cache_reserve(quire_kv_cache* cache, const quire_step* step) {
  return with_cache(cache, "quire_kv_cache_reserve",
                    [&](KVCache& of) { of.reserve(c_api::step(step, "quire_kv_cache_reserve")); });
}

quire_status quire_kv_cache_append(quire_kv_cache* cache, const quire_step* step) {
  return with_cache(cache, "quire_kv_cache_append",
                    [&](KVCache& of) { of.append(c_api::step(step, "quire_kv_cache_append")); });
}

quire_status quire_kv_cache_write(quire_kv_cache* cache, int64_t layer, const quire_step* step,
                                  const quire_tensor* k, const quire_tensor* v) {
  constexpr const char* kName = "quire_kv_cache_write";
  return with_cache(cache, kName, [&](KVCache& of) {
    const std::vector<NewTokens> tokens = c_api::step(step, kName);
    const TensorView keys = c_api::tensor(k, kName, "k");
    const std::optional<TensorView> values = c_api::optional_tensor(v, kName, "v");
    values ? of.write(layer, tokens, keys, *values) : of.write(layer, tokens, keys);
  });
}

quire_status quire_kv_cache_set_scales(quire_kv_cache* cache, int64_t layer,
                                       const quire_tensor* k_scales, const quire_tensor* v_scales) {
  constexpr const char* kName = "quire_kv_cache_set_scales";
  return with_cache(cache, kName, [&](KVCache& of) {
    of.set_scales(layer, c_api::optional_tensor(k_scales, kName, "k_scales"),
                  c_api::optional_tensor(v_scales, kName, "v_scales"));
  });
}

quire_status quire_kv_cache_mark_written(quire_kv_cache* cache, int64_t layer,
                                         const quire_step* step) {
  constexpr const char* kName = "quire_kv_cache_mark_written";
  return with_cache(cache, kName, [&](KVCache& of) {
    const std::vector<NewTokens> tokens = c_api::step(step, kName);
    layer == -1 ? of.mark_written(tokens) : of.mark_written(layer, tokens);
  });
}

quire_status quire_kv_cache_view(const quire_kv_cache* cache, quire_sequence sequence,
                                 int64_t group, quire_sequence_view* view) {
  constexpr const char* kName = "quire_kv_cache_view";
  return with_cache(cache, kName, [&](const KVCache& of) {
    const SequenceId id = c_api::sequence(sequence);
    const SequenceView seen = of.view(id, group);
    quire_sequence_view filled{};
    filled.pages = seen.pages.data();
    filled.page_count = seen.pages.size();
    filled.begin = seen.begin;
    filled.length = seen.length;
    filled.hole_begin = seen.hole_begin;
    filled.hole_end = seen.hole_end;
    filled.committed = of.committed(id);
    filled.ids = of.ids(id).data();
    filled.id_count = of.ids(id).size();
    give(kName, "view", view, filled);
  });
}

quire_status quire_kv_cache_contains(const quire_kv_cache* cache, quire_sequence sequence,
                                     int32_t* contains) {
  constexpr const char* kName = "quire_kv_cache_contains";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(contains, kName, "contains");
    *contains = of.contains(c_api::sequence(sequence)) ? 1 : 0;
  });
}

quire_status quire_kv_cache_group_of(const quire_kv_cache* cache, int64_t layer, int64_t* group) {
  constexpr const char* kName = "quire_kv_cache_group_of";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(group, kName, "group");
    *group = of.group_of(layer);
  });
}

quire_status quire_kv_cache_k_pages(quire_kv_cache* cache, int64_t layer, quire_tensor* pages) {
  return give_view(cache, &KVCache::k_pages, layer, pages, "quire_kv_cache_k_pages");
}

quire_status quire_kv_cache_v_pages(quire_kv_cache* cache, int64_t layer, quire_tensor* pages) {
  return give_view(cache, &KVCache::v_pages, layer, pages, "quire_kv_cache_v_pages");
}

quire_status quire_kv_cache_k_scales(quire_kv_cache* cache, int64_t layer, quire_tensor* scales) {
  return give_view(cache, &KVCache::k_scales, layer, scales, "quire_kv_cache_k_scales");
}

quire_status quire_kv_cache_v_scales(quire_kv_cache* cache, int64_t layer, quire_tensor* scales) {
  return give_view(cache, &KVCache::v_scales, layer, scales, "quire_kv_cache_v_scales");
}

quire_status quire_kv_cache_get_stats(const quire_kv_cache* cache, int64_t group,
                                      quire_kv_cache_stats* stats) {
  constexpr const char* kName = "quire_kv_cache_get_stats";
  return with_cache(cache, kName, [&](const KVCache& of) {
    const KVCacheStats now = group == -1 ? of.stats() : of.stats(group);
    quire_kv_cache_stats filled{};
    filled.sequences = now.sequences;
    filled.live_tokens = now.live_tokens;
    filled.stored_tokens = now.stored_tokens;
    filled.pages = now.pages;
    filled.used_pages = now.used_pages;
    filled.shared_pages = now.shared_pages;
    filled.cached_pages = now.cached_pages;
    filled.free_pages = now.free_pages;
    filled.evictions = now.evictions;
    filled.copied_pages = now.copied_pages;
    filled.waste = now.waste;
    filled.token_bytes = now.token_bytes;
    filled.bytes = now.bytes;
    filled.used_bytes = now.used_bytes;
    give(kName, "stats", stats, filled, offsetof(quire_kv_cache_stats, token_bytes));
  });
}

quire_status quire_kv_cache_save_to(const quire_kv_cache* cache, quire_sequence sequence,
                                    quire_byte_sink sink, void* user) {
  constexpr const char* kName = "quire_kv_cache_save_to";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(sink, kName, "sink");
    const Sink to{kName, sink, user};
    of.save_to(c_api::sequence(sequence), ByteSink(to));
  });
}

quire_status quire_kv_cache_load_from(quire_kv_cache* cache, quire_byte_source source, void* user,
                                      uint64_t salt, quire_sequence* sequence) {
  constexpr const char* kName = "quire_kv_cache_load_from";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(source, kName, "source");
    c_api::require(sequence, kName, "sequence");
    const Source from{kName, source, user};
    *sequence = c_api::sequence(of.load_from(ByteSource(from), salt));
  });
}

quire_status quire_kv_cache_save_to_file(const quire_kv_cache* cache, quire_sequence sequence,
                                         const char* path) {
  constexpr const char* kName = "quire_kv_cache_save_to_file";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(path, kName, "path");
    of.save_to(c_api::sequence(sequence), std::filesystem::path(path));
  });
}

quire_status quire_kv_cache_load_from_file(quire_kv_cache* cache, const char* path, uint64_t salt,
                                           quire_sequence* sequence) {
  constexpr const char* kName = "quire_kv_cache_load_from_file";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(path, kName, "path");
    c_api::require(sequence, kName, "sequence");
    *sequence = c_api::sequence(of.load_from(std::filesystem::path(path), salt));
  });
}

quire_status quire_kv_cache_save_all(const quire_kv_cache* cache, quire_byte_sink sink,
                                     void* user) {
  constexpr const char* kName = "quire_kv_cache_save_all";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(sink, kName, "sink");
    const Sink to{kName, sink, user};
    of.save_all(ByteSink(to));
  });
}

quire_status quire_kv_cache_save_all_to_file(const quire_kv_cache* cache, const char* path) {
  constexpr const char* kName = "quire_kv_cache_save_all_to_file";
  return with_cache(cache, kName, [&](const KVCache& of) {
    c_api::require(path, kName, "path");
    of.save_all(std::filesystem::path(path));
  });
}

quire_status quire_kv_cache_load_all(quire_kv_cache* cache, quire_byte_source source,
                                     void* source_user, quire_loaded loaded, void* user) {
  constexpr const char* kName = "quire_kv_cache_load_all";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(source, kName, "source");
    c_api::require(loaded, kName, "loaded");
    const Source from{kName, source, source_user};
    for (const LoadedSequence& one : of.load_all(ByteSource(from)))
      loaded(user, c_api::sequence(one.saved), c_api::sequence(one.sequence));
  });
}

quire_status quire_kv_cache_load_all_from_file(quire_kv_cache* cache, const char* path,
                                               quire_loaded loaded, void* user) {
  constexpr const char* kName = "quire_kv_cache_load_all_from_file";
  return with_cache(cache, kName, [&](KVCache& of) {
    c_api::require(path, kName, "path");
    c_api::require(loaded, kName, "loaded");
    for (const LoadedSequence& one : of.load_all(std::filesystem::path(path)))
      loaded(user, c_api::sequence(one.saved), c_api::sequence(one.sequence));
  });
}
