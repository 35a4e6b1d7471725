// The library of ready mods, which quire.mods offers, and and_masks and or_masks. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "arguments.h"
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

// The value of an int, or of anything else with __index__ and no axes (NumPy's integers).
std::optional<std::int64_t> find_number(nb::handle object) {
  if (PyIndex_Check(object.ptr()) == 0) return std::nullopt;
  if (nb::hasattr(object, "shape") && nb::len(nb::object(object.attr("shape"))) != 0)
    return std::nullopt;
  return whole_number("mods", "the number", object);
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
  return right.is_none()
             ? mods::sliding_window(size_or_left)
             : mods::sliding_window(size_or_left, whole_number("sliding_window", "right", right));
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
  m.def("causal", &mods::causal, R"doc(A token sees itself and what came before it.

>>> import quire
>>> quire.mods.causal()
quire.MaskMod('q_idx >= kv_idx'))doc");
  m.def("causal_bottom_right", &mods::causal_bottom_right, nb::arg("q_len"), nb::arg("kv_len"),
        R"doc(Causal, with the last query standing at the last key.

>>> import quire
>>> quire.mods.causal_bottom_right(2, 5)
quire.MaskMod('q_idx + 3 >= kv_idx'))doc");
  m.def(
      "sliding_window", &sliding_window, nb::arg("size"), nb::arg("right") = nb::none(),
      R"doc(sliding_window(size): the last `size` tokens, the own among them. sliding_window(left, right): so many before and after the
own.

>>> import quire
>>> quire.mods.sliding_window(256)
quire.MaskMod('(q_idx >= kv_idx) & (q_idx - kv_idx < 256)')
>>> quire.mods.sliding_window(3, 2)
quire.MaskMod('(q_idx - kv_idx <= 3) & (kv_idx - q_idx <= 2)'))doc");
  m.def(
      "document", &document, nb::arg("ids"), nb::arg("kv_ids") = nb::none(),
      R"doc(Tokens of the same document. ids: integers [len] or [batch, len], read in place; a negative id is padding. kv_ids: ids of the
keys, if they are others.

>>> import numpy, quire
>>> quire.evaluate(quire.mods.document(numpy.array([0, 0, 1, -1])), (1, 1, 4, 4))[0, 0].astype(int)
array([[1, 1, 0, 0],
       [1, 1, 0, 0],
       [0, 0, 1, 0],
       [0, 0, 0, 0]]))doc");
  m.def(
      "document_from_offsets",
      [](nb::handle offsets, std::int64_t length) {
        return mods::document_from_offsets(table_of(offsets), length);
      },
      nb::arg("offsets"), nb::arg("length") = -1,
      R"doc(Document i is offsets[i] .. offsets[i + 1] - 1. offsets: integers [documents + 1], copied.

>>> import quire
>>> quire.mods.document_from_offsets([0, 2, 5]).buffers["ids"].tolist()
[0, 0, 1, 1, 1])doc");
  m.def(
      "prefix_lm",
      [](nb::handle length) {
        return of_number_or_table(length, &mods::prefix_lm, &mods::prefix_lm);
      },
      nb::arg("length"),
      R"doc(The first tokens are seen by all, the rest is causal. A number, or integers [batch].

>>> import quire
>>> quire.mods.prefix_lm(10)
quire.MaskMod('(kv_idx < 10) | (q_idx >= kv_idx)'))doc");
  m.def(
      "padding",
      [](nb::handle kv_length) {
        return of_number_or_table(kv_length, &mods::padding, &mods::padding);
      },
      nb::arg("kv_length"), R"doc(The first keys only. A number, or integers [batch].

>>> import quire
>>> quire.mods.padding(100)
quire.MaskMod('kv_idx < 100'))doc");
}

// Masks that look further back than a window, at selected tokens.
void define_structured_masks(nb::module_& m) {
  m.def(
      "shared_prefix",
      [](std::int64_t prefix_length, nb::handle ids) {
        return mods::shared_prefix(prefix_length, table_of(ids));
      },
      nb::arg("prefix_length"), nb::arg("ids"),
      R"doc(Causal; the prefix is seen by every branch, other tokens only within theirs.

>>> import numpy, quire
>>> quire.evaluate(quire.mods.shared_prefix(2, numpy.array([0, 0, 1, 1, 2])), (1, 1, 5, 5))[0, 0].astype(int)
array([[1, 0, 0, 0, 0],
       [1, 1, 0, 0, 0],
       [1, 1, 1, 0, 0],
       [1, 1, 1, 1, 0],
       [1, 1, 0, 0, 1]]))doc");
  m.def(
      "tree", &tree, nb::arg("parents"), nb::arg("context") = 0,
      R"doc(After `context` tokens (a number, or integers [batch]), token i of the tree sees itself and its ancestors. parents: integers
[n] or [batch, n], -1 for a root; copied.

>>> import quire
>>> quire.evaluate(quire.mods.tree([-1, 0, 0, 1]), (1, 1, 4, 4))[0, 0].astype(int)
array([[1, 0, 0, 0],
       [1, 1, 0, 0],
       [1, 0, 1, 0],
       [1, 1, 0, 1]]))doc");
  m.def("attention_sink", &mods::attention_sink, nb::arg("count"),
        R"doc(The first keys are seen by all; to be joined with another mask by |.

>>> import quire
>>> quire.mods.attention_sink(4) | quire.mods.sliding_window(64)
quire.MaskMod('(kv_idx < 4) | (q_idx >= kv_idx) & (q_idx - kv_idx < 64)'))doc");
  m.def("streaming", &mods::streaming, nb::arg("sinks"), nb::arg("window"),
        R"doc(Causal; the first `sinks` tokens and the last `window`.

>>> import quire
>>> quire.mods.streaming(4, 1024)
quire.MaskMod('(q_idx >= kv_idx) & ((kv_idx < 4) | (q_idx - kv_idx < 1024))'))doc");
  m.def("chunked", &mods::chunked, nb::arg("size"), nb::arg("is_causal") = true,
        R"doc(Tokens of the same stretch of `size`.

>>> import quire
>>> quire.mods.chunked(512)
quire.MaskMod('(q_idx // 512 == kv_idx // 512) & (q_idx >= kv_idx)'))doc");
}

void define_scores(nb::module_& m) {
  m.def("alibi", &alibi, nb::arg("heads"),
        R"doc(score + slopes[h] * (kv_idx - q_idx), with a number of heads or floats [heads].

>>> import quire
>>> quire.mods.alibi(8)
quire.ScoreMod('score + slopes[h] * (kv_idx - q_idx)'))doc");
  m.def(
      "alibi_slopes",
      [](std::int64_t heads) { return to_numpy(Tensor::from(mods::alibi_slopes(heads))); },
      nb::arg("heads"), R"doc(The paper's slopes, f32 [heads].

>>> import quire
>>> quire.mods.alibi_slopes(4).tolist()
[0.25, 0.0625, 0.015625, 0.00390625])doc");
  m.def("softcap", &mods::softcap, nb::arg("cap"), R"doc(cap * tanh(score / cap)

>>> import quire
>>> quire.mods.softcap(30.0)
quire.ScoreMod('30.0 * tanh(score / 30.0)'))doc");
  m.def(
      "relative_bias", [](nb::handle table) { return mods::relative_bias(table_of(table)); },
      nb::arg("table"),
      R"doc(score + table[h, kv_idx - q_idx + max - 1]. table: floats [2 * max - 1] or [heads, 2 * max - 1], read in place.

>>> import numpy, quire
>>> quire.mods.relative_bias(numpy.zeros(7, numpy.float32))
quire.ScoreMod('score + table[clamp(kv_idx - q_idx + 3, 0, 6)]'))doc");
  m.def(
      "bias_2d", [](nb::handle bias) { return mods::bias_2d(table_of(bias)); }, nb::arg("bias"),
      R"doc(score + bias[b, h, q_idx, kv_idx]. bias: floats of rank 2, 3 or 4, read in place.

>>> import numpy, quire
>>> quire.mods.bias_2d(numpy.zeros((8, 16, 16), numpy.float32))
quire.ScoreMod('score + bias[h, q_idx, kv_idx]'))doc");
}

}  // namespace

void register_library(nb::module_& module) {
  define_masks(module);
  define_structured_masks(module);
  define_scores(module);
  module.def(
      "and_masks",
      [](const nb::args& masks) { return and_masks(std::span<const MaskMod>(masks_of(masks))); },
      R"doc(Visible where all masks are; of no masks, everything.

>>> import quire
>>> quire.and_masks(quire.mods.causal(), lambda b, h, q_idx, kv_idx: kv_idx < 5)
quire.MaskMod('(q_idx >= kv_idx) & (kv_idx < 5)'))doc");
  module.def(
      "or_masks",
      [](const nb::args& masks) { return or_masks(std::span<const MaskMod>(masks_of(masks))); },
      R"doc(Visible where any mask is; of no masks, nothing.

>>> import quire
>>> quire.or_masks("kv_idx == 0", quire.mods.causal())
quire.MaskMod('(kv_idx == 0) | (q_idx >= kv_idx)'))doc");
}

}  // namespace quire::python
