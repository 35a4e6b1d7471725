// The C interface: gradients of flex_attention, dense and jagged, into memory of the caller. C API
// layer.
#include "quire/flex_attention_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/attention_options.h"
#include "quire/error.h"

using namespace quire;

namespace {

// The caller's places for gradients, checked before anything is computed.
class Places {
 public:
  using Named = std::pair<std::string, TensorView>;
  std::optional<TensorView> q, k, v;
  std::vector<Named> buffers;

  Places(const quire_gradients* given, const char* function) : function_(function) {
    const quire_gradients copy = c_api::versioned(given, function, "gradients");
    q = c_api::optional_tensor(copy.q, function, "gradients.q");
    k = c_api::optional_tensor(copy.k, function, "gradients.k");
    v = c_api::optional_tensor(copy.v, function, "gradients.v");
    if (copy.buffer_count == 0) return;
    c_api::require(copy.buffer_names, function, "gradients.buffer_names");
    c_api::require(copy.buffers, function, "gradients.buffers");
    for (std::size_t i = 0; i < copy.buffer_count; ++i) {
      const std::string name = fmt::format("gradients.buffers[{}]", i);
      c_api::require(copy.buffer_names[i], function, "a name of gradients.buffer_names");
      if (std::ranges::find(buffers, copy.buffer_names[i], &Named::first) != buffers.end())
        throw Error(ErrorKind::value,
                    fmt::format("[{}] gradients.buffer_names must name a buffer once; got '{}' "
                                "twice",
                                function, copy.buffer_names[i]));
      buffers.emplace_back(copy.buffer_names[i],
                           c_api::tensor(copy.buffers[i], function, name.c_str()));
    }
  }

  void check(const ConstTensorView& q_view, const ConstTensorView& k_view,
             const ConstTensorView& v_view, const std::optional<ScoreMod>& mod) const {
    if (q.has_value()) check_like("gradients.q", *q, q_view);
    if (k.has_value()) check_like("gradients.k", *k, k_view);
    if (v.has_value()) check_like("gradients.v", *v, v_view);
    const std::vector<Buffer> captured =
        mod.has_value() ? mod->formula().buffers() : std::vector<Buffer>();
    for (const auto& [name, place] : buffers) {
      const Buffer* found = nullptr;
      for (const Buffer& buffer : captured)
        if (buffer.name() == name && buffer.wants_gradient()) found = &buffer;
      if (found == nullptr)
        throw Error(ErrorKind::value,
                    fmt::format("[{}] the score mod reads no buffer with wants_gradient of this "
                                "name; got '{}'",
                                function_, name));
      check_like("the gradient of '" + name + "'", place, found->view());
    }
  }

  WantedGradients wanted() const {
    return {
        .q = q.has_value(), .k = k.has_value(), .v = v.has_value(), .buffers = !buffers.empty()};
  }

  // In the order of a plan's buffers. Those that nobody asked for get memory of their own, kept in
  // `unasked`.
  std::vector<TensorView> of_buffers(const std::vector<Buffer>& all,
                                     std::vector<Tensor>& unasked) const {
    std::vector<TensorView> views;
    std::vector<bool> is_used(buffers.size());
    for (const Buffer& one : all) {
      const auto found = std::ranges::find(buffers, one.name(), &Named::first);
      const auto at = static_cast<std::size_t>(found - buffers.begin());
      if (found == buffers.end() || is_used[at]) {  // the score mod's come first, then the mask's
        views.push_back(unasked.emplace_back(one.shape(), one.dtype()).view());
      } else {
        is_used[at] = true;
        views.push_back(found->second);
      }
    }
    return views;
  }

  void put(const AttentionGradients& found) const {
    if (q.has_value()) copy(*found.q, *q);
    if (k.has_value()) copy(*found.k, *k);
    if (v.has_value()) copy(*found.v, *v);
    for (const auto& [name, place] : buffers) copy(found.of(name), place);
  }

 private:
  void check_like(const std::string& name, const TensorView& place,
                  const ConstTensorView& like) const {
    if (place.shape() != like.shape() || place.dtype() != like.dtype())
      throw Error(ErrorKind::value,
                  fmt::format("[{}] {} must be {} {}; got {} {}", function_, name,
                              dtype_name(like.dtype()), to_string(like.shape()),
                              dtype_name(place.dtype()), to_string(place.shape())));
  }

  // A row-major tensor into any strides.
  static void copy(const Tensor& from, const TensorView& to) {
    const std::size_t size = dtype_size(from.dtype());
    const auto* source = static_cast<const char*>(from.data());
    auto* target = static_cast<char*>(to.data());
    if (from.numel() == 0) return;
    if (to.is_contiguous()) {
      std::memcpy(target, source, static_cast<std::size_t>(from.numel()) * size);
      return;
    }
    Shape at = to.shape();
    std::fill(at.begin(), at.end(), 0);
    for (std::int64_t i = 0; i < from.numel(); ++i) {
      std::int64_t offset = 0;
      for (std::size_t axis = 0; axis < at.rank(); ++axis) offset += at[axis] * to.strides()[axis];
      std::memcpy(target + offset * static_cast<std::int64_t>(size),
                  source + static_cast<std::size_t>(i) * size, size);
      for (std::size_t axis = at.rank(); axis-- > 0;) {
        if (++at[axis] < to.shape()[axis]) break;
        at[axis] = 0;
      }
    }
  }

  const char* function_;
};

template <class Inputs>
void read_loss(const quire_loss* loss, const char* function, Inputs& inputs) {
  const quire_loss given = c_api::versioned(loss, function, "loss");
  inputs.out = c_api::tensor(given.out, function, "loss.out");
  inputs.lse = c_api::tensor(given.lse, function, "loss.lse");
  if (given.d_out != nullptr) inputs.d_out = c_api::tensor(given.d_out, function, "loss.d_out");
  if (given.d_lse != nullptr) inputs.d_lse = c_api::tensor(given.d_lse, function, "loss.d_lse");
}

}  // namespace

quire_status quire_flex_attention_backward(const quire_tensor* q, const quire_tensor* k,
                                           const quire_tensor* v,
                                           const quire_flex_attention_options* options,
                                           const quire_loss* loss,
                                           const quire_gradients* gradients) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_flex_attention_backward";
    BackwardInputs inputs{.q = c_api::tensor(q, kName, "q"),
                          .k = c_api::tensor(k, kName, "k"),
                          .v = c_api::tensor(v, kName, "v")};
    const auto given = c_api::versioned_or_default(options, kName, "options");
    read_loss(loss, kName, inputs);
    const Places places(gradients, kName);
    auto forward = c_api::shared_options<FlexAttentionOptions>(given, kName);
    if (given.block_mask != nullptr) forward.block_mask = given.block_mask->mask;
    forward.q_begin = c_api::q_begin(given, inputs.q, kName);
    places.check(inputs.q, inputs.k, inputs.v, forward.score_mod);
    const AttentionShape shape = AttentionShape::of(inputs.q, inputs.k, inputs.v);
    const c_api::RowShapes rows(inputs.q, inputs.v);
    c_api::check_shape("flex_attention_backward", "lse", inputs.lse, rows.stats);
    if (inputs.d_out.has_value())
      c_api::check_shape("flex_attention_backward", "d_out", *inputs.d_out, rows.out);
    AttentionBackwardPlan plan(shape, {.forward = forward, .wanted = places.wanted()});
    std::vector<Tensor> unasked;
    const std::vector<TensorView> buffers = places.of_buffers(plan.buffers(), unasked);
    plan.run(inputs, {.q = places.q, .k = places.k, .v = places.v, .buffers = buffers});
  });
}

quire_status quire_flex_attention_jagged_backward(const quire_jagged* q, const quire_jagged* k,
                                                  const quire_jagged* v,
                                                  const quire_jagged_attention_options* options,
                                                  const quire_loss* loss,
                                                  const quire_gradients* gradients) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_flex_attention_jagged_backward";
    JaggedBackwardInputs inputs{.q = c_api::jagged(q, kName, "q"),
                                .k = c_api::jagged(k, kName, "k"),
                                .v = c_api::jagged(v, kName, "v")};
    const auto given = c_api::versioned_or_default(options, kName, "options");
    read_loss(loss, kName, inputs);
    const Places places(gradients, kName);
    auto forward = c_api::shared_options<JaggedAttentionOptions>(given, kName);
    if (given.mask_mod != nullptr) forward.mask_mod = given.mask_mod->mod;
    places.check(inputs.q.values, inputs.k.values, inputs.v.values, forward.score_mod);
    places.put(flex_attention_backward(inputs, {.forward = forward, .wanted = places.wanted()}));
  });
}
