// The plan of the last call, for the next one like it: the layers of a model make the same call
// over other tensors. In Python one hangs on every mask and goes with it, and one serves calls
// without a mask. Python layer.
#pragma once
#include <memory>
#include <mutex>

#include "quire/attention.h"
#include "quire/isa.h"

namespace quire::python {

/// Calls may come from several threads: one of them has the plan, the others make plans of their
/// own.
class KeptPlan {
 public:
  /// As run_attention. `executor`: the problem's, or null. Throws Error; the plan is gone then.
  void run(AttentionProblem problem, const std::shared_ptr<Executor>& executor,
           const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);

 private:
  struct Entry {
    AttentionProblem problem;
    std::shared_ptr<Executor> executor;
    Isa isa;
    AttentionPlan plan;
  };
  std::unique_ptr<Entry> take(const AttentionProblem& problem, const Executor* executor);
  void keep(std::unique_ptr<Entry> entry);

  std::mutex mutex_;  // only tried: a child of fork() may find it locked for ever
  std::unique_ptr<Entry> entry_;
};

}  // namespace quire::python
