// attend, attention over a KVCache, and merge_states. Python layer.
#include "quire/attend.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gil.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/merge_states.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// (out, lse, max_scores)
nb::tuple attend_step(const KVCache& cache, std::int64_t layer,
                      const std::vector<SequenceId>& sequences,
                      const std::vector<std::int64_t>& counts, const View& q,
                      const ScoreMod* score_mod, const MaskMod* mask_mod, std::int64_t window,
                      std::optional<double> scale, bool wants_lse, bool wants_max,
                      int openmp_threads) {
  if (counts.size() != sequences.size()) {
    throw Error(ErrorKind::value, "[attend] counts must be as many as sequences; got " +
                                      std::to_string(counts.size()) + " and " +
                                      std::to_string(sequences.size()));
  }
  std::vector<NewTokens> step;
  for (std::size_t i = 0; i < sequences.size(); ++i) step.push_back({sequences[i], counts[i]});
  AuxOutput aux;
  AttendOptions options{.window = window,
                        .scale = scale,
                        .return_aux = {.lse = wants_lse, .max_scores = wants_max},
                        .aux = &aux};
  if (score_mod != nullptr) options.score_mod = *score_mod;
  if (mask_mod != nullptr) options.mask_mod = *mask_mod;
  Tensor out;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    options.executor = executor.get();
    out = attend(cache, layer, step, q.tensor, options);
  }
  return nb::make_tuple(view_of(std::move(out)), optional_view(std::move(aux.lse)),
                        optional_view(std::move(aux.max_scores)));
}

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

void register_attend(nb::module_& module) {
  module.def(
      "attend", &attend_step, nb::arg("cache"), nb::arg("layer"), nb::arg("sequences"),
      nb::arg("counts"), nb::arg("q"), nb::arg("score_mod").none() = nb::none(),
      nb::arg("mask_mod").none() = nb::none(), nb::arg("window") = 0,
      nb::arg("scale").none() = nb::none(), nb::arg("wants_lse") = false,
      nb::arg("wants_max") = false, nb::arg("openmp_threads") = 0,
      "Attention of the last `counts` tokens of each sequence over the cache, without the "
      "GIL: (out, lse, max_scores) as Views or None. Nobody may change the cache meanwhile.");
  module.def("merge_states", &merge, nb::arg("states"),
             "The (out, lse) of all keys from those of parts of them.");
}

}  // namespace quire::python
