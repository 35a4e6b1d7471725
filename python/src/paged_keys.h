// Paged keys and values from Python: views that keep their owners alive. Python
// layer.
#pragma once
#include "quire/attention_problem.h"
#include "view.h"

namespace quire::python {

struct PagedViews {
  View k, v, page_table, lengths;

  /// Valid while this lives.
  PagedKeys keys() const {
    return {
        .k = k.keys(), .v = v.keys(), .page_table = page_table.tensor, .lengths = lengths.tensor};
  }
};

}  // namespace quire::python
