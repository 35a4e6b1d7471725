// Which gradients a call asks for, by names. Python layer.
#pragma once
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/scaled_dot_product_attention.h"

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

}  // namespace quire::python
