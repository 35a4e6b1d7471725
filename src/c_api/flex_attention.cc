// The C interface: flex_attention over dense tensors and jagged batches, into memory of the caller.
#include "quire/flex_attention.h"

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"
#include "quire/jagged.h"

using namespace quire;

namespace {

// What the two structs of options have in common.
template <class Options, class Given>
Options shared_options(const Given& given, const char* function) {
  Options options;
  if (given.score_mod != nullptr) options.score_mod = given.score_mod->mod;
  if (c_api::flag(given.has_scale, function, "options.has_scale")) options.scale = given.scale;
  options.enable_gqa = c_api::flag(given.enable_gqa, function, "options.enable_gqa");
  return options;
}

// Where a plan puts its results.
template <class Plan, class Given>
typename Plan::Outputs outputs(const quire_tensor* out, const Given& given, const char* function) {
  return {.out = c_api::tensor(out, function, "out"),
          .lse = c_api::optional_tensor(given.lse, function, "options.lse"),
          .max_scores = c_api::optional_tensor(given.max_scores, function, "options.max_scores")};
}

}  // namespace

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
    const auto to = outputs<AttentionPlan>(out, given, kName);
    auto wanted = shared_options<FlexAttentionOptions>(given, kName);
    if (given.block_mask != nullptr) wanted.block_mask = given.block_mask->mask;
    if (given.q_begin_count > 0) {
      c_api::require(given.q_begin, kName, "options.q_begin");
      wanted.q_begin.assign(given.q_begin, given.q_begin + given.q_begin_count);
    }
    AttentionPlan plan(AttentionShape::of(q_view, k_view, v_view), wanted);
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
    const auto to = outputs<JaggedAttentionPlan>(out, given, kName);
    auto wanted = shared_options<JaggedAttentionOptions>(given, kName);
    if (given.mask_mod != nullptr) wanted.mask_mod = given.mask_mod->mod;
    JaggedAttentionPlan plan(q_batch, k_batch, v_batch, wanted);
    plan.run(q_batch.values, k_batch.values, v_batch.values, to);
  });
}
