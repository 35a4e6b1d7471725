// The contract of bits of the backward pass: gradients depend neither on threads and executors, nor
// on strides, block sizes or the rest of a batch, and for f32 not on the ISA. Everything is
// compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/support/backward_case.h"
#include "tests/support/jagged_case.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

// Indices in any order, on several threads.
class ShufflingExecutor final : public Executor {
 public:
  explicit ShufflingExecutor(std::size_t threads) : threads_(threads) {}
  void run(std::size_t n, Body body) override {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::atomic<std::size_t> next{0};
    const auto work = [&](std::size_t worker) {
      for (std::size_t i = next++; i < n; i = next++) body(order[i], worker);
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < threads_; ++i) threads.emplace_back(work, i);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }
  std::size_t concurrency() const noexcept override { return threads_; }

 private:
  std::size_t threads_;
  std::mt19937 random_{7};
};

bool same_bits(const AttentionGradients& a, const AttentionGradients& b) {
  bool same = testing::same_bits(*a.q, *b.q) && testing::same_bits(*a.k, *b.k) &&
              testing::same_bits(*a.v, *b.v) && a.buffers.size() == b.buffers.size();
  for (std::size_t i = 0; same && i < a.buffers.size(); ++i)
    same = testing::same_bits(a.buffers[i].gradient, b.buffers[i].gradient);
  return same;
}

std::vector<AttentionCase> cases() {
  const Buffer table(std::vector<float>(2000, 0.1f), {.name = "table", .wants_gradient = true});
  const Buffer bias(std::vector<float>(4, 0.3f), {.name = "bias", .wants_gradient = true});
  const bool is_slow = kernels_are_slow();  // fewer queries, as many chunks of keys
  std::vector<AttentionCase> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    AttentionCase c{.batch = 2, .q_heads = 4, .kv_heads = 2, .kv_len = 900};
    c.q_len = is_slow ? 70 : 300;
    c.head_dim = 24;
    c.v_head_dim = 20;
    c.q_dtype = c.k_dtype = c.v_dtype = dtype;
    all.push_back(c);
    c.mask_mod = mods::causal_bottom_right(c.q_len, 900);
    all.push_back(c);
    c.score_mod = ScoreMod::parse("tanh(score) * bias[h] + table[q_idx - kv_idx + 900]",
                                  {{"table", table}, {"bias", bias}});
    all.push_back(c);
    c.mask_mod = MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx > 3)");
    all.push_back(c);
  }
  AttentionCase one{.kv_len = 1600, .head_dim = 64, .v_head_dim = 64};
  one.q_len = is_slow ? 100 : 700;
  all.push_back(one);
  one.mask_mod = mods::sliding_window(500, 300);
  all.push_back(one);
  return all;
}

TEST(BackwardBits, ThreadsAndExecutors) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.to_string());
    const BackwardTensors t(c, 5);
    FlexAttentionBackwardOptions options{.forward = c.options()};
    SerialExecutor serial;
    options.forward.executor = &serial;
    const AttentionGradients want = flex_attention_backward(t.inputs(), options);
    const auto two = make_thread_pool(2), many = make_thread_pool(16);
    ShufflingExecutor shuffled_one(1), shuffled(5);
    for (Executor* executor :
         std::vector<Executor*>{two.get(), many.get(), &shuffled_one, &shuffled}) {
      options.forward.executor = executor;
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(same_bits(want, flex_attention_backward(t.inputs(), options)))
            << executor->concurrency();
    }
  }
}

// Heads that share keys have sums of their own, which are added up one after the other. The scale
// is a power of two: it is multiplied in at the end.
TEST(BackwardBits, HeadsThatShareKeysAreAddedUp) {
  AttentionCase c{.batch = 1, .q_heads = 5, .kv_heads = 1, .kv_len = 450};
  c.q_len = 170;
  c.head_dim = 24;
  c.v_head_dim = 20;
  c.scale = 0.25;
  c.mask_mod = mods::causal_bottom_right(c.q_len, c.kv_len);
  const BackwardTensors t(c, 5);
  const AttentionGradients all = flex_attention_backward(t.inputs(), {.forward = c.options()});
  std::vector<float> d_k(static_cast<std::size_t>(all.k->numel()));
  std::vector<float> d_v(static_cast<std::size_t>(all.v->numel()));
  for (std::int64_t h = 0; h < c.q_heads; ++h) {
    BackwardInputs head = t.inputs();
    head.q = head.q.slice(1, h, h + 1);
    head.out = head.out.slice(1, h, h + 1);
    head.lse = head.lse.slice(1, h, h + 1);
    head.d_out = head.d_out->slice(1, h, h + 1);
    head.d_lse = head.d_lse->slice(1, h, h + 1);
    const AttentionGradients one = flex_attention_backward(head, {.forward = c.options()});
    for (std::size_t i = 0; i < d_k.size(); ++i) d_k[i] += one.k->data_as<float>()[i];
    for (std::size_t i = 0; i < d_v.size(); ++i) d_v[i] += one.v->data_as<float>()[i];
  }
  EXPECT_EQ(std::memcmp(d_k.data(), all.k->data(), d_k.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(d_v.data(), all.v->data(), d_v.size() * sizeof(float)), 0);
}

TEST(BackwardBits, StridesAndBlocks) {
  for (AttentionCase c : cases()) {
    if (c.score_mod) continue;  // its buffers' sums follow the tiles
    SCOPED_TRACE(c.to_string());
    const BackwardTensors want_tensors(c, 5);
    const AttentionGradients want =
        flex_attention_backward(want_tensors.inputs(), {.forward = c.options()});
    for (const Order order : {Order::kHeadsInside, Order::kDimOutside}) {
      c.order = order;
      const BackwardTensors t(c, 5);
      EXPECT_TRUE(same_bits(want, flex_attention_backward(t.inputs(), {.forward = c.options()})));
    }
    for (const BlockSize block : {BlockSize(16), BlockSize{7, 30}, BlockSize(300)}) {
      c.block_size = block;
      EXPECT_TRUE(same_bits(
          want, flex_attention_backward(want_tensors.inputs(), {.forward = c.options()})));
    }
  }
}

TEST(BackwardBits, ABatchEntryAlone) {
  for (AttentionCase c : cases()) {
    if (c.batch == 1) continue;
    SCOPED_TRACE(c.to_string());
    const BackwardTensors t(c, 5);
    const AttentionGradients all = flex_attention_backward(t.inputs(), {.forward = c.options()});
    AttentionCase one = c;
    one.batch = 1;
    BackwardInputs inputs = t.inputs();
    for (ConstTensorView* view :
         {&inputs.q, &inputs.k.data, &inputs.v.data, &inputs.out, &inputs.lse})
      *view = view->slice(0, 0, 1);
    inputs.d_out = inputs.d_out->slice(0, 0, 1);
    inputs.d_lse = inputs.d_lse->slice(0, 0, 1);
    const AttentionGradients alone = flex_attention_backward(inputs, {.forward = one.options()});
    EXPECT_TRUE(testing::same_bits(*alone.q, all.q->view().slice(0, 0, 1)));
    EXPECT_TRUE(testing::same_bits(*alone.k, all.k->view().slice(0, 0, 1)));
    EXPECT_TRUE(testing::same_bits(*alone.v, all.v->view().slice(0, 0, 1)));
  }
}

// Outputs of a plan may lie anywhere.
TEST(BackwardBits, StridesOfOutputs) {
  const AttentionCase c{
      .q_heads = 2, .kv_heads = 2, .q_len = 130, .kv_len = 500, .head_dim = 32, .v_head_dim = 16};
  const BackwardTensors t(c, 5);
  const AttentionGradients want = flex_attention_backward(t.inputs());
  AttentionBackwardPlan plan(AttentionShape::of(t.forward.q, t.forward.k, t.forward.v));
  const auto scattered = [](const Tensor& like, Tensor& memory) {
    memory = Tensor({like.dim(3), like.dim(2), like.dim(1), 2 * like.dim(0)}, like.dtype());
    return memory.view().slice(3, 0, 2 * like.dim(0), 2).permute({3, 2, 1, 0});
  };
  Tensor memory[3];
  const TensorView q = scattered(*want.q, memory[0]), k = scattered(*want.k, memory[1]),
                   v = scattered(*want.v, memory[2]);
  plan.run(t.inputs(), {.q = q, .k = k, .v = v});
  EXPECT_TRUE(testing::same_bits(*want.q, q));
  EXPECT_TRUE(testing::same_bits(*want.k, k));
  EXPECT_TRUE(testing::same_bits(*want.v, v));
}

TEST(BackwardBits, Isas) {
  for (const AttentionCase& c : cases()) {
    if (c.q_dtype != DType::f32) continue;
    SCOPED_TRACE(c.to_string());
    const BackwardTensors t(c, 5);
    const AttentionGradients want = flex_attention_backward(t.inputs(), {.forward = c.options()});
    for (const Isa isa : available_isas()) {
      if (kernels_are_slow() && c.kv_len > 1000) continue;
      const ScopedIsa scope(isa);
      EXPECT_TRUE(same_bits(want, flex_attention_backward(t.inputs(), {.forward = c.options()})))
          << isa_name(isa);
    }
  }
}

TEST(BackwardBits, ASequenceOfAJaggedBatchAlone) {
  for (const bool holes : {false, true}) {
    for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
      JaggedCase c{.q_lengths = {100, 1, 0, 7, 300}, .kv_lengths = {100, 900, 3, 0, 450}};
      c.q_heads = 4;
      c.q_order = order;
      c.k_order = holes ? JaggedOrder::kHeads : order;
      c.q_holes = c.kv_holes = holes;
      c.mask_mod = MaskMod::parse("kv_idx <= q_idx + 200");
      SCOPED_TRACE(c.to_string());
      const JaggedTensors t(c, 3);
      const JaggedResult forward = run_jagged(c, t);
      Tensor d_out = forward.out.clone(), d_lse = forward.lse.clone();
      std::mt19937_64 random(1);
      for (Tensor* tensor : {&d_out, &d_lse})
        for (std::int64_t i = 0; i < tensor->numel(); ++i)
          tensor->data_as<float>()[i] = static_cast<float>(random() >> 40) * 0x1p-23f - 1;
      const AttentionGradients all =
          flex_attention_backward(JaggedBackwardInputs{t.q.jagged, t.k.jagged, t.v.jagged,
                                                       forward.out, forward.lse, d_out, d_lse},
                                  {.forward = c.options()});
      const auto part = [](const ConstTensorView& values, JaggedOrder of, const JaggedValues& rows,
                           std::size_t i) {
        const ConstTensorView heads_first =
            of == JaggedOrder::kTokens ? values.transpose(0, 1) : values;
        return heads_first.unsqueeze(0).slice(2, rows.begin[i], rows.begin[i] + rows.length[i]);
      };
      for (std::size_t i = 0; i < c.q_lengths.size(); ++i) {
        FlexAttentionOptions options{.enable_gqa = true};
        options.block_mask =
            create_block_mask(*c.mask_mod, 1, c.q_heads, c.q_lengths[i], c.kv_lengths[i]);
        const AttentionGradients alone =
            flex_attention_backward(BackwardInputs{.q = part(t.q.jagged.values, order, t.q, i),
                                                   .k = part(t.k.jagged.values, c.k_order, t.k, i),
                                                   .v = part(t.v.jagged.values, c.v_order, t.v, i),
                                                   .out = part(forward.out, order, t.q, i),
                                                   .lse = part(forward.lse, order, t.q, i),
                                                   .d_out = part(d_out, order, t.q, i),
                                                   .d_lse = part(d_lse, order, t.q, i)},
                                    {.forward = options});
        EXPECT_TRUE(testing::same_bits(*alone.q, part(*all.q, order, t.q, i))) << i;
        EXPECT_TRUE(testing::same_bits(*alone.k, part(*all.k, c.k_order, t.k, i))) << i;
        EXPECT_TRUE(testing::same_bits(*alone.v, part(*all.v, c.v_order, t.v, i))) << i;
      }
      // Holes hold NaN in the inputs.
      for (const Tensor* gradient : {&*all.q, &*all.k, &*all.v})
        EXPECT_LT(largest(gradient->to(DType::f64)), 1e3);
    }
  }
}

}  // namespace
}  // namespace quire::testing
