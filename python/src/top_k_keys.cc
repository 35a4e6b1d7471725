// top_k_keys: the lists of an indexer. Python layer.
#include "quire/top_k_keys.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <memory>
#include <utility>

#include "gil.h"
#include "openmp.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

View top_k(const View& q, const View& k, const View& weights, std::int64_t top_k,
           const MaskMod* mask_mod, const BlockMask* block_mask, std::int64_t q_begin,
           int openmp_threads) {
  TopKKeysOptions options{.q_begin = q_begin};
  if (mask_mod != nullptr) options.mask_mod = *mask_mod;
  if (block_mask != nullptr) options.block_mask = *block_mask;
  Tensor found;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    options.executor = executor.get();
    found = top_k_keys(q.tensor, k.tensor, weights.tensor, top_k, options);
  }
  return view_of(std::move(found));
}

}  // namespace

void register_top_k_keys(nb::module_& module) {
  module.def(
      "top_k_keys", &top_k, nb::arg("q"), nb::arg("k"), nb::arg("weights"), nb::arg("top_k"),
      nb::arg("mask_mod").none() = nb::none(), nb::arg("block_mask").none() = nb::none(),
      nb::arg("q_begin") = 0, nb::arg("openmp_threads") = 0,
      "int32 [B, L, top_k]: for every query the keys with the largest weighted scores, without "
      "the GIL.");
}

}  // namespace quire::python
