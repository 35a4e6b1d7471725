// The class KVCache. A step is three parallel lists: sequences, counts and ids. The GIL is held, so
// calls from Python run one at a time. Python layer.
#include "quire/kv_cache.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "kv_cache_files.h"
#include "kv_cache_step.h"
#include "quire/error.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// How keys and values are stored, as text.
std::string stored_as(const KVCacheOptions& options) {
  const auto name = [&](const KVFormat& format) {
    return format.is_plain() ? std::string(dtype_name(options.dtype)) : format.name();
  };
  const std::string k = name(options.k_format), v = name(options.v_format);
  return k == v ? k : k + " and " + v;
}

std::string repr(const KVCache& cache) {
  const KVCacheOptions& o = cache.options();
  const KVCacheStats stats = cache.stats();
  return fmt::format(
      "quire.KVCache({} layers, {} heads of {}, {}, {} sequences, {} of {} pages of {} tokens "
      "used)",
      o.layers, o.kv_heads, o.head_dim, stored_as(o), stats.sequences, stats.used_pages, o.n_pages,
      o.page_size);
}

// The signature of KVCache's constructor, for error texts.
constexpr const char* kCacheSignature =
    "def KVCache(layers: int | None = None, kv_heads: int | None = None, head_dim: int | None = "
    "None, v_head_dim: int | None = None, dtype: object = None, page_size: int = 16, n_pages: int "
    "| None = None, groups: list[KVLayerGroup] | None = None, k_format: KVFormat | str | None = "
    "None, v_format: KVFormat | str | None = None, v_in_k: bool = False) -> None";

using Size = std::optional<std::int64_t>;

void init(KVCache* self, Size layers, Size kv_heads, Size head_dim, Size v_head_dim,
          nb::handle dtype, std::int64_t page_size, Size n_pages,
          const std::optional<std::vector<KVLayerGroup>>& groups, nb::handle k_format,
          nb::handle v_format, bool v_in_k) {
  KVCacheOptions options{.page_size = page_size, .n_pages = n_pages.value_or(0)};
  if (groups.has_value()) {
    if (layers || kv_heads || head_dim || v_head_dim || !dtype.is_none() || !k_format.is_none() ||
        !v_format.is_none() || v_in_k)
      throw Error(ErrorKind::value,
                  "[KVCache] layers, kv_heads, head_dim, v_head_dim, dtype, k_format, v_format and "
                  "v_in_k are those of the groups; give one or the other");
    if (groups->empty()) throw Error(ErrorKind::value, "[KVCache] groups must not be empty");
    options.groups = *groups;
  } else {
    if (!layers || !kv_heads || !head_dim)
      throw Error(ErrorKind::value,
                  "[KVCache] layers, kv_heads and head_dim must be given, or groups");
    if (!n_pages.has_value()) throw Error(ErrorKind::value, "[KVCache] n_pages must be given");
    options.layers = *layers;
    options.kv_heads = *kv_heads;
    options.head_dim = *head_dim;
    options.v_head_dim = v_head_dim.value_or(*head_dim);
    if (!dtype.is_none()) options.dtype = dtype_of_name(dtype);
    options.k_format = format_of("KVCache", "k_format", k_format);
    options.v_format = format_of("KVCache", "v_format", v_format);
    options.v_in_k = v_in_k;
    if (options.v_head_dim == 0) options.v_head_dim = -1;  // 0 means "as head_dim" in C++ only
  }
  new (self) KVCache(options);
}

SequenceId fork(KVCache& cache, SequenceId sequence, std::optional<std::int64_t> position) {
  return position.has_value() ? cache.fork(sequence, *position) : cache.fork(sequence);
}

void append(KVCache& cache, nb::handle sequences, nb::handle counts, nb::handle ids, nb::handle k,
            nb::handle v, nb::handle draft) {
  Step step("KVCache::append", sequences, counts, ids);
  step.set_drafts("KVCache::append", draft);
  if (k.is_none() && !v.is_none())
    throw Error(ErrorKind::value, "[KVCache::append] k and v are given together or not at all");
  if (k.is_none()) {
    cache.append(step.tokens);
  } else if (v.is_none()) {
    if (!cache.options().v_in_k)
      throw Error(ErrorKind::value, "[KVCache::append] k and v are given together or not at all");
    cache.append(step.tokens, view_of(k).tensor);
  } else {
    cache.append(step.tokens, view_of(k).tensor, view_of(v).tensor);
  }
}

void write(KVCache& cache, std::int64_t layer, nb::handle sequences, nb::handle counts,
           nb::handle k, nb::handle v) {
  const Step step("KVCache::write", sequences, counts, nb::none());
  if (v.is_none()) {
    cache.write(layer, step.tokens, view_of(k).tensor);
  } else {
    cache.write(layer, step.tokens, view_of(k).tensor, view_of(v).tensor);
  }
}

void set_scales(KVCache& cache, std::int64_t layer, nb::handle k_scales, nb::handle v_scales) {
  std::optional<View> k, v;
  if (!k_scales.is_none()) k = view_of(k_scales);
  if (!v_scales.is_none()) v = view_of(v_scales);
  const auto tensor = [](const std::optional<View>& view) {
    return view ? std::optional<ConstTensorView>(view->tensor) : std::nullopt;
  };
  cache.set_scales(layer, tensor(k), tensor(v));
}

// The page numbers of a sequence, copied.
Array pages(const KVCache& cache, SequenceId sequence, std::int64_t group) {
  const SequenceView view = cache.view(sequence, group);
  return to_numpy(Tensor::from(view.pages, {std::ssize(view.pages)}));
}

// A view of the pages that keeps the cache alive.
template <TensorView (KVCache::*kPages)(std::int64_t)>
Array pages_of_layer(nb::object self, std::int64_t layer) {
  const TensorView view = (nb::cast<KVCache&>(self).*kPages)(layer);
  return to_numpy(View{view, std::move(self)});
}

// None if there are no scales next to the codes.
template <TensorView (KVCache::*kScales)(std::int64_t)>
nb::object scales_of_layer(nb::object self, std::int64_t layer) {
  const TensorView view = (nb::cast<KVCache&>(self).*kScales)(layer);
  if (view.numel() == 0) return nb::none();
  return to_numpy(View{view, std::move(self)});
}

void keep(KVCache& cache, SequenceId sequence, std::int64_t begin, nb::handle positions) {
  cache.keep(sequence, begin, ids_of("KVCache::keep", positions));
}

void define_sequences(nb::class_<KVCache>& type) {
  type.def("create", &KVCache::create, nb::arg("salt") = 0,
           "An empty sequence. Sequences of different salts never share a page by prefix.")
      .def(
          "create_with_prefix",
          [](KVCache& cache, nb::handle ids, std::uint64_t salt) {
            const CreatedSequence made =
                cache.create_with_prefix(ids_of("KVCache::create_with_prefix", ids), salt);
            return std::pair(made.sequence, made.found);
          },
          nb::arg("ids"), nb::arg("salt") = 0,
          "A sequence that begins with the longest chain of full pages found with these ids and "
          "this salt, and the number of tokens found.")
      .def(
          "cached_prefix",
          [](const KVCache& cache, nb::handle ids, std::uint64_t salt) {
            return cache.cached_prefix(ids_of("KVCache::cached_prefix", ids), salt);
          },
          nb::arg("ids"), nb::arg("salt") = 0, "How many tokens create_with_prefix would find.")
      .def(
          "fork", &fork, nb::arg("sequence"), nb::arg("position") = nb::none(),
          "A second sequence with the first `position` tokens (all of them if None), pages shared; "
          "copy on write.")
      .def("release", &KVCache::release, nb::arg("sequence"),
           "Gives its pages back; full ones with known ids stay findable until they are needed.")
      .def("truncate", &KVCache::truncate, nb::arg("sequence"), nb::arg("length"),
           "Drops tokens from `length` on, and reserved pages.")
      .def("release_before", &KVCache::release_before, nb::arg("sequence"), nb::arg("position"),
           "Gives back pages that lie before `position` as a whole (a sliding window).")
      .def("release_between", &KVCache::release_between, nb::arg("sequence"), nb::arg("begin"),
           nb::arg("end"), "Gives back pages that lie in begin..end - 1 as a whole.")
      .def("keep", &keep, nb::arg("sequence"), nb::arg("begin"), nb::arg("positions"),
           "Tokens before `begin` stay, and after them those at `positions`, ascending, whose rows "
           "move up in all layers: the accepted path of a tree of drafts.")
      .def(
          "keep",
          [](KVCache& cache, const std::vector<std::tuple<SequenceId, std::int64_t, Ids>>& step) {
            std::vector<KeptTokens> kept;
            for (const auto& [sequence, begin, positions] : step)
              kept.push_back({.sequence = sequence, .begin = begin, .positions = positions});
            cache.keep(kept);
          },
          nb::arg("step"), "keep for several sequences at once: (sequence, begin, positions) each.")
      .def("commit", &KVCache::commit, nb::arg("sequence"), nb::arg("length"),
           "Tokens before `length` are accepted: they can be found by prefix.")
      .def("committed", &KVCache::committed, nb::arg("sequence"),
           "So many of its tokens are accepted; the others are drafts.")
      .def(
          "ids",
          [](const KVCache& cache, SequenceId sequence) {
            const auto ids = cache.ids(sequence);
            return Ids(ids.begin(), ids.end());
          },
          nb::arg("sequence"), "The ids of its tokens, as far as they are known from the first on.")
      .def("__contains__", &KVCache::contains, nb::arg("sequence"))
      .def("length", &KVCache::length, nb::arg("sequence"))
      .def(
          "begin",
          [](const KVCache& cache, SequenceId sequence, std::int64_t group) {
            return cache.view(sequence, group).begin;
          },
          nb::arg("sequence"), nb::arg("group") = 0, "The first position whose keys are there.")
      .def(
          "hole",
          [](const KVCache& cache, SequenceId sequence, std::int64_t group) {
            const SequenceView view = cache.view(sequence, group);
            return std::pair(view.hole_begin, view.hole_end);
          },
          nb::arg("sequence"), nb::arg("group") = 0,
          "Positions begin..end - 1 were released: (begin, end).")
      .def("pages", &pages, nb::arg("sequence"), nb::arg("group") = 0,
           "Its page numbers, int32; -1 where pages were given back. A copy.");
}

void define_tokens(nb::class_<KVCache>& type) {
  type.def(
          "can_reserve",
          [](const KVCache& cache, nb::handle sequences, nb::handle counts) {
            return cache.can_reserve(
                Step("KVCache::can_reserve", sequences, counts, nb::none()).tokens);
          },
          nb::arg("sequences"), nb::arg("counts") = 1, "Whether append would find pages.")
      .def(
          "reserve",
          [](KVCache& cache, nb::handle sequences, nb::handle counts) {
            cache.reserve(Step("KVCache::reserve", sequences, counts, nb::none()).tokens);
          },
          nb::arg("sequences"), nb::arg("counts") = 1,
          "Takes the pages for so many more tokens; RuntimeError if there are not enough.")
      .def("append", &append, nb::arg("sequences"), nb::arg("counts") = nb::none(),
           nb::arg("ids") = nb::none(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(),
           nb::arg("draft") = false,
           "Lengthens a sequence, or each of a list, by its count (a number or a list; None: as "
           "many as ids, else 1). ids: integers (a list of arrays for a list). With k [layers, "
           "tokens, kv_heads, head_dim] and v the rows are written as well. draft: they, or those "
           "of "
           "some sequences, can be found by prefix only when commit() has accepted them. All or "
           "nothing; RuntimeError when out of pages.")
      .def("write", &write, nb::arg("layer"), nb::arg("sequences"), nb::arg("counts"), nb::arg("k"),
           nb::arg("v").none() = nb::none(),
           "Stores the rows of the last tokens of each sequence: k [tokens, kv_heads, head_dim], v "
           "alike (None with v_in_k), sequences one after the other; coded if there is a format.")
      .def("set_scales", &set_scales, nb::arg("layer"), nb::arg("k_scales").none() = nb::none(),
           nb::arg("v_scales").none() = nb::none(),
           "The scales of a layer whose format shares them between tokens, before its first token: "
           "int8_channel [kv_heads, dim], fp8 [kv_heads] or [1] (1 until they are set).")
      .def(
          "mark_written",
          [](KVCache& cache, nb::handle sequences, nb::handle counts, Size layer) {
            const Step step("KVCache::mark_written", sequences, counts, nb::none());
            layer ? cache.mark_written(*layer, step.tokens) : cache.mark_written(step.tokens);
          },
          nb::arg("sequences"), nb::arg("counts") = 1, nb::arg("layer") = nb::none(),
          "The last tokens were written through k_pages and v_pages, in a layer or in all.")
      .def("k_pages", &pages_of_layer<&KVCache::k_pages>, nb::arg("layer"),
           "[n_pages, kv_heads, page_size, head_dim], the cache's own memory; of a format the "
           "codes, with their bytes on the last axis.")
      .def("v_pages", &pages_of_layer<&KVCache::v_pages>, nb::arg("layer"),
           "[n_pages, kv_heads, page_size, v_head_dim], the cache's own memory.")
      .def(
          "k_scales", &scales_of_layer<&KVCache::k_scales>, nb::arg("layer"),
          "The scales beside the codes of k_pages, the cache's own memory; None if there are none.")
      .def("v_scales", &scales_of_layer<&KVCache::v_scales>, nb::arg("layer"),
           "The scales beside the codes of v_pages.")
      .def(
          "stats",
          [](const KVCache& cache, Size group) {
            return group ? cache.stats(*group) : cache.stats();
          },
          nb::arg("group") = nb::none(), "Of one group of layers, or sums over all of them.")
      .def("group_of", &KVCache::group_of, nb::arg("layer"),
           "The number of the group that a layer is in.")
      .def_prop_ro("version", &KVCache::version,
                   "Another number after every call that changed a page table or a length.")
      .def("__repr__", [](const KVCache& cache) { return repr(cache); });
}

template <std::int64_t KVCacheOptions::*kSize>
std::int64_t size_of(const KVCache& cache) {
  return cache.options().*kSize;
}

}  // namespace

void register_kv_cache(nb::module_& module) {
  register_kv_cache_types(module);
  nb::class_<KVCache> type(
      module, "KVCache",
      R"doc(Keys and values of many sequences in pages of one pool. Every call is all or nothing.

>>> import numpy, quire
>>> cache = quire.KVCache(layers=2, kv_heads=2, head_dim=64, page_size=16, n_pages=8)
>>> prompt = cache.create()
>>> rows = numpy.ones((2, 20, 2, 64), numpy.float32)  # layers, tokens, heads, dim
>>> cache.append(prompt, ids=list(range(20)), k=rows, v=rows)
>>> branch = cache.fork(prompt)  # shares the pages until one of them is written
>>> cache
quire.KVCache(2 layers, 2 heads of 64, f32, 2 sequences, 2 of 8 pages of 16 tokens used)
>>> cache.cached_prefix(list(range(18)))  # whole pages are found by their ids
16)doc");
  type.def("__init__", &init, nb::arg("layers") = nb::none(), nb::arg("kv_heads") = nb::none(),
           nb::arg("head_dim") = nb::none(), nb::arg("v_head_dim") = nb::none(),
           nb::arg("dtype") = nb::none(), nb::arg("page_size") = 16,
           nb::arg("n_pages") = nb::none(), nb::arg("groups") = nb::none(),
           nb::arg("k_format") = nb::none(), nb::arg("v_format") = nb::none(),
           nb::arg("v_in_k") = false);
  refuse_other_arguments<KVCache>(type, "KVCache", kCacheSignature);
  type.def_prop_ro("layers", &size_of<&KVCacheOptions::layers>)
      .def_prop_ro("kv_heads", &size_of<&KVCacheOptions::kv_heads>)
      .def_prop_ro("head_dim", &size_of<&KVCacheOptions::head_dim>)
      .def_prop_ro("v_head_dim", &size_of<&KVCacheOptions::v_head_dim>)
      .def_prop_ro("page_size", &size_of<&KVCacheOptions::page_size>)
      .def_prop_ro("n_pages", &size_of<&KVCacheOptions::n_pages>)
      .def_prop_ro("dtype", [](const KVCache& cache) { return dtype_name(cache.options().dtype); })
      .def_prop_ro("k_format",
                   [](const KVCache& cache) { return format_object(cache.options().k_format); })
      .def_prop_ro("v_format",
                   [](const KVCache& cache) { return format_object(cache.options().v_format); })
      .def_prop_ro("v_in_k", [](const KVCache& cache) { return cache.options().v_in_k; })
      .def_prop_ro("groups", [](const KVCache& cache) { return cache.options().groups; });
  define_sequences(type);
  define_kv_cache_files(type);
  define_tokens(type);
}

}  // namespace quire::python
