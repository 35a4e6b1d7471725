// The C interface: flex_attention over dense tensors and jagged batches, into memory of the caller.
// C API layer.
#include "quire/flex_attention.h"

#include "c_api/arguments.h"
#include "c_api/attention_options.h"
#include "c_api/status.h"
#include "quire/error.h"
#include "quire/jagged.h"

using namespace quire;

quire_status quire_flex_attention(const quire_tensor* q, const quire_tensor* k,
                                  const quire_tensor* v,
                                  const quire_flex_attention_options* options,
                                  const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_flex_attention";
    const ConstTensorView q_view = c_api::tensor(q, kName, "q");
    const ConstTensorView k_view = c_api::tensor(k, kName, "k");
    const ConstTensorView v_view = c_api::tensor(v, kName, "v");
    const auto given = c_api::versioned_or_default(options, kName, "options");
    const auto to = c_api::outputs<AttentionPlan::Outputs>(out, given, kName);
    auto wanted = c_api::shared_options<FlexAttentionOptions>(given, kName);
    if (given.block_mask != nullptr) wanted.block_mask = given.block_mask->mask;
    wanted.q_begin = c_api::q_begin(given, q_view, kName);
    const AttentionShape shape = AttentionShape::of(q_view, k_view, v_view);
    c_api::check_outputs(to, q_view, v_view);
    AttentionPlan plan(shape, wanted);
    plan.run(q_view, k_view, v_view, to);
  });
}

quire_status quire_flex_attention_jagged(const quire_jagged* q, const quire_jagged* k,
                                         const quire_jagged* v,
                                         const quire_jagged_attention_options* options,
                                         const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_flex_attention_jagged";
    const Jagged q_batch = c_api::jagged(q, kName, "q");
    const Jagged k_batch = c_api::jagged(k, kName, "k");
    const Jagged v_batch = c_api::jagged(v, kName, "v");
    const auto given = c_api::versioned_or_default(options, kName, "options");
    const auto to = c_api::outputs<JaggedAttentionPlan::Outputs>(out, given, kName);
    auto wanted = c_api::shared_options<JaggedAttentionOptions>(given, kName);
    if (given.mask_mod != nullptr) wanted.mask_mod = given.mask_mod->mod;
    c_api::check_outputs(to, q_batch.values, v_batch.values);
    JaggedAttentionPlan plan(q_batch, k_batch, v_batch, wanted);
    plan.run(q_batch.values, k_batch.values, v_batch.values, to);
  });
}
