// The C interface: attention and its gradients into the caller's memory. Every function fills in a
// quire_attention_problem, which one run and one backward function read. C API layer.
#include "quire/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

using quire::c_api::refuse;

// The size of the first published version of the problem.
constexpr std::size_t kFirstProblem = offsetof(quire_attention_problem, key_indices);

// The function that was called, and what error texts call its struct of options.
struct Caller {
  const char* function;
  const char* options;
};

// One number, or one for each of `batch` entries. The count is checked before anything is read: the
// end of an array of 2^61 numbers would wrap around to its beginning.
std::vector<std::int64_t> q_begin_of(const quire_attention_problem& given, std::int64_t batch,
                                     const Caller& caller) {
  if (given.q_begin_count == 0) {
    if (given.q_begin == nullptr) return {};
    refuse(caller.function, "{0}.q_begin is given, and {0}.q_begin_count is 0", caller.options);
  }
  c_api::require(given.q_begin, caller.function, fmt::format("{}.q_begin", caller.options).c_str());
  if (given.q_begin_count != 1 && std::cmp_not_equal(given.q_begin_count, batch)) {
    refuse(caller.function,
           "{}.q_begin_count must be 1, for all batch entries, or {}, one for each; got {}",
           caller.options, batch, given.q_begin_count);
  }
  return {given.q_begin, given.q_begin + given.q_begin_count};
}

AttentionOptions options_of(const quire_attention_problem& given, std::int64_t batch,
                            const Caller& caller) {
  AttentionOptions options{.dropout_p = given.dropout_p, .seed = given.seed};
  const auto name = [&](const char* field) { return fmt::format("{}.{}", caller.options, field); };
  if (given.score_mod != nullptr) options.score_mod = given.score_mod->mod;
  if (given.mask_mod != nullptr) options.mask_mod = given.mask_mod->mod;
  if (given.block_mask != nullptr) options.block_mask = given.block_mask->mask;
  if (c_api::flag(given.has_scale, caller.function, name("has_scale").c_str())) {
    options.scale = given.scale;
  } else if (given.scale != 0) {
    refuse(caller.function, "{}.scale counts only with has_scale = 1; got {} and 0", caller.options,
           given.scale);
  }
  options.enable_gqa = c_api::flag(given.enable_gqa, caller.function, name("enable_gqa").c_str());
  options.q_begin = q_begin_of(given, batch, caller);
  if (given.sinks != nullptr)
    options.sinks = Buffer::borrow(
        c_api::tensor(given.sinks, caller.function, name("sinks").c_str()), {.name = "sinks"});
  options.lse_with_sinks =
      c_api::flag(given.lse_with_sinks, caller.function, name("lse_with_sinks").c_str());
  options.key_indices =
      c_api::optional_tensor(given.key_indices, caller.function, name("key_indices").c_str());
  return options;
}

// A problem and the tensors of its run.
struct Call {
  AttentionProblem problem;
  ConstTensorView q;
  KVView k, v;
};

// Numbers or codes, as the problem says.
KVView keys_of(const ConstTensorView& data, const char* format, const quire_tensor* scales,
               const char* function, const char* name) {
  KVView view(data);
  if (format != nullptr) view.format = KVFormat::of(format);
  if (scales != nullptr) view.scales = c_api::tensor(scales, function, name);
  return view;
}

Call call_of(const quire_attention_problem& given, const Caller& caller) {
  const char* const function = caller.function;
  const bool is_jagged = given.jagged_q != nullptr || given.jagged_k != nullptr;
  if (is_jagged || given.jagged_v != nullptr) {
    if (given.q != nullptr || given.k != nullptr || given.v != nullptr || given.pages != nullptr)
      refuse(function, "queries and keys must be dense, jagged or paged; got several of them");
    const Jagged q = c_api::jagged(given.jagged_q, function, "q");
    Jagged k = c_api::jagged(given.jagged_k, function, "k");
    Jagged v = c_api::jagged(given.jagged_v, function, "v");
    const KVView k_view = keys_of(k.values, given.k_format, given.k_scales, function, "k_scales");
    const KVView v_view = keys_of(v.values, given.v_format, given.v_scales, function, "v_scales");
    k.scales = k_view.scales;
    k.format = k_view.format;
    v.scales = v_view.scales;
    v.format = v_view.format;
    const std::int64_t batch = q.offsets.rank() == 1 ? q.offsets.dim(0) - 1 : 1;
    return {AttentionProblem::jagged(q, k, v, options_of(given, batch, caller), function), q.values,
            k_view, v_view};
  }
  const ConstTensorView q = c_api::tensor(given.q, function, "q");
  const std::int64_t batch = q.rank() == 0 ? 1 : q.dim(0);
  if (given.pages != nullptr) {
    if (given.k != nullptr || given.v != nullptr)
      refuse(function, "queries and keys must be dense, jagged or paged; got several of them");
    const quire_paged_keys keys = c_api::versioned(given.pages, function, "keys");
    const PagedKeys pages{.k = keys_of(c_api::tensor(keys.k, function, "keys.k"), given.k_format,
                                       given.k_scales, function, "k_scales"),
                          .v = keys_of(c_api::tensor(keys.v, function, "keys.v"), given.v_format,
                                       given.v_scales, function, "v_scales"),
                          .page_table = c_api::tensor(keys.page_table, function, "keys.page_table"),
                          .lengths = c_api::tensor(keys.lengths, function, "keys.lengths")};
    return {AttentionProblem::paged(q, pages, options_of(given, batch, caller), function), q,
            pages.k, pages.v};
  }
  const KVView k = keys_of(c_api::tensor(given.k, function, "k"), given.k_format, given.k_scales,
                           function, "k_scales");
  const KVView v = keys_of(c_api::tensor(given.v, function, "v"), given.v_format, given.v_scales,
                           function, "v_scales");
  return {AttentionProblem::dense(q, k, v, options_of(given, batch, caller), function), q, k, v};
}

// Copies the options that the older functions' structs share with a problem.
template <class Options>
quire_attention_problem with_options(const Options& options) {
  quire_attention_problem problem{};
  problem.score_mod = options.score_mod;
  problem.scale = options.scale;
  problem.has_scale = options.has_scale;
  problem.enable_gqa = options.enable_gqa;
  if constexpr (requires { options.mask_mod; }) problem.mask_mod = options.mask_mod;
  if constexpr (requires { options.block_mask; }) problem.block_mask = options.block_mask;
  if constexpr (requires { options.q_begin; }) {
    problem.q_begin = options.q_begin;
    problem.q_begin_count = options.q_begin_count;
  }
  return problem;
}

AttentionOutputs outputs_of(const quire_attention_outputs& to, const Caller& caller) {
  const auto optional = [&](const quire_tensor* view, const char* name) {
    return c_api::optional_tensor(view, caller.function,
                                  fmt::format("{}.{}", caller.options, name).c_str());
  };
  return {.out = c_api::tensor(to.out, caller.function, "out"),
          .lse = optional(to.lse, "lse"),
          .max_scores = optional(to.max_scores, "max_scores")};
}

void run(const quire_attention_problem& given, const quire_attention_outputs& to,
         const Caller& caller) {
  Call call = call_of(given, caller);
  const AttentionOutputs outputs = outputs_of(to, caller);
  run_attention(std::move(call.problem), call.q, call.k, call.v, outputs);
}

// Where the caller wants the gradients, checked before anything is computed.
class GradientPlaces {
 public:
  /// Marks the problem's sinks if their gradient is wanted.
  GradientPlaces(const quire_gradients* given, Call& call, const char* function)
      : function_(function) {
    const quire_gradients copy = c_api::versioned(given, function, "gradients");
    views.q = place("gradients.q", copy.q, call.q);
    views.k = place("gradients.k", copy.k, call.k.data);
    views.v = place("gradients.v", copy.v, call.v.data);
    std::optional<Buffer>& sinks = call.problem.sinks;
    if (copy.sinks != nullptr) {
      if (!sinks.has_value()) refuse(function, "gradients.sinks is given, and there are no sinks");
      sinks = Buffer::borrow(sinks->view(), {.name = "sinks", .wants_gradient = true});
    }
    if (copy.buffer_count == 0 && copy.sinks == nullptr) return;
    if (copy.buffer_count > 0) {
      c_api::require(copy.buffer_names, function, "gradients.buffer_names");
      c_api::require(copy.buffers, function, "gradients.buffers");
    }
    add_buffers(copy, call.problem);
    if (copy.sinks != nullptr)
      buffers_.back() = *place("gradients.sinks", copy.sinks, sinks->view());
    views.buffers = buffers_;
  }

  GradientOutputs views;

 private:
  void add_buffers(const quire_gradients& given, const AttentionProblem& problem) {
    // The score mod's come first, then the mask's, which have no output.
    const std::vector<Buffer> all = gradient_buffers(problem);
    std::vector<std::optional<TensorView>> found(all.size());
    for (std::size_t i = 0; i < given.buffer_count; ++i) {
      c_api::require(given.buffer_names[i], function_, "a name of gradients.buffer_names");
      const std::string name = given.buffer_names[i];
      const auto captured =
          problem.score_mod ? problem.score_mod->formula().buffers() : std::vector<Buffer>();
      const bool is_captured =
          std::ranges::any_of(captured, [&](const Buffer& b) { return b.name() == name; });
      const auto at = std::ranges::find(all, name, &Buffer::name);
      if (!is_captured || at == all.end()) {
        refuse(function_,
               "the score mod reads no buffer with wants_gradient of this name; got '{}'", name);
      }
      auto& to = found[at - all.begin()];
      if (to.has_value())
        refuse(function_, "gradients.buffer_names must name a buffer once; got '{}' twice", name);
      c_api::require(given.buffers[i], function_, fmt::format("gradients.buffers[{}]", i).c_str());
      to = place("the gradient of '" + name + "'", given.buffers[i], at->view());
    }
    for (std::size_t i = 0; i < all.size(); ++i)
      buffers_.push_back(found[i] ? *found[i]
                                  : unasked_.emplace_back(all[i].shape(), all[i].dtype()).view());
  }

  std::optional<TensorView> place(const std::string& name, const quire_tensor* given,
                                  const ConstTensorView& like) const {
    if (given == nullptr) return std::nullopt;
    const TensorView to = c_api::tensor(given, function_, name.c_str());
    if (to.shape() != like.shape() || to.dtype() != like.dtype())
      refuse(function_, "{} must be {} {}; got {} {}", name, dtype_name(like.dtype()),
             to_string(like.shape()), dtype_name(to.dtype()), to_string(to.shape()));
    return to;
  }

  const char* function_;
  std::vector<TensorView> buffers_;
  std::vector<Tensor> unasked_;  // for gradients nobody asked for
};

BackwardInputs inputs_of(const Call& call, const quire_loss* loss, const char* function) {
  const quire_loss of = c_api::versioned(loss, function, "loss");
  BackwardInputs inputs{.q = call.q,
                        .k = call.k,
                        .v = call.v,
                        .out = c_api::tensor(of.out, function, "loss.out"),
                        .lse = c_api::tensor(of.lse, function, "loss.lse")};
  if (of.d_out != nullptr) inputs.d_out = c_api::tensor(of.d_out, function, "loss.d_out");
  if (of.d_lse != nullptr) inputs.d_lse = c_api::tensor(of.d_lse, function, "loss.d_lse");
  return inputs;
}

void run_backward(const quire_attention_problem& given, const quire_loss* loss,
                  const quire_gradients* gradients, const Caller& caller) {
  Call call = call_of(given, caller);
  const BackwardInputs inputs = inputs_of(call, loss, caller.function);
  const GradientPlaces places(gradients, call, caller.function);
  run_attention_backward(std::move(call.problem), inputs, places.views);
}

}  // namespace

quire_status quire_attention(const quire_attention_problem* problem,
                             const quire_attention_outputs* outputs) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_attention", "problem"};
    run(c_api::versioned(problem, kCaller.function, "problem", kFirstProblem),
        c_api::versioned(outputs, kCaller.function, "outputs"), kCaller);
  });
}

quire_status quire_attention_backward(const quire_attention_problem* problem,
                                      const quire_loss* loss, const quire_gradients* gradients) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_attention_backward", "problem"};
    run_backward(c_api::versioned(problem, kCaller.function, "problem", kFirstProblem), loss,
                 gradients, kCaller);
  });
}

quire_status quire_flex_attention(const quire_tensor* q, const quire_tensor* k,
                                  const quire_tensor* v,
                                  const quire_flex_attention_options* options,
                                  const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_flex_attention", "options"};
    const auto given = c_api::versioned_or_default(options, kCaller.function, "options");
    quire_attention_problem problem = with_options(given);
    problem.q = q;
    problem.k = k;
    problem.v = v;
    run(problem, {0, out, given.lse, given.max_scores}, kCaller);
  });
}

quire_status quire_flex_attention_jagged(const quire_jagged* q, const quire_jagged* k,
                                         const quire_jagged* v,
                                         const quire_jagged_attention_options* options,
                                         const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_flex_attention_jagged", "options"};
    const auto given = c_api::versioned_or_default(options, kCaller.function, "options");
    quire_attention_problem problem = with_options(given);
    c_api::require(q, kCaller.function, "q");
    problem.jagged_q = q;
    problem.jagged_k = k;
    problem.jagged_v = v;
    run(problem, {0, out, given.lse, given.max_scores}, kCaller);
  });
}

quire_status quire_flex_attention_paged(const quire_tensor* q, const quire_paged_keys* keys,
                                        const quire_paged_attention_options* options,
                                        const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_flex_attention_paged", "options"};
    const auto given = c_api::versioned_or_default(options, kCaller.function, "options");
    quire_attention_problem problem = with_options(given);
    c_api::require(keys, kCaller.function, "keys");
    problem.q = q;
    problem.pages = keys;
    run(problem, {0, out, given.lse, given.max_scores}, kCaller);
  });
}

quire_status quire_flex_attention_backward(const quire_tensor* q, const quire_tensor* k,
                                           const quire_tensor* v,
                                           const quire_flex_attention_options* options,
                                           const quire_loss* loss,
                                           const quire_gradients* gradients) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_flex_attention_backward", "options"};
    quire_attention_problem problem =
        with_options(c_api::versioned_or_default(options, kCaller.function, "options"));
    problem.q = q;
    problem.k = k;
    problem.v = v;
    run_backward(problem, loss, gradients, kCaller);
  });
}

quire_status quire_flex_attention_jagged_backward(const quire_jagged* q, const quire_jagged* k,
                                                  const quire_jagged* v,
                                                  const quire_jagged_attention_options* options,
                                                  const quire_loss* loss,
                                                  const quire_gradients* gradients) {
  return c_api::guarded([&] {
    constexpr Caller kCaller{"quire_flex_attention_jagged_backward", "options"};
    quire_attention_problem problem =
        with_options(c_api::versioned_or_default(options, kCaller.function, "options"));
    c_api::require(q, kCaller.function, "q");
    problem.jagged_q = q;
    problem.jagged_k = k;
    problem.jagged_v = v;
    run_backward(problem, loss, gradients, kCaller);
  });
}

namespace {

// Errors name the plan, whether found when it is made or when it runs.
constexpr Caller kPlan{"quire_attention_plan", "problem"};
constexpr Caller kBackwardPlan{"quire_attention_backward_plan", "problem"};

}  // namespace

quire_status quire_attention_plan_create(const quire_attention_problem* problem,
                                         quire_attention_plan** plan) {
  return c_api::guarded([&] {
    c_api::require(plan, kPlan.function, "plan");
    *plan = nullptr;
    Call call = call_of(c_api::versioned(problem, kPlan.function, "problem"), kPlan);
    *plan = new quire_attention_plan{AttentionPlan(std::move(call.problem))};
  });
}

quire_status quire_attention_plan_run(quire_attention_plan* plan, const quire_tensor* q,
                                      const quire_tensor* k, const quire_tensor* v,
                                      const quire_attention_outputs* outputs) {
  return c_api::guarded([&] {
    c_api::require(plan, kPlan.function, "plan");
    plan->plan.run(c_api::tensor(q, kPlan.function, "q"), c_api::tensor(k, kPlan.function, "k"),
                   c_api::tensor(v, kPlan.function, "v"), c_api::outputs(outputs, kPlan.function));
  });
}

void quire_attention_plan_free(quire_attention_plan* plan) { delete plan; }

quire_status quire_attention_backward_plan_create(const quire_attention_problem* problem,
                                                  const quire_gradients* wanted,
                                                  quire_attention_backward_plan** plan) {
  return c_api::guarded([&] {
    const char* const function = kBackwardPlan.function;
    c_api::require(plan, function, "plan");
    *plan = nullptr;
    Call call = call_of(c_api::versioned(problem, function, "problem"), kBackwardPlan);
    const GradientPlaces places(wanted, call, function);
    const WantedGradients gradients{.q = places.views.q.has_value(),
                                    .k = places.views.k.has_value(),
                                    .v = places.views.v.has_value(),
                                    .buffers = !places.views.buffers.empty()};
    AttentionBackwardPlan made(call.problem, gradients);
    *plan = new quire_attention_backward_plan{std::move(call.problem), std::move(made)};
  });
}

quire_status quire_attention_backward_plan_run(quire_attention_backward_plan* plan,
                                               const quire_tensor* q, const quire_tensor* k,
                                               const quire_tensor* v, const quire_loss* loss,
                                               const quire_gradients* gradients) {
  return c_api::guarded([&] {
    const char* const function = kBackwardPlan.function;
    c_api::require(plan, function, "plan");
    Call call{plan->problem, c_api::tensor(q, function, "q"), c_api::tensor(k, function, "k"),
              c_api::tensor(v, function, "v")};
    const GradientPlaces places(gradients, call, function);
    plan->plan.run(inputs_of(call, loss, function), places.views);
  });
}

void quire_attention_backward_plan_free(quire_attention_backward_plan* plan) { delete plan; }
