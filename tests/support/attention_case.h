// Attention calls for tests: random tensors of any dtype and strides, and a plain attention in f32
// whose error against f64 says how large ours may be. Tests only.
#pragma once
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/tensor.h"

namespace quire::testing {

/// How a [batch, heads, length, dim] tensor lies in memory.
enum class Order { kHeadsOutside, kHeadsInside, kDimOutside };

struct AttentionCase {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 16,
               v_head_dim = 16, kv_batch = 0;  // 0: as batch
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  Order order = Order::kHeadsOutside;
  double size = 1;  // of the elements of q and k
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};
  BlockSize block_size = {};
  std::optional<double> scale = {};
  std::int64_t q_begin = 0;

  std::string to_string() const;
  FlexAttentionOptions options() const;
};

struct AttentionTensors {
  Tensor q_memory, k_memory, v_memory;
  ConstTensorView q, k, v;

  AttentionTensors(const AttentionCase& shape, std::uint64_t seed);
};

/// Output and lse as f64, whatever they were computed in.
struct AttentionValues {
  Tensor out, lse, max_scores;
};

AttentionValues ours(const AttentionCase& shape, const AttentionTensors& tensors);
/// reference::attention.
AttentionValues exact(const AttentionCase& shape, const AttentionTensors& tensors);
/// Row by row in float: sums in order, std::exp.
AttentionValues naive(const AttentionCase& shape, const AttentionTensors& tensors);

/// The largest difference; infinite if one is not finite where the other is, or of another sign.
double largest_error(const Tensor& a, const Tensor& b);

/// The elements in order, rounded to f32.
std::vector<float> floats(const ConstTensorView& view);

/// A view with other strides over a copy.
ConstTensorView in_order(const Tensor& tensor, Order order, Tensor& memory);

}  // namespace quire::testing
