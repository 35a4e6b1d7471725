// The types around the class KVCache: handles of sequences, groups of layers, statistics. Python
// layer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "kv_cache_step.h"

namespace quire::python {
namespace {

std::string repr(const SequenceId& id) {
  return fmt::format("quire.SequenceId(slot={}, generation={})", id.slot, id.generation);
}

std::string repr(const KVLayerGroup& group) {
  std::string stored;
  if (!group.k_format.is_plain()) stored += fmt::format(", k_format='{}'", group.k_format.name());
  if (!group.v_format.is_plain()) stored += fmt::format(", v_format='{}'", group.v_format.name());
  if (group.v_in_k) stored += ", v_in_k=True";
  return fmt::format(
      "quire.KVLayerGroup(layers=[{}], kv_heads={}, head_dim={}, v_head_dim={}, dtype='{}', "
      "window={}, sink_tokens={}, n_pages={}{})",
      fmt::join(group.layers, ", "), group.kv_heads, group.head_dim, group.v_head_dim,
      dtype_name(group.dtype), group.window, group.sink_tokens, group.n_pages, stored);
}

std::string repr(const KVCacheStats& stats) {
  return fmt::format(
      "quire.KVCacheStats({} sequences, {} live tokens, {} of {} pages used, {} shared, {} cached, "
      "{} free, waste {:.1f}%)",
      stats.sequences, stats.live_tokens, stats.used_pages, stats.pages, stats.shared_pages,
      stats.cached_pages, stats.free_pages, 100.0 * stats.waste);
}

void init_group(KVLayerGroup* self, std::vector<std::int64_t> layers, std::int64_t kv_heads,
                std::int64_t head_dim, std::optional<std::int64_t> v_head_dim, nb::handle dtype,
                std::int64_t window, std::int64_t sink_tokens, std::int64_t n_pages,
                nb::handle k_format, nb::handle v_format, bool v_in_k) {
  new (self) KVLayerGroup{.layers = std::move(layers),
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .v_head_dim = v_head_dim.value_or(head_dim),
                          .dtype = dtype_of_name(dtype),
                          .k_format = format_of("KVLayerGroup", "k_format", k_format),
                          .v_format = format_of("KVLayerGroup", "v_format", v_format),
                          .v_in_k = v_in_k,
                          .window = window,
                          .sink_tokens = sink_tokens,
                          .n_pages = n_pages};
}

void register_stats(nb::module_& module) {
  nb::class_<KVCacheStats>(module, "KVCacheStats", R"doc(What a KVCache holds now.

>>> import quire
>>> cache = quire.KVCache(layers=1, kv_heads=2, head_dim=64, page_size=16, n_pages=8)
>>> cache.append(cache.create(), 20)
>>> cache.stats()
quire.KVCacheStats(1 sequences, 20 live tokens, 2 of 8 pages used, 0 shared, 0 cached, 6 free, waste 37.5%)
>>> cache.stats().used_pages
2)doc")
      .def_ro("sequences", &KVCacheStats::sequences)
      .def_ro("live_tokens", &KVCacheStats::live_tokens, "of all sequences, shared ones for each")
      .def_ro("stored_tokens", &KVCacheStats::stored_tokens, "filled slots of used pages")
      .def_ro("pages", &KVCacheStats::pages)
      .def_ro("used_pages", &KVCacheStats::used_pages)
      .def_ro("shared_pages", &KVCacheStats::shared_pages)
      .def_ro("cached_pages", &KVCacheStats::cached_pages, "held by none, found by prefix")
      .def_ro("free_pages", &KVCacheStats::free_pages)
      .def_ro("evictions", &KVCacheStats::evictions)
      .def_ro("copied_pages", &KVCacheStats::copied_pages, "by copy on write")
      .def_ro("waste", &KVCacheStats::waste, "share of slots of used pages without a token")
      .def_ro("token_bytes", &KVCacheStats::token_bytes,
              "of keys and values of a token in all layers, scales included")
      .def_ro("bytes", &KVCacheStats::bytes, "of all pages")
      .def_ro("used_bytes", &KVCacheStats::used_bytes, "of used pages")
      .def("__repr__", [](const KVCacheStats& stats) { return repr(stats); });
}

void register_group(nb::module_& module) {
  nb::class_<KVLayerGroup> type(
      module, "KVLayerGroup",
      R"doc(Layers of a KVCache whose rows are alike and whose queries look equally far back.

>>> import quire
>>> groups = [
...     quire.KVLayerGroup(layers=[1, 3], kv_heads=2, head_dim=64, n_pages=100),
...     quire.KVLayerGroup(layers=[0, 2], kv_heads=2, head_dim=64, window=128, n_pages=20),
... ]
>>> cache = quire.KVCache(groups=groups)
>>> cache.group_of(2), cache.groups[1].window
(1, 128))doc");
  type.def("__init__", &init_group, nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("v_head_dim") = nb::none(), nb::arg("dtype") = "float32", nb::arg("window") = 0,
           nb::arg("sink_tokens") = 0, nb::arg("n_pages") = 0, nb::arg("k_format") = nb::none(),
           nb::arg("v_format") = nb::none(), nb::arg("v_in_k") = false)
      .def_prop_ro("k_format",
                   [](const KVLayerGroup& group) { return format_object(group.k_format); })
      .def_prop_ro("v_format",
                   [](const KVLayerGroup& group) { return format_object(group.v_format); })
      .def_ro("v_in_k", &KVLayerGroup::v_in_k)
      .def_ro("layers", &KVLayerGroup::layers)
      .def_ro("kv_heads", &KVLayerGroup::kv_heads)
      .def_ro("head_dim", &KVLayerGroup::head_dim)
      .def_ro("v_head_dim", &KVLayerGroup::v_head_dim)
      .def_prop_ro("dtype", [](const KVLayerGroup& group) { return dtype_name(group.dtype); })
      .def_ro("window", &KVLayerGroup::window)
      .def_ro("sink_tokens", &KVLayerGroup::sink_tokens)
      .def_ro("n_pages", &KVLayerGroup::n_pages)
      .def("__repr__", [](const KVLayerGroup& group) { return repr(group); });
}

}  // namespace

// A KVFormat, the name of one, or None: plain numbers.
KVFormat format_of(const char* where, const char* name, nb::handle format) {
  if (format.is_none()) return {};
  if (nb::isinstance<KVFormat>(format)) return nb::cast<KVFormat>(format);
  if (!nb::isinstance<nb::str>(format))
    refuse_argument(where, name, "a KVFormat, the name of one, or None", format);
  return KVFormat::of(nb::cast<std::string>(format));
}

// The inverse.
nb::object format_object(const KVFormat& format) {
  return format.is_plain() ? nb::none() : nb::cast(format);
}

void register_kv_cache_types(nb::module_& module) {
  nb::class_<SequenceId>(
      module, "SequenceId",
      R"doc(A handle of a sequence of a KVCache. Of a sequence that was released it is never valid again.

>>> import quire
>>> cache = quire.KVCache(layers=1, kv_heads=2, head_dim=64, n_pages=8)
>>> sequence = cache.create()
>>> sequence in cache
True
>>> cache.release(sequence)
>>> sequence in cache
False)doc")
      .def(nb::self == nb::self)  // NOLINT(misc-redundant-expression)
      .def("__hash__",
           [](const SequenceId& id) {
             return (static_cast<std::uint64_t>(id.generation) << 32 ^ id.cache << 20 ^ id.slot) >>
                    1;
           })
      .def("__repr__", [](const SequenceId& id) { return repr(id); });
  register_stats(module);
  register_group(module);
}

}  // namespace quire::python
