// The C interface: attention over a cache of keys and values. C API layer.
#include "quire/attend.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

using quire::c_api::refuse;

// A number that is used only if the flag next to it is 1.
std::optional<std::int64_t> optional_number(const char* function, const char* name,
                                            std::int32_t has, std::int64_t number) {
  if (c_api::flag(has, function, fmt::format("has_{} of options.sequence_options", name).c_str()))
    return number;
  if (number != 0)
    refuse(function, "{} of options.sequence_options counts only with has_{} = 1; got {} and 0",
           name, name, number);
  return std::nullopt;
}

SequenceOptions sequence_options(const char* function, const quire_sequence_options* given) {
  const auto of = c_api::versioned(given, function, "one of options.sequence_options");
  if (of.zero != 0) refuse(function, "zero of options.sequence_options must be 0; got {}", of.zero);
  SequenceOptions options{
      .sequence = c_api::sequence(of.sequence),
      .q_begin = optional_number(function, "q_begin", of.has_q_begin, of.q_begin),
      .window = optional_number(function, "window", of.has_window, of.window),
      .b = optional_number(function, "b", of.has_b, of.b)};
  if (of.mask_mod != nullptr) options.mask_mod = of.mask_mod->mod;
  if (of.parent_count > 0) {
    c_api::require(of.parents, function, "parents of options.sequence_options");
    c_api::check_count(of.parent_count, function, "parent_count of options.sequence_options");
    options.parents.assign(of.parents, of.parents + of.parent_count);
  }
  return options;
}

AttendOptions options_of(const char* function, const quire_attend_options& given) {
  AttendOptions options{.window = given.window, .dropout_p = given.dropout_p, .seed = given.seed};
  if (given.score_mod != nullptr) options.score_mod = given.score_mod->mod;
  if (given.mask_mod != nullptr) options.mask_mod = given.mask_mod->mod;
  if (c_api::flag(given.has_scale, function, "options.has_scale")) {
    options.scale = given.scale;
  } else if (given.scale != 0) {
    refuse(function, "options.scale counts only with has_scale = 1; got {} and 0", given.scale);
  }
  if (given.sequence_option_count > 0)
    c_api::require(given.sequence_options, function, "options.sequence_options");
  c_api::check_count(given.sequence_option_count, function, "options.sequence_option_count");
  for (std::size_t i = 0; i < given.sequence_option_count; ++i) {
    c_api::require(given.sequence_options[i], function,
                   fmt::format("options.sequence_options[{}]", i).c_str());
    options.sequence_options.push_back(sequence_options(function, given.sequence_options[i]));
  }
  return options;
}

}  // namespace

quire_status quire_attend_plan_create(const quire_kv_cache* cache, const quire_step* step,
                                      const quire_attend_options* options,
                                      quire_attention_plan** plan) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_attend_plan_create";
    c_api::require(plan, kName, "plan");
    *plan = nullptr;
    c_api::require(cache, kName, "cache");
    const auto given = c_api::versioned(options, kName, "options");
    const AttendQueries queries{.q_heads = given.q_heads,
                                .dtype = c_api::dtype(given.dtype, kName, "options.dtype"),
                                .group = given.group};
    *plan = new quire_attention_plan{AttentionPlan(AttentionProblem::step(
        cache->cache, c_api::step(step, kName), queries, options_of(kName, given), kName))};
  });
}

quire_status quire_attend_plan_run(quire_attention_plan* plan, const quire_kv_cache* cache,
                                   int64_t layer, const quire_tensor* q,
                                   const quire_attention_outputs* outputs) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_attend_plan_run";
    c_api::require(plan, kName, "plan");
    c_api::require(cache, kName, "cache");
    plan->plan.run(cache->cache, layer, c_api::tensor(q, kName, "q"),
                   c_api::outputs(outputs, kName));
  });
}

quire_status quire_attend(const quire_kv_cache* cache, int64_t layer, const quire_step* step,
                          const quire_attend_options* options, const quire_tensor* q,
                          const quire_attention_outputs* outputs) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_attend";
    c_api::require(cache, kName, "cache");
    const auto given = c_api::versioned_or_default(options, kName, "options");
    if (given.q_heads != 0 || given.group != 0 || given.dtype != 0)
      refuse(kName, "q_heads, dtype and group are those of q and the layer, and 0 in options");
    const ConstTensorView queries = c_api::tensor(q, kName, "q");
    if (queries.rank() != 3)
      refuse(kName, "q must be [tokens, q_heads, head_dim]; got {}", to_string(queries.shape()));
    AttentionPlan plan(AttentionProblem::step(cache->cache, c_api::step(step, kName),
                                              {.q_heads = queries.dim(1),
                                               .dtype = queries.dtype(),
                                               .group = cache->cache.group_of(layer)},
                                              options_of(kName, given), kName));
    plan.run(cache->cache, layer, queries, c_api::outputs(outputs, kName));
  });
}
