// Options, outputs and losses of attention calls from Python arguments. Python layer.
#include "attention_arguments.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <set>
#include <string>

#include "arguments.h"
#include "openmp.h"
#include "quire/error.h"
#include "register.h"

namespace quire::python {
namespace {

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

QueryRange range_of(const Queries& queries) {
  return {.begin = queries.first, .end = queries.second};
}

}  // namespace

std::shared_ptr<Executor> Options::set_executor(AttentionProblem& problem) const {
  std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  problem.executor = executor.get();
  return executor;
}

AttentionOutputs Outputs::views(const char* function) const {
  const auto optional = [&](const View* view, const char* name) {
    return view == nullptr ? std::nullopt : std::optional(writable(function, *view, name));
  };
  return {.out = writable(function, out, "out"),
          .lse = optional(lse, "lse"),
          .max_scores = optional(max_scores, "max_scores"),
          .key_weights = optional(key_weights, "key_weights"),
          .entropy = optional(entropy, "entropy"),
          .key_weights_queries = range_of(queries)};
}

AuxRequest Wanted::request() const {
  return {.lse = lse,
          .max_scores = max_scores,
          .key_weights = key_weights,
          .entropy = entropy,
          .key_weights_queries = range_of(queries)};
}

BackwardArguments::BackwardArguments(const char* function, const ConstTensorView& q,
                                     const KVView& k, const KVView& v, const Loss& loss)
    : inputs{.q = q, .k = k, .v = v, .out = loss.out.tensor, .lse = loss.lse.tensor} {
  if (loss.d_out != nullptr) inputs.d_out = loss.d_out->tensor;
  if (loss.d_lse != nullptr) inputs.d_lse = loss.d_lse->tensor;
  for (const nb::handle one : loss.d_buffers)
    buffers.push_back(writable(function, nb::cast<const View&>(one), "the gradient of a buffer"));
  const auto output = [&](std::size_t i, const char* name) -> std::optional<TensorView> {
    const nb::object given = loss.d_inputs[i];
    if (given.is_none()) return std::nullopt;
    return writable(function, nb::cast<const View&>(given), name);
  };
  outputs = {
      .q = output(0, "d_q"), .k = output(1, "d_k"), .v = output(2, "d_v"), .buffers = buffers};
}

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

void register_attention_options(nb::module_& module) {
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
}

}  // namespace quire::python
