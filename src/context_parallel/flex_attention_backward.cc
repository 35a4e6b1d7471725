// The backward pass: pieces of keys arrive as in the forward pass; what this rank's queries add to
// the gradients of other ranks' keys is sent back to those ranks. Context_parallel layer.
//
// Order of sums, in compute type: gradients of queries over pieces ascending; those of keys over
// this rank's ranges of queries ascending, then over ranks ascending.
#include "quire/flex_attention_backward.h"

#include <deque>
#include <exception>
#include <utility>

#include "context_parallel/buffer_sums.h"
#include "context_parallel/by_heads.h"
#include "context_parallel/call.h"
#include "context_parallel/key_stream.h"
#include "quire/context_parallel.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::context_parallel {
namespace {

constexpr const char* kBackward = "context_parallel.flex_attention_backward";
constexpr int kGradientTag = 2;

// to += from, [B, H, rows, dim] of equal shape; rows of both are contiguous.
template <class T>
void add(const ConstTensorView& from, const TensorView& to) {
  for (std::int64_t b = 0; b < from.dim(0); ++b) {
    for (std::int64_t h = 0; h < from.dim(1); ++h) {
      const ConstTensorView source = from.select(0, b).select(0, h);
      const TensorView target = to.select(0, b).select(0, h);
      const T* const x = source.template data_as<T>();
      T* const y = target.template data_as<T>();
      for (std::int64_t i = 0; i < source.numel(); ++i) y[i] += x[i];
    }
  }
}

void add(const ConstTensorView& from, const TensorView& to) {
  if (from.numel() == 0) return;
  from.dtype() == DType::f64 ? add<double>(from, to) : add<float>(from, to);
}

// Gradients of the keys and values of a piece, in one message.
struct PieceGradients {
  Message message;
  TensorView k, v;
};

class Backward {
 public:
  Backward(Call& call, const BackwardInputs& inputs, const std::vector<Buffer>& buffers)
      : call_(call), inputs_(inputs), wide_(call.shape().compute_type()), buffers_(buffers) {
    const AttentionShape& of = call.shape();
    q_ = Tensor({of.batch, of.q_heads, of.q_len, of.head_dim}, wide_);
    k_ = Tensor({of.kv_batch, of.kv_heads, of.kv_len, of.head_dim}, wide_);
    v_ = Tensor({of.kv_batch, of.kv_heads, of.kv_len, of.v_head_dim}, wide_);
  }

  /// Computes what this rank's queries add to a piece: to `to`, which is 0, and to its own
  /// gradients.
  void see(const PieceKeys& keys, const PieceGradients& to) {
    for (const LocalRange& queries : call_.queries_of(keys.piece)) {
      const std::int64_t begin = queries.at, end = begin + queries.range.size();
      const auto rows = [&](const ConstTensorView& view) { return view.slice(2, begin, end); };
      quire::BackwardInputs inputs{.q = rows(inputs_.q),
                                   .k = keys.k,
                                   .v = keys.v,
                                   .out = inputs_.d_out ? rows(inputs_.out) : ConstTensorView(),
                                   .lse = rows(inputs_.lse)};
      if (inputs_.d_out.has_value()) inputs.d_out = rows(*inputs_.d_out);
      if (inputs_.d_lse.has_value()) inputs.d_lse = rows(*inputs_.d_lse);
      Tensor d_q = Tensor::empty(inputs.q.shape(), wide_);
      Tensor d_k = Tensor::empty(keys.k.shape(), wide_), d_v = Tensor::empty(keys.v.shape(), wide_);
      std::vector<Tensor> d_buffers = buffers_.make_parts();
      const std::vector<TensorView> views = BufferSums::views_of(d_buffers);
      run_attention_backward(call_.problem(queries, keys.piece), inputs,
                             {.q = d_q.view(), .k = d_k.view(), .v = d_v.view(), .buffers = views});
      add(d_q, q_.view().slice(2, begin, end));
      add(d_k, to.k);
      add(d_v, to.v);
      buffers_.add(d_buffers);
    }
  }

  /// Memory for the gradients of a piece, set to 0.
  PieceGradients make(std::int64_t piece) const {
    const AttentionShape& of = call_.shape();
    const std::int64_t tokens = call_.shards().piece(piece).size();
    const Shape k{of.kv_batch, of.kv_heads, tokens, of.head_dim};
    const Shape v{of.kv_batch, of.kv_heads, tokens, of.v_head_dim};
    const std::size_t k_bytes = static_cast<std::size_t>(element_count(k)) * dtype_size(wide_);
    const std::size_t bytes =
        k_bytes + static_cast<std::size_t>(element_count(v)) * dtype_size(wide_);
    Message message = Message::make(bytes);
    std::fill_n(message.data, bytes, std::byte{0});
    return {message, TensorView(message.data, wide_, k),
            TensorView(message.data + k_bytes, wide_, v)};
  }

  /// Adds the next rank's part to one of this rank's pieces.
  void add_keys(std::int64_t piece, const PieceGradients& part) {
    const std::int64_t at = call_.shards().place(piece);
    const std::int64_t end = at + call_.shards().piece(piece).size();
    add(part.k, k_.view().slice(2, at, end));
    add(part.v, v_.view().slice(2, at, end));
  }

  Gradients end() && {
    const AttentionShape& of = call_.shape();
    const auto as = [](const Tensor& tensor, DType dtype) {
      return tensor.dtype() == dtype ? tensor : tensor.to(dtype);
    };
    return {as(q_, of.q_dtype), as(k_, of.k_dtype), as(v_, of.v_dtype), std::move(buffers_).take()};
  }

 private:
  const Call& call_;
  const BackwardInputs& inputs_;
  DType wide_;
  Tensor q_, k_, v_;
  BufferSums buffers_;
};

// Sums up this rank's pieces and keeps track of what it sends. Ranks go through all pieces in the
// same order and may be kLag steps apart: at step s a rank receives what others have added to its
// piece s - kLag, and waits until its messages for earlier pieces have been received. A rank that
// waits thus waits for a rank at an earlier step, so ranks cannot wait for each other in a circle.
class KeySums {
 public:
  KeySums(Call& call, Backward& backward) : call_(call), backward_(backward) {}

  /// This rank's own part of one of its pieces; it is added after those of lower ranks.
  void add_own(std::int64_t piece, PieceGradients own) {
    waiting_.push_back({piece, std::move(own)});
  }
  void send(std::int64_t piece, const PieceGradients& part) {
    const int owner = call_.shards().owners()[static_cast<std::size_t>(piece)];
    sent_.push_back({piece, call_.group().isend(part.message, owner, kGradientTag)});
  }
  /// Call before each piece; after the last one, up to pieces() + kLag.
  void begin_step(std::int64_t step) {
    while (!sent_.empty() && sent_.front().first < step - kLag) {
      call_.group().wait(sent_.front().second);
      sent_.pop_front();
    }
    while (!waiting_.empty() && waiting_.front().first <= step - kLag) take();
  }
  static constexpr std::int64_t kLag = 2;

 private:
  void take() {
    const auto [piece, own] = std::move(waiting_.front());
    waiting_.pop_front();
    for (int rank = 0; rank < call_.shards().ranks(); ++rank) {
      if (!call_.needs(rank, piece)) continue;
      if (rank == call_.rank()) {
        backward_.add_keys(piece, own);
        continue;
      }
      const PieceGradients part = backward_.make(piece);
      call_.group().wait(call_.group().irecv(part.message, rank, kGradientTag));
      backward_.add_keys(piece, part);
    }
  }

  Call& call_;
  Backward& backward_;
  std::deque<std::pair<std::int64_t, PieceGradients>> waiting_;
  std::deque<std::pair<std::int64_t, Communicator::Ticket>> sent_;
};

void check_inputs(const BackwardInputs& inputs, const AttentionShape& shape) {
  if (!inputs.d_out.has_value() && !inputs.d_lse.has_value())
    fail(ErrorKind::value, kBackward,
         "give d_out, d_lse or both: there is nothing to differentiate");
  const Shape out{shape.batch, shape.q_heads, shape.q_len, shape.v_head_dim};
  const Shape rows{shape.batch, shape.q_heads, shape.q_len};
  const auto check = [](const char* name, const ConstTensorView& view, const Shape& wanted) {
    if (view.shape() != wanted)
      fail(ErrorKind::value, kBackward, "{} must have shape {}; got {}", name, to_string(wanted),
           to_string(view.shape()));
    if (!is_floating(view.dtype()))
      fail(ErrorKind::type, kBackward, "{} must be f32, f64, bf16 or f16; got {}", name,
           dtype_name(view.dtype()));
  };
  check("lse", inputs.lse, rows);
  if (inputs.d_out.has_value()) {
    check("out", inputs.out, out);
    check("d_out", *inputs.d_out, out);
  }
  if (inputs.d_lse.has_value()) check("d_lse", *inputs.d_lse, rows);
}

}  // namespace

Gradients flex_attention_backward(const BackwardInputs& inputs, const Shards& shards,
                                  Communicator& group, const Options& options) {
  const FloatEnv float_env;
  Call call(kBackward, inputs.q, inputs.k, inputs.v, shards, group, options);
  std::vector<Buffer> buffers;
  Agreement(kBackward, group).check([&] {
    check_inputs(inputs, call.shape());
    buffers = gradient_buffers(AttentionProblem::dense(
        call.shape(),
        {.score_mod = options.score_mod,
         .mask_mod =
             options.block_mask ? std::optional(options.block_mask->mask_mod()) : std::nullopt}));
  });
  if (call.exchange(Pass::kBackward) == Exchange::kHeads)
    return gradients_by_heads(call, inputs, buffers);
  Backward backward(call, inputs, buffers);
  KeySums sums(call, backward);
  KeyStream keys(call, inputs.k, inputs.v);
  std::exception_ptr failed;
  for (std::int64_t piece = 0; piece < shards.pieces(); ++piece) {
    sums.begin_step(piece);
    const bool needs = call.needs(group.rank(), piece);
    if (!needs && !call.is_mine(piece)) continue;
    PieceGradients part = backward.make(piece);
    if (needs) {
      const PieceKeys here = keys.get(piece);
      try {
        if (failed == nullptr) backward.see(here, part);
      } catch (...) {
        failed = std::current_exception();  // other ranks still wait for what this rank owes them
      }
    }
    if (call.is_mine(piece))
      sums.add_own(piece, std::move(part));
    else
      sums.send(piece, part);
  }
  for (std::int64_t step = 0; step <= KeySums::kLag + 1; ++step)
    sums.begin_step(shards.pieces() + step);
  keys.finish();
  call.agreement().finish(failed);
  return std::move(backward).end();
}

}  // namespace quire::context_parallel
