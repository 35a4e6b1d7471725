// Attention over dense and jagged views and over a KVCache: one set of options, one run, one
// backward pass, one plan. Python layer.
#include "quire/attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "jagged.h"
#include "kept_plan.h"
#include "openmp.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// The options of every call.
struct Options {
  AttentionOptions all;
  const char* function = "flex_attention";  // what the user called; lives as long as the process
  int openmp_threads = 0;

  /// The problem's executor, if it is one of OpenMP's, must be kept while the problem is used.
  std::shared_ptr<Executor> set_executor(AttentionProblem& problem) const {
    std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    problem.executor = executor.get();
    return executor;
  }
};

// The same text at the same address for the rest of the process: problems keep a pointer.
const char* interned(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> all;
  const std::lock_guard lock(mutex);
  return all.insert(text).first->c_str();
}

void init_options(Options* self, const char* function, const ScoreMod* score_mod,
                  const MaskMod* mask_mod, nb::handle block_mask, std::int64_t window,
                  std::optional<double> scale, bool enable_gqa, nb::handle q_begin,
                  double dropout_p, std::uint64_t seed, int openmp_threads) {
  Options options{.all = {.window = window,
                          .scale = scale,
                          .enable_gqa = enable_gqa,
                          .q_begin = q_begin_of(function, q_begin),
                          .dropout_p = dropout_p,
                          .seed = seed},
                  .openmp_threads = openmp_threads};
  if (std::string_view(function) != options.function) options.function = interned(function);
  if (score_mod != nullptr) options.all.score_mod = *score_mod;
  if (mask_mod != nullptr) options.all.mask_mod = *mask_mod;
  if (nb::isinstance<JaggedBlockMask>(block_mask))
    options.all.block_mask = nb::cast<const JaggedBlockMask&>(block_mask);
  else if (!block_mask.is_none())
    options.all.block_mask = nb::cast<const BlockMask&>(block_mask);
  new (self) Options(std::move(options));
}

ConstTensorView tensor_of(const View& view) { return view.tensor; }
ConstTensorView tensor_of(const JaggedViews& views) { return views.values.tensor; }

AttentionProblem problem_of(const Options& options, const View& q, const View& k, const View& v) {
  return AttentionProblem::dense(q.tensor, k.tensor, v.tensor, options.all, options.function);
}
AttentionProblem problem_of(const Options& options, const JaggedViews& q, const JaggedViews& k,
                            const JaggedViews& v) {
  return AttentionProblem::jagged(q.jagged(), k.jagged(), v.jagged(), options.all,
                                  options.function);
}

AttentionOutputs outputs_of(const char* function, const View& out, const View* lse,
                            const View* max_scores) {
  AttentionOutputs outputs{.out = writable(function, out, "out")};
  if (lse != nullptr) outputs.lse = writable(function, *lse, "lse");
  if (max_scores != nullptr) outputs.max_scores = writable(function, *max_scores, "max_scores");
  return outputs;
}

template <class Views>
void run(const Options& options, const Views& q, const Views& k, const Views& v, const View& out,
         const View* lse, const View* max_scores, KeptPlan* kept) {
  const AttentionOutputs outputs = outputs_of(options.function, out, lse, max_scores);
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  if (kept != nullptr)
    return kept->run(std::move(problem), executor, tensor_of(q), tensor_of(k), tensor_of(v),
                     outputs);
  run_attention(std::move(problem), tensor_of(q), tensor_of(k), tensor_of(v), outputs);
}

// (out, lse, max_scores)
nb::tuple results(Tensor out, AuxOutput aux) {
  return nb::make_tuple(view_of(std::move(out)), optional_view(std::move(aux.lse)),
                        optional_view(std::move(aux.max_scores)));
}

template <class Views>
nb::tuple compute(const Options& options, const Views& q, const Views& k, const Views& v,
                  bool wants_lse, bool wants_max) {
  AuxOutput aux;
  Tensor out;
  {
    const ReleasedGil released;
    AttentionProblem problem = problem_of(options, q, k, v);
    problem.return_aux = {.lse = wants_lse, .max_scores = wants_max};
    problem.aux = &aux;
    const std::shared_ptr<Executor> executor = options.set_executor(problem);
    out = run_attention(std::move(problem), tensor_of(q), tensor_of(k), tensor_of(v));
  }
  return results(std::move(out), std::move(aux));
}

template <class Views>
void backward(const Options& options, const Views& q, const Views& k, const Views& v,
              const View& out, const View& lse, const View* d_out, const View* d_lse,
              const nb::tuple& d_inputs, const nb::list& d_buffers) {
  const char* const function = options.function;
  const auto input = [](const View* view) {
    return view ? std::optional<ConstTensorView>(view->tensor) : std::nullopt;
  };
  const auto output = [&](std::size_t i, const char* name) -> std::optional<TensorView> {
    const nb::object given = d_inputs[i];
    if (given.is_none()) return std::nullopt;
    return writable(function, nb::cast<const View&>(given), name);
  };
  std::vector<TensorView> buffers;
  for (const nb::handle one : d_buffers)
    buffers.push_back(writable(function, nb::cast<const View&>(one), "the gradient of a buffer"));
  const BackwardInputs inputs{.q = tensor_of(q),
                              .k = tensor_of(k),
                              .v = tensor_of(v),
                              .out = out.tensor,
                              .lse = lse.tensor,
                              .d_out = input(d_out),
                              .d_lse = input(d_lse)};
  const GradientOutputs outputs{
      .q = output(0, "d_q"), .k = output(1, "d_k"), .v = output(2, "d_v"), .buffers = buffers};
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  run_attention_backward(std::move(problem), inputs, outputs);
}

std::vector<NewTokens> step_of(const char* function, const std::vector<SequenceId>& sequences,
                               const std::vector<std::int64_t>& counts) {
  if (counts.size() != sequences.size()) {
    throw Error(ErrorKind::value,
                std::string("[") + function + "] counts must be as many as sequences; got " +
                    std::to_string(counts.size()) + " and " + std::to_string(sequences.size()));
  }
  std::vector<NewTokens> step;
  for (std::size_t i = 0; i < sequences.size(); ++i) step.push_back({sequences[i], counts[i]});
  return step;
}

// A plan and the executor it runs on.
struct Plan {
  std::shared_ptr<Executor> executor;
  std::optional<AttentionPlan> plan;
  const char* function;

  template <class Make>
  Plan(const Options& options, const Make& make) : function(options.function) {
    const ReleasedGil released;
    executor = openmp_executor(options.openmp_threads);
    plan.emplace(make(executor.get()));
  }

  void run(const View& q, const View& k, const View& v, const View& out, const View* lse,
           const View* max_scores) {
    const AttentionOutputs outputs = outputs_of(function, out, lse, max_scores);
    const ReleasedGil released;
    plan->run(q.tensor, k.tensor, v.tensor, outputs);
  }
  void run_step(const KVCache& cache, std::int64_t layer, const View& q, const View& out,
                const View* lse, const View* max_scores) {
    const AttentionOutputs outputs = outputs_of(function, out, lse, max_scores);
    const ReleasedGil released;
    plan->run(cache, layer, q.tensor, outputs);
  }
};

template <class Views>
void init_plan(Plan* self, const Options& options, const Views& q, const Views& k, const Views& v) {
  new (self) Plan(options, [&](Executor* executor) {
    AttentionProblem problem = problem_of(options, q, k, v);
    problem.executor = executor;
    return AttentionPlan(std::move(problem));
  });
}

void init_step_plan(Plan* self, const Options& options, const KVCache& cache,
                    const std::vector<SequenceId>& sequences,
                    const std::vector<std::int64_t>& counts, std::int64_t q_heads,
                    nb::handle dtype) {
  const AttendQueries queries{.q_heads = q_heads, .dtype = dtype_of_name(dtype)};
  const std::vector<NewTokens> step = step_of(options.function, sequences, counts);
  new (self) Plan(options, [&](Executor* executor) {
    AttentionProblem problem =
        AttentionProblem::step(cache, step, queries, options.all, options.function);
    problem.executor = executor;
    return AttentionPlan(std::move(problem));
  });
}

nb::tuple attend_step(const Options& options, const KVCache& cache, std::int64_t layer,
                      const std::vector<SequenceId>& sequences,
                      const std::vector<std::int64_t>& counts, const View& q, bool wants_lse,
                      bool wants_max) {
  const std::vector<NewTokens> step = step_of(options.function, sequences, counts);
  AuxOutput aux;
  AttentionOptions all = options.all;
  all.return_aux = {.lse = wants_lse, .max_scores = wants_max};
  all.aux = &aux;
  Tensor out;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(options.openmp_threads);
    all.executor = executor.get();
    out = attend(cache, layer, step, q.tensor, all);
  }
  return results(std::move(out), std::move(aux));
}

std::vector<std::string> float_buffers(const ScoreMod& mod) {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : mod.formula().named_buffers())
    if (is_floating(buffer.dtype())) names.push_back(name);
  return names;
}

// The mod with buffers that want a gradient, and memory for these gradients.
nb::tuple with_gradients(const ScoreMod& mod, const std::vector<std::string>& names) {
  std::vector<Buffer> buffers = mod.formula().buffers();
  const NamedBuffers named = mod.formula().named_buffers();
  nb::list gradients;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (std::find(names.begin(), names.end(), named[i].first) == names.end()) continue;
    const Buffer old = buffers[i];
    buffers[i] = Buffer::share(old.view(), std::make_shared<Buffer>(old),
                               {.name = old.name(), .wants_gradient = true});
    gradients.append(nb::cast(view_of(Tensor::empty(old.shape(), old.dtype()))));
  }
  return nb::make_tuple(ScoreMod(mod.formula().with_buffers(std::move(buffers))), gradients);
}

// For View and for JaggedViews.
template <class Views>
void define(nb::module_& module, nb::class_<Plan>& plan) {
  module.def(
      "attention", &run<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
      nb::arg("out"), nb::arg("lse").none() = nb::none(), nb::arg("max_scores").none() = nb::none(),
      nb::arg("kept").none() = nb::none(),
      "Attention into `out`, without the GIL. Dense: q [B, Hq, L, E], k [Bkv, Hkv, S, E], v "
      "[Bkv, Hkv, S, Ev], out [B, Hq, L, Ev]; of JaggedViews out is values in q's order. out "
      "in q's dtype or f32 (f64 if computed in f64); lse and max_scores without the last "
      "axis, row-major, f32 (f64 if computed in f64). kept: makes a plan only if the last call "
      "with it was another.");
  module.def("new_attention", &compute<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("wants_lse") = false, nb::arg("wants_max") = false,
             "The same into new memory, holes 0: (out, lse, max_scores) as Views or None.");
  module.def("attention_backward", &backward<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("d_out").none(),
             nb::arg("d_lse").none(), nb::arg("d_inputs"), nb::arg("d_buffers"),
             "The gradients of attention() into d_inputs, (d_q, d_k, d_v) or None each, and into "
             "`d_buffers`, one for each buffer of score_mod that wants one, in the order of its "
             "buffer_names; without the GIL. d_out or d_lse of None count as 0.");
  plan.def("__init__", &init_plan<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
           nb::arg("v"));
}

}  // namespace

void register_attention(nb::module_& module) {
  nb::class_<Options>(module, "Options", "The options of every attention call.")
      .def("__init__", &init_options, nb::arg("function") = "flex_attention",
           nb::arg("score_mod").none() = nb::none(), nb::arg("mask_mod").none() = nb::none(),
           nb::arg("block_mask").none() = nb::none(), nb::arg("window") = 0,
           nb::arg("scale").none() = nb::none(), nb::arg("enable_gqa") = false,
           nb::arg("q_begin").none() = nb::none(), nb::arg("dropout_p") = 0.0, nb::arg("seed") = 0,
           nb::arg("openmp_threads") = 0,
           "function: what errors say was called. Unless openmp_threads is 0 and if there is one "
           "(use_openmp), calls run on that many threads of the OpenMP runtime.");
  nb::class_<KeptPlan>(module, "KeptPlan", "The plan of the last call, for the next one like it.")
      .def(nb::init<>());
  nb::class_<Plan> plan(module, "Plan", "An attention call planned once, for many runs.");
  define<View>(module, plan);
  define<JaggedViews>(module, plan);
  plan.def("__init__", &init_step_plan, nb::arg("options"), nb::arg("cache"), nb::arg("sequences"),
           nb::arg("counts"), nb::arg("q_heads"), nb::arg("dtype"))
      .def("run", &Plan::run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none() = nb::none(), nb::arg("max_scores").none() = nb::none(),
           "Over other tensors of the same shapes, without the GIL. Allocates nothing.")
      .def("run_step", &Plan::run_step, nb::arg("cache"), nb::arg("layer"), nb::arg("q"),
           nb::arg("out"), nb::arg("lse").none() = nb::none(),
           nb::arg("max_scores").none() = nb::none(),
           "Of a plan over a cache: another layer, without the GIL.")
      .def_prop_ro("tokens", [](const Plan& self) { return self.plan->tokens(); })
      .def_prop_ro("scratch_bytes", [](const Plan& self) { return self.plan->scratch_bytes(); });
  module.def(
      "attend", &attend_step, nb::arg("options"), nb::arg("cache"), nb::arg("layer"),
      nb::arg("sequences"), nb::arg("counts"), nb::arg("q"), nb::arg("wants_lse") = false,
      nb::arg("wants_max") = false,
      "Attention of the last `counts` tokens of each sequence over the cache, without the "
      "GIL: (out, lse, max_scores) as Views or None. Nobody may change the cache meanwhile.");
  module.def("float_buffers", &float_buffers, nb::arg("mod"),
             "The names of a score mod's buffers that can have a gradient.");
  module.def("with_gradients", &with_gradients, nb::arg("mod"), nb::arg("names"),
             "(mod, views): the mod whose buffers of these names want a gradient, and new memory "
             "for each, in the order of buffer_names.");
}

}  // namespace quire::python
