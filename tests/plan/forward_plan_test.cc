// ForwardPlan over a layout that scatters keys: same bits as dense keys, whatever the spans; tasks
// and scratch.
#include "plan/forward_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "tests/support/attention_case.h"
#include "tests/support/same_bits.h"
#include "tests/support/scattered_layout.h"
#include "tests/support/slow_cpu.h"

namespace quire::plan {
namespace {

using testing::AttentionCase;
using testing::AttentionTensors;
using testing::ScatteredLayout;

TEST(ForwardPlan, ScatteredKeysGiveTheSameBits) {
  testing::FewerIfEmulated fewer(11);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t q_len : {2, 70}) {
      for (const std::int64_t span : {1, 7, 16, 100, 300}) {
        for (const bool masked : {false, true}) {
          if (fewer.leaves_out()) continue;
          AttentionCase c{.batch = 2,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .q_len = q_len,
                          .kv_len = 1300,
                          .head_dim = 24,
                          .v_head_dim = 32,
                          .q_dtype = dtype,
                          .k_dtype = dtype,
                          .v_dtype = dtype};
          if (masked)
            c.mask_mod = mods::sliding_window(2000, 900) & MaskMod::parse("kv_idx % 9 != 4");
          const AttentionTensors t(c, 11);
          const FlexAttentionOptions options = c.options();
          const Tensor dense = flex_attention(t.q, t.k, t.v, options);
          const auto layout = std::make_shared<ScatteredLayout>(1300, span, 5);
          const Tensor k = layout->scatter(t.k), v = layout->scatter(t.v);
          AttentionProblem problem = AttentionProblem::dense(t.q, t.k, t.v, options);
          problem.layout = layout;
          ForwardPlan plan(std::move(problem));
          Tensor out = Tensor::empty(dense.shape(), dtype);
          plan.run({.q = t.q, .k = k, .v = v, .out = out.view()});
          EXPECT_EQ(std::memcmp(out.data(), dense.data(),
                                static_cast<std::size_t>(out.numel()) * dtype_size(dtype)),
                    0)
              << c.to_string() << " spans of " << span;
        }
      }
    }
  }
}

// Few queries over more keys than caches hold, which are prefetched between scores, and the same
// heads one by one, which are not.
TEST(ForwardPlan, KeysFromMemoryGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* const rule : {"", "score", "mask"}) {
      const std::int64_t heads = dtype == DType::f32 ? 3 : 6;  // 26 MiB of keys and values
      AttentionCase c{.q_heads = heads,
                      .kv_heads = heads,
                      .q_len = 70,
                      .kv_len = 9000,
                      .head_dim = 128,
                      .v_head_dim = 128,
                      .q_dtype = dtype,
                      .k_dtype = dtype,
                      .v_dtype = dtype};
      if (rule == std::string("score"))
        c.score_mod = ScoreMod::parse("score + q_idx - kv_idx / 99");
      if (rule == std::string("mask")) c.mask_mod = MaskMod::parse("kv_idx % 300 > q_idx");
      const AttentionTensors t(c, 12);
      const Tensor all = flex_attention(t.q, t.k, t.v, c.options());
      for (std::int64_t h = 0; h < heads; ++h) {
        AttentionCase one = c;
        one.q_heads = one.kv_heads = 1;
        const auto head = [h](const ConstTensorView& view) { return view.slice(1, h, h + 1); };
        const Tensor alone = flex_attention(head(t.q), head(t.k), head(t.v), one.options());
        EXPECT_TRUE(testing::same_bits(head(all), alone)) << c.to_string() << " head " << h;
      }
    }
  }
}

// Short sequences, whose heads take what a rule shows from the head before, where it does not ask
// for the head or the batch, against every head alone. Some have several tiles of queries.
TEST(ForwardPlan, HeadsThatSeeTheSameGiveTheSameBits) {
  for (const std::int64_t q_len : {16, 33, 70, 200}) {
    for (const std::int64_t kv_len : {16, 50, 256, 300}) {
      for (const char* const rule :
           {"q_idx >= kv_idx", "(kv_idx + q_idx) % 5 != 3", "(kv_idx + q_idx) % 5 != {h}",
            "(kv_idx + q_idx) % 5 != {b}", "kv_idx >= q_idx + 7 * {h} - {b}"}) {
        AttentionCase c{.batch = 3,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .q_len = q_len,
                        .kv_len = kv_len,
                        .head_dim = 16,
                        .v_head_dim = 16};
        const auto parse = [rule](const std::string& b, const std::string& h) {
          return MaskMod::parse(
              fmt::format(fmt::runtime(rule), fmt::arg("b", b), fmt::arg("h", h)));
        };
        c.mask_mod = parse("b", "h");
        const AttentionTensors t(c, 13);
        const Tensor all = flex_attention(t.q, t.k, t.v, c.options());
        for (std::int64_t at = 0; at < c.batch * c.q_heads; ++at) {
          const std::int64_t b = at / c.q_heads, h = at % c.q_heads;
          AttentionCase one = c;
          one.batch = one.q_heads = one.kv_heads = 1;
          one.mask_mod = parse(std::to_string(b), std::to_string(h));
          const auto head = [b](const ConstTensorView& view, std::int64_t i) {
            return view.slice(0, b, b + 1).slice(1, i, i + 1);
          };
          const Tensor alone =
              flex_attention(head(t.q, h), head(t.k, h / 2), head(t.v, h / 2), one.options());
          EXPECT_TRUE(testing::same_bits(head(all, h), alone))
              << c.to_string() << " " << rule << " batch " << b << " head " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::plan
