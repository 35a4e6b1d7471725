// The forward's request and what is wanted of it. Attention layer.
#include "attention/backward_request.h"

#include <algorithm>

#include "attention/forward_request.h"
#include "attention/function_names.h"
#include "attention/validate.h"

namespace quire::attention {
namespace {

void add_buffers(const Formula& formula, std::vector<Buffer>& to) {
  for (const Buffer& buffer : formula.buffers()) {
    const auto is_same = [&](const Buffer& known) { return known.is_same(buffer); };
    if (buffer.wants_gradient() && std::none_of(to.begin(), to.end(), is_same))
      to.push_back(buffer);
  }
}

}  // namespace

void set_wanted(const WantedGradients& wanted, const std::optional<ScoreMod>& score_mod,
                const std::optional<MaskMod>& mask_mod, plan::BackwardRequest& request) {
  request.wanted = {wanted.q, wanted.k, wanted.v, wanted.buffers};
  if (!wanted.buffers) return;
  if (score_mod.has_value()) add_buffers(score_mod->formula(), request.buffers);
  if (mask_mod.has_value()) add_buffers(mask_mod->formula(), request.buffers);
}

plan::BackwardRequest backward_request(const AttentionShape& shape,
                                       const FlexAttentionBackwardOptions& options) {
  validate(names::kFlexAttentionBackward, shape, options.forward);
  plan::BackwardRequest request{.forward = forward_request(shape, options.forward),
                                .shares_keys = shape.kv_batch == 1 && shape.batch > 1};
  const std::optional<BlockMask>& mask = options.forward.block_mask;
  set_wanted(options.wanted, options.forward.score_mod,
             mask ? std::optional<MaskMod>(mask->mask_mod()) : std::nullopt, request);
  return request;
}

}  // namespace quire::attention
