// Page tables in Python arrays, the mods and masks converted by them, and rows written to pages.
// The PagedAttention classes of the packages are built on these. Python layer.
#include "quire/paged_attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "mods.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "quire/write_pages.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr const char* kPagedAttention = "PagedAttention";

// The tables and the owners of their memory.
struct HeldTables {
  View page_table, capacity, physical_to_logical;
  PageTables tables;

  HeldTables(nb::handle page_table_of, nb::handle capacity_of, nb::handle physical_to_logical_of,
             std::int64_t page_size)
      : page_table(view_of(page_table_of)),
        capacity(view_of(capacity_of)),
        physical_to_logical(view_of(physical_to_logical_of)),
        tables(writable(kPagedAttention, page_table, "page_table"),
               writable(kPagedAttention, capacity, "capacity"),
               writable(kPagedAttention, physical_to_logical, "physical_to_logical"), page_size) {}
};

void assign(const HeldTables& held, nb::handle batch_idx, nb::handle input_pos, nb::handle k_val,
            nb::handle v_val, nb::handle k_cache, nb::handle v_cache, int openmp_threads) {
  const View batch = view_of(batch_idx), positions = view_of(input_pos), k = view_of(k_val),
             v = view_of(v_val), k_to = view_of(k_cache), v_to = view_of(v_cache);
  PagedAssignment all{batch.tensor,
                      positions.tensor,
                      k.tensor,
                      v.tensor,
                      writable(kPagedAttention, k_to, "k_cache"),
                      writable(kPagedAttention, v_to, "v_cache")};
  const ReleasedGil released;
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  all.executor = executor.get();
  held.tables.assign(all);
}

bool assign_tensors(const HeldTables& held, nb::handle batch_idx, nb::handle input_pos,
                    nb::handle k_val, nb::handle v_val, nb::handle k_cache, nb::handle v_cache,
                    int openmp_threads) {
  std::optional<TensorView> views[6];
  int count = 0;
  for (const nb::handle tensor : {batch_idx, input_pos, k_val, v_val, k_cache, v_cache}) {
    views[count] = borrow_tensor(tensor);
    if (!views[count++].has_value()) return false;
  }
  PagedAssignment all{*views[0], *views[1], *views[2], *views[3], *views[4], *views[5]};
  const ReleasedGil released;
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  all.executor = executor.get();
  held.tables.assign(all);
  return true;
}

std::optional<Buffer> lengths_of(nb::handle kv_len) {
  if (kv_len.is_none()) return std::nullopt;
  return buffer_of(view_of(kv_len), {.name = "kv_len"});
}

Buffer table_buffer(nb::handle physical_to_logical) {
  return buffer_of(view_of(physical_to_logical), {.name = "physical_to_logical"});
}

MaskMod to_physical_mask(nb::handle mask_mod, nb::handle physical_to_logical,
                         std::int64_t page_size, nb::handle kv_len) {
  const MaskMod logical = mask_mod.is_none() ? noop_mask() : mask_mod_of(mask_mod);
  return physical_mask_mod(logical, table_buffer(physical_to_logical), page_size,
                           lengths_of(kv_len));
}

ScoreMod to_physical_score(nb::handle score_mod, nb::handle physical_to_logical,
                           std::int64_t page_size, nb::handle kv_len) {
  const ScoreMod logical = score_mod.is_none() ? ScoreMod::parse("score") : score_mod_of(score_mod);
  return physical_score_mod(logical, table_buffer(physical_to_logical), page_size,
                            lengths_of(kv_len));
}

BlockMask convert(const HeldTables& held, const BlockMask& logical,
                  const std::optional<Numbers>& batch_idx, const MaskMod* rule) {
  const Numbers rows = batch_idx.value_or(Numbers());
  if (batch_idx.has_value() && rows.empty() && logical.batch() > 0)
    throw nb::value_error("[convert_logical_block_mask] batch_idx is empty");
  const MaskMod mod = rule == nullptr ? noop_mask() : *rule;
  const ReleasedGil released;
  return physical_block_mask(logical, held.tables, rows, mod);
}

// A tensor borrowed for the duration of a call, as cheaply as possible.
struct Borrowed {
  explicit Borrowed(nb::handle array) {
    if (const std::optional<TensorView> found = borrow_tensor(array)) {
      tensor = *found;
      return;
    }
    view = view_of(array);
    tensor = view->tensor;
  }
  TensorView tensor;
  std::optional<View> view = {};
};

void write_rows(nb::handle k, nb::handle v, nb::handle slots, nb::handle k_pages,
                nb::handle v_pages, int openmp_threads) {
  const Borrowed rows[2] = {Borrowed(k), Borrowed(v)}, places(slots);
  const Borrowed pages[2] = {Borrowed(k_pages), Borrowed(v_pages)};
  const ReleasedGil released;
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  for (int i = 0; i < 2; ++i) {
    const ConstTensorView all = rows[i].tensor, to = places.tensor;
    const bool has_more = all.rank() > 0 && to.rank() == 1 && to.dim(0) < all.dim(0);
    write_pages(has_more ? all.slice(0, 0, to.dim(0)) : all, to, pages[i].tensor, executor.get());
  }
}

}  // namespace

void register_paged_attention(nb::module_& module) {
  nb::class_<HeldTables>(module, "PageTables",
                         "page_table and physical_to_logical, int64 [max_batch_size, n_pages], and "
                         "capacity, int64 [max_batch_size], in the caller's memory.")
      .def(nb::init<nb::handle, nb::handle, nb::handle, std::int64_t>(), nb::arg("page_table"),
           nb::arg("capacity"), nb::arg("physical_to_logical"), nb::arg("page_size"))
      .def(
          "pages_wanted",
          [](const HeldTables& held, std::int64_t b, std::int64_t seq_len) {
            return held.tables.pages_wanted(b, seq_len);
          },
          nb::arg("batch_idx"), nb::arg("seq_len"),
          "Pages that a capacity of seq_len takes beyond those that are there.")
      .def(
          "add_pages",
          [](HeldTables& held, std::int64_t b, const Numbers& pages) {
            held.tables.add_pages(b, pages);
          },
          nb::arg("batch_idx"), nb::arg("pages"), "Appends pages to those of the sequence.")
      .def(
          "remove_pages",
          [](HeldTables& held, const Numbers& b) { return held.tables.remove_pages(b); },
          nb::arg("batch_idx"), "Takes all pages of the sequences away; returns them in order.")
      .def("assign", &assign, nb::arg("batch_idx"), nb::arg("input_pos"), nb::arg("k_val"),
           nb::arg("v_val"), nb::arg("k_cache"), nb::arg("v_cache"), nb::arg("openmp_threads") = 0,
           "Copies [B, H, S, D] values to their places in [1, H, slots, D] caches.")
      .def("assign_tensors", &assign_tensors, nb::arg("batch_idx"), nb::arg("input_pos"),
           nb::arg("k_val"), nb::arg("v_val"), nb::arg("k_cache"), nb::arg("v_cache"),
           nb::arg("openmp_threads") = 0,
           "The same through DLPack's exchange functions. False, and nothing is done, if one of "
           "the tensors has none or is not on the CPU.")
      .def("convert", &convert, nb::arg("block_mask"), nb::arg("batch_idx").none(),
           nb::arg("mask_mod").none() = nb::none(),
           "The mask with key blocks where their pages are, and this rule.");
  module.def("physical_mask_mod", &to_physical_mask, nb::arg("mask_mod").none(),
             nb::arg("physical_to_logical"), nb::arg("page_size"),
             nb::arg("kv_len").none() = nb::none(),
             "A rule on a sequence's keys as one on those of the pool.");
  module.def("physical_score_mod", &to_physical_score, nb::arg("score_mod").none(),
             nb::arg("physical_to_logical"), nb::arg("page_size"),
             nb::arg("kv_len").none() = nb::none(),
             "A score mod on a sequence's keys as one on those of the pool.");
  module.def("write_pages", &write_rows, nb::arg("k"), nb::arg("v"), nb::arg("slots"),
             nb::arg("k_pages"), nb::arg("v_pages"), nb::arg("openmp_threads") = 0,
             "Rows [tokens, heads, dim] to slots [tokens] of [pages, heads, page_size, dim]; a "
             "slot below 0 leaves its row out, and so do fewer slots the rows after them.");
}

}  // namespace quire::python
