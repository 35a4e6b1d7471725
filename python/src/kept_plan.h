// The plan of the last call, for the next one like it: the layers of a model make the same call
// over other tensors. In Python one hangs on every mask and goes with it, and one serves calls
// without a mask. Python layer.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "quire/attention.h"
#include "quire/function_ref.h"
#include "quire/isa.h"

namespace quire::python {

/// What calls of flex_attention with nothing but tensors, a score mod, a block mask and a scale
/// have in common if one plan serves them all.
struct PlanKey {
  AttentionShape shape;
  std::optional<double> scale = {};
  std::shared_ptr<const ScoreMod> mod = {};  // as it was traced: one object per formula
  std::vector<ConstTensorView> reads = {};   // what its buffers are in this call
  const mask::BlockMaskData* mask = nullptr;

  friend bool operator==(const PlanKey& a, const PlanKey& b);
};

/// Calls may come from several threads: one of them has the plan, the others make plans of their
/// own.
class KeptPlan {
 public:
  /// As run_attention. `executor`: the problem's, or null. Throws Error; the plan is gone then.
  void run(AttentionProblem problem, const std::shared_ptr<Executor>& executor,
           const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);
  /// The same of a call known by its key; `problem` makes its problem, if there is no plan yet. The
  /// memory of its buffers is read during this call and by others with an equal key.
  void run(const PlanKey& key, FunctionRef<AttentionProblem()> problem,
           const std::shared_ptr<Executor>& executor, const ConstTensorView& q, const KVView& k,
           const KVView& v, const AttentionOutputs& outputs);

 private:
  struct Entry {
    AttentionProblem problem;
    std::shared_ptr<Executor> executor;
    Isa isa;
    AttentionPlan plan;
    std::optional<PlanKey> key = {};  // of calls that came with one; the problem is not needed then
  };
  std::unique_ptr<Entry> take(const Executor* executor, FunctionRef<bool(const Entry&)> is_alike);
  void keep(std::unique_ptr<Entry> entry);

  std::mutex mutex_;  // only tried: a child of fork() may find it locked for ever
  std::unique_ptr<Entry> entry_;
};

}  // namespace quire::python
