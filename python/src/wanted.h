// Which gradients a call asks for, by names, and results that may be missing. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "quire/scaled_dot_product_attention.h"
#include "view.h"

namespace quire::python {

/// Any of "q", "k", "v", "buffers" and "attn_mask". Throws Error for another name.
inline SdpaGradientsWanted wanted_of(const std::vector<std::string>& names) {
  SdpaGradientsWanted wanted{.inputs = {.q = false, .k = false, .v = false, .buffers = false}};
  for (const std::string& name : names) {
    bool* const one = name == "q"           ? &wanted.inputs.q
                      : name == "k"         ? &wanted.inputs.k
                      : name == "v"         ? &wanted.inputs.v
                      : name == "buffers"   ? &wanted.inputs.buffers
                      : name == "attn_mask" ? &wanted.attn_mask
                                            : nullptr;
    if (one == nullptr)
      throw Error(ErrorKind::value, "[backward] there is no gradient of '" + name + "'");
    *one = true;
  }
  return wanted;
}

/// A View of new memory, or None.
inline nb::object optional_view(std::optional<Tensor> tensor) {
  return tensor.has_value() ? nb::cast(view_of(std::move(*tensor))) : nb::none();
}

}  // namespace quire::python
