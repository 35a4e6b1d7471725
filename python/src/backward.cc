// backward: the gradients of flex_attention into memory of the caller's, and which buffers of a mod
// can have one. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/flex_attention_backward.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

constexpr const char* kBackward = "flex_attention_backward";

std::optional<ConstTensorView> optional_tensor(const View* view) {
  if (view == nullptr) return std::nullopt;
  return ConstTensorView(view->tensor);
}

std::optional<TensorView> optional_output(const View* view, const char* name) {
  if (view == nullptr) return std::nullopt;
  return writable(kBackward, *view, name);
}

void backward(const View& q, const View& k, const View& v, const View& out, const View& lse,
              const View* d_out, const View* d_lse, const View* d_q, const View* d_k,
              const View* d_v, const nb::list& d_buffers, const ScoreMod* score_mod,
              const BlockMask* block_mask, std::optional<double> scale, bool enable_gqa,
              nb::handle q_begin, int openmp_threads) {
  FlexAttentionBackwardOptions options{.forward = {.scale = scale,
                                                   .enable_gqa = enable_gqa,
                                                   .q_begin = q_begin_of(kBackward, q_begin)},
                                       .wanted = {.q = d_q != nullptr,
                                                  .k = d_k != nullptr,
                                                  .v = d_v != nullptr,
                                                  .buffers = d_buffers.size() > 0}};
  if (score_mod != nullptr) options.forward.score_mod = *score_mod;
  if (block_mask != nullptr) options.forward.block_mask = *block_mask;
  std::vector<TensorView> buffers;
  for (const nb::handle one : d_buffers)
    buffers.push_back(writable(kBackward, nb::cast<const View&>(one), "the gradient of a buffer"));
  const BackwardInputs inputs{.q = q.tensor,
                              .k = k.tensor,
                              .v = v.tensor,
                              .out = out.tensor,
                              .lse = lse.tensor,
                              .d_out = optional_tensor(d_out),
                              .d_lse = optional_tensor(d_lse)};
  const AttentionBackwardPlan::Outputs outputs{.q = optional_output(d_q, "d_q"),
                                               .k = optional_output(d_k, "d_k"),
                                               .v = optional_output(d_v, "d_v"),
                                               .buffers = buffers};
  const ReleasedGil released;
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  options.forward.executor = executor.get();
  AttentionBackwardPlan plan(AttentionShape::of(q.tensor, k.tensor, v.tensor), options);
  plan.run(inputs, outputs);
}

std::vector<std::string> float_buffers(const ScoreMod& mod) {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : mod.formula().named_buffers())
    if (is_floating(buffer.dtype())) names.push_back(name);
  return names;
}

// The mod with buffers that want a gradient, and memory for these gradients.
nb::tuple with_gradients(const ScoreMod& mod, const std::vector<std::string>& names) {
  std::vector<Buffer> buffers = mod.formula().buffers();
  const NamedBuffers named = mod.formula().named_buffers();
  nb::list gradients;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (std::find(names.begin(), names.end(), named[i].first) == names.end()) continue;
    const Buffer old = buffers[i];
    buffers[i] = Buffer::share(old.view(), std::make_shared<Buffer>(old),
                               {.name = old.name(), .wants_gradient = true});
    gradients.append(nb::cast(view_of(Tensor::empty(old.shape(), old.dtype()))));
  }
  return nb::make_tuple(ScoreMod(mod.formula().with_buffers(std::move(buffers))), gradients);
}

}  // namespace

void register_backward(nb::module_& module) {
  module.def("backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
             nb::arg("lse"), nb::arg("d_out").none(), nb::arg("d_lse").none(),
             nb::arg("d_q").none(), nb::arg("d_k").none(), nb::arg("d_v").none(),
             nb::arg("d_buffers"), nb::arg("score_mod").none() = nb::none(),
             nb::arg("block_mask").none() = nb::none(), nb::arg("scale").none() = nb::none(),
             nb::arg("enable_gqa") = false, nb::arg("q_begin").none() = nb::none(),
             nb::arg("openmp_threads") = 0,
             "The gradients of forward() into d_q, d_k and d_v, those that are given, and into "
             "`d_buffers`, one for each buffer of score_mod that wants one, in the order of its "
             "buffer_names; without the GIL. d_out or d_lse of None count as 0.");
  module.def("float_buffers", &float_buffers, nb::arg("mod"),
             "The names of a score mod's buffers that can have a gradient.");
  module.def("with_gradients", &with_gradients, nb::arg("mod"), nb::arg("names"),
             "(mod, views): the mod whose buffers of these names want a gradient, and new memory "
             "for each, in the order of buffer_names.");
}

}  // namespace quire::python
