// Any numbers as offsets and lengths of a jagged batch: refused with an Error, or attention over it
// reads no value outside its sequences. Values are 1 inside and NaN in the holes.
#include <cmath>
#include <limits>
#include <optional>

#include "fuzz/targets.h"
#include "quire/error.h"
#include "quire/jagged.h"
#include "quire/mods.h"

namespace quire::fuzz {
namespace {

Tensor numbers(Input& input, std::int64_t count) {
  const DType dtype = input.below(2) == 0 ? DType::i32 : DType::i64;
  Tensor values({count}, DType::i64);
  for (std::int64_t i = 0; i < count; ++i) values.data_as<std::int64_t>()[i] = input.number();
  return values.to(dtype);
}

// 1 where a sequence is, NaN elsewhere.
Tensor values_of(std::int64_t total, const Tensor& offsets, const std::optional<Tensor>& lengths) {
  constexpr std::int64_t kHeads = 2, kDim = 3;
  Tensor values({total, kHeads, kDim}, DType::f32);
  auto* data = values.data_as<float>();
  std::fill(data, data + values.numel(), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t i = 0; i + 1 < offsets.numel(); ++i) {
    const std::int64_t begin = offsets.view().load_int({i});
    const std::int64_t length = lengths.has_value() ? lengths->view().load_int({i})
                                                    : offsets.view().load_int({i + 1}) - begin;
    if (begin < 0 || length < 0 || begin > total || length > total - begin) continue;
    std::fill_n(data + begin * kHeads * kDim, length * kHeads * kDim, 1.f);
  }
  return values;
}

}  // namespace

void jagged_offsets(Bytes bytes) {
  Input input(bytes);
  const std::int64_t sequences = input.below(6), total = input.below(64);
  const Tensor offsets = numbers(input, sequences + input.below(8) / 2 % 2 + 1);
  std::optional<Tensor> lengths;
  if (input.below(2) == 0) lengths = numbers(input, sequences + input.below(16) / 15);
  Jagged batch{.values = {}, .offsets = offsets};
  if (lengths.has_value()) batch.lengths = *lengths;
  try {
    // Before a subtraction of wild offsets: the library is asked first.
    const Tensor zeros({total, 2, 3}, DType::f32);
    batch.values = zeros;
    create_jagged_block_mask(mods::causal(), 1, batch, batch);
    const Tensor values = values_of(total, offsets, lengths);
    batch.values = values;
    const Tensor out = flex_attention(batch, batch, batch, {.mask_mod = mods::causal()});
    check(out.shape() == values.shape(), "as many tokens as q has");
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const float found = out.data_as<float>()[i];
      const bool inside = !std::isnan(values.data_as<float>()[i]);
      check(inside ? std::fabs(found - 1) < 1e-5f : found == 0, "no hole is read, none is written");
    }
  } catch (const Error&) {
  }
}

}  // namespace quire::fuzz
