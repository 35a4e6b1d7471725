// Codes and their scales, checked against one another and brought to four axes. Quant layer.
#pragma once
#include <cstdint>

#include "quire/quantize.h"

namespace quire::quant {

/// Which axes of a tensor count batch entries (or pages), heads and tokens; -1: there is no such
/// axis.
struct CodedAxes {
  int batch = 0, head = 1, token = 2;
};

/// Throws Error "[where] name ..." for codes of another dtype, codes of a row that are not
/// contiguous, and scales of another dtype, shape or place. Plain tensors pass.
void check_coded(const char* where, const char* name, const KVView& view, const CodedAxes& axes);

/// The scales of a checked view: [batch, heads, tokens, scales of a row], with strides of 0 along
/// axes on which they are constant. Empty if there are none.
ConstTensorView scales_of(const KVView& view, const CodedAxes& axes);

}  // namespace quire::quant
