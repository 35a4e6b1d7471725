// Executors that a caller brings: one that says it has no worker is refused by every call, before
// memory and work are divided by their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "quire/draw.h"
#include "quire/evaluate.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

class NoWorkers final : public Executor {
 public:
  void run(size_t n, Body body) override {
    for (size_t i = 0; i < n; ++i) body(i, 0);
  }
  size_t concurrency() const noexcept override { return 0; }
};

TEST(GivenExecutor, WithoutWorkersIsRefused) {
  NoWorkers none;
  const Tensor q({1, 2, 300, 8}, DType::f32), lse({1, 2, 300}, DType::f32);
  const Tensor values({7, 2, 8}, DType::f32), offsets = Tensor::from<std::int32_t>({0, 7}, {2});
  const Jagged batch{.values = values, .offsets = offsets};
  const MaskMod rule = MaskMod::parse("q_idx >= kv_idx");
  const auto refused = [](const auto& call) {
    testing::expect_error(ErrorKind::value, "[Executor] concurrency() must be at least 1; got 0",
                          call);
  };
  refused([&] { (void)flex_attention(q, q, q, {.executor = &none}); });
  refused([&] { (void)flex_attention(batch, batch, batch, {.executor = &none}); });
  refused([&] {
    (void)flex_attention_backward(
        BackwardInputs{.q = q, .k = q, .v = q, .out = q, .lse = lse, .d_out = q},
        {.forward = {.executor = &none}});
  });
  refused([&] { (void)scaled_dot_product_attention(q, q, q, {.executor = &none}); });
  refused([&] { (void)create_block_mask(rule, 1, 1, 300, 300, {.executor = &none}); });
  const BlockMask mask = create_block_mask(rule, 1, 1, 300, 300);
  refused([&] { (void)mask.kv_indices(&none); });
  refused([&] { (void)mask.q_num_blocks(&none); });
  refused([&] { (void)mask.to_dense(&none); });
  refused([&] { (void)create_mask(rule, 1, 1, 300, 300, {.executor = &none}); });
  refused([&] { (void)create_jagged_block_mask(rule, 2, batch, batch, {.executor = &none}); });
  refused([&] { (void)evaluate(rule, {1, 1, 300, 300}, {.executor = &none}); });
  refused([&] { (void)draw(ScoreMod::parse("score + 1"), 300, 300, {.executor = &none}); });
}

// Runs bodies in the calling thread and counts them.
class Counting final : public Executor {
 public:
  void run(size_t n, Body body) override {
    count += n;
    for (size_t i = 0; i < n; ++i) body(i, 0);
  }
  size_t concurrency() const noexcept override { return 1; }
  size_t count = 0;
};

TEST(GivenExecutor, MakesTheIndexTensorsOfAMask) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx + h"), 1, 2, 300, 300, {.block_size = 32});
  Counting mine;
  const Tensor indices = mask.kv_indices(&mine);
  EXPECT_GT(mine.count, 0U);
  const Tensor wanted = mask.kv_indices();
  ASSERT_EQ(indices.shape(), wanted.shape());
  EXPECT_TRUE(std::equal(indices.data_as<std::int32_t>(),
                         indices.data_as<std::int32_t>() + indices.numel(),
                         wanted.data_as<std::int32_t>()));
}

}  // namespace
}  // namespace quire
