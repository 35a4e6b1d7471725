// scaled_dot_product_attention over dense and jagged views, the choice of its backend and the
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
#include "quire/rope.h"
#include "quire/scaled_dot_product_attention.h"
#include "register.h"
#include "view.h"

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

// The arguments of a call besides its tensors. Keeps the memory of the mask and the lists alive.
struct SdpaArguments {
  SdpaOptions options;
  std::optional<View> mask = {}, key_indices = {};
  int openmp_threads = 0;

  /// The options with an executor, which the caller must keep.
  SdpaOptions on(const std::shared_ptr<Executor>& executor) const {
    SdpaOptions all = options;
    all.executor = executor.get();
    return all;
  }
};

void init_arguments(SdpaArguments* self, nb::handle attn_mask, double dropout_p, std::uint64_t seed,
                    bool is_causal, const std::string& alignment, std::optional<double> scale,
                    bool enable_gqa, const std::vector<int>& backends, int openmp_threads,
                    const View* sinks, nb::handle key_indices, const ScoreMod* weight_mod,
                    bool divides_by_sum, const Rope* rope) {
  SdpaArguments all{.options = {.dropout_p = dropout_p,
                                .seed = seed,
                                .is_causal = is_causal,
                                .alignment = alignment_of(alignment),
                                .scale = scale,
                                .enable_gqa = enable_gqa},
                    .openmp_threads = openmp_threads};
  all.options.backends.clear();
  for (const int number : backends) all.options.backends.push_back(backend_of(number));
  if (nb::isinstance<MaskMod>(attn_mask)) {
    all.options.attn_mask = nb::cast<const MaskMod&>(attn_mask);
  } else if (!attn_mask.is_none()) {
    all.mask = view_of(attn_mask);
    all.options.attn_mask = ConstTensorView(all.mask->tensor);
  }
  if (sinks != nullptr) all.options.sinks = buffer_of(*sinks, {.name = "sinks"});
  if (!key_indices.is_none())
    all.options.key_indices = all.key_indices.emplace(view_of(key_indices)).tensor;
  if (weight_mod != nullptr) all.options.weight_mod = *weight_mod;
  if (divides_by_sum) all.options.normalize = Normalize::kSum;
  if (rope != nullptr) all.options.rope = *rope;
  new (self) SdpaArguments(std::move(all));
}

// By name: any of "q", "k", "v" and "attn_mask".
WantedGradients wanted_of(const std::vector<std::string>& names) {
  WantedGradients wanted{.q = false, .k = false, .v = false, .buffers = false};
  for (const std::string& name : names) {
    bool* const one = name == "q"           ? &wanted.q
                      : name == "k"         ? &wanted.k
                      : name == "v"         ? &wanted.v
                      : name == "attn_mask" ? &wanted.attn_mask
                                            : nullptr;
    if (one == nullptr)
      throw Error(ErrorKind::value,
                  "[scaled_dot_product_attention] there is no gradient of '" + name + "'");
    *one = true;
  }
  return wanted;
}

ConstTensorView tensors_of(const View& view) { return view.tensor; }
Jagged tensors_of(const JaggedViews& views) { return views.jagged(); }

// (out, lse)
template <class Views>
nb::tuple attend(const SdpaArguments& given, const Views& q, const Views& k, const Views& v,
                 bool wants_lse, bool wide_out) {
  Tensor out, lse;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(given.openmp_threads);
    SdpaOptions options = given.on(executor);
    options.wide_out = wide_out;
    if (wants_lse) options.lse = &lse;
    out = scaled_dot_product_attention(tensors_of(q), tensors_of(k), tensors_of(v), options);
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
nb::tuple sdpa_backward(const SdpaArguments& given, const Views& q, const Views& k, const Views& v,
                        const View& out, const View& lse, const View& d_out,
                        const std::vector<std::string>& names) {
  auto inputs = inputs_of(q, k, v);
  inputs.out = out.tensor;
  inputs.lse = lse.tensor;
  inputs.d_out = d_out.tensor;
  const WantedGradients wanted = wanted_of(names);
  SdpaGradients gradients;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(given.openmp_threads);
    gradients = scaled_dot_product_attention_backward(inputs, given.on(executor), wanted);
  }
  return nb::make_tuple(
      optional_view(std::move(gradients.q)), optional_view(std::move(gradients.k)),
      optional_view(std::move(gradients.v)), optional_view(std::move(gradients.attn_mask)));
}

template <class Views>
int choose(const SdpaArguments& given, const Views& q, const Views& k, const Views& v) {
  return static_cast<int>(
      choose_backend(tensors_of(q), tensors_of(k), tensors_of(v), given.options));
}

template <class Views>
std::vector<std::string> reasons(const SdpaArguments& given, int backend, const Views& q,
                                 const Views& k, const Views& v) {
  return why_not(backend_of(backend), tensors_of(q), tensors_of(k), tensors_of(v), given.options);
}

template <class Views>
void define(nb::module_& module) {
  module.def("sdpa", &attend<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("wants_lse") = false, nb::arg("wide_out") = false,
             "scaled_dot_product_attention, without the GIL: (out, lse or None), Views of new "
             "memory, row-major, of jagged views in q's order. wide_out: out as computed, not "
             "rounded to half precision.");
  module.def("sdpa_backward", &sdpa_backward<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("d_out"), nb::arg("wanted"),
             "The gradients of sdpa(), without the GIL: (d_q, d_k, d_v, d_attn_mask) as Views; "
             "None for those not among `wanted`.");
  module.def("choose_backend", &choose<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), "The number of the backend such a call would use.");
  module.def("why_not", &reasons<Views>, nb::arg("options"), nb::arg("backend"), nb::arg("q"),
             nb::arg("k"), nb::arg("v"),
             "Every reason why a backend cannot compute such a call, in sentences.");
}

}  // namespace

void register_sdpa(nb::module_& module) {
  nb::class_<SdpaArguments>(module, "SdpaOptions", "What a call of sdpa() has beside its tensors.")
      .def("__init__", &init_arguments, nb::arg("attn_mask").none() = nb::none(),
           nb::arg("dropout_p") = 0.0, nb::arg("seed") = 0, nb::arg("is_causal") = false,
           nb::arg("alignment") = "top_left", nb::arg("scale").none() = nb::none(),
           nb::arg("enable_gqa") = false, nb::arg("backends") = std::vector<int>{1, 2, 0},
           nb::arg("openmp_threads") = 0, nb::arg("sinks").none() = nb::none(),
           nb::arg("key_indices").none() = nb::none(), nb::arg("weight_mod").none() = nb::none(),
           nb::arg("divides_by_sum") = false, nb::arg("rope").none() = nb::none(),
           "attn_mask: None, a MaskMod or an array.");
  define<View>(module);
  define<JaggedViews>(module);
}

}  // namespace quire::python
