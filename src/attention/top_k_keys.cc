// top_k_keys: checks its arguments and proves its mask; plan/top_k.h computes it. Attention layer.
#include "quire/top_k_keys.h"

#include <limits>

#include "attention/validate.h"
#include "mask/size_limits.h"
#include "plan/top_k.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

constexpr const char* kName = "top_k_keys";
constexpr std::int64_t kMostKeys = std::numeric_limits<std::int32_t>::max();

void check_tensors(const ConstTensorView& q, const ConstTensorView& k,
                   const ConstTensorView& weights) {
  attention::check_float(kName, "q", q.dtype());
  attention::check_float(kName, "k", k.dtype());
  attention::check_float(kName, "weights", weights.dtype());
  if (q.rank() != 4)
    fail(ErrorKind::value, kName, "q must be [batch, length, heads, dim]; got {}",
         to_string(q.shape()));
  if (k.rank() != 3)
    fail(ErrorKind::value, kName, "k must be [batch, length, dim]; got {}", to_string(k.shape()));
  if (k.dim(0) != q.dim(0) && k.dim(0) != 1)
    fail(ErrorKind::value, kName, "k must have the batch size of q, or 1; got {} and {}", k.dim(0),
         q.dim(0));
  attention::check_head_dims(kName, q.dim(3), k.dim(2));
  const Shape wanted{q.dim(0), q.dim(1), q.dim(2)};
  if (weights.shape() != wanted)
    fail(ErrorKind::value, kName, "weights must be {}, one for each query and head; got {}",
         to_string(wanted), to_string(weights.shape()));
  check_size(kName, "the dim of q and k", q.dim(3), 1, attention::kMostDims);
  check_size(kName, "the number of heads", q.dim(2), 1, attention::kMostCount);
  check_size(kName, "the length of k", k.dim(1), 0, kMostKeys);
}

std::optional<BlockMask> mask_of(const ConstTensorView& q, const ConstTensorView& k,
                                 const TopKKeysOptions& options) {
  const std::int64_t batch = q.dim(0), q_len = q.dim(1), kv_len = k.dim(1);
  if (options.mask_mod.has_value()) {
    if (options.block_mask.has_value())
      fail(ErrorKind::value, kName, "give mask_mod or block_mask, not both");
    check_size(kName, "q_begin", options.q_begin, 0, mask::kMostPosition);
    return create_block_mask(*options.mask_mod, batch, 1, q_len, kv_len,
                             {.q_begin = options.q_begin, .executor = options.executor});
  }
  if (!options.block_mask.has_value()) return std::nullopt;
  const BlockMask& mask = *options.block_mask;
  const auto [queries, keys] = mask.seq_lengths();
  if (queries != q_len || keys != kv_len)
    fail(ErrorKind::value, kName,
         "the block mask was made for {} queries and {} keys; got {} and {}", queries, keys, q_len,
         kv_len);
  if (mask.heads() != 1)
    fail(ErrorKind::value, kName, "the block mask must have 1 head; got {}", mask.heads());
  if (mask.batch() != 1 && mask.batch() < batch)
    fail(ErrorKind::value, kName, "the block mask must have a batch of 1 or {}; got {}", batch,
         mask.batch());
  return mask;
}

}  // namespace

Tensor top_k_keys(const ConstTensorView& q, const ConstTensorView& k,
                  const ConstTensorView& weights, std::int64_t top_k,
                  const TopKKeysOptions& options) {
  const FloatEnv float_env;
  check_tensors(q, k, weights);
  check_size(kName, "top_k", top_k, 1, kMostKeys);
  return plan::top_k({.q = q,
                      .k = k,
                      .weights = weights,
                      .top_k = top_k,
                      .mask = mask_of(q, k, options),
                      .executor = options.executor});
}

}  // namespace quire
