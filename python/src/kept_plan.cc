// Decides which calls can share a plan. Python layer.
#include "kept_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace quire::python {
namespace {

// Larger scratch is freed: making the plan again is negligible for such a call.
constexpr std::size_t kMostScratch = std::size_t{4} << 20;

// Mods with tensors would keep those alive, and dropout has a new seed every time. Every option is
// named here, so that a new one does not compile until it is considered here or in are_alike.
bool can_be_kept(const AttentionProblem& problem) {
  const AttentionOptions& options = problem;
  const auto& [score_mod, mask_mod, block_mask, window, sequence_options, scale, enable_gqa,
               q_begin, key_indices, dropout_p, seed, sinks, lse_with_sinks, weight_mod, normalize,
               rope, return_aux, aux, executor] = options;
  const bool has_hooks = key_indices.has_value() || sinks.has_value() || lse_with_sinks ||
                         weight_mod.has_value() || rope.has_value() || !sequence_options.empty();
  return !has_hooks && !block_mask.is_per_sequence() && !mask_mod.has_value() && dropout_p == 0 &&
         problem.layout == nullptr && problem.queries == nullptr &&
         (!score_mod.has_value() || score_mod->formula().buffers().empty());
}

// Compares masks by identity, not block by block.
bool have_same_mask(const AttentionProblem& a, const AttentionProblem& b) {
  if (!a.block_mask.has_value() || !b.block_mask.has_value())
    return a.block_mask.has_value() == b.block_mask.has_value();
  return &a.block_mask->data() == &b.block_mask->data();
}

// Requires that both can be kept.
bool are_alike(const AttentionProblem& a, const AttentionProblem& b) {
  const AttentionShape &a_shape = a, &b_shape = b;
  return a_shape == b_shape && have_same_mask(a, b) &&
         a.score_mod.has_value() == b.score_mod.has_value() && a.scale == b.scale &&
         a.enable_gqa == b.enable_gqa && a.q_begin == b.q_begin && a.window == b.window &&
         a.function == b.function &&
         (!a.score_mod.has_value() ||
          (&a.score_mod->formula().graph() == &b.score_mod->formula().graph() &&
           a.score_mod->formula().root() == b.score_mod->formula().root()));
}

}  // namespace

bool operator==(const PlanKey& a, const PlanKey& b) {
  const auto same_memory = [](const ConstTensorView& x, const ConstTensorView& y) {
    return x.data() == y.data() && x.dtype() == y.dtype() && x.shape() == y.shape() &&
           x.strides() == y.strides();
  };
  return a.mod == b.mod && a.mask == b.mask && a.scale == b.scale && a.shape == b.shape &&
         std::ranges::equal(a.reads, b.reads, same_memory);
}

std::unique_ptr<KeptPlan::Entry> KeptPlan::take(const Executor* executor,
                                                FunctionRef<bool(const Entry&)> is_alike) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || entry_ == nullptr || entry_->executor.get() != executor ||
      entry_->isa != current_isa() || !is_alike(*entry_))
    return nullptr;
  return std::move(entry_);
}

void KeptPlan::keep(std::unique_ptr<Entry> entry) {
  if (entry->plan.scratch_bytes() > kMostScratch) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) std::swap(entry_, entry);
}

void KeptPlan::run(AttentionProblem problem, const std::shared_ptr<Executor>& executor,
                   const ConstTensorView& q, const KVView& k, const KVView& v,
                   const AttentionOutputs& outputs) {
  // Without an executor of its own, a call runs on the default one, which may be replaced.
  if (executor == nullptr || !can_be_kept(problem))
    return run_attention(std::move(problem), q, k, v, outputs);
  std::unique_ptr<Entry> entry = take(executor.get(), [&](const Entry& one) {
    return !one.key.has_value() && are_alike(one.problem, problem);
  });
  if (entry == nullptr) {
    AttentionPlan plan(problem);
    entry = std::make_unique<Entry>(
        Entry{std::move(problem), executor, current_isa(), std::move(plan)});
  }
  entry->plan.run(q, k, v, outputs);
  keep(std::move(entry));
}

void KeptPlan::run(const PlanKey& key, FunctionRef<AttentionProblem()> problem,
                   const std::shared_ptr<Executor>& executor, const ConstTensorView& q,
                   const KVView& k, const KVView& v, const AttentionOutputs& outputs) {
  if (executor == nullptr) return run_attention(problem(), q, k, v, outputs);
  std::unique_ptr<Entry> entry =
      take(executor.get(), [&](const Entry& one) { return one.key == key; });
  if (entry == nullptr) {
    AttentionProblem made = problem();
    made.executor = executor.get();
    entry = std::make_unique<Entry>(
        Entry{{}, executor, current_isa(), AttentionPlan(std::move(made)), key});
  }
  entry->plan.run(q, k, v, outputs);
  keep(std::move(entry));
}

}  // namespace quire::python
