// The forward pass: the states of this rank's rows continue from piece to piece of the keys.
// Context_parallel layer.
#include <exception>
#include <limits>
#include <utility>

#include "context_parallel/by_heads.h"
#include "context_parallel/call.h"
#include "context_parallel/key_stream.h"
#include "quire/context_parallel.h"
#include "runtime/float_env.h"

namespace quire::context_parallel {
namespace {

constexpr const char* kForward = "context_parallel.flex_attention";

// States of rows that have seen nothing.
template <class T>
void clear_states(Tensor& states) {
  const std::int64_t size = states.dim(-1);
  for (std::int64_t i = 0; i < states.numel(); i += size)
    states.data_as<T>()[i] = -std::numeric_limits<T>::infinity();
}

// This rank's rows while pieces of keys arrive.
class Rows {
 public:
  Rows(const Call& call, const ConstTensorView& q) : call_(call), q_(q) {
    const Options& given = call.options();
    problem_ = AttentionProblem::dense(call.shape(),
                                       {.score_mod = given.score_mod,
                                        .scale = given.scale,
                                        .enable_gqa = given.enable_gqa,
                                        .executor = given.executor},
                                       kForward);
    problem_.states = KeptStates::kRunning;
    states_ = Tensor(problem_.states_shape(), problem_.compute_type());
    problem_.is_f64() ? clear_states<double>(states_) : clear_states<float>(states_);
  }

  void see(const PieceKeys& keys) {
    for (const LocalRange& queries : call_.queries_of(keys.piece)) {
      const std::int64_t begin = queries.at, end = begin + queries.range.size();
      AttentionProblem problem = call_.problem(queries, keys.piece);
      problem.states = KeptStates::kRunning;
      run_attention(std::move(problem), q_.slice(2, begin, end), keys.k, keys.v,
                    {.out = {}, .states = states_.view().slice(2, begin, end), .resumes = true});
    }
  }

  Output end() const {
    Output made{Tensor::empty(problem_.out_shape(), problem_.q_dtype),
                Tensor::empty(problem_.stats_shape(), problem_.compute_type())};
    const ConstTensorView all[] = {states_};
    finish_states(problem_, all, {.out = made.out.view(), .lse = made.lse.view()});
    return made;
  }

 private:
  const Call& call_;
  const ConstTensorView& q_;
  AttentionProblem problem_;
  Tensor states_;
};

}  // namespace

Output flex_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const Shards& shards, Communicator& group, const Options& options) {
  const FloatEnv float_env;
  Call call(kForward, q, k, v, shards, group, options);
  if (call.exchange(Pass::kForward) == Exchange::kHeads) return attend_by_heads(call, q, k, v);
  KeyStream keys(call, k, v);
  // After an error other ranks still get what they need, and learn of it at the end.
  Output made;
  std::exception_ptr failed;
  const auto try_to = [&](auto work) {
    if (failed != nullptr) return;
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
  };
  std::optional<Rows> rows;
  try_to([&] { rows.emplace(call, q); });
  for (std::int64_t piece = 0; piece < shards.pieces(); ++piece) {
    if (!call.needs(group.rank(), piece)) continue;
    const PieceKeys here = keys.get(piece);
    try_to([&] { rows->see(here); });
  }
  try_to([&] { made = rows->end(); });
  keys.finish();
  call.agreement().finish(failed);
  return made;
}

}  // namespace quire::context_parallel
