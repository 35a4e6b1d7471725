// What the functions of attention take from Python: options, outputs and losses as structs, and
// problems made of them. Python layer.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "jagged.h"
#include "quire/attention.h"
#include "quire/kv_cache.h"
#include "view.h"

namespace quire::python {

/// The options of every call.
struct Options {
  AttentionOptions all;
  const char* function = "flex_attention";  // what the user called; never freed
  int openmp_threads = 0;
  std::optional<View> key_indices = {};  // keeps the memory of all.key_indices alive

  /// Keep the returned executor (set if it is an OpenMP one) as long as the problem is used.
  std::shared_ptr<Executor> set_executor(AttentionProblem& problem) const;
};

/// Begin and end of the queries whose key_weights are summed up.
using Queries = std::pair<std::int64_t, std::int64_t>;
inline constexpr Queries kAllQueries{0, std::numeric_limits<std::int64_t>::max()};

/// Where a call writes. Null: not wanted.
struct Outputs {
  const View& out;
  const View *lse, *max_scores, *key_weights, *entropy;
  const Queries& queries;

  /// Throws Error "[function] ..." for memory that is read-only.
  AttentionOutputs views(const char* function) const;
};

/// What a call returns besides its output.
struct Wanted {
  bool lse, max_scores, key_weights, entropy;
  const Queries& queries;

  AuxRequest request() const;
};

/// What a backward pass reads beside q, k and v, and where it writes: (d_q, d_k, d_v), each
/// possibly None, and the gradients of buffers.
struct Loss {
  const View &out, &lse;
  const View *d_out, *d_lse;
  const nb::tuple& d_inputs;
  const nb::list& d_buffers;
};

/// What a backward pass reads and writes, as views.
struct BackwardArguments {
  BackwardArguments(const char* function, const ConstTensorView& q, const KVView& k,
                    const KVView& v, const Loss& loss);

  BackwardInputs inputs;
  std::vector<TensorView> buffers;
  GradientOutputs outputs;
};

/// Defines a function of one of these structs and others under `name` in a module or class: to
/// Python, each field is an argument of its own, after the others.
template <class Scope, class... First, class... Names>
void define(Scope& scope, const char* name, void (*call)(const Outputs&, First...), const char* doc,
            const Names&... names) {
  scope.def(
      name,
      [call](First... first, const View& out, const View* lse, const View* max_scores,
             const View* key_weights, const View* entropy, const Queries& queries) {
        call({out, lse, max_scores, key_weights, entropy, queries}, std::forward<First>(first)...);
      },
      nb::arg(names)..., nb::arg("out"), nb::arg("lse").none() = nb::none(),
      nb::arg("max_scores").none() = nb::none(), nb::arg("key_weights").none() = nb::none(),
      nb::arg("entropy").none() = nb::none(), nb::arg("queries") = kAllQueries, doc);
}
template <class Scope, class... First, class... Names>
void define(Scope& scope, const char* name, nb::tuple (*call)(const Wanted&, First...),
            const char* doc, const Names&... names) {
  scope.def(
      name,
      [call](First... first, bool wants_lse, bool wants_max, bool wants_weights, bool wants_entropy,
             const Queries& queries) {
        return call({wants_lse, wants_max, wants_weights, wants_entropy, queries},
                    std::forward<First>(first)...);
      },
      nb::arg(names)..., nb::arg("wants_lse") = false, nb::arg("wants_max") = false,
      nb::arg("wants_weights") = false, nb::arg("wants_entropy") = false,
      nb::arg("queries") = kAllQueries, doc);
}
template <class Scope, class... First, class... Names>
void define(Scope& scope, const char* name, void (*call)(const Loss&, First...), const char* doc,
            const Names&... names) {
  scope.def(
      name,
      [call](First... first, const View& out, const View& lse, const View* d_out, const View* d_lse,
             const nb::tuple& d_inputs, const nb::list& d_buffers) {
        call({out, lse, d_out, d_lse, d_inputs, d_buffers}, std::forward<First>(first)...);
      },
      nb::arg(names)..., nb::arg("out"), nb::arg("lse"), nb::arg("d_out").none(),
      nb::arg("d_lse").none(), nb::arg("d_inputs"), nb::arg("d_buffers"), doc);
}

inline ConstTensorView tensor_of(const View& view) { return view.tensor; }
inline ConstTensorView tensor_of(const JaggedViews& views) { return views.values.tensor; }
inline KVView keys_of(const View& view) { return view.keys(); }
inline KVView keys_of(const JaggedViews& views) { return views.values.keys(); }

/// Throws Error "[function] ..." (kind type) for codes.
void check_query(const char* function, const View& q);

AttentionProblem problem_of(const Options& options, const View& q, const View& k, const View& v);
AttentionProblem problem_of(const Options& options, const JaggedViews& q, const JaggedViews& k,
                            const JaggedViews& v);

/// The last `counts` tokens of each sequence.
std::vector<NewTokens> step_of(const char* function, const std::vector<SequenceId>& sequences,
                               const std::vector<std::int64_t>& counts);

}  // namespace quire::python
