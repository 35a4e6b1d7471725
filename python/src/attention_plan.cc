// Plans of attention and of its gradients, made once and run per layer. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "arguments.h"
#include "attention_arguments.h"
#include "gil.h"
#include "paged_keys.h"
#include "quire/paged_step.h"
#include "register.h"

namespace quire::python {
namespace {

// A plan, forward or backward, and the executor it runs on.
template <class Planned>
struct Plan {
  template <class... Gradients>
  Plan(const Options& options, AttentionProblem problem, const Gradients&... wanted)
      : executor(options.set_executor(problem)),
        plan(std::in_place, std::move(problem), wanted...),
        function(options.function) {}

  std::shared_ptr<Executor> executor;
  std::optional<Planned> plan;
  const char* function;
};
using RunPlan = Plan<AttentionPlan>;
using BackwardPlan = Plan<AttentionBackwardPlan>;

void run_plan(const Outputs& to, RunPlan& self, const View& q, const View& k, const View& v) {
  const AttentionOutputs outputs = to.views(self.function);
  const ReleasedGil released;
  check_query(self.function, q);
  self.plan->run(q.tensor, k.keys(), v.keys(), outputs);
}

// Runs on the first `tokens` rows of q and out, tensors borrowed for the call. Returns false, doing
// nothing, if they cannot be borrowed.
bool run_tensors(RunPlan& self, nb::handle q, const View& k, const View& v, nb::handle out,
                 std::int64_t tokens) {
  const std::optional<TensorView> from = borrow_tensor(q), to = borrow_tensor(out);
  if (!from || !to || from->rank() == 0 || to->rank() == 0) return false;
  const ReleasedGil released;
  self.plan->run(from->slice(0, 0, tokens), k.keys(), v.keys(), {.out = to->slice(0, 0, tokens)});
  return true;
}

void run_step_plan(const Outputs& to, RunPlan& self, const KVCache& cache, std::int64_t layer,
                   const View& q) {
  const AttentionOutputs outputs = to.views(self.function);
  const ReleasedGil released;
  self.plan->run(cache, layer, q.tensor, outputs);
}

void run_backward_plan(const Loss& loss, BackwardPlan& self, const View& q, const View& k,
                       const View& v) {
  const BackwardArguments arguments(self.function, q.tensor, k.keys(), v.keys(), loss);
  const ReleasedGil released;
  self.plan->run(arguments.inputs, arguments.outputs);
}

template <class Views>
void init_plan(RunPlan* self, const Options& options, const Views& q, const Views& k,
               const Views& v) {
  const ReleasedGil released;
  new (self) RunPlan(options, problem_of(options, q, k, v));
}

template <class Views>
void init_backward_plan(BackwardPlan* self, const Options& options, const Views& q, const Views& k,
                        const Views& v, const nb::tuple& wanted) {
  const auto is_wanted = [&](std::size_t i) { return nb::cast<bool>(wanted[i]); };
  const WantedGradients gradients{.q = is_wanted(0), .k = is_wanted(1), .v = is_wanted(2)};
  const ReleasedGil released;
  new (self) BackwardPlan(options, problem_of(options, q, k, v), gradients);
}

void init_step_plan(RunPlan* self, const Options& options, const KVCache& cache,
                    const std::vector<SequenceId>& sequences,
                    const std::vector<std::int64_t>& counts, std::int64_t q_heads, nb::handle dtype,
                    std::int64_t group) {
  const AttendQueries queries{.q_heads = q_heads, .dtype = dtype_of_name(dtype), .group = group};
  const std::vector<NewTokens> step = step_of(options.function, sequences, counts);
  const ReleasedGil released;
  new (self)
      RunPlan(options, AttentionProblem::step(cache, step, queries, options.all, options.function));
}

// For jagged queries over paged keys; step: the queries are the last tokens of their sequences.
void init_paged_plan(RunPlan* self, const Options& options, const JaggedViews& q,
                     const PagedViews& keys, bool step) {
  const ReleasedGil released;
  const Jagged queries = q.jagged();
  const PagedKeys pages = keys.keys();
  new (self) RunPlan(options,
                     step ? paged_step(queries, pages, options.all, options.function)
                          : AttentionProblem::paged(queries, pages, options.all, options.function));
}

// For View and for JaggedViews.
template <class Views>
void define_constructors(nb::class_<RunPlan>& plan, nb::class_<BackwardPlan>& backward_plan) {
  plan.def("__init__", &init_plan<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
           nb::arg("v"));
  backward_plan.def("__init__", &init_backward_plan<Views>, nb::arg("options"), nb::arg("q"),
                    nb::arg("k"), nb::arg("v"), nb::arg("wanted"));
}

}  // namespace

void register_attention_plans(nb::module_& module) {
  nb::class_<RunPlan> plan(module, "Plan", "An attention call planned once, for many runs.");
  nb::class_<BackwardPlan> backward_plan(module, "BackwardPlan",
                                         "A backward pass planned once, for many runs.");
  define_constructors<View>(plan, backward_plan);
  define_constructors<JaggedViews>(plan, backward_plan);
  plan.def("__init__", &init_step_plan, nb::arg("options"), nb::arg("cache"), nb::arg("sequences"),
           nb::arg("counts"), nb::arg("q_heads"), nb::arg("dtype"), nb::arg("group") = 0)
      .def("__init__", &init_paged_plan, nb::arg("options"), nb::arg("q"), nb::arg("keys"),
           nb::arg("step") = false)
      .def("run_tensors", &run_tensors, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("tokens"),
           "run() of the first rows of tensors, through DLPack's exchange functions. False, and "
           "nothing is done, if one of the tensors has none or is not on the CPU.")
      .def_prop_ro("tokens", [](const RunPlan& self) { return self.plan->tokens(); })
      .def_prop_ro("scratch_bytes", [](const RunPlan& self) { return self.plan->scratch_bytes(); });
  define(plan, "run", &run_plan,
         "Over other tensors of the same shapes, without the GIL. Allocates nothing.", "q", "k",
         "v");
  define(plan, "run_step", &run_step_plan,
         "Of a plan over a cache: another layer, without the GIL.", "cache", "layer", "q");
  define(backward_plan, "run", &run_backward_plan,
         "As attention_backward, over the tensors of another layer.", "q", "k", "v");
  backward_plan.def_prop_ro("scratch_bytes",
                            [](const BackwardPlan& self) { return self.plan->scratch_bytes(); });
}

}  // namespace quire::python
