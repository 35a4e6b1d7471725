// Random backward calls without score mods: against f64, and by their bits on one thread and many.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>

#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/backward_case.h"
#include "tests/support/jagged_case.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

AttentionCase random_case(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16};
  const bool slow = kernels_are_slow();
  AttentionCase c;
  c.batch = 1 + below(random, 2);
  c.kv_heads = 1 + below(random, 2);
  c.q_heads = c.kv_heads * (1 + below(random, 3));
  c.q_len = 1 + below(random, chance(random, 50) ? 6 : 150);
  c.kv_len = 1 + below(random, chance(random, 30) && !slow ? 1200 : 200);
  c.head_dim = 1 + below(random, 40);
  c.v_head_dim = 1 + below(random, 40);
  c.q_dtype = kTypes[below(random, 4)];
  c.k_dtype = chance(random, 20) ? kTypes[below(random, 4)] : c.q_dtype;
  c.v_dtype = chance(random, 20) ? kTypes[below(random, 4)] : c.q_dtype;
  c.order = static_cast<Order>(below(random, 3));
  c.q_begin = chance(random, 50) ? 0 : below(random, 60);
  const Extents extents{c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len};
  if (chance(random, 70)) c.mask_mod = random_mask_mod(random, extents, /*floats=*/false);
  constexpr BlockSize kSizes[] = {128, 16, {7, 30}, {64, 1}, 300};
  c.block_size = kSizes[below(random, 5)];
  if (chance(random, 10)) c.scale = -0.2;
  return c;
}

double unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-21;
}

RC_GTEST_PROP(BackwardProperty, IsAsGoodAsNaive, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const AttentionCase c = random_case(random);
  RC_LOG() << c.to_string() << std::endl;
  const bool with_d_out = chance(random, 90);
  const BackwardTensors t(c, seed, with_d_out, !with_d_out || chance(random, 50));
  const GradientValues got = ours(c, t), want = exact(c, t), plain = naive(c, t);
  // Where a call is tiny, plain f32 may be exact by luck: a rounding is allowed.
  const auto is_good = [](const Tensor& x, const Tensor& y, const Tensor& z, DType dtype) {
    return largest_error(x, y) <= 2 * largest_error(z, y) + unit(dtype) * largest(y) + 2e-7;
  };
  RC_ASSERT(is_good(got.q, want.q, plain.q, c.q_dtype));
  RC_ASSERT(is_good(got.k, want.k, plain.k, c.k_dtype));
  RC_ASSERT(is_good(got.v, want.v, plain.v, c.v_dtype));
}

RC_GTEST_PROP(BackwardProperty, ThreadsDoNotMatter, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const AttentionCase c = random_case(random);
  RC_LOG() << c.to_string() << std::endl;
  const BackwardTensors t(c, seed);
  static const auto many = make_thread_pool(7);
  SerialExecutor serial;
  FlexAttentionBackwardOptions options{.forward = c.options()};
  options.forward.executor = &serial;
  const AttentionGradients one = flex_attention_backward(t.inputs(), options);
  options.forward.executor = many.get();
  const AttentionGradients other = flex_attention_backward(t.inputs(), options);
  RC_ASSERT(same_bits(*one.q, *other.q));
  RC_ASSERT(same_bits(*one.k, *other.k));
  RC_ASSERT(same_bits(*one.v, *other.v));
}

}  // namespace
}  // namespace quire::testing
