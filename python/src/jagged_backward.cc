// jagged_backward: the gradients of flex_attention over jagged batches. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "jagged.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/flex_attention_backward.h"
#include "register.h"
#include "wanted.h"

namespace quire::python {
namespace {

nb::tuple jagged_backward(const JaggedViews& q, const JaggedViews& k, const JaggedViews& v,
                          const View& out, const View& lse, const View* d_out, const View* d_lse,
                          const std::vector<std::string>& wanted, const ScoreMod* score_mod,
                          const MaskMod* mask_mod, const JaggedBlockMask* block_mask,
                          std::optional<double> scale, bool enable_gqa, int openmp_threads) {
  JaggedBackwardOptions options{.forward = {.scale = scale, .enable_gqa = enable_gqa},
                                .wanted = wanted_of(wanted).inputs};
  if (score_mod != nullptr) options.forward.score_mod = *score_mod;
  if (mask_mod != nullptr) options.forward.mask_mod = *mask_mod;
  if (block_mask != nullptr) options.forward.block_mask = *block_mask;
  JaggedBackwardInputs inputs{
      .q = q.jagged(), .k = k.jagged(), .v = v.jagged(), .out = out.tensor, .lse = lse.tensor};
  if (d_out != nullptr) inputs.d_out = d_out->tensor;
  if (d_lse != nullptr) inputs.d_lse = d_lse->tensor;
  AttentionGradients gradients;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    options.forward.executor = executor.get();
    gradients = flex_attention_backward(inputs, options);
  }
  nb::list buffers;
  for (BufferGradient& one : gradients.buffers)
    buffers.append(nb::cast(view_of(std::move(one.gradient))));
  return nb::make_tuple(optional_view(std::move(gradients.q)),
                        optional_view(std::move(gradients.k)),
                        optional_view(std::move(gradients.v)), buffers);
}

}  // namespace

void register_jagged_backward(nb::module_& module) {
  module.def("jagged_backward", &jagged_backward, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("lse"), nb::arg("d_out").none(), nb::arg("d_lse").none(),
             nb::arg("wanted"), nb::arg("score_mod").none() = nb::none(),
             nb::arg("mask_mod").none() = nb::none(), nb::arg("block_mask").none() = nb::none(),
             nb::arg("scale").none() = nb::none(), nb::arg("enable_gqa") = false,
             nb::arg("openmp_threads") = 0,
             "The gradients of jagged_attention(), without the GIL: (d_q, d_k, d_v, [d_buffers]) "
             "as Views; None for those of q, k and v that are not among `wanted`. 'buffers' among "
             "them: of those that want one.");
}

}  // namespace quire::python
