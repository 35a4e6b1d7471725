// Names the inputs and outputs of both passes and compares their memory. Attention layer.
#include "attention/disjoint_outputs.h"

#include <array>
#include <cstddef>
#include <optional>

#include "runtime/fail.h"
#include "tensor/overlap.h"

namespace quire::attention {
namespace {

// The memory of a tensor of a call and its name in error messages.
struct NamedMemory {
  const char* name;
  MemoryRange memory;
};

// Empty if the tensor was not given.
template <class View>
MemoryRange memory_of(const std::optional<View>& view) {
  return view.has_value() ? MemoryRange(*view) : MemoryRange();
}

void check_disjoint(const char* where, std::span<const NamedMemory> inputs,
                    std::span<const NamedMemory> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, memory] = outputs[i];
    if (memory.is_empty()) continue;
    if (memory.repeats_an_element()) {
      fail(ErrorKind::value, where,
           "{} must have a place for every element; got shape {} with strides {}", name,
           to_string(memory.shape()), to_string(memory.strides()));
    }
    for (const auto& others : {inputs, outputs.first(i)})
      for (const NamedMemory& other : others)
        if (memory.surely_overlaps(other.memory))
          fail(ErrorKind::value, where, "{} must not share memory with {}", name, other.name);
  }
}

}  // namespace

void validate_disjoint(const char* where, const plan::ForwardTensors& tensors,
                       const AttentionOutputs& to, std::span<const Buffer> buffers) {
  const std::array<NamedMemory, 5> inputs{{{"query", tensors.q},
                                           {"key", tensors.k},
                                           {"value", tensors.v},
                                           {"the scales of key", tensors.k_scales},
                                           {"the scales of value", tensors.v_scales}}};
  const std::array<NamedMemory, 6> outputs{{{"out", tensors.out},
                                            {"lse", memory_of(to.lse)},
                                            {"max_scores", memory_of(to.max_scores)},
                                            {"key_weights", memory_of(to.key_weights)},
                                            {"entropy", memory_of(to.entropy)},
                                            {"states", memory_of(to.states)}}};
  check_disjoint(where, inputs, outputs);
  for (const Buffer& buffer : buffers) {
    const NamedMemory captured[] = {{buffer.name().c_str(), buffer.view()}};
    check_disjoint(where, captured, outputs);
  }
}

void validate_disjoint(const char* where, const BackwardInputs& inputs,
                       const GradientOutputs& outputs, std::span<const Buffer> buffers) {
  const std::array<NamedMemory, 10> all{{{"q", inputs.q},
                                         {"k", inputs.k.data},
                                         {"v", inputs.v.data},
                                         {"out", inputs.out},
                                         {"lse", inputs.lse},
                                         {"d_out", memory_of(inputs.d_out)},
                                         {"d_lse", memory_of(inputs.d_lse)},
                                         {"the gradient of q", memory_of(outputs.q)},
                                         {"the gradient of k", memory_of(outputs.k)},
                                         {"the gradient of v", memory_of(outputs.v)}}};
  const std::span views(all);
  check_disjoint(where, views.first(7), views.subspan(7));
  for (std::size_t i = 0; i < outputs.buffers.size(); ++i) {
    const NamedMemory one[] = {{"the gradient of a buffer", outputs.buffers[i]}};
    check_disjoint(where, views, one);
    for (std::size_t j = 0; j < buffers.size(); ++j) {
      NamedMemory others[] = {{"a buffer", buffers[j].view()}, {"that of another", {}}};
      if (j < i) others[1].memory = outputs.buffers[j];
      check_disjoint(where, others, one);
    }
  }
}

}  // namespace quire::attention
