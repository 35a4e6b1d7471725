// Names the inputs and outputs of both passes and compares their memory. Attention layer.
#include "attention/disjoint_outputs.h"

#include <array>
#include <cstddef>
#include <optional>

#include "runtime/fail.h"
#include "tensor/overlap.h"

namespace quire::attention {
namespace {

// A tensor of a call, if it was given, and its name in error messages.
struct NamedView {
  const char* name;
  std::optional<ConstTensorView> view;
};

void check_disjoint(const char* where, std::span<const NamedView> inputs,
                    std::span<const NamedView> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedView& out = outputs[i];
    if (!out.view.has_value()) continue;
    const MemoryRange memory(*out.view);
    if (memory.is_empty()) continue;
    if (repeats_an_element(*out.view)) {
      fail(ErrorKind::value, where,
           "{} must have a place for every element; got shape {} with strides {}", out.name,
           to_string(out.view->shape()), to_string(out.view->strides()));
    }
    const auto check = [&](const NamedView& other) {
      if (other.view.has_value() && memory.surely_overlaps(MemoryRange(*other.view)))
        fail(ErrorKind::value, where, "{} must not share memory with {}", out.name, other.name);
    };
    for (const NamedView& in : inputs) check(in);
    for (const NamedView& before : outputs.first(i)) check(before);
  }
}

}  // namespace

void validate_disjoint(const char* where, const plan::ForwardTensors& tensors,
                       const AttentionOutputs& to, std::span<const Buffer> buffers) {
  const std::array<NamedView, 5> inputs{{{"query", tensors.q},
                                         {"key", tensors.k},
                                         {"value", tensors.v},
                                         {"the scales of key", tensors.k_scales},
                                         {"the scales of value", tensors.v_scales}}};
  const std::array<NamedView, 6> outputs{{{"out", tensors.out},
                                          {"lse", to.lse},
                                          {"max_scores", to.max_scores},
                                          {"key_weights", to.key_weights},
                                          {"entropy", to.entropy},
                                          {"states", to.states}}};
  check_disjoint(where, inputs, outputs);
  for (const Buffer& buffer : buffers) {
    const NamedView captured[] = {{buffer.name().c_str(), buffer.view()}};
    check_disjoint(where, captured, outputs);
  }
}

void validate_disjoint(const char* where, const BackwardInputs& inputs,
                       const GradientOutputs& outputs, std::span<const Buffer> buffers) {
  const std::array<NamedView, 10> all{{{"q", inputs.q},
                                       {"k", inputs.k.data},
                                       {"v", inputs.v.data},
                                       {"out", inputs.out},
                                       {"lse", inputs.lse},
                                       {"d_out", inputs.d_out},
                                       {"d_lse", inputs.d_lse},
                                       {"the gradient of q", outputs.q},
                                       {"the gradient of k", outputs.k},
                                       {"the gradient of v", outputs.v}}};
  const std::span views(all);
  check_disjoint(where, views.first(7), views.subspan(7));
  for (std::size_t i = 0; i < outputs.buffers.size(); ++i) {
    const NamedView one[] = {{"the gradient of a buffer", outputs.buffers[i]}};
    check_disjoint(where, views, one);
    for (std::size_t j = 0; j < buffers.size(); ++j) {
      NamedView others[] = {{"a buffer", buffers[j].view()}, {"that of another", std::nullopt}};
      if (j < i) others[1].view = outputs.buffers[j];
      check_disjoint(where, others, one);
    }
  }
}

}  // namespace quire::attention
