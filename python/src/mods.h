// Converts Python objects to mods: a mod, a text with buffers, or a function that is traced. Python
// layer.
#pragma once
#include <nanobind/nanobind.h>

#include "quire/mod.h"
#include "quire/mods.h"

namespace quire::python {

namespace nb = nanobind;

/// A ScoreMod, a text, or a function of (score, b, h, q_idx, kv_idx), which is called once with
/// expressions. `buffers`: None, or a dict of the arrays that a text names.
ScoreMod score_mod_of(nb::handle mod, nb::handle buffers = nb::none());

/// A MaskMod, a text, or a function of (b, h, q_idx, kv_idx).
MaskMod mask_mod_of(nb::handle mod, nb::handle buffers = nb::none());

/// A dict of arrays, Views and Buffers by name; None: none.
NamedBuffers named_buffers_of(nb::handle buffers);
/// The inverse: NumPy arrays over the buffers' memory.
nb::dict to_dict(const NamedBuffers& buffers);

}  // namespace quire::python
