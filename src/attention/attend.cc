// attend, and its plan. Attention layer.
#include "quire/attend.h"

#include <memory>
#include <utility>

#include "attention/attend_request.h"
#include "attention/aux_outputs.h"
#include "attention/disjoint_outputs.h"
#include "attention/function_names.h"
#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using attention::names::kAttend;

struct AttendPlan::State {
  State(const KVCache& cache, std::span<const NewTokens> step, const AttendQueries& queries,
        const AttendOptions& options)
      : plan(attention::attend_request(cache, step, queries, options)),
        cache(&cache.state()),
        version(cache.version()),
        queries(queries) {
    for (const NewTokens& of : step) tokens += of.count;
  }

  plan::ForwardPlan plan;
  const KVCache::State* cache;
  std::uint64_t version;
  AttendQueries queries;
  std::int64_t tokens = 0;
};

AttendPlan::AttendPlan(const KVCache& cache, std::span<const NewTokens> step,
                       const AttendQueries& queries, const AttendOptions& options)
    : state_(in_float_env([&] { return std::make_unique<State>(cache, step, queries, options); })) {
}
AttendPlan::AttendPlan(AttendPlan&&) noexcept = default;
AttendPlan& AttendPlan::operator=(AttendPlan&&) noexcept = default;
AttendPlan::~AttendPlan() = default;

std::int64_t AttendPlan::tokens() const { return state_->tokens; }
DType AttendPlan::compute_type() const { return state_->plan.compute_type(); }
std::size_t AttendPlan::scratch_bytes() const { return state_->plan.scratch_bytes(); }

void AttendPlan::run(const KVCache& cache, std::int64_t layer, const ConstTensorView& q,
                     const Outputs& outputs) {
  const FloatEnv float_env;
  const KVCacheOptions& sizes = cache.options();
  if (&cache.state() != state_->cache || cache.version() != state_->version)
    fail(ErrorKind::value, kAttend, "the cache is another, or has changed since the plan was made");
  quire::cache::check_layer(kAttend, sizes, layer);
  const auto& [heads, dtype] = state_->queries;
  attention::validate_tensor(kAttend, "q", q, {tokens(), heads, sizes.head_dim}, dtype);
  attention::validate_tensor(kAttend, "out", outputs.out, {tokens(), heads, sizes.v_head_dim},
                             dtype);
  const auto four_axes = [](const auto& view) { return view.transpose(0, 1).unsqueeze(0); };
  plan::ForwardTensors tensors{.q = four_axes(q),
                               .k = cache.k_pages(layer),
                               .v = cache.v_pages(layer),
                               .out = four_axes(outputs.out),
                               .stats_by_row = true};
  attention::set_stats(kAttend, {outputs.lse, outputs.max_scores}, {tokens(), heads},
                       compute_type(), tensors);
  attention::validate_disjoint(kAttend, tensors, {outputs.lse, outputs.max_scores},
                               state_->plan.buffers());
  state_->plan.run(tensors);
}

Tensor attend(const KVCache& cache, std::int64_t layer, std::span<const NewTokens> step,
              const ConstTensorView& q, const AttendOptions& options) {
  const FloatEnv float_env;
  attention::validate_aux(kAttend, options.return_aux, options.aux);
  if (q.rank() != 3) {
    fail(ErrorKind::value, kAttend, "q must be [tokens, q_heads, head_dim]; got {}",
         to_string(q.shape()));
  }
  AttendPlan plan(cache, step, {.q_heads = q.dim(1), .dtype = q.dtype()}, options);
  const Shape rows{q.dim(0), q.dim(1)};
  Tensor out = Tensor::empty({q.dim(0), q.dim(1), cache.options().v_head_dim}, q.dtype());
  AttendPlan::Outputs outputs{.out = out.view()};
  AuxOutput aux = attention::make_aux(options.return_aux, rows, plan.compute_type(), outputs);
  plan.run(cache, layer, q, outputs);
  if (options.aux != nullptr) *options.aux = std::move(aux);
  return out;
}

}  // namespace quire
