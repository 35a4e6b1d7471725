// The class BlockMask, create_block_mask and create_mask. Python layer.
#include "quire/block_mask.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "block_size.h"
#include "gil.h"
#include "mods.h"
#include "quire/draw.h"
#include "quire/error.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

using Pair = std::pair<std::int64_t, std::int64_t>;

std::optional<Array> optional_array(std::optional<Tensor> tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return to_numpy(std::move(*tensor));
}

// int, slice, or a list or array of integers.
BlockIndex index_of(nb::handle index) {
  if (PyLong_Check(index.ptr())) return whole_number("BlockMask", "an index", index);
  if (nb::isinstance<nb::slice>(index)) {
    const auto number = [&](const char* name) -> std::optional<std::int64_t> {
      const nb::object value = index.attr(name);
      if (value.is_none()) return std::nullopt;
      return whole_number("BlockMask", name, value);
    };
    return BlockSlice{
        .start = number("start"), .stop = number("stop"), .step = number("step").value_or(1)};
  }
  const View view = view_of(index);
  if (is_floating(view.tensor.dtype()) || view.tensor.dtype() == DType::boolean)
    throw nb::type_error("[BlockMask] an index must be an int, a slice or an array of integers");
  if (view.tensor.rank() == 0) return view.tensor.load_int({});
  if (view.tensor.rank() != 1)
    throw nb::index_error("[BlockMask] an array of indices must have rank 0 or 1");
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < view.tensor.dim(0); ++i)
    positions.push_back(view.tensor.load_int({i}));
  return positions;
}

BlockMask index_mask(const BlockMask& mask, nb::handle index) {
  if (!PyTuple_Check(index.ptr())) return mask.index(index_of(index));
  const auto all = nb::borrow<nb::tuple>(index);
  std::array<BlockIndex, 3> at = {BlockSlice(), BlockSlice(), BlockSlice()};
  if (all.size() > at.size())
    throw nb::index_error("[BlockMask] takes at most 3 indices: batch, head, row of blocks");
  for (std::size_t i = 0; i < all.size(); ++i) at[i] = index_of(all[i]);
  return mask.index(at[0], at[1], at[2]);
}

BlockLists lists_of(const View& num_blocks, const View& indices) {
  return {num_blocks.tensor, indices.tensor};
}

BlockMask from_kv_blocks(nb::handle num_blocks, nb::handle indices, nb::handle full_num_blocks,
                         nb::handle full_indices, nb::handle block_size, nb::handle mask_mod,
                         std::optional<Pair> seq_lengths, bool compute_q_blocks, bool are_pages) {
  if (full_num_blocks.is_none() != full_indices.is_none()) {
    throw nb::value_error(
        "[from_kv_blocks] full_kv_num_blocks and full_kv_indices are given together or not at all");
  }
  const View num_view = view_of(num_blocks), index_view = view_of(indices);
  std::optional<View> full_num, full_index;
  FromKvBlocksOptions options{.block_size = block_size_of(block_size),
                              .seq_lengths = seq_lengths,
                              .compute_q_blocks = compute_q_blocks,
                              .are_pages = are_pages};
  if (!full_num_blocks.is_none()) {
    full_num = view_of(full_num_blocks);
    full_index = view_of(full_indices);
    options.full = lists_of(*full_num, *full_index);
  }
  if (!mask_mod.is_none()) options.mask_mod = mask_mod_of(mask_mod);
  const ReleasedGil released;
  return BlockMask::from_kv_blocks(lists_of(num_view, index_view), options);
}

bool made_from(const BlockMask& mask, nb::handle num_blocks, nb::handle indices,
               nb::handle full_num_blocks, nb::handle full_indices) {
  const View num_view = view_of(num_blocks), index_view = view_of(indices);
  if (full_num_blocks.is_none()) return mask.made_from(lists_of(num_view, index_view));
  const View full_num = view_of(full_num_blocks), full_index = view_of(full_indices);
  return mask.made_from(lists_of(num_view, index_view), lists_of(full_num, full_index));
}

// None means 1: the mask is the same for all.
struct MaskSizes {
  MaskSizes(const char* where, nb::handle b, nb::handle h, nb::handle q, nb::handle kv)
      : batch(whole_number_or(where, "B", b, 1)),
        heads(whole_number_or(where, "H", h, 1)),
        q_len(whole_number(where, "Q_LEN", q)),
        kv_len(whole_number(where, "KV_LEN", kv)) {}

  std::int64_t batch, heads, q_len, kv_len;
};

BlockMask create(nb::handle mask_mod, nb::handle batch, nb::handle heads, nb::handle q_len,
                 nb::handle kv_len, nb::handle block_size, bool separate_full_blocks,
                 std::int64_t q_begin, nb::handle device) {
  check_device("create_block_mask", device);
  const MaskSizes sizes("create_block_mask", batch, heads, q_len, kv_len);
  const MaskMod mod = mask_mod_of(mask_mod);
  const BlockMaskOptions options{.block_size = block_size_of(block_size),
                                 .separate_full_blocks = separate_full_blocks,
                                 .q_begin = q_begin};
  const ReleasedGil released;
  return create_block_mask(mod, sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, options);
}

// Functions take one more argument for a score mod than for a mask mod.
bool is_score_function(nb::handle mod) {
  const nb::module_ inspect = nb::module_::import_("inspect");
  const nb::object parameters = inspect.attr("signature")(mod).attr("parameters");
  const nb::object empty = inspect.attr("Parameter").attr("empty");
  std::size_t needed = 0;
  for (const nb::handle one : parameters.attr("values")())
    if (one.attr("default").is(empty)) ++needed;
  return needed == 5;
}

Array mask_array(nb::handle mod, nb::handle batch, nb::handle heads, nb::handle q_len,
                 nb::handle kv_len, std::int64_t q_begin, nb::handle device) {
  check_device("create_mask", device);
  const auto [b, h, rows, keys] = MaskSizes("create_mask", batch, heads, q_len, kv_len);
  std::optional<ScoreMod> score;
  std::optional<MaskMod> mask;
  const bool is_function = !nb::isinstance<MaskMod>(mod) && !nb::isinstance<nb::str>(mod);
  if (nb::isinstance<ScoreMod>(mod) || (is_function && is_score_function(mod)))
    score = score_mod_of(mod);
  else
    mask = mask_mod_of(mod);
  Tensor result;
  {
    const ReleasedGil released;
    const CreateMaskOptions options{.q_begin = q_begin};
    result = score ? create_mask(*score, b, h, rows, keys, options)
                   : create_mask(*mask, b, h, rows, keys, options);
  }
  return to_numpy(std::move(result));
}

std::string text_of(const BlockMask& mask) {
  std::ostringstream out;
  out << mask;
  return out.str();
}

// (q_len, kv_len), the index arrays, (q_block, kv_block) and the mask mod; `flatten` unpacks the
// pairs.
nb::list as_list(const BlockMask& mask, bool flatten) {
  nb::list all;
  const auto append_pair = [&](std::int64_t a, std::int64_t b) {
    if (flatten) {
      all.append(a);
      all.append(b);
    } else {
      all.append(nb::make_tuple(a, b));
    }
  };
  append_pair(mask.seq_lengths().first, mask.seq_lengths().second);
  all.append(to_numpy(mask.kv_num_blocks()));
  all.append(to_numpy(mask.kv_indices()));
  all.append(optional_array(mask.full_kv_num_blocks()));
  all.append(optional_array(mask.full_kv_indices()));
  all.append(optional_array(mask.q_num_blocks()));
  all.append(optional_array(mask.q_indices()));
  all.append(optional_array(mask.full_q_num_blocks()));
  all.append(optional_array(mask.full_q_indices()));
  append_pair(mask.block_size().q, mask.block_size().kv);
  all.append(mask.has_mask_mod() ? nb::cast(mask.mask_mod()) : nb::none());
  return all;
}

std::string repr(const BlockMask& mask) {
  const Shape& shape = mask.shape();
  std::string sizes;
  for (const std::int64_t size : shape)
    sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
  return fmt::format(
      "quire.BlockMask(shape=({}), BLOCK_SIZE=({}, {}), {} x {} blocks, sparsity={:.2f}%, "
      "mask_mod={})",
      sizes, mask.block_size().q, mask.block_size().kv, mask.q_blocks(), mask.kv_blocks(),
      mask.sparsity(), mask.has_mask_mod() ? mask.mask_mod().to_string() : "none");
}

// Masks are always on the CPU.
BlockMask to_device(const BlockMask& mask, nb::handle device) {
  check_device("BlockMask", device);
  return mask;
}

// nullopt for a mask without elements: the notebook then shows its text.
std::optional<std::string> picture_of(const BlockMask& mask) {
  if (mask.numel() == 0) return std::nullopt;
  return draw_svg(mask);
}

using Class = nb::class_<BlockMask>;

void define_sizes(Class& class_) {
  class_
      .def_prop_ro(
          "shape", [](const BlockMask& m) { return to_tuple(m.shape()); },
          "(batch, heads, q_len, kv_len)")
      .def_prop_ro("seq_lengths", &BlockMask::seq_lengths, "(q_len, kv_len)")
      .def_prop_ro(
          "BLOCK_SIZE",
          [](const BlockMask& m) { return Pair(m.block_size().q, m.block_size().kv); },
          "(Q_BLOCK_SIZE, KV_BLOCK_SIZE)")
      .def_prop_ro("q_begin", &BlockMask::q_begin, "q_idx of the first row.")
      .def_prop_ro("separate_full_blocks", &BlockMask::separate_full_blocks)
      .def_prop_ro("nbytes", &BlockMask::nbytes)
      .def("numel", &BlockMask::numel, "Elements, whether visible or not.")
      .def("sparsity", &BlockMask::sparsity, "Percent of the elements that are not computed.");
}

void define_blocks(Class& class_) {
  class_.def_prop_rw(
      "mask_mod", [](const BlockMask& m) { return m.mask_mod(); },
      [](BlockMask& m, nb::handle mod) { m.set_mask_mod(mask_mod_of(mod)); },
      "The rule. Of a part taken by [], it has to be set before it can be read.");
  class_.def_prop_ro("has_mask_mod", &BlockMask::has_mask_mod)
      .def(
          "whole_mask_mod", [](const BlockMask& m) { return m.whole_mask_mod(); },
          "One rule for the whole mask, blocks chosen by data included.")
      .def_prop_ro("kv_num_blocks", [](const BlockMask& m) { return to_numpy(m.kv_num_blocks()); })
      .def_prop_ro("kv_indices", [](const BlockMask& m) { return to_numpy(m.kv_indices()); })
      .def_prop_ro("full_kv_num_blocks",
                   [](const BlockMask& m) { return optional_array(m.full_kv_num_blocks()); })
      .def_prop_ro("full_kv_indices",
                   [](const BlockMask& m) { return optional_array(m.full_kv_indices()); })
      .def_prop_ro("q_num_blocks",
                   [](const BlockMask& m) { return optional_array(m.q_num_blocks()); })
      .def_prop_ro("q_indices", [](const BlockMask& m) { return optional_array(m.q_indices()); })
      .def_prop_ro("full_q_num_blocks",
                   [](const BlockMask& m) { return optional_array(m.full_q_num_blocks()); })
      .def_prop_ro("full_q_indices",
                   [](const BlockMask& m) { return optional_array(m.full_q_indices()); })
      .def(
          "to_dense", [](const BlockMask& m) { return to_numpy(m.to_dense()); },
          "1 where a block is partial or full: int32 [batch, heads, q_blocks, kv_blocks].")
      .def(
          "as_tuple",
          [](const BlockMask& m, bool flatten) { return nb::tuple(as_list(m, flatten)); },
          nb::arg("flatten") = true,
          "Lengths, the eight index arrays, block sizes and mask_mod; pairs written out if "
          "`flatten`.")
      .def("to", &to_device, nb::arg("device"), "The mask itself: it lives on the CPU.");
}

void define_code(Class& class_) {
  class_
      .def(
          "encode",
          [](const BlockMask& m, bool dense) {
            return to_numpy(m.encode(dense ? BlockCode::kDense : BlockCode::kShort));
          },
          nb::arg("dense") = false,
          "Sizes and blocks as int64 words that mean the same in every process; the rule is left "
          "out. dense: as many words for every mask of these sizes.")
      .def_static(
          "decode",
          [](nb::handle words) {
            const View view = view_of(words);
            const ReleasedGil released;
            return BlockMask::decode(view.tensor);
          },
          nb::arg("words"),
          "The mask of such words, with a rule that hides nothing. ValueError for damaged ones.")
      .def("made_from", &made_from, nb::arg("kv_num_blocks"), nb::arg("kv_indices"),
           nb::arg("full_kv_num_blocks") = nb::none(), nb::arg("full_kv_indices") = nb::none(),
           "Whether from_kv_blocks of these lists would make this mask again.")
      .def_static("dense_words", &BlockMask::dense_words, nb::arg("batch"), nb::arg("heads"),
                  nb::arg("q_blocks"), nb::arg("kv_blocks"),
                  "How many words encode(dense=True) writes for a mask of so many blocks.");
}

void define_parts(Class& class_) {
  class_
      .def("__getitem__", &index_mask, nb::arg("index"),
           "mask[b, h, q_block] by ints, slices or arrays of integers. The mask_mod is taken away.")
      .def("_adjust", &BlockMask::adjust, nb::arg("new_q_len"), nb::arg("new_kv_len"),
           "The first rows and columns of blocks, for shorter queries and keys.")
      .def(
          "rows",
          [](const BlockMask& m, std::int64_t q_begin, std::int64_t q_end) {
            // Another thread may assign m.mask_mod meanwhile.
            // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
            const BlockMask mask = m;
            const ReleasedGil released;
            return mask.rows(q_begin, q_end);
          },
          nb::arg("q_begin"), nb::arg("q_end"), "Exactly these rows, with the same mask_mod.")
      .def(
          "append_rows",
          [](BlockMask& m, std::int64_t q_rows, std::int64_t kv_columns) {
            // Works on a copy: other threads may read the mask while this one has released the GIL.
            BlockMask grown = m;
            {
              const ReleasedGil released;
              grown.append_rows(q_rows, kv_columns);
            }
            m = std::move(grown);
          },
          nb::arg("q_rows"), nb::arg("kv_columns"), "The sequence has grown by so many.")
      .def("__copy__", [](const BlockMask& m) { return m; })
      .def(
          "__deepcopy__", [](const BlockMask& m, nb::handle) { return m; }, nb::arg("memo"))
      .def(nb::self & nb::self)
      .def(nb::self | nb::self)
      .def(~nb::self)
      .def(
          "__eq__",
          [](const BlockMask& a, nb::handle b) -> nb::object {
            if (!nb::isinstance<BlockMask>(b)) return nb::borrow(Py_NotImplemented);
            return nb::cast(a == nb::cast<const BlockMask&>(b));
          },
          nb::is_operator(), "Same sizes, same blocks, same rule.")
      .def("same_blocks", &BlockMask::same_blocks, nb::arg("other"),
           "Same sizes and blocks; the rules may be written differently.");
  class_.attr("__hash__") = nb::none();
}

}  // namespace

void register_block_mask(nb::module_& module) {
  Class class_(
      module, "BlockMask",
      R"doc(Which blocks of queries and keys hold anything to compute, and the rule inside blocks that are partly visible.

>>> import quire
>>> mask = quire.create_block_mask("q_idx >= kv_idx", None, None, 1024, 1024)
>>> mask.shape, mask.BLOCK_SIZE, mask.sparsity()
((1, 1, 1024, 1024), (128, 128), 43.75)
>>> mask.rows(1000, 1024).shape
(1, 1, 24, 1024)
>>> (mask & quire.create_block_mask("kv_idx < 512", None, None, 1024, 1024)).mask_mod
quire.MaskMod('(q_idx >= kv_idx) & (kv_idx < 512)'))doc");
  define_sizes(class_);
  define_blocks(class_);
  define_code(class_);
  define_parts(class_);
  class_
      .def(
          "to_string",
          [](const BlockMask& m, nb::handle grid_size, std::int64_t limit) {
            const BlockSize grid = block_size_of(grid_size);
            return m.to_string({grid.q, grid.kv}, limit);
          },
          nb::arg("grid_size") = 20, nb::arg("limit") = 4, "The picture as torch prints it.")
      .def("__str__", &text_of)
      .def("__repr__", [](const BlockMask& mask) { return repr(mask); })
      .def("_repr_svg_", &picture_of, "What a notebook shows.")
      .def_static("from_kv_blocks", &from_kv_blocks, nb::arg("kv_num_blocks"),
                  nb::arg("kv_indices"), nb::arg("full_kv_num_blocks") = nb::none(),
                  nb::arg("full_kv_indices") = nb::none(), nb::arg("BLOCK_SIZE") = 128,
                  nb::arg("mask_mod") = nb::none(), nb::arg("seq_lengths") = nb::none(),
                  nb::arg("compute_q_blocks") = true, nb::arg("are_pages") = false,
                  "Blocks chosen by data: int32 or int64 arrays [..., rows] and [..., rows, n]. "
                  "are_pages: -1 stands for a page that is not there and is passed over.");
  module.def(
      "create_block_mask", &create, nb::arg("mask_mod"), nb::arg("B").none(), nb::arg("H").none(),
      nb::arg("Q_LEN"), nb::arg("KV_LEN"), nb::arg("BLOCK_SIZE") = 128,
      nb::arg("separate_full_blocks") = true, nb::arg("q_begin") = 0, nb::kw_only(),
      nb::arg("device").none() = "cpu",
      nb::sig("def create_block_mask(mask_mod: object, B: int | None, H: int | None, Q_LEN: int, "
              "KV_LEN: int, BLOCK_SIZE: object = 128, separate_full_blocks: bool = True, "
              "q_begin: int = 0, *, device: object = 'cpu') -> BlockMask"),
      R"doc(The block mask of a rule, found by proof. B and H of None: the same for every batch entry and head. BLOCK_SIZE: one number, or
(queries, keys). q_begin: q_idx of the first query. device: 'cpu', for PyTorch's sake.

>>> import quire
>>> mask = quire.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 1 << 20, 1 << 20)
>>> int(mask.full_kv_num_blocks.sum()), int(mask.kv_num_blocks.sum())
(33550336, 8192))doc");
  module.def(
      "create_mask", &mask_array, nb::arg("mod"), nb::arg("B").none(), nb::arg("H").none(),
      nb::arg("Q_LEN"), nb::arg("KV_LEN"), nb::arg("q_begin") = 0, nb::kw_only(),
      nb::arg("device").none() = "cpu",
      nb::sig("def create_mask(mod: object, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, "
              "q_begin: int = 0, *, device: object = 'cpu') -> numpy.ndarray"),
      R"doc(The mask as bools [B, H, Q_LEN, KV_LEN]; of a score mod, where it does not turn a score of 0 into -inf.

>>> import quire
>>> quire.create_mask("q_idx >= kv_idx", None, None, 3, 3)[0, 0].astype(int)
array([[1, 0, 0],
       [1, 1, 0],
       [1, 1, 1]]))doc");
}

}  // namespace quire::python
