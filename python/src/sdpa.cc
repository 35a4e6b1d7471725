// scaled_dot_product_attention over dense views and jagged ones, the choice of its backend and the
// reasons for it. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "jagged.h"
#include "mods.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/scaled_dot_product_attention.h"
#include "register.h"
#include "view.h"
#include "wanted.h"

namespace quire::python {
namespace {

CausalAlignment alignment_of(const std::string& name) {
  if (name == "top_left") return CausalAlignment::kTopLeft;
  if (name == "bottom_right") return CausalAlignment::kBottomRight;
  throw Error(ErrorKind::value,
              "[scaled_dot_product_attention] the alignment must be 'top_left' or 'bottom_right'; "
              "got '" +
                  name + "'");
}

SDPBackend backend_of(int number) {
  if (number < static_cast<int>(SDPBackend::kError) ||
      number > static_cast<int>(SDPBackend::kEfficientAttention)) {
    throw Error(ErrorKind::value, "[SDPBackend] there is no backend " + std::to_string(number));
  }
  return static_cast<SDPBackend>(number);
}

// What a call was given beside its tensors. Keeps the mask's memory alive.
struct Arguments {
  SdpaOptions options;
  std::optional<View> mask = {};
};

Arguments arguments_of(nb::handle attn_mask, double dropout_p, std::uint64_t seed, bool is_causal,
                       const std::string& alignment, std::optional<double> scale, bool enable_gqa,
                       const std::vector<int>& backends) {
  Arguments all{.options = {.dropout_p = dropout_p,
                            .seed = seed,
                            .is_causal = is_causal,
                            .alignment = alignment_of(alignment),
                            .scale = scale,
                            .enable_gqa = enable_gqa}};
  all.options.backends.clear();
  for (const int number : backends) all.options.backends.push_back(backend_of(number));
  if (nb::isinstance<MaskMod>(attn_mask)) {
    all.options.attn_mask = nb::cast<const MaskMod&>(attn_mask);
  } else if (!attn_mask.is_none()) {
    all.mask = view_of(attn_mask);
    all.options.attn_mask = ConstTensorView(all.mask->tensor);
  }
  return all;
}

ConstTensorView tensors_of(const View& view) { return view.tensor; }
Jagged tensors_of(const JaggedViews& views) { return views.jagged(); }

// (out, lse)
template <class Views>
nb::tuple attend(const Views& q, const Views& k, const Views& v, nb::handle attn_mask,
                 double dropout_p, std::uint64_t seed, bool is_causal, const std::string& alignment,
                 std::optional<double> scale, bool enable_gqa, const std::vector<int>& backends,
                 int openmp_threads, bool wants_lse, bool wide_out) {
  Arguments all =
      arguments_of(attn_mask, dropout_p, seed, is_causal, alignment, scale, enable_gqa, backends);
  all.options.wide_out = wide_out;
  Tensor out, lse;
  if (wants_lse) all.options.lse = &lse;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    all.options.executor = executor.get();
    out = scaled_dot_product_attention(tensors_of(q), tensors_of(k), tensors_of(v), all.options);
  }
  return nb::make_tuple(view_of(std::move(out)),
                        wants_lse ? nb::cast(view_of(std::move(lse))) : nb::none());
}

SdpaBackwardInputs inputs_of(const View& q, const View& k, const View& v) {
  return {.q = q.tensor, .k = k.tensor, .v = v.tensor, .out = {}, .lse = {}, .d_out = {}};
}
JaggedSdpaBackwardInputs inputs_of(const JaggedViews& q, const JaggedViews& k,
                                   const JaggedViews& v) {
  return {.q = q.jagged(), .k = k.jagged(), .v = v.jagged(), .out = {}, .lse = {}, .d_out = {}};
}

// (d_q, d_k, d_v, d_attn_mask)
template <class Views>
nb::tuple sdpa_backward(const Views& q, const Views& k, const Views& v, const View& out,
                        const View& lse, const View& d_out, const std::vector<std::string>& wanted,
                        nb::handle attn_mask, double dropout_p, std::uint64_t seed, bool is_causal,
                        const std::string& alignment, std::optional<double> scale, bool enable_gqa,
                        const std::vector<int>& backends, int openmp_threads) {
  Arguments all =
      arguments_of(attn_mask, dropout_p, seed, is_causal, alignment, scale, enable_gqa, backends);
  auto inputs = inputs_of(q, k, v);
  inputs.out = out.tensor;
  inputs.lse = lse.tensor;
  inputs.d_out = d_out.tensor;
  const SdpaGradientsWanted gradients_wanted = wanted_of(wanted);
  SdpaGradients gradients;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    all.options.executor = executor.get();
    gradients = scaled_dot_product_attention_backward(inputs, all.options, gradients_wanted);
  }
  return nb::make_tuple(
      optional_view(std::move(gradients.q)), optional_view(std::move(gradients.k)),
      optional_view(std::move(gradients.v)), optional_view(std::move(gradients.attn_mask)));
}

template <class Views>
int choose(const Views& q, const Views& k, const Views& v, nb::handle attn_mask, double dropout_p,
           bool is_causal, const std::string& alignment, std::optional<double> scale,
           bool enable_gqa, const std::vector<int>& backends) {
  const Arguments all =
      arguments_of(attn_mask, dropout_p, 0, is_causal, alignment, scale, enable_gqa, backends);
  return static_cast<int>(choose_backend(tensors_of(q), tensors_of(k), tensors_of(v), all.options));
}

template <class Views>
std::vector<std::string> reasons(int backend, const Views& q, const Views& k, const Views& v,
                                 nb::handle attn_mask, double dropout_p, bool is_causal,
                                 const std::string& alignment, std::optional<double> scale,
                                 bool enable_gqa, const std::vector<int>& backends) {
  const Arguments all =
      arguments_of(attn_mask, dropout_p, 0, is_causal, alignment, scale, enable_gqa, backends);
  return why_not(backend_of(backend), tensors_of(q), tensors_of(k), tensors_of(v), all.options);
}

template <class Views>
void define(nb::module_& module) {
  module.def("sdpa", &attend<Views>, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("attn_mask").none(), nb::arg("dropout_p"), nb::arg("seed"),
             nb::arg("is_causal"), nb::arg("alignment"), nb::arg("scale").none(),
             nb::arg("enable_gqa"), nb::arg("backends"), nb::arg("openmp_threads") = 0,
             nb::arg("wants_lse") = false, nb::arg("wide_out") = false,
             "scaled_dot_product_attention, without the GIL: (out, lse or None), Views of new "
             "memory, row-major, of jagged views in q's order. attn_mask: None, a MaskMod or an "
             "array. wide_out: out as computed, not rounded to half precision.");
  module.def("sdpa_backward", &sdpa_backward<Views>, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("lse"), nb::arg("d_out"), nb::arg("wanted"),
             nb::arg("attn_mask").none(), nb::arg("dropout_p"), nb::arg("seed"),
             nb::arg("is_causal"), nb::arg("alignment"), nb::arg("scale").none(),
             nb::arg("enable_gqa"), nb::arg("backends"), nb::arg("openmp_threads") = 0,
             "The gradients of sdpa(), without the GIL: (d_q, d_k, d_v, d_attn_mask) as Views; "
             "None for those not among `wanted`.");
  module.def("choose_backend", &choose<Views>, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("attn_mask").none(), nb::arg("dropout_p"), nb::arg("is_causal"),
             nb::arg("alignment"), nb::arg("scale").none(), nb::arg("enable_gqa"),
             nb::arg("backends"), "The number of the backend such a call would use.");
  module.def("why_not", &reasons<Views>, nb::arg("backend"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("attn_mask").none(), nb::arg("dropout_p"), nb::arg("is_causal"),
             nb::arg("alignment"), nb::arg("scale").none(), nb::arg("enable_gqa"),
             nb::arg("backends"),
             "Every reason why a backend cannot compute such a call, in sentences.");
}

}  // namespace

void register_sdpa(nb::module_& module) {
  define<View>(module);
  define<JaggedViews>(module);
}

}  // namespace quire::python
