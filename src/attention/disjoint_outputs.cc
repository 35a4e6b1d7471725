// The first and last byte of a view, and whether it covers everything between them. Attention
// layer.
#include "attention/disjoint_outputs.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/fail.h"

namespace quire::attention {
namespace {

// A tensor of a call and its name in error messages.
struct NamedView {
  const char* name;
  ConstTensorView view;
};

// Whether the elements fill their memory without gaps, in any order of the axes.
bool is_dense(const ConstTensorView& view) {
  std::int64_t filled = 1;
  for (std::size_t found = 1; found > 0;) {
    found = 0;
    for (std::size_t axis = 0; axis < view.rank(); ++axis) {
      if (view.shape()[axis] < 2 || view.strides()[axis] != filled) continue;
      filled *= view.shape()[axis];
      ++found;
    }
  }
  return filled == view.numel();
}

bool repeats_an_element(const ConstTensorView& view) {
  for (std::size_t axis = 0; axis < view.rank(); ++axis)
    if (view.shape()[axis] > 1 && view.strides()[axis] == 0) return true;
  return false;
}

bool is_empty(const ConstTensorView& view) {
  for (const std::int64_t size : view.shape())
    if (size == 0) return true;
  return false;
}

// Addresses as numbers: pointers into different arrays have no order.
struct Memory {
  explicit Memory(const ConstTensorView& of) : view(of) {
    if (is_empty(view)) return;
    const std::int64_t size = dtype_size(view.dtype());
    first = reinterpret_cast<std::uintptr_t>(view.data());
    begin = end = first;
    for (std::size_t axis = 0; axis < view.rank(); ++axis) {
      const std::int64_t bytes = (view.shape()[axis] - 1) * view.strides()[axis] * size;
      (bytes < 0 ? begin : end) += static_cast<std::uintptr_t>(bytes);
    }
    end += static_cast<std::uintptr_t>(size);
  }

  bool contains(std::uintptr_t address) const { return begin <= address && address < end; }

  const ConstTensorView& view;
  std::uintptr_t first = 0;           // of the element at index 0 of every axis
  std::uintptr_t begin = 0, end = 0;  // equal if there is no element
};

bool surely_overlap(const Memory& a, const Memory& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;  // nearly always
  if (a.first == b.first) return true;
  const auto holds_an_end = [](const Memory& outer, const Memory& other) {
    return (outer.contains(other.begin) || outer.contains(other.end - 1)) && is_dense(outer.view);
  };
  return holds_an_end(a, b) || holds_an_end(b, a);
}

void check_disjoint(const char* where, std::span<const NamedView> inputs,
                    std::span<const NamedView> outputs) {
  const auto check = [&](const NamedView& out, const Memory& memory, const NamedView& other) {
    if (!surely_overlap(memory, Memory(other.view))) return;
    fail(ErrorKind::value, where, "{} must not share memory with {}", out.name, other.name);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedView& out = outputs[i];
    if (is_empty(out.view)) continue;
    if (repeats_an_element(out.view)) {
      fail(ErrorKind::value, where,
           "{} must have a place for every element; got shape {} with strides {}", out.name,
           to_string(out.view.shape()), to_string(out.view.strides()));
    }
    const Memory memory(out.view);
    for (const NamedView& in : inputs) check(out, memory, in);
    for (const NamedView& before : outputs.first(i)) check(out, memory, before);
  }
}

}  // namespace

void validate_disjoint(const char* where, const plan::ForwardTensors& tensors,
                       const AttentionOutputs& given, std::span<const Buffer> buffers) {
  const std::array<NamedView, 5> inputs{{{"query", tensors.q},
                                         {"key", tensors.k},
                                         {"value", tensors.v},
                                         {"the scales of key", tensors.k_scales},
                                         {"the scales of value", tensors.v_scales}}};
  std::array<NamedView, 6> outputs{{{"out", tensors.out},
                                    {"lse", {}},
                                    {"max_scores", {}},
                                    {"key_weights", {}},
                                    {"entropy", {}},
                                    {"states", {}}}};
  if (given.lse.has_value()) outputs[1].view = *given.lse;
  if (given.max_scores.has_value()) outputs[2].view = *given.max_scores;
  if (given.key_weights.has_value()) outputs[3].view = *given.key_weights;
  if (given.entropy.has_value()) outputs[4].view = *given.entropy;
  if (given.states.has_value()) outputs[5].view = *given.states;
  check_disjoint(where, inputs, outputs);
  for (const Buffer& buffer : buffers) {
    const NamedView captured[] = {{buffer.name().c_str(), buffer.view()}};
    check_disjoint(where, captured, outputs);
  }
}

void validate_disjoint(const char* where, const BackwardInputs& inputs,
                       const GradientOutputs& outputs, std::span<const Buffer> buffers) {
  const auto given = [](const auto& view) {
    return view.has_value() ? ConstTensorView(*view) : ConstTensorView();
  };
  const std::array<NamedView, 10> all{{{"q", inputs.q},
                                       {"k", inputs.k.data},
                                       {"v", inputs.v.data},
                                       {"out", inputs.out},
                                       {"lse", inputs.lse},
                                       {"d_out", given(inputs.d_out)},
                                       {"d_lse", given(inputs.d_lse)},
                                       {"the gradient of q", given(outputs.q)},
                                       {"the gradient of k", given(outputs.k)},
                                       {"the gradient of v", given(outputs.v)}}};
  const std::span views(all);
  check_disjoint(where, views.first(7), views.subspan(7));
  for (std::size_t i = 0; i < outputs.buffers.size(); ++i) {
    const NamedView one[] = {{"the gradient of a buffer", outputs.buffers[i]}};
    check_disjoint(where, views, one);
    for (std::size_t j = 0; j < buffers.size(); ++j) {
      const NamedView others[] = {
          {"a buffer", buffers[j].view()},
          {"that of another", j < i ? ConstTensorView(outputs.buffers[j]) : ConstTensorView()}};
      check_disjoint(where, others, one);
    }
  }
}

}  // namespace quire::attention
