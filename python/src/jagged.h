// A jagged batch passed from Python: views that keep their owners alive. Python layer.
#pragma once
#include <optional>

#include "quire/jagged.h"
#include "view.h"

namespace quire::python {

struct JaggedViews {
  View values, offsets;
  std::optional<View> lengths = {};
  JaggedOrder order = JaggedOrder::kTokens;

  /// Valid while this lives.
  Jagged jagged() const {
    Jagged all{.values = values.tensor, .offsets = offsets.tensor, .order = order};
    if (lengths.has_value()) all.lengths = lengths->tensor;
    if (values.scales.has_value()) all.scales = *values.scales;
    all.format = values.format;
    return all;
  }
};

}  // namespace quire::python
