// The library of ready mods, which quire.mods offers, and and_masks and or_masks. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mods.h"
#include "quire/mods.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// An array, a list of numbers, or a Buffer with a name of its own.
mods::Table table_of(nb::handle table) {
  if (nb::isinstance<Buffer>(table)) return nb::cast<const Buffer&>(table);
  return buffer_of(view_of(table), {});
}

// The number of an int, or of anything else with __index__ and no axes (NumPy's integers).
std::optional<std::int64_t> find_number(nb::handle object) {
  if (PyIndex_Check(object.ptr()) == 0) return std::nullopt;
  if (nb::hasattr(object, "shape") && nb::len(nb::object(object.attr("shape"))) != 0)
    return std::nullopt;
  return nb::cast<std::int64_t>(nb::steal(PyNumber_Index(object.ptr())));
}

using OfNumber = MaskMod (*)(std::int64_t);
using OfTable = MaskMod (*)(const mods::Table&);

MaskMod of_number_or_table(nb::handle value, OfNumber of_number, OfTable of_table) {
  const auto number = find_number(value);
  return number.has_value() ? of_number(*number) : of_table(table_of(value));
}

MaskMod document(nb::handle ids, nb::handle kv_ids) {
  return kv_ids.is_none() ? mods::document(table_of(ids))
                          : mods::document(table_of(ids), table_of(kv_ids));
}

MaskMod sliding_window(std::int64_t size_or_left, nb::handle right) {
  return right.is_none() ? mods::sliding_window(size_or_left)
                         : mods::sliding_window(size_or_left, nb::cast<std::int64_t>(right));
}

MaskMod tree(nb::handle parents, nb::handle context) {
  const auto number = find_number(context);
  return number.has_value() ? mods::tree(table_of(parents), *number)
                            : mods::tree(table_of(parents), table_of(context));
}

ScoreMod alibi(nb::handle heads_or_slopes) {
  const auto heads = find_number(heads_or_slopes);
  return heads.has_value() ? mods::alibi(*heads) : mods::alibi(table_of(heads_or_slopes));
}

std::vector<MaskMod> masks_of(const nb::args& masks) {
  std::vector<MaskMod> all;
  for (const nb::handle mask : masks) all.push_back(mask_mod_of(mask));
  return all;
}

void define_masks(nb::module_& m) {
  m.def("causal", &mods::causal, "A token sees itself and what came before it.");
  m.def("causal_bottom_right", &mods::causal_bottom_right, nb::arg("q_len"), nb::arg("kv_len"),
        "Causal, with the last query standing at the last key.");
  m.def("sliding_window", &sliding_window, nb::arg("size"), nb::arg("right") = nb::none(),
        "sliding_window(size): the last `size` tokens, the own among them. sliding_window(left, "
        "right): so many before and behind the own.");
  m.def("document", &document, nb::arg("ids"), nb::arg("kv_ids") = nb::none(),
        "Tokens of the same document. ids: integers [len] or [batch, len], read in place; a "
        "negative id is padding. kv_ids: ids of the keys, if they are others.");
  m.def(
      "document_from_offsets",
      [](nb::handle offsets, std::int64_t length) {
        return mods::document_from_offsets(table_of(offsets), length);
      },
      nb::arg("offsets"), nb::arg("length") = -1,
      "Document i is offsets[i] .. offsets[i + 1] - 1. offsets: integers [documents + 1], copied.");
  m.def(
      "prefix_lm",
      [](nb::handle length) {
        return of_number_or_table(length, &mods::prefix_lm, &mods::prefix_lm);
      },
      nb::arg("length"),
      "The first tokens are seen by all, the rest is causal. A number, or integers [batch].");
  m.def(
      "padding",
      [](nb::handle kv_length) {
        return of_number_or_table(kv_length, &mods::padding, &mods::padding);
      },
      nb::arg("kv_length"), "The first keys only. A number, or integers [batch].");
  m.def(
      "shared_prefix",
      [](std::int64_t prefix_length, nb::handle ids) {
        return mods::shared_prefix(prefix_length, table_of(ids));
      },
      nb::arg("prefix_length"), nb::arg("ids"),
      "Causal; the prefix is seen by every branch, other tokens only within theirs.");
  m.def("tree", &tree, nb::arg("parents"), nb::arg("context") = 0,
        "After `context` tokens (a number, or integers [batch]), token i of the tree sees itself "
        "and its ancestors. parents: integers [n] or [batch, n], -1 for a root; copied.");
  m.def("attention_sink", &mods::attention_sink, nb::arg("count"),
        "The first keys are seen by all; to be joined with another mask by |.");
  m.def("streaming", &mods::streaming, nb::arg("sinks"), nb::arg("window"),
        "Causal; the first `sinks` tokens and the last `window`.");
  m.def("chunked", &mods::chunked, nb::arg("size"), nb::arg("is_causal") = true,
        "Tokens of the same stretch of `size`.");
}

void define_scores(nb::module_& m) {
  m.def("alibi", &alibi, nb::arg("heads"),
        "score + slopes[h] * (kv_idx - q_idx), with a number of heads or floats [heads].");
  m.def(
      "alibi_slopes",
      [](std::int64_t heads) { return to_numpy(Tensor::from(mods::alibi_slopes(heads))); },
      nb::arg("heads"), "The paper's slopes, f32 [heads].");
  m.def("softcap", &mods::softcap, nb::arg("cap"), "cap * tanh(score / cap)");
  m.def(
      "relative_bias", [](nb::handle table) { return mods::relative_bias(table_of(table)); },
      nb::arg("table"),
      "score + table[h, kv_idx - q_idx + max - 1]. table: floats [2 * max - 1] or [heads, 2 * max "
      "- 1], read in place.");
  m.def(
      "bias_2d", [](nb::handle bias) { return mods::bias_2d(table_of(bias)); }, nb::arg("bias"),
      "score + bias[b, h, q_idx, kv_idx]. bias: floats of rank 2, 3 or 4, read in place.");
}

}  // namespace

void register_library(nb::module_& module) {
  define_masks(module);
  define_scores(module);
  module.def(
      "and_masks",
      [](const nb::args& masks) { return and_masks(std::span<const MaskMod>(masks_of(masks))); },
      "Visible where all masks are; of no masks, everything.");
  module.def(
      "or_masks",
      [](const nb::args& masks) { return or_masks(std::span<const MaskMod>(masks_of(masks))); },
      "Visible where any mask is; of no masks, nothing.");
}

}  // namespace quire::python
