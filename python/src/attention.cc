// Attention over dense and jagged views, over pages and over a KVCache: one run, one backward pass.
// Python layer.
#include "quire/attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_arguments.h"
#include "gil.h"
#include "kept_plan.h"
#include "openmp.h"
#include "paged_keys.h"
#include "quire/attend.h"
#include "register.h"

namespace quire::python {
namespace {

template <class Views>
void run(const Outputs& to, const Options& options, const Views& q, const Views& k,
         const Views& v) {
  const AttentionOutputs outputs = to.views(options.function);
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  run_attention(std::move(problem), tensor_of(q), keys_of(k), keys_of(v), outputs);
}

void run_kept(const Outputs& to, KeptPlan& kept, const Options& options, const View& q,
              const View& k, const View& v) {
  const AttentionOutputs outputs = to.views(options.function);
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  kept.run(std::move(problem), executor, q.tensor, k.keys(), v.keys(), outputs);
}

void run_paged(const Outputs& to, const Options& options, const JaggedViews& q,
               const PagedViews& keys) {
  const AttentionOutputs outputs = to.views(options.function);
  const ReleasedGil released;
  AttentionProblem problem =
      AttentionProblem::paged(q.jagged(), keys.keys(), options.all, options.function);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  run_attention(std::move(problem), q.values.tensor, keys.k.keys(), keys.v.keys(), outputs);
}

void init_paged(PagedViews* self, nb::handle k, nb::handle v, nb::handle page_table,
                nb::handle lengths) {
  new (self) PagedViews{view_of(k), view_of(v), view_of(page_table), view_of(lengths)};
}

// (out, lse, max_scores, key_weights, entropy)
nb::tuple results(Tensor out, AuxOutput aux) {
  return nb::make_tuple(view_of(std::move(out)), optional_view(std::move(aux.lse)),
                        optional_view(std::move(aux.max_scores)),
                        optional_view(std::move(aux.key_weights)),
                        optional_view(std::move(aux.entropy)));
}

template <class Views>
nb::tuple compute(const Wanted& wanted, const Options& options, const Views& q, const Views& k,
                  const Views& v) {
  AuxOutput aux;
  Tensor out;
  {
    const ReleasedGil released;
    AttentionProblem problem = problem_of(options, q, k, v);
    problem.return_aux = wanted.request();
    problem.aux = &aux;
    const std::shared_ptr<Executor> executor = options.set_executor(problem);
    out = run_attention(std::move(problem), tensor_of(q), keys_of(k), keys_of(v));
  }
  return results(std::move(out), std::move(aux));
}

nb::tuple attend_step(const Wanted& wanted, const Options& options, const KVCache& cache,
                      std::int64_t layer, const std::vector<SequenceId>& sequences,
                      const std::vector<std::int64_t>& counts, const View& q) {
  const std::vector<NewTokens> step = step_of(options.function, sequences, counts);
  AuxOutput aux;
  AttentionOptions all = options.all;
  all.return_aux = wanted.request();
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

template <class Views>
void backward(const Loss& loss, const Options& options, const Views& q, const Views& k,
              const Views& v) {
  const BackwardArguments arguments(options.function, tensor_of(q), keys_of(k), keys_of(v), loss);
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  run_attention_backward(std::move(problem), arguments.inputs, arguments.outputs);
}

std::vector<std::string> float_buffers(const ScoreMod& mod) {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : mod.formula().named_buffers())
    if (is_floating(buffer.dtype())) names.push_back(name);
  return names;
}

// The mod over buffers that want a gradient, and memory for these gradients.
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
void define_calls(nb::module_& module) {
  define(module, "attention", &run<Views>,
         "Attention into `out`, without the GIL. Dense: q [B, Hq, L, E], k [Bkv, Hkv, S, E], v "
         "[Bkv, Hkv, S, Ev], out [B, Hq, L, Ev]; of JaggedViews out is values in q's order. out in "
         "q's dtype or f32 (f64 if computed in f64); lse and max_scores without the last axis, "
         "row-major, f32 (f64 if computed in f64); so entropy, and key_weights [B, Hq, S] of the "
         "queries from the first to before the second of `queries`.",
         "options", "q", "k", "v");
  define(module, "new_attention", &compute<Views>,
         "The same into new memory, holes 0: (out, lse, max_scores, key_weights, entropy) as Views "
         "or None.",
         "options", "q", "k", "v");
  define(module, "attention_backward", &backward<Views>,
         "The gradients of attention() into d_inputs, (d_q, d_k, d_v) or None each, and into "
         "`d_buffers`, one for each buffer of score_mod, then of weight_mod, that wants one, in "
         "the order of its buffer_names, then of the sinks; without the GIL. d_out or d_lse of "
         "None count as 0.",
         "options", "q", "k", "v");
}

}  // namespace

void register_attention(nb::module_& module) {
  register_attention_options(module);
  register_attention_plans(module);
  nb::class_<KeptPlan> kept(module, "KeptPlan",
                            "The plan of the last call, for the next one like it.");
  kept.def(nb::init<>());
  define(kept, "run", &run_kept, "attention() with a new plan only if the last call was another.",
         "options", "q", "k", "v");
  define_calls<View>(module);
  define_calls<JaggedViews>(module);
  nb::class_<PagedViews>(module, "PagedViews",
                         "Keys and values in pages, [pages, heads, page_size, dim] each, any "
                         "strides; page_table [n, most pages]; lengths [n].")
      .def("__init__", &init_paged, nb::arg("k"), nb::arg("v"), nb::arg("page_table"),
           nb::arg("lengths"));
  define(module, "attention", &run_paged, "The same of jagged queries over keys in pages.",
         "options", "q", "keys");
  define(module, "attend", &attend_step,
         "Attention of the last `counts` tokens of each sequence over the cache, without the GIL: "
         "(out, lse, max_scores, key_weights, entropy) as Views or None. Nobody may change the "
         "cache meanwhile.",
         "options", "cache", "layer", "sequences", "counts", "q");
  module.def("float_buffers", &float_buffers, nb::arg("mod"),
             "The names of a score mod's buffers that can have a gradient.");
  module.def("with_gradients", &with_gradients, nb::arg("mod"), nb::arg("names"),
             "(mod, views): the mod whose buffers of these names want a gradient, and new memory "
             "for each, in the order of buffer_names.");
}

}  // namespace quire::python
