// Computes heads one after the other. Forward: the rows of a piece as soon as the keys they see
// have arrived. Backward: a head when all of it has arrived. Context_parallel layer.
#include "context_parallel/by_heads.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "context_parallel/buffer_sums.h"
#include "context_parallel/head_exchange.h"
#include "mask/rectangle.h"
#include "quire/attention.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::context_parallel {
namespace {

constexpr const char* kBackwardByHeads = "context_parallel.flex_attention_backward";

// The call for the query heads that share one key head.
class HeadRule {
 public:
  HeadRule(const Call& call, std::int64_t head)
      : shape_(call.shape()), options_(call.options()), length_(call.shards().length()) {
    const std::int64_t group = shape_.q_heads / shape_.kv_heads, first = head * group;
    shape_.q_heads = group;
    shape_.kv_heads = 1;
    if (options_.score_mod.has_value())
      options_.score_mod = mask::shift_heads(*options_.score_mod, first);
    if (options_.block_mask.has_value())
      options_.block_mask = mask::cut_heads(*options_.block_mask, first, first + group);
  }

  /// Queries `of` over keys 0 .. kv_end - 1.
  AttentionProblem problem(const Range& of, std::int64_t kv_end, const char* where) const {
    AttentionShape shape = shape_;
    shape.q_len = of.size();
    shape.kv_len = kv_end;
    AttentionOptions options{.score_mod = options_.score_mod,
                             .scale = options_.scale,
                             .enable_gqa = true,
                             .executor = options_.executor};
    if (!options_.block_mask.has_value())
      options.q_begin = {of.begin};
    else if (of.size() == length_ && kv_end == length_)
      options.block_mask = *options_.block_mask;
    else
      options.block_mask = mask::cut_rectangle(
          *options_.block_mask,
          {.q_begin = of.begin, .q_end = of.end, .kv_begin = 0, .kv_end = kv_end},
          options_.executor);
    return AttentionProblem::dense(shape, options, where);
  }

 private:
  AttentionShape shape_;
  Options options_;
  std::int64_t length_;
};

// Out and lse of a piece of one head.
struct PieceResults {
  Tensor out, lse;

  PieceResults(const AttentionShape& of, std::int64_t tokens)
      : out({of.batch, of.q_heads / of.kv_heads, tokens, of.v_head_dim}, of.q_dtype),
        lse({of.batch, of.q_heads / of.kv_heads, tokens}, of.compute_type()) {}
};

// What ranks give besides q, k and v; equal on all ranks that have it, 0 where a rank has none.
struct LossKinds {
  std::int64_t out = 0, d_out = 0, d_lse = 0;  // 1 + a dtype; 0: no rank has it
};

std::int64_t kind_of(const std::optional<ConstTensorView>& view) {
  return view.has_value() ? 1 + static_cast<std::int64_t>(view->dtype()) : 0;
}

LossKinds agree_on_loss(Call& call, const BackwardInputs& inputs) {
  const LossKinds mine{.out = inputs.d_out.has_value() ? kind_of(inputs.out) : 0,
                       .d_out = kind_of(inputs.d_out),
                       .d_lse = kind_of(inputs.d_lse)};
  std::vector<LossKinds> all(static_cast<std::size_t>(call.group().size()));
  call.group().all_gather(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)));
  LossKinds found;
  for (const LossKinds& of : all) {
    const auto join = [](std::int64_t& one, std::int64_t other, const char* name) {
      if (one != 0 && other != 0 && one != other)
        fail(ErrorKind::value, kBackwardByHeads, "ranks disagree about the dtype of {}", name);
      one = std::max(one, other);
    };
    join(found.out, of.out, "out");
    join(found.d_out, of.d_out, "d_out");
    join(found.d_lse, of.d_lse, "d_lse");
  }
  return found;
}

// A tensor of the loss as it is sent: [B, H, tokens, dim]; zeros where this rank has none.
class LossField {
 public:
  LossField(const std::optional<ConstTensorView>& view, std::int64_t kind, const Shape& shape) {
    if (view.has_value())
      view_ = *view;
    else
      zeros_ = Tensor(shape, static_cast<DType>(kind - 1)), view_ = zeros_.view();
    if (view_.rank() == 3) view_ = view_.unsqueeze(3);
  }
  const ConstTensorView& view() const { return view_; }

 private:
  Tensor zeros_;
  ConstTensorView view_;
};

}  // namespace

Output attend_by_heads(Call& call, const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& v) {
  const AttentionShape& of = call.shape();
  const Shards& shards = call.shards();
  Output made{Tensor::empty({of.batch, of.q_heads, of.q_len, of.v_head_dim}, of.q_dtype),
              Tensor::empty({of.batch, of.q_heads, of.q_len}, of.compute_type())};
  HeadExchange exchange(call, {q, k, v}, {made.out.view(), made.lse.view().unsqueeze(3)});
  std::exception_ptr failed;  // others still get what they wait for, and learn of it at the end
  for (std::int64_t head = exchange.heads().begin; head < exchange.heads().end; ++head) {
    const HeadRule rule(call, head);
    std::int64_t taken = 0;
    for (std::int64_t piece = 0; piece < shards.pieces(); ++piece) {
      const std::int64_t keys = call.keys_end(piece);
      while (taken < std::max(piece + 1, keys)) exchange.take(head, taken++);
      const Range range = shards.piece(piece);
      PieceResults results(of, range.size());
      try {
        const std::int64_t kv_end = keys == 0 ? 0 : shards.piece(keys - 1).end;
        if (failed == nullptr)
          run_attention(rule.problem(range, kv_end, "context_parallel.flex_attention"),
                        exchange.whole(0).slice(2, range.begin, range.end),
                        exchange.whole(1).slice(2, 0, kv_end),
                        exchange.whole(2).slice(2, 0, kv_end),
                        {.out = results.out.view(), .lse = results.lse.view()});
      } catch (...) {
        failed = std::current_exception();
      }
      exchange.give(head, piece, {results.out, results.lse.view().unsqueeze(3)});
    }
  }
  exchange.finish();
  call.agreement().finish(failed);
  return made;
}

Gradients gradients_by_heads(Call& call, const BackwardInputs& inputs,
                             const std::vector<Buffer>& buffers) {
  const AttentionShape& of = call.shape();
  const Shards& shards = call.shards();
  const LossKinds kinds = agree_on_loss(call, inputs);
  const Shape rows{of.batch, of.q_heads, of.q_len, 1};
  const Shape outs{of.batch, of.q_heads, of.q_len, of.v_head_dim};
  std::vector<ConstTensorView> given{inputs.q, inputs.k, inputs.v, inputs.lse.unsqueeze(3)};
  std::vector<LossField> fields;
  fields.reserve(3);
  if (kinds.d_out != 0) {
    fields.emplace_back(inputs.d_out ? std::optional(inputs.out) : std::nullopt, kinds.out, outs);
    fields.emplace_back(inputs.d_out, kinds.d_out, outs);
  }
  if (kinds.d_lse != 0) fields.emplace_back(inputs.d_lse, kinds.d_lse, rows);
  for (const LossField& field : fields) given.push_back(field.view());

  const auto gradient_of = [](const ConstTensorView& view) {
    return Tensor::empty(view.shape(), view.dtype());
  };
  Gradients made{gradient_of(inputs.q), gradient_of(inputs.k), gradient_of(inputs.v)};
  BufferSums sums(buffers);
  HeadExchange exchange(call, std::move(given), {made.q.view(), made.k.view(), made.v.view()});
  std::exception_ptr failed;
  for (std::int64_t head = exchange.heads().begin; head < exchange.heads().end; ++head) {
    for (std::int64_t piece = 0; piece < shards.pieces(); ++piece) exchange.take(head, piece);
    quire::BackwardInputs whole{.q = exchange.whole(0),
                                .k = exchange.whole(1),
                                .v = exchange.whole(2),
                                .lse = exchange.whole(3).select(3, 0)};
    std::size_t next = 4;
    if (kinds.d_out != 0) {
      whole.out = exchange.whole(next++);
      whole.d_out = exchange.whole(next++);
    }
    if (kinds.d_lse != 0) whole.d_lse = exchange.whole(next++).select(3, 0);
    std::array<Tensor, 3> d{Tensor(whole.q.shape(), of.q_dtype),
                            Tensor(exchange.whole(1).shape(), of.k_dtype),
                            Tensor(exchange.whole(2).shape(), of.v_dtype)};
    try {
      if (failed == nullptr) {
        std::vector<Tensor> parts = sums.make_parts();
        const std::vector<TensorView> views = BufferSums::views_of(parts);
        run_attention_backward(
            HeadRule(call, head).problem({0, shards.length()}, shards.length(), kBackwardByHeads),
            whole, {.q = d[0].view(), .k = d[1].view(), .v = d[2].view(), .buffers = views});
        sums.add(parts);
      }
    } catch (...) {
      failed = std::current_exception();
    }
    for (std::int64_t piece = 0; piece < shards.pieces(); ++piece) {
      const Range range = shards.piece(piece);
      const auto part = [&](const Tensor& x) {
        return ConstTensorView(x.view().slice(2, range.begin, range.end));
      };
      exchange.give(head, piece, {part(d[0]), part(d[1]), part(d[2])});
    }
  }
  exchange.finish();
  call.agreement().finish(failed);
  made.buffers = std::move(sums).take();
  return made;
}

}  // namespace quire::context_parallel
