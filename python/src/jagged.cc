// Jagged batches: their views, and the masks of their sequences. Python layer.
#include "jagged.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "block_size.h"
#include "gil.h"
#include "mods.h"
#include "quire/error.h"
#include "register.h"

namespace quire::python {
namespace {

JaggedOrder order_of(const std::string& name) {
  if (name == "tokens") return JaggedOrder::kTokens;
  if (name == "heads") return JaggedOrder::kHeads;
  throw Error(ErrorKind::value,
              "[Jagged] the order must be 'tokens', [total, heads, dim], or 'heads', [heads, "
              "total, dim]; got '" +
                  name + "'");
}

void init_jagged(JaggedViews* self, nb::handle values, nb::handle offsets, nb::handle lengths,
                 const std::string& order) {
  JaggedViews views{.values = view_of(values), .offsets = view_of(offsets)};
  if (!lengths.is_none()) views.lengths = view_of(lengths);
  views.order = order_of(order);
  new (self) JaggedViews(std::move(views));
}

// The rule and the number of sequences; the masks have pictures of their own.
std::string repr(const JaggedBlockMask& mask) {
  return fmt::format("quire.JaggedBlockMask({} sequences, mask_mod={})", mask.sequences(),
                     mask.mask_mod().to_string());
}

const BlockMask& sequence_of(const JaggedBlockMask& mask, std::int64_t sequence) {
  const std::int64_t n = mask.sequences();
  if (sequence < -n || sequence >= n) {
    throw nb::index_error(
        fmt::format("[JaggedBlockMask] there are {} sequences; got {}", n, sequence).c_str());
  }
  return mask[sequence < 0 ? sequence + n : sequence];
}

// None means 1: the mask is the same for all heads.
JaggedBlockMask create_jagged(nb::handle mask_mod, std::optional<std::int64_t> heads,
                              const JaggedViews& q, const JaggedViews* kv, nb::handle block_size,
                              bool separate_full_blocks) {
  const MaskMod mod = mask_mod_of(mask_mod);
  const BlockMaskOptions options{.block_size = block_size_of(block_size),
                                 .separate_full_blocks = separate_full_blocks};
  const Jagged queries = q.jagged(), keys = kv == nullptr ? queries : kv->jagged();
  const ReleasedGil released;
  return create_jagged_block_mask(mod, heads.value_or(1), queries, keys, options);
}

}  // namespace

void register_jagged(nb::module_& module) {
  nb::class_<JaggedViews>(module, "JaggedViews",
                          "A jagged batch: values [total, heads, dim], or [heads, total, dim] with "
                          "the order 'heads', offsets [n + 1] and, with holes, lengths [n].")
      .def("__init__", &init_jagged, nb::arg("values"), nb::arg("offsets"),
           nb::arg("lengths").none() = nb::none(), nb::arg("order") = "tokens");
  nb::class_<JaggedBlockMask>(
      module, "JaggedBlockMask",
      R"doc(The block mask of every sequence of a jagged batch, from one rule.

>>> import numpy, quire
>>> tokens = quire.Jagged(numpy.zeros((300, 2, 64), numpy.float32), numpy.array([0, 200, 300]))
>>> masks = quire.create_jagged_block_mask("q_idx >= kv_idx", None, tokens)
>>> len(masks), masks[1].shape
(2, (1, 1, 100, 100)))doc")
      .def("__len__", &JaggedBlockMask::sequences)
      .def(
          "__getitem__",
          [](const JaggedBlockMask& m, std::int64_t i) { return BlockMask(sequence_of(m, i)); },
          nb::arg("sequence"), "The BlockMask of one sequence: (1, heads, its q_len, its kv_len).")
      .def_prop_ro("mask_mod", [](const JaggedBlockMask& m) { return m.mask_mod(); })
      .def("__repr__", [](const JaggedBlockMask& mask) { return repr(mask); });
  module.def("create_jagged_block_mask", &create_jagged, nb::arg("mask_mod"), nb::arg("H").none(),
             nb::arg("q"), nb::arg("kv").none() = nb::none(), nb::arg("BLOCK_SIZE") = 128,
             nb::arg("separate_full_blocks") = true,
             "The block masks of a rule for the sequences of q and kv (q's if None), by proof.");
}

}  // namespace quire::python
