// The gallery: mods kept as text, made at sizes of the caller's choice. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "arguments.h"
#include "mods.h"
#include "quire/mods.h"
#include "register.h"

namespace quire::python {
namespace {

using mods::GalleryEntry;
using mods::GallerySizes;

struct Sizes {
  nb::handle q_len, kv_len, heads, batch;
};

// The entry's own sizes by default.
GallerySizes sizes_of(const GalleryEntry& entry, const Sizes& given) {
  const auto or_own = [](const char* name, nb::handle number, std::int64_t own) {
    return whole_number_or("GalleryEntry.mod", name, number, own);
  };
  return {.q_len = or_own("q_len", given.q_len, entry.sizes.q_len),
          .kv_len = or_own("kv_len", given.kv_len, entry.sizes.kv_len),
          .heads = or_own("heads", given.heads, entry.sizes.heads),
          .batch = or_own("batch", given.batch, entry.sizes.batch)};
}

nb::object make_mod(const GalleryEntry& entry, nb::handle q_len, nb::handle kv_len,
                    nb::handle heads, nb::handle batch) {
  const GallerySizes sizes = sizes_of(entry, {q_len, kv_len, heads, batch});
  if (entry.kind == GalleryEntry::Kind::kMask) return nb::cast(entry.mask_mod(sizes));
  return nb::cast(entry.score_mod(sizes));
}

nb::dict sizes_dict(const GalleryEntry& entry) {
  nb::dict dict;
  dict["q_len"] = entry.sizes.q_len;
  dict["kv_len"] = entry.sizes.kv_len;
  dict["heads"] = entry.sizes.heads;
  dict["batch"] = entry.sizes.batch;
  return dict;
}

const char* kind_name(const GalleryEntry& entry) {
  return entry.kind == GalleryEntry::Kind::kMask ? "mask" : "score";
}

}  // namespace

void register_gallery(nb::module_& module) {
  nb::class_<GalleryEntry>(
      module, "GalleryEntry",
      R"doc(A mod kept as text. Its buffers are filled with numbers that show the pattern.

>>> import quire
>>> entry = quire.mods.gallery_entry("dilated_window")
>>> entry.kind, entry.sizes["q_len"] > 0
('mask', True)
>>> type(entry.mod(q_len=512, kv_len=512)).__name__
'MaskMod')doc")
      .def_ro("name", &GalleryEntry::name)
      .def_prop_ro("kind", &kind_name, "'mask' or 'score'")
      .def_ro("description", &GalleryEntry::description)
      .def_ro("reference", &GalleryEntry::reference, "Where it was published.")
      .def_ro("text", &GalleryEntry::text, "The formula, with names for sizes and tables.")
      .def_prop_ro("sizes", &sizes_dict, "What it is drawn at.")
      .def("mod", &make_mod, nb::kw_only(), nb::arg("q_len") = nb::none(),
           nb::arg("kv_len") = nb::none(), nb::arg("heads") = nb::none(),
           nb::arg("batch") = nb::none(), "The MaskMod or ScoreMod at these sizes.")
      .def("__repr__", [](const GalleryEntry& entry) {
        return "quire.mods.GalleryEntry(" + entry.name + ": " + entry.description + ")";
      });
  module.def(
      "gallery",
      [] {
        nb::list all;
        for (const GalleryEntry& entry : mods::gallery())
          all.append(nb::cast(&entry, nb::rv_policy::reference));
        return all;
      },
      R"doc(All entries, the library's own first.

>>> import quire
>>> quire.mods.gallery()[0].name
'causal')doc");
  module.def(
      "gallery_entry", [](const std::string& name) { return &mods::gallery_entry(name); },
      nb::rv_policy::reference, nb::arg("name"),
      R"doc(The entry of that name; an unknown name is an error that lists all.

>>> import quire
>>> quire.mods.gallery_entry("dilated_window").mod()
quire.MaskMod('(abs(q_idx - kv_idx) <= 16) & ((q_idx - kv_idx) % 3 == 0)'))doc");
}

}  // namespace quire::python
