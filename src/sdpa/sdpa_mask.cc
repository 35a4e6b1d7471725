// Indexes a mask tensor: axes along which it does not vary are dropped, the others follow b, h,
// q_idx and kv_idx. Sdpa layer.
#include "sdpa/sdpa_mask.h"

#include <utility>
#include <vector>

#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"

namespace quire::sdpa {
namespace {

Shape scores_shape(const MaskTarget& target) {
  Shape shape = target.batch;
  for (const std::int64_t size : {target.heads, target.q_len, target.kv_len}) shape.push_back(size);
  return shape;
}

void validate_mask(const char* where, const ConstTensorView& mask, const Shape& scores) {
  if (mask.dtype() != DType::boolean && !is_floating(mask.dtype())) {
    fail(ErrorKind::type, where, "attn_mask must be bool or float; got {}",
         dtype_name(mask.dtype()));
  }
  bool fits = mask.rank() <= scores.rank();
  for (std::size_t i = 1; fits && i <= mask.rank(); ++i) {
    const std::int64_t size = mask.shape()[mask.rank() - i];
    fits = size == 1 || size == scores[scores.rank() - i];
  }
  if (!fits) {
    fail(ErrorKind::value, where, "attn_mask must broadcast to {}; got {}", to_string(scores),
         to_string(mask.shape()));
  }
}

// The mask's axes of more than one element, and which axis of the scores each is. If there are
// none, one of size 1.
struct VaryingAxes {
  Buffer buffer;
  std::vector<std::size_t> axes;
};

VaryingAxes varying_axes(ConstTensorView mask, const Shape& scores) {
  std::vector<std::size_t> axes;
  std::size_t target = scores.rank() - mask.rank();
  for (std::size_t axis = 0; axis < mask.rank(); ++target) {
    if (mask.shape()[axis] == 1) {
      mask = mask.select(static_cast<std::int64_t>(axis), 0);
    } else {
      axes.push_back(target);
      ++axis;
    }
  }
  if (axes.empty()) mask = mask.unsqueeze(0);
  const bool is_added = is_floating(mask.dtype());
  return {Buffer::borrow(mask, {.name = "attn_mask", .wants_gradient = is_added}), std::move(axes)};
}

struct Indices {
  IntExpr b, h, q_idx, kv_idx;
};

// b runs over all batch axes, the last one fastest.
IntExpr batch_index(const IntExpr& b, const Shape& batch, std::size_t axis) {
  std::int64_t after = 1, before = 1;
  for (std::size_t i = axis + 1; i < batch.rank(); ++i) after *= batch[i];
  for (std::size_t i = 0; i < axis; ++i) before *= batch[i];
  IntExpr index = b;
  if (after != 1) index = floor_div(index, after);
  if (before != 1) index = index % batch[axis];
  return index;
}

AnyExpr element(const VaryingAxes& mask, const Shape& batch, const Indices& at) {
  std::vector<ExprBase> indices;
  const IntExpr* const last[] = {&at.h, &at.q_idx, &at.kv_idx};
  for (const std::size_t axis : mask.axes)
    indices.push_back(axis < batch.rank() ? ExprBase(batch_index(at.b, batch, axis))
                                          : ExprBase(*last[axis - batch.rank()]));
  if (mask.axes.empty()) indices.push_back(ExprBase(at.kv_idx * 0));
  return BufferSlice(mask.buffer, std::move(indices)).element();
}

SdpaRules tensor_rules(const char* where, const ConstTensorView& mask, const MaskTarget& target) {
  const Shape scores = scores_shape(target);
  validate_mask(where, mask, scores);
  if (mask.numel() == 0) return {};  // there are no scores either
  const VaryingAxes varying = varying_axes(mask, scores);
  SdpaRules rules;
  if (mask.dtype() == DType::boolean) {
    rules.mask_mod = MaskMod([&](IntExpr b, IntExpr h, IntExpr q, IntExpr kv) {
      return element(varying, target.batch, {b, h, q, kv});
    });
  } else {
    rules.score_mod = ScoreMod([&](FloatExpr score, IntExpr b, IntExpr h, IntExpr q, IntExpr kv) {
      return score + element(varying, target.batch, {b, h, q, kv});
    });
  }
  return rules;
}

}  // namespace

SdpaRules sdpa_rules(const char* where, const SdpaOptions& options, const MaskTarget& target) {
  if (const auto* mask = std::get_if<ConstTensorView>(&options.attn_mask))
    return tensor_rules(where, *mask, target);
  if (const auto* rule = std::get_if<MaskMod>(&options.attn_mask)) return {.mask_mod = *rule};
  if (!options.is_causal) return {};
  if (options.alignment == CausalAlignment::kTopLeft) return {.mask_mod = mods::causal()};
  return {.mask_mod = mods::causal_bottom_right(target.q_len, target.kv_len)};
}

}  // namespace quire::sdpa
