// Tests only.
#include "tests/support/jagged_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <random>

#include "quire/flex_attention.h"

namespace quire::testing {
namespace {

struct Slots {
  std::vector<std::int64_t> offsets;  // [n + 1]
  std::int64_t total = 0;
};

// With holes: 3 tokens before the first, 0 to 4 after each, 2 at the end.
Slots slots_of(const std::vector<std::int64_t>& lengths, bool holes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Slots slots{.offsets = {holes ? 3 : 0}};
  for (const std::int64_t length : lengths) {
    const auto hole = static_cast<std::int64_t>(holes ? random() % 5 : 0);
    slots.offsets.push_back(slots.offsets.back() + length + hole);
  }
  slots.total = slots.offsets.back() + (holes ? 2 : 0);
  return slots;
}

struct ValuesShape {
  std::int64_t heads, dim;
  JaggedOrder order;
  bool holes;
};

Tensor integers(const std::vector<std::int64_t>& values, bool i32) {
  return i32 ? Tensor::from(values).to(DType::i32) : Tensor::from(values);
}

JaggedValues make_values(const JaggedCase& c, const std::vector<std::int64_t>& lengths,
                         const ValuesShape& shape, std::uint64_t seed) {
  const Slots slots = slots_of(lengths, shape.holes, seed);
  const bool by_token = shape.order == JaggedOrder::kTokens;
  const std::int64_t first = by_token ? slots.total : shape.heads;
  const std::int64_t second = by_token ? shape.heads : slots.total;
  const std::int64_t step = c.wide_rows ? 2 : 1;
  Tensor numbers({first, second, shape.dim * step}, DType::f64);
  std::fill_n(numbers.data_as<double>(), numbers.numel(), std::numeric_limits<double>::quiet_NaN());
  std::mt19937_64 random(seed * 77 + 1);
  std::uniform_real_distribution<double> values(-2, 2);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t token = slots.offsets[i]; token < slots.offsets[i] + lengths[i]; ++token)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t d = 0; d < shape.dim; ++d)
          numbers.at<double>({by_token ? token : h, by_token ? h : token, d * step}) =
              values(random);
  }
  JaggedValues made{.memory = numbers.to(c.dtype),
                    .offsets = integers(slots.offsets, c.i32),
                    .lengths = integers(lengths, c.i32),
                    .jagged = {},
                    .begin = slots.offsets,
                    .length = lengths};
  made.begin.pop_back();
  made.jagged.values = std::as_const(made.memory).view().slice(2, 0, shape.dim * step, step);
  made.jagged.offsets = made.offsets;
  if (shape.holes) made.jagged.lengths = made.lengths;
  made.jagged.order = shape.order;
  return made;
}

// [1, heads, length, dim]; of stats: [1, heads, length].
ConstTensorView sequence_of(const ConstTensorView& values, JaggedOrder order, std::int64_t begin,
                            std::int64_t length) {
  return (order == JaggedOrder::kTokens ? values.transpose(0, 1) : values)
      .slice(1, begin, begin + length)
      .unsqueeze(0);
}

ConstTensorView sequence_of(const JaggedValues& values, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  return sequence_of(values.jagged.values, values.jagged.order, values.begin[at],
                     values.length[at]);
}

}  // namespace

std::string JaggedCase::to_string() const {
  return fmt::format(
      "q {} kv {} heads {}/{} dims {}/{} {} orders {}{}{} holes {}{}{}{} score {} mask {}",
      fmt::join(q_lengths, ","), fmt::join(kv_lengths, ","), q_heads, kv_heads, head_dim,
      v_head_dim, dtype_name(dtype), static_cast<int>(q_order), static_cast<int>(k_order),
      static_cast<int>(v_order), q_holes, kv_holes, wide_rows ? " wide" : "", i32 ? " i32" : "",
      score_mod ? score_mod->to_string() : "none", mask_mod ? mask_mod->to_string() : "none");
}

JaggedAttentionOptions JaggedCase::options() const {
  return {.score_mod = score_mod, .mask_mod = mask_mod, .enable_gqa = true};
}

JaggedTensors::JaggedTensors(const JaggedCase& c, std::uint64_t seed)
    : q(make_values(c, c.q_lengths, {c.q_heads, c.head_dim, c.q_order, c.q_holes}, seed + 1)),
      k(make_values(c, c.kv_lengths, {c.kv_heads, c.head_dim, c.k_order, c.kv_holes}, seed + 2)),
      v(make_values(c, c.kv_lengths, {c.kv_heads, c.v_head_dim, c.v_order, c.kv_holes}, seed + 3)) {
}

JaggedResult run_jagged(const JaggedCase& c, const JaggedTensors& t, Executor* executor) {
  AuxOutput aux;
  JaggedAttentionOptions options = c.options();
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  options.executor = executor;
  Tensor out = flex_attention(t.q.jagged, t.k.jagged, t.v.jagged, options);
  return {out, *aux.lse, *aux.max_scores};
}

JaggedResult run_alone(const JaggedCase& c, const JaggedTensors& t, std::int64_t i) {
  const std::int64_t batch = c.asks_for_b ? i + 1 : 1;  // the last entry has b = i
  const auto one = [&](const JaggedValues& values) {
    const ConstTensorView view = sequence_of(values, i);
    return view.expand({batch, view.dim(1), view.dim(2), view.dim(3)});
  };
  const ConstTensorView q = one(t.q), k = one(t.k), v = one(t.v);
  AuxOutput aux;
  FlexAttentionOptions options{.score_mod = c.score_mod, .enable_gqa = true};
  if (c.mask_mod) {
    options.block_mask = create_block_mask(*c.mask_mod, batch, c.q_heads, q.dim(2), k.dim(2));
  }
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  const Tensor out = flex_attention(q, k, v, options);
  const auto last = [&](const Tensor& all) {
    return contiguous(all.view().slice(0, batch - 1, batch));
  };
  return {last(out), last(*aux.lse), last(*aux.max_scores)};
}

JaggedResult part_of(const JaggedResult& all, const JaggedCase& c, const JaggedTensors& t,
                     std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  const auto part = [&](const Tensor& tensor) {
    return contiguous(sequence_of(tensor, c.q_order, t.q.begin[at], t.q.length[at]));
  };
  return {part(all.out), part(all.lse), part(all.max_scores)};
}

bool same_bits(const JaggedResult& a, const JaggedResult& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) &&
         same_bits(a.max_scores, b.max_scores);
}

std::int64_t first_different(const JaggedResult& all, const JaggedCase& c, const JaggedTensors& t) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(c.q_lengths.size()); ++i)
    if (!same_bits(part_of(all, c, t, i), run_alone(c, t, i))) return i;
  return -1;
}

}  // namespace quire::testing
