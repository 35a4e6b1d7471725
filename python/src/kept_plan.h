// KeptPlan: the plan of the last call, reused by the next similar one: the layers of a model make
// the same call over other tensors. In Python every mask has one, and one serves calls without a
// mask. Python layer.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "quire/attention.h"
#include "quire/function_ref.h"
#include "quire/isa.h"

namespace quire::python {

/// What flex_attention calls with only tensors, a score mod, a block mask and a scale must have in
/// common to share a plan.
struct PlanKey {
  AttentionShape shape;
  std::optional<double> scale = {};
  std::shared_ptr<const ScoreMod> mod = {};  // as traced: one object per formula
  std::vector<ConstTensorView> reads = {};   // the memory of its buffers in this call
  const mask::BlockMaskData* mask = nullptr;

  friend bool operator==(const PlanKey& a, const PlanKey& b);
};

/// Thread safe: one calling thread gets the plan, others make plans of their
/// own.
class KeptPlan {
 public:
  /// As run_attention. `executor`: the problem's, or null. If it throws Error, the plan is dropped.
  void run(AttentionProblem problem, const std::shared_ptr<Executor>& executor,
           const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);
  /// The same for a call identified by its key; `problem` makes the problem if there is no plan
  /// yet. The buffers' memory is read during this call and by others with an equal key.
  void run(const PlanKey& key, FunctionRef<AttentionProblem()> problem,
           const std::shared_ptr<Executor>& executor, const ConstTensorView& q, const KVView& k,
           const KVView& v, const AttentionOutputs& outputs);

 private:
  struct Entry {
    AttentionProblem problem;
    std::shared_ptr<Executor> executor;
    Isa isa;
    AttentionPlan plan;
    std::optional<PlanKey> key = {};  // if the call had one; then the problem is not needed
  };
  std::unique_ptr<Entry> take(const Executor* executor, FunctionRef<bool(const Entry&)> is_alike);
  void keep(std::unique_ptr<Entry> entry);

  std::mutex mutex_;  // only tried: a child of fork() may find it locked for ever
  std::unique_ptr<Entry> entry_;
};

}  // namespace quire::python
