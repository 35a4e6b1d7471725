// flex_attention and its backward pass as functions that programs compiled by XLA call. They run
// without the GIL, on a thread of XLA's and Quire's default executor. Python layer.
//
// Attributes: score_mod, score_names, mask_mod, mask_names: see jax_rules.h, empty if there is
// none; mask_sizes: batch, heads, q_len, kv_len and both block sizes; options: enable_gqa, whether
// there are sinks, whether there is a seed, whether vmap's axis may join the batch, and how many
// arrays belong to the score mod; scale (optional) and dropout_p; learns: which of these arrays,
// and sinks_learn: whether the sinks, get a gradient from the backward pass. Operands: q, k, v; in
// the backward pass out, lse, d_out, d_lse; then sinks and seed (two words) if any; the score mod's
// arrays; the mask's. Results: out, lse; or d_q, d_k, d_v and the gradients of sinks and of the
// arrays that learn. vmap adds leading axes to all of them, of size 1 where an operand has none.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_call.h"
#include "jax_rules.h"
#include "quire/attention.h"
#include "quire/error.h"
#include "register.h"

namespace quire::python {
namespace {

constexpr std::size_t kForwardRows = 3;   // q, k, v
constexpr std::size_t kBackwardRows = 7;  // and out, lse, d_out, d_lse

/// One of the calls that vmap combined.
struct Instance {
  std::vector<ConstTensorView> operands;
  std::vector<TensorView> results;
};

struct Flags {
  explicit Flags(const JaxCall& call) {
    const std::span<const std::int64_t> given = call.integers("options");
    if (given.size() != 5) throw Error(ErrorKind::value, "[quire.jax] options must be 5 numbers");
    enable_gqa = given[0] != 0;
    has_sinks = given[1] != 0;
    has_seed = given[2] != 0;
    joins_batch = given[3] != 0;
    score_arrays = given[4];
  }
  bool enable_gqa, has_sinks, has_seed, joins_batch;
  std::size_t score_arrays;
};

Shape without_front(const Shape& shape, std::size_t axes) {
  return Shape(std::span<const std::int64_t>(shape).subspan(axes));
}

// The part of an operand or result at a position along the leading axes; an axis of size 1 serves
// all positions.
template <class View>
View at_front(View view, std::span<const std::int64_t> place) {
  for (const std::int64_t i : place) view = view.select(0, view.dim(0) == 1 ? 0 : i);
  return view;
}

// Merges the leading axes and the first axis after them.
template <class View>
View joined(const View& view, std::size_t front) {
  Shape shape = without_front(view.shape(), front);
  for (std::size_t i = 0; i < front; ++i) shape[0] *= view.shape()[i];
  return View(view.data(), view.dtype(), shape);
}

// Whether the operands with a row per query or key have all of the leading axes in full, and the
// others none of them.
bool can_join(const JaxCall& call, std::size_t rows, const Shape& front) {
  for (std::size_t i = 0; i < call.operands().size(); ++i) {
    for (std::size_t axis = 0; axis < front.rank(); ++axis)
      if (call.operands()[i].shape()[axis] != (i < rows ? front[axis] : 1)) return false;
  }
  return true;
}

template <class Run>
void each_instance(const JaxCall& call, std::size_t rows, bool joins_batch, const Run& run) {
  if (call.operands().size() < rows || call.operands()[0].rank() < 4 || call.results().empty())
    throw Error(ErrorKind::value, "[quire.jax] operands are missing");
  const std::size_t front_axes = call.operands()[0].rank() - 4;
  if (front_axes == 0) return run(Instance{call.operands(), call.results()});
  const Shape front(
      std::span<const std::int64_t>(call.results()[0].shape()).subspan(0, front_axes));
  if (joins_batch && can_join(call, rows, front)) {
    const std::vector<std::int64_t> first(front_axes);
    Instance all;
    for (std::size_t i = 0; i < call.operands().size(); ++i) {
      const ConstTensorView& one = call.operands()[i];
      all.operands.push_back(i < rows ? joined(one, front_axes) : at_front(one, first));
    }
    for (const TensorView& one : call.results()) all.results.push_back(joined(one, front_axes));
    return run(all);
  }
  std::vector<std::int64_t> place(front_axes);
  for (std::int64_t i = 0; i < element_count(front); ++i) {
    std::int64_t rest = i;
    for (std::size_t axis = front_axes; axis-- > 0; rest /= front[axis])
      place[axis] = rest % front[axis];
    Instance one;
    for (const ConstTensorView& all : call.operands()) one.operands.push_back(at_front(all, place));
    for (const TensorView& all : call.results()) one.results.push_back(at_front(all, place));
    run(one);
  }
}

std::uint64_t seed_of(const ConstTensorView& words) {
  std::uint32_t both[2];
  if (words.numel() != 2) throw Error(ErrorKind::value, "[quire.jax] a seed is two words");
  std::memcpy(both, words.data(), sizeof both);
  return std::uint64_t{both[0]} << 32 | both[1];
}

// The options of an instance; the first `rows` operands are tensors of rows.
AttentionOptions options_of(const JaxCall& call, const Flags& flags, const Instance& one,
                            std::size_t rows, bool learns) {
  AttentionOptions options{.scale = call.number("scale"),
                           .enable_gqa = flags.enable_gqa,
                           .dropout_p = call.number("dropout_p").value_or(0)};
  std::size_t next = rows;
  const auto take = [&](std::size_t count) {
    if (one.operands.size() - next < count)
      throw Error(ErrorKind::value, "[quire.jax] operands are missing");
    next += count;
    return std::span(one.operands).subspan(next - count, count);
  };
  if (flags.has_sinks)
    options.sinks = Buffer::borrow(
        take(1)[0], {.name = "sinks", .wants_gradient = learns && call.text("sinks_learn") == "1"});
  if (flags.has_seed) options.seed = seed_of(take(1)[0]);
  const std::span<const ConstTensorView> score_arrays = take(flags.score_arrays);
  if (const std::string_view text = call.text("score_mod"); !text.empty())
    options.score_mod = ScoreMod(bound_formula({text, call.text("score_names"), score_arrays},
                                               learns ? call.text("learns") : ""));
  if (const std::string_view text = call.text("mask_mod"); !text.empty()) {
    const std::span<const std::int64_t> sizes = call.integers("mask_sizes");
    if (sizes.size() != 6)
      throw Error(ErrorKind::value, "[quire.jax] mask_sizes must be 6 numbers");
    options.block_mask =
        proved_mask({text, call.text("mask_names"), take(one.operands.size() - next)},
                    {sizes[0], sizes[1], sizes[2], sizes[3], BlockSize(sizes[4], sizes[5])});
  }
  return options;
}

void forward(const JaxCall& call) {
  const Flags flags(call);
  each_instance(call, kForwardRows, flags.joins_batch, [&](const Instance& one) {
    const auto& in = one.operands;
    run_attention(AttentionProblem::dense(in[0], in[1], in[2],
                                          options_of(call, flags, one, kForwardRows, false)),
                  in[0], in[1], in[2], {.out = one.results[0], .lse = one.results[1]});
  });
}

// The gradients of the score mod's arrays in the order of gradient_buffers, in which the formula
// reads them; sinks, first among the results, come last there.
std::vector<TensorView> buffer_outputs(const JaxCall& call, const AttentionProblem& problem,
                                       const Instance& one, bool has_sinks) {
  const std::string_view learns = call.text("learns");
  std::vector<std::pair<std::string_view, TensorView>> named;
  std::size_t next = 3 + (has_sinks && call.text("sinks_learn") == "1" ? 1 : 0);
  std::string_view names = call.text("score_names");
  for (std::size_t i = 0; i < learns.size(); ++i) {
    const std::size_t end = std::min(names.find(','), names.size());
    if (learns[i] == '1') named.emplace_back(names.substr(0, end), one.results.at(next++));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  std::vector<TensorView> outputs;
  for (const Buffer& buffer : gradient_buffers(problem)) {
    const auto found = std::find_if(named.begin(), named.end(), [&](const auto& entry) {
      return entry.first == buffer.name();
    });
    outputs.push_back(found == named.end() ? one.results.at(3) : found->second);
  }
  return outputs;
}

void backward(const JaxCall& call) {
  const Flags flags(call);
  each_instance(call, kBackwardRows, flags.joins_batch, [&](const Instance& one) {
    const auto& in = one.operands;
    AttentionProblem problem = AttentionProblem::dense(
        in[0], in[1], in[2], options_of(call, flags, one, kBackwardRows, true));
    const std::vector<TensorView> buffers = buffer_outputs(call, problem, one, flags.has_sinks);
    run_attention_backward(
        std::move(problem),
        {.q = in[0],
         .k = in[1],
         .v = in[2],
         .out = in[3],
         .lse = in[4],
         .d_out = in[5],
         .d_lse = in[6]},
        {.q = one.results[0], .k = one.results[1], .v = one.results[2], .buffers = buffers});
  });
}

xla::Error* answer_forward(const xla::CallFrame* frame) { return answer(frame, &forward); }
xla::Error* answer_backward(const xla::CallFrame* frame) { return answer(frame, &backward); }

}  // namespace

void register_jax(nb::module_& module) {
  module.def(
      "jax_functions",
      [] {
        nb::dict functions;
        functions["quire_attention"] = nb::capsule(reinterpret_cast<void*>(&answer_forward));
        functions["quire_attention_backward"] =
            nb::capsule(reinterpret_cast<void*>(&answer_backward));
        return functions;
      },
      "Functions of XLA's foreign function interface as capsules, by the names that quire.jax "
      "registers them with.");
}

}  // namespace quire::python
