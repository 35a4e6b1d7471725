// Attention over dense and jagged views and over a KVCache: one set of options, one run, one
// backward pass, one plan. Python layer.
#include "quire/attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <limits>
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
#include "paged_keys.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "quire/paged_step.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// The options of every call.
struct Options {
  AttentionOptions all;
  const char* function = "flex_attention";  // what the user called; never freed
  int openmp_threads = 0;
  std::optional<View> key_indices = {};  // keeps the memory of all.key_indices alive

  /// Keep the returned executor (set if it is an OpenMP one) as long as the problem is used.
  std::shared_ptr<Executor> set_executor(AttentionProblem& problem) const {
    std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    problem.executor = executor.get();
    return executor;
  }
};

constexpr std::pair<std::int64_t, std::int64_t> kAllQueries{
    0, std::numeric_limits<std::int64_t>::max()};

// Returns the same address for the same text for the rest of the process: problems keep a pointer.
const char* interned(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> all;
  const std::lock_guard lock(mutex);
  return all.insert(text).first->c_str();
}

Normalize normalize_of(const char* function, const std::optional<std::string>& name) {
  if (!name.has_value()) return Normalize::kNone;
  if (*name == "sum") return Normalize::kSum;
  throw Error(ErrorKind::value, std::string("[") + function +
                                    "] normalize must be None or 'sum'; got '" + *name + "'");
}

void init_options(Options* self, const char* function, const ScoreMod* score_mod,
                  const MaskMod* mask_mod, nb::handle block_mask, std::int64_t window,
                  std::optional<double> scale, bool enable_gqa, nb::handle q_begin,
                  double dropout_p, std::uint64_t seed, int openmp_threads, const View* sinks,
                  bool learns_sinks, bool lse_with_sinks, const ScoreMod* weight_mod,
                  const std::optional<std::string>& normalize, const Rope* rope,
                  nb::handle key_indices, const std::vector<SequenceOptions>& sequence_options) {
  Options options{.all = {.window = window,
                          .sequence_options = sequence_options,
                          .scale = scale,
                          .enable_gqa = enable_gqa,
                          .q_begin = q_begin_of(function, q_begin),
                          .dropout_p = dropout_p,
                          .seed = seed},
                  .openmp_threads = openmp_threads};
  if (std::string_view(function) != options.function) options.function = interned(function);
  if (!key_indices.is_none())
    options.all.key_indices = options.key_indices.emplace(view_of(key_indices)).tensor;
  if (score_mod != nullptr) options.all.score_mod = *score_mod;
  if (sinks != nullptr)
    options.all.sinks = buffer_of(*sinks, {.name = "sinks", .wants_gradient = learns_sinks});
  options.all.lse_with_sinks = lse_with_sinks;
  if (weight_mod != nullptr) options.all.weight_mod = *weight_mod;
  options.all.normalize = normalize_of(function, normalize);
  if (rope != nullptr) options.all.rope = *rope;
  if (mask_mod != nullptr) options.all.mask_mod = *mask_mod;
  if (nb::isinstance<JaggedBlockMask>(block_mask))
    options.all.block_mask = nb::cast<const JaggedBlockMask&>(block_mask);
  else if (!block_mask.is_none())
    options.all.block_mask = nb::cast<const BlockMask&>(block_mask);
  new (self) Options(std::move(options));
}

ConstTensorView tensor_of(const View& view) { return view.tensor; }
ConstTensorView tensor_of(const JaggedViews& views) { return views.values.tensor; }
KVView keys_of(const View& view) { return view.keys(); }
KVView keys_of(const JaggedViews& views) { return views.values.keys(); }

// Queries cannot be codes.
void check_query(const char* function, const View& q) {
  if (q.format.is_plain()) return;
  throw Error(ErrorKind::type, std::string("[") + function + "] the query cannot be quantised");
}

AttentionProblem problem_of(const Options& options, const View& q, const View& k, const View& v) {
  check_query(options.function, q);
  return AttentionProblem::dense(q.tensor, k.keys(), v.keys(), options.all, options.function);
}
AttentionProblem problem_of(const Options& options, const JaggedViews& q, const JaggedViews& k,
                            const JaggedViews& v) {
  return AttentionProblem::jagged(q.jagged(), k.jagged(), v.jagged(), options.all,
                                  options.function);
}

// (key_weights, entropy), each possibly None, and (begin, end), the queries that key_weights sums
// over.
struct WeightsOutputs {
  const View *key_weights = nullptr, *entropy = nullptr;
  std::pair<std::int64_t, std::int64_t> queries;
};

QueryRange range_of(const std::pair<std::int64_t, std::int64_t>& queries) {
  return {.begin = queries.first, .end = queries.second};
}

AttentionOutputs outputs_of(const char* function, const View& out, const View* lse,
                            const View* max_scores, const WeightsOutputs& weights) {
  AttentionOutputs outputs{.out = writable(function, out, "out")};
  if (lse != nullptr) outputs.lse = writable(function, *lse, "lse");
  if (max_scores != nullptr) outputs.max_scores = writable(function, *max_scores, "max_scores");
  if (weights.entropy != nullptr) outputs.entropy = writable(function, *weights.entropy, "entropy");
  if (weights.key_weights != nullptr) {
    outputs.key_weights = writable(function, *weights.key_weights, "key_weights");
    outputs.key_weights_queries = range_of(weights.queries);
  }
  return outputs;
}

template <class Views>
void run(const Options& options, const Views& q, const Views& k, const Views& v, const View& out,
         const View* lse, const View* max_scores, const View* key_weights, const View* entropy,
         std::pair<std::int64_t, std::int64_t> queries, KeptPlan* kept) {
  const AttentionOutputs outputs =
      outputs_of(options.function, out, lse, max_scores, {key_weights, entropy, queries});
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  if (kept != nullptr)
    return kept->run(std::move(problem), executor, tensor_of(q), keys_of(k), keys_of(v), outputs);
  run_attention(std::move(problem), tensor_of(q), keys_of(k), keys_of(v), outputs);
}

void run_paged(const Options& options, const JaggedViews& q, const PagedViews& keys,
               const View& out, const View* lse, const View* max_scores, const View* key_weights,
               const View* entropy, std::pair<std::int64_t, std::int64_t> queries) {
  const AttentionOutputs outputs =
      outputs_of(options.function, out, lse, max_scores, {key_weights, entropy, queries});
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

AuxRequest request_of(bool wants_lse, bool wants_max, bool wants_weights, bool wants_entropy,
                      const std::pair<std::int64_t, std::int64_t>& queries) {
  return {.lse = wants_lse,
          .max_scores = wants_max,
          .key_weights = wants_weights,
          .entropy = wants_entropy,
          .key_weights_queries = range_of(queries)};
}

template <class Views>
nb::tuple compute(const Options& options, const Views& q, const Views& k, const Views& v,
                  bool wants_lse, bool wants_max, bool wants_weights, bool wants_entropy,
                  std::pair<std::int64_t, std::int64_t> queries) {
  AuxOutput aux;
  Tensor out;
  {
    const ReleasedGil released;
    AttentionProblem problem = problem_of(options, q, k, v);
    problem.return_aux = request_of(wants_lse, wants_max, wants_weights, wants_entropy, queries);
    problem.aux = &aux;
    const std::shared_ptr<Executor> executor = options.set_executor(problem);
    out = run_attention(std::move(problem), tensor_of(q), keys_of(k), keys_of(v));
  }
  return results(std::move(out), std::move(aux));
}

// What a backward pass reads and writes, as views.
struct BackwardArguments {
  BackwardArguments(const char* function, const ConstTensorView& q,
                    const std::array<KVView, 2>& keys, const View& out, const View& lse,
                    const View* d_out, const View* d_lse, const nb::tuple& d_inputs,
                    const nb::list& d_buffers)
      : inputs{.q = q, .k = keys[0], .v = keys[1], .out = out.tensor, .lse = lse.tensor} {
    if (d_out != nullptr) inputs.d_out = d_out->tensor;
    if (d_lse != nullptr) inputs.d_lse = d_lse->tensor;
    for (const nb::handle one : d_buffers)
      buffers.push_back(writable(function, nb::cast<const View&>(one), "the gradient of a buffer"));
    const auto output = [&](std::size_t i, const char* name) -> std::optional<TensorView> {
      const nb::object given = d_inputs[i];
      if (given.is_none()) return std::nullopt;
      return writable(function, nb::cast<const View&>(given), name);
    };
    outputs = {
        .q = output(0, "d_q"), .k = output(1, "d_k"), .v = output(2, "d_v"), .buffers = buffers};
  }

  BackwardInputs inputs;
  std::vector<TensorView> buffers;
  GradientOutputs outputs;
};

template <class Views>
void backward(const Options& options, const Views& q, const Views& k, const Views& v,
              const View& out, const View& lse, const View* d_out, const View* d_lse,
              const nb::tuple& d_inputs, const nb::list& d_buffers) {
  const BackwardArguments arguments(options.function, tensor_of(q), {keys_of(k), keys_of(v)}, out,
                                    lse, d_out, d_lse, d_inputs, d_buffers);
  const ReleasedGil released;
  AttentionProblem problem = problem_of(options, q, k, v);
  const std::shared_ptr<Executor> executor = options.set_executor(problem);
  run_attention_backward(std::move(problem), arguments.inputs, arguments.outputs);
}

void init_sequence_options(SequenceOptions* self, SequenceId sequence,
                           std::optional<std::int64_t> q_begin, std::optional<std::int64_t> window,
                           const MaskMod* mask_mod, std::vector<std::int64_t> parents,
                           std::optional<std::int64_t> b) {
  SequenceOptions options{.sequence = sequence,
                          .q_begin = q_begin,
                          .window = window,
                          .parents = std::move(parents),
                          .b = b};
  if (mask_mod != nullptr) options.mask_mod = *mask_mod;
  new (self) SequenceOptions(std::move(options));
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

// A plan, forward or backward, and the executor it runs on.
template <class Planned>
struct Plan {
  template <class... Wanted>
  Plan(const Options& options, AttentionProblem problem, const Wanted&... wanted)
      : executor(options.set_executor(problem)),
        plan(std::in_place, std::move(problem), wanted...),
        function(options.function) {}

  std::shared_ptr<Executor> executor;
  std::optional<Planned> plan;
  const char* function;
};
using RunPlan = Plan<AttentionPlan>;
using BackwardPlan = Plan<AttentionBackwardPlan>;

void run_plan(RunPlan& self, const View& q, const View& k, const View& v, const View& out,
              const View* lse, const View* max_scores, const View* key_weights, const View* entropy,
              std::pair<std::int64_t, std::int64_t> queries) {
  const AttentionOutputs outputs =
      outputs_of(self.function, out, lse, max_scores, {key_weights, entropy, queries});
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

void run_step_plan(RunPlan& self, const KVCache& cache, std::int64_t layer, const View& q,
                   const View& out, const View* lse, const View* max_scores,
                   const View* key_weights, const View* entropy,
                   std::pair<std::int64_t, std::int64_t> queries) {
  const AttentionOutputs outputs =
      outputs_of(self.function, out, lse, max_scores, {key_weights, entropy, queries});
  const ReleasedGil released;
  self.plan->run(cache, layer, q.tensor, outputs);
}

void run_backward_plan(BackwardPlan& self, const View& q, const View& k, const View& v,
                       const View& out, const View& lse, const View* d_out, const View* d_lse,
                       const nb::tuple& d_inputs, const nb::list& d_buffers) {
  const BackwardArguments arguments(self.function, q.tensor, {k.keys(), v.keys()}, out, lse, d_out,
                                    d_lse, d_inputs, d_buffers);
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

nb::tuple attend_step(const Options& options, const KVCache& cache, std::int64_t layer,
                      const std::vector<SequenceId>& sequences,
                      const std::vector<std::int64_t>& counts, const View& q, bool wants_lse,
                      bool wants_max, bool wants_weights, bool wants_entropy,
                      std::pair<std::int64_t, std::int64_t> queries) {
  const std::vector<NewTokens> step = step_of(options.function, sequences, counts);
  AuxOutput aux;
  AttentionOptions all = options.all;
  all.return_aux = request_of(wants_lse, wants_max, wants_weights, wants_entropy, queries);
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
void define(nb::module_& module, nb::class_<RunPlan>& plan,
            nb::class_<BackwardPlan>& backward_plan) {
  module.def(
      "attention", &run<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
      nb::arg("out"), nb::arg("lse").none() = nb::none(), nb::arg("max_scores").none() = nb::none(),
      nb::arg("key_weights").none() = nb::none(), nb::arg("entropy").none() = nb::none(),
      nb::arg("queries") = kAllQueries, nb::arg("kept").none() = nb::none(),
      "Attention into `out`, without the GIL. Dense: q [B, Hq, L, E], k [Bkv, Hkv, S, E], v "
      "[Bkv, Hkv, S, Ev], out [B, Hq, L, Ev]; of JaggedViews out is values in q's order. out "
      "in q's dtype or f32 (f64 if computed in f64); lse and max_scores without the last "
      "axis, row-major, f32 (f64 if computed in f64); so entropy, and key_weights [B, Hq, S] of "
      "the queries from the first to before the second of `queries`. kept: makes a plan only if "
      "the last call "
      "with it was another.");
  module.def("new_attention", &compute<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("wants_lse") = false, nb::arg("wants_max") = false,
             nb::arg("wants_weights") = false, nb::arg("wants_entropy") = false,
             nb::arg("queries") = kAllQueries,
             "The same into new memory, holes 0: (out, lse, max_scores, key_weights, entropy) as "
             "Views or None.");
  module.def(
      "attention_backward", &backward<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
      nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("d_out").none(),
      nb::arg("d_lse").none(), nb::arg("d_inputs"), nb::arg("d_buffers"),
      "The gradients of attention() into d_inputs, (d_q, d_k, d_v) or None each, and into "
      "`d_buffers`, one for each buffer of score_mod, then of weight_mod, that wants one, in "
      "the order of its buffer_names, then of the sinks; without the GIL. d_out or d_lse of "
      "None count as 0.");
  plan.def("__init__", &init_plan<Views>, nb::arg("options"), nb::arg("q"), nb::arg("k"),
           nb::arg("v"));
  backward_plan.def("__init__", &init_backward_plan<Views>, nb::arg("options"), nb::arg("q"),
                    nb::arg("k"), nb::arg("v"), nb::arg("wanted"));
}

}  // namespace

void register_attention(nb::module_& module) {
  nb::class_<Rope>(module, "RopeTables", "quire.Rope, with tables as Views.")
      .def(
          "__init__",
          [](Rope* self, double theta, const View* cos, const View* sin, std::int64_t dims,
             bool interleaved) {
            Rope rope{.theta = theta, .dims = dims, .interleaved = interleaved};
            if (cos != nullptr) rope.cos = buffer_of(*cos, {.name = "cos"});
            if (sin != nullptr) rope.sin = buffer_of(*sin, {.name = "sin"});
            new (self) Rope(std::move(rope));
          },
          nb::arg("theta"), nb::arg("cos").none(), nb::arg("sin").none(), nb::arg("dims"),
          nb::arg("interleaved"));
  nb::class_<SequenceOptions>(module, "SequenceOptions",
                              "What is particular about one sequence of a step.")
      .def("__init__", &init_sequence_options, nb::arg("sequence"),
           nb::arg("q_begin").none() = nb::none(), nb::arg("window").none() = nb::none(),
           nb::arg("mask_mod").none() = nb::none(),
           nb::arg("parents") = std::vector<std::int64_t>(), nb::arg("b").none() = nb::none());
  nb::class_<Options>(module, "Options", "The options of every attention call.")
      .def("__init__", &init_options, nb::arg("function") = "flex_attention",
           nb::arg("score_mod").none() = nb::none(), nb::arg("mask_mod").none() = nb::none(),
           nb::arg("block_mask").none() = nb::none(), nb::arg("window") = 0,
           nb::arg("scale").none() = nb::none(), nb::arg("enable_gqa") = false,
           nb::arg("q_begin").none() = nb::none(), nb::arg("dropout_p") = 0.0, nb::arg("seed") = 0,
           nb::arg("openmp_threads") = 0, nb::arg("sinks").none() = nb::none(),
           nb::arg("learns_sinks") = false, nb::arg("lse_with_sinks") = false,
           nb::arg("weight_mod").none() = nb::none(), nb::arg("normalize").none() = nb::none(),
           nb::arg("rope").none() = nb::none(), nb::arg("key_indices").none() = nb::none(),
           nb::arg("sequence_options") = std::vector<SequenceOptions>(),
           "function: what errors say was called. Unless openmp_threads is 0 and if there is one "
           "(use_openmp), calls run on that many threads of the OpenMP runtime.");
  nb::class_<KeptPlan>(module, "KeptPlan", "The plan of the last call, for the next one like it.")
      .def(nb::init<>());
  nb::class_<RunPlan> plan(module, "Plan", "An attention call planned once, for many runs.");
  nb::class_<BackwardPlan> backward_plan(module, "BackwardPlan",
                                         "A backward pass planned once, for many runs.");
  define<View>(module, plan, backward_plan);
  define<JaggedViews>(module, plan, backward_plan);
  nb::class_<PagedViews>(module, "PagedViews",
                         "Keys and values in pages, [pages, heads, page_size, dim] each, any "
                         "strides; page_table [n, most pages]; lengths [n].")
      .def("__init__", &init_paged, nb::arg("k"), nb::arg("v"), nb::arg("page_table"),
           nb::arg("lengths"));
  module.def("attention", &run_paged, nb::arg("options"), nb::arg("q"), nb::arg("keys"),
             nb::arg("out"), nb::arg("lse").none() = nb::none(),
             nb::arg("max_scores").none() = nb::none(), nb::arg("key_weights").none() = nb::none(),
             nb::arg("entropy").none() = nb::none(), nb::arg("queries") = kAllQueries,
             "The same of jagged queries over keys in pages.");
  plan.def("__init__", &init_step_plan, nb::arg("options"), nb::arg("cache"), nb::arg("sequences"),
           nb::arg("counts"), nb::arg("q_heads"), nb::arg("dtype"), nb::arg("group") = 0)
      .def("__init__", &init_paged_plan, nb::arg("options"), nb::arg("q"), nb::arg("keys"),
           nb::arg("step") = false)
      .def("run", &run_plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none() = nb::none(), nb::arg("max_scores").none() = nb::none(),
           nb::arg("key_weights").none() = nb::none(), nb::arg("entropy").none() = nb::none(),
           nb::arg("queries") = kAllQueries,
           "Over other tensors of the same shapes, without the GIL. Allocates nothing.")
      .def("run_tensors", &run_tensors, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("tokens"),
           "The same of the first rows of tensors, through DLPack's exchange functions. False, and "
           "nothing is done, if one of the tensors has none or is not on the CPU.")
      .def("run_step", &run_step_plan, nb::arg("cache"), nb::arg("layer"), nb::arg("q"),
           nb::arg("out"), nb::arg("lse").none() = nb::none(),
           nb::arg("max_scores").none() = nb::none(), nb::arg("key_weights").none() = nb::none(),
           nb::arg("entropy").none() = nb::none(), nb::arg("queries") = kAllQueries,
           "Of a plan over a cache: another layer, without the GIL.")
      .def_prop_ro("tokens", [](const RunPlan& self) { return self.plan->tokens(); })
      .def_prop_ro("scratch_bytes", [](const RunPlan& self) { return self.plan->scratch_bytes(); });
  backward_plan
      .def("run", &run_backward_plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse"), nb::arg("d_out").none(), nb::arg("d_lse").none(), nb::arg("d_inputs"),
           nb::arg("d_buffers"), "As attention_backward, over the tensors of another layer.")
      .def_prop_ro("scratch_bytes",
                   [](const BackwardPlan& self) { return self.plan->scratch_bytes(); });
  module.def("attend", &attend_step, nb::arg("options"), nb::arg("cache"), nb::arg("layer"),
             nb::arg("sequences"), nb::arg("counts"), nb::arg("q"), nb::arg("wants_lse") = false,
             nb::arg("wants_max") = false, nb::arg("wants_weights") = false,
             nb::arg("wants_entropy") = false, nb::arg("queries") = kAllQueries,
             "Attention of the last `counts` tokens of each sequence over the cache, without the "
             "GIL: (out, lse, max_scores, key_weights, entropy) as Views or None. Nobody may "
             "change the cache meanwhile.");
  module.def("float_buffers", &float_buffers, nb::arg("mod"),
             "The names of a score mod's buffers that can have a gradient.");
  module.def("with_gradients", &with_gradients, nb::arg("mod"), nb::arg("names"),
             "(mod, views): the mod whose buffers of these names want a gradient, and new memory "
             "for each, in the order of buffer_names.");
}

}  // namespace quire::python
