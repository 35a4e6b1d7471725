// Steps and the same calls over dense keys. Tests only.
#include "tests/support/attend_case.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "tests/support/jagged_case.h"

namespace quire::testing {

AttendHarness::AttendHarness(const KVCacheOptions& options, std::uint64_t seed)
    : cache(options), random(seed) {
  for (TensorView pages : {cache.k_pages(0), cache.v_pages(0)}) {
    Tensor nan(pages.shape(), DType::f64);
    std::fill_n(nan.data_as<double>(), nan.numel(), std::numeric_limits<double>::quiet_NaN());
    const Tensor bits = nan.to(pages.dtype());
    std::memcpy(pages.data(), bits.data(),
                static_cast<std::size_t>(bits.numel()) * dtype_size(bits.dtype()));
  }
}

void AttendHarness::append(SequenceId sequence, std::int64_t count) {
  const KVCacheOptions& o = cache.options();
  const NewTokens step[] = {{sequence, count}};
  cache.append(step);
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    const KVLayerGroup& group = cache.groups()[static_cast<std::size_t>(cache.group_of(layer))];
    cache.write(layer, step,
                random_normal({count, group.kv_heads, group.head_dim}, group.dtype, random),
                random_normal({count, group.kv_heads, group.v_head_dim}, group.dtype, random));
  }
}

SequenceId AttendHarness::create(std::int64_t length) {
  const SequenceId sequence = cache.create();
  append(sequence, length);
  return sequence;
}

Tensor AttendHarness::dense(const ConstTensorView& pages, SequenceId sequence,
                            std::int64_t group) const {
  const SequenceView view = cache.view(sequence, group);
  Tensor made({1, pages.dim(1), view.length, pages.dim(3)}, DType::f64);
  const std::int64_t size = cache.options().page_size;
  for (std::int64_t h = 0; h < pages.dim(1); ++h)
    for (std::int64_t i = 0; i < view.length; ++i) {
      const std::int32_t page = view.pages[static_cast<std::size_t>(i / size)];
      for (std::int64_t d = 0; d < pages.dim(3) && page != kNoPage; ++d)
        made.at<double>({0, h, i, d}) = pages.load_float({page, h, i % size, d});
    }
  return made.to(pages.dtype());
}

namespace {

MaskMod rule_of(const AttendOptions& options) {
  if (options.mask_mod.has_value() && options.window > 0)
    return mods::sliding_window(options.window) & *options.mask_mod;
  if (options.mask_mod.has_value()) return *options.mask_mod;
  return options.window > 0 ? mods::sliding_window(options.window) : mods::causal();
}

}  // namespace

std::string different_from_alone(AttendHarness& harness, const std::vector<NewTokens>& step,
                                 std::int64_t q_heads, AttendOptions options) {
  const KVCacheOptions& o = harness.cache.options();
  std::int64_t tokens = 0;
  for (const NewTokens& one : step) tokens += one.count;
  const Tensor q = random_normal({tokens, q_heads, o.head_dim}, o.dtype, harness.random);
  AuxOutput aux;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  const Tensor out = attend(harness.cache, 0, step, q, options);
  const KVCache& cache = harness.cache;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::int64_t count = step[i].count, length = cache.length(step[i].sequence);
    if (count == 0) continue;
    const auto b = static_cast<std::int64_t>(i);
    const auto rows = [&](const ConstTensorView& view) {
      return view.slice(0, first, first + count).transpose(0, 1).unsqueeze(0);
    };
    // As entry b of a batch: mods may ask for b.
    const auto in_batch = [&](const ConstTensorView& view) {
      return view.expand({b + 1, view.dim(1), view.dim(2), view.dim(3)});
    };
    const Tensor k = harness.dense(cache.k_pages(0), step[i].sequence);
    const Tensor v = harness.dense(cache.v_pages(0), step[i].sequence);
    FlexAttentionOptions dense{.score_mod = options.score_mod, .enable_gqa = true};
    dense.block_mask = create_block_mask(rule_of(options), b + 1, q_heads, count, length,
                                         {.q_begin = length - count});
    AuxOutput dense_aux;
    dense.return_aux = options.return_aux;
    dense.aux = &dense_aux;
    const Tensor expected = flex_attention(in_batch(rows(q)), in_batch(k), in_batch(v), dense);
    const auto last = [b](const Tensor& tensor) { return tensor.view().slice(0, b, b + 1); };
    const std::string of = " of sequence " + std::to_string(i);
    if (!same_bits(rows(out), last(expected))) return "out" + of;
    if (!same_bits(rows(*aux.lse), last(*dense_aux.lse))) return "lse" + of;
    if (!same_bits(rows(*aux.max_scores), last(*dense_aux.max_scores))) return "max_scores" + of;
    first += count;
  }
  return "";
}

}  // namespace quire::testing
