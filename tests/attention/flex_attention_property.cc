// Random calls: against f64, and a row computed alone against the same row among others.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>

#include "formula/graph.h"
#include "quire/flex_attention.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/attention_case.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

// Whether a value adds over many elements: the reference would do so for every pair.
bool has_long_sum(const Formula& formula) {
  bool sums = false, is_long = false;
  for (formula::NodeId id = 0; id < static_cast<formula::NodeId>(formula.graph().size()); ++id) {
    const Op op = formula.graph()[id].op;
    sums |= op == Op::kSum || op == Op::kDot;
  }
  for (const Buffer& buffer : formula.buffers()) is_long |= element_count(buffer.shape()) > 200;
  return sums && is_long;
}

ScoreMod random_score_mod(std::mt19937_64& random, const Extents& extents) {
  switch (below(random, 5)) {
    case 0:
      return mods::alibi(extents.h);
    case 1:
      return mods::softcap(1 + static_cast<double>(below(random, 5)));
    case 2:
      return ScoreMod::parse("where((q_idx + kv_idx * 3 + h) % 5 == 0, -inf, score * 1.5)");
    default:
      break;
  }
  // The score plus something bounded made of the indices and random buffers.
  RandomFormulaOptions options;
  options.nodes = static_cast<int>(1 + below(random, 10));
  options.extents = extents;
  options.score = false;
  const RandomFormula made = random_formula(random, ValueType::kInt, options);
  if (has_long_sum(made.formula)) return mods::alibi(extents.h);
  NamedBuffers buffers;
  for (const Buffer& buffer : made.buffers) buffers.emplace_back(buffer.name(), buffer);
  const std::string text = made.formula.to_string();
  const std::size_t last = text.rfind(';');  // bindings stay in front
  const std::string value = last == std::string::npos ? text : text.substr(last + 1);
  const std::string front = last == std::string::npos ? "" : text.substr(0, last + 1);
  return ScoreMod::parse(front + "score + clamp((" + value + "), -9, 9) * 0.25", buffers);
}

AttentionCase random_case(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  const bool slow = kernels_are_slow();
  AttentionCase c;
  c.batch = 1 + below(random, 2);
  c.kv_heads = 1 + below(random, 2);
  c.q_heads = c.kv_heads * (1 + below(random, 3));
  c.q_len = 1 + below(random, chance(random, 50) ? 6 : 90);
  c.kv_len = 1 + below(random, chance(random, 20) && !slow ? 2200 : 300);
  c.head_dim = 1 + below(random, 40);
  c.v_head_dim = 1 + below(random, 40);
  c.q_dtype = kTypes[below(random, 5)];
  const bool mixed = chance(random, 20);
  c.k_dtype = mixed ? kTypes[below(random, 5)] : c.q_dtype;
  c.v_dtype = mixed ? kTypes[below(random, 5)] : c.q_dtype;
  c.order = static_cast<Order>(below(random, 3));
  c.q_begin = chance(random, 50) ? 0 : below(random, 60);
  const Extents extents{c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len};
  if (chance(random, 50)) c.score_mod = random_score_mod(random, extents);
  if (chance(random, 60)) c.mask_mod = random_mask_mod(random, extents, /*floats=*/false);
  if (c.mask_mod && has_long_sum(c.mask_mod->formula())) c.mask_mod = mods::causal();
  constexpr BlockSize kSizes[] = {128, 16, {7, 30}, {64, 1}, 300};
  c.block_size = kSizes[below(random, 5)];
  if (chance(random, 10)) c.scale = -0.2;
  return c;
}

double output_unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
}

RC_GTEST_PROP(FlexAttention, IsAsGoodAsNaive, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const AttentionCase c = random_case(random);
  RC_LOG() << c.to_string() << std::endl;
  const AttentionTensors tensors(c, seed);
  const AttentionValues got = ours(c, tensors), want = exact(c, tensors), plain = naive(c, tensors);
  const bool pairs =
      c.q_dtype == DType::bf16 && c.k_dtype == DType::bf16 && c.v_dtype == DType::bf16;
  const double extra = output_unit(c.q_dtype) + (pairs ? 0x1p-8 : 0);
  RC_ASSERT(largest_error(got.out, want.out) <= 2 * largest_error(plain.out, want.out) + extra);
  RC_ASSERT(largest_error(got.lse, want.lse) <= 2 * largest_error(plain.lse, want.lse) + 1e-5);
}

RC_GTEST_PROP(FlexAttention, ARowAloneHasTheSameBits, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const AttentionCase c = random_case(random);
  RC_LOG() << c.to_string() << std::endl;
  const AttentionTensors tensors(c, seed);
  FlexAttentionOptions options = c.options();
  const Tensor all = flex_attention(tensors.q, tensors.k, tensors.v, options);
  const std::int64_t row = below(random, c.q_len), end = row + 1 + below(random, c.q_len - row);
  options.q_begin = {c.q_begin + row};
  if (options.block_mask) options.block_mask = options.block_mask->rows(row, end);
  const Tensor some = flex_attention(tensors.q.slice(2, row, end), tensors.k, tensors.v, options);
  const Tensor same = contiguous(all.view().slice(2, row, end));
  RC_ASSERT(std::memcmp(same.data(), some.data(),
                        static_cast<std::size_t>(some.numel()) * dtype_size(some.dtype())) == 0);
}

}  // namespace
}  // namespace quire::testing
