// merge_states: combines attention over sets of keys. Python layer.
#include "quire/merge_states.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "gil.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// (out, lse)
std::pair<View, View> merge(const std::vector<std::pair<View, View>>& states) {
  std::vector<AttentionState> views;
  for (const auto& [out, lse] : states) views.push_back({out.tensor, lse.tensor});
  MergedState merged;
  {
    const ReleasedGil released;
    merged = merge_states(views);
  }
  return {view_of(std::move(merged.out)), view_of(std::move(merged.lse))};
}

}  // namespace

void register_merge_states(nb::module_& module) {
  module.def("merge_states", &merge, nb::arg("states"),
             "The (out, lse) of all keys from those of parts of them.");
}

}  // namespace quire::python
