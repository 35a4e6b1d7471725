// Counts the bytes of a call, piece by piece. Context_parallel layer.
#include "context_parallel/traffic.h"

#include "context_parallel/head_fields.h"
#include "runtime/float_env.h"

namespace quire::context_parallel {
namespace {

// Tokens whose keys are sent, once for each rank that needs them.
std::int64_t tokens_received(const Shards& shards, const PieceMap& map) {
  const std::vector<std::vector<bool>> needs = map.needs(shards);
  std::int64_t tokens = 0;
  for (int rank = 0; rank < shards.ranks(); ++rank)
    for (std::int64_t i = 0; i < shards.pieces(); ++i)
      if (shards.owners()[static_cast<std::size_t>(i)] != rank &&
          needs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)])
        tokens += shards.piece(i).size();
  return tokens;
}

std::int64_t key_bytes(const AttentionShape& shape) {
  return shape.kv_batch * shape.kv_heads *
         (shape.head_dim * std::int64_t(dtype_size(shape.k_dtype)) +
          shape.v_head_dim * std::int64_t(dtype_size(shape.v_dtype)));
}

Traffic by_keys(const Shards& shards, const PieceMap& map, const AttentionShape& shape) {
  const std::int64_t tokens = tokens_received(shards, map);
  const std::int64_t gradients = shape.kv_batch * shape.kv_heads *
                                 (shape.head_dim + shape.v_head_dim) *
                                 std::int64_t(dtype_size(shape.compute_type()));
  return {.forward = tokens * key_bytes(shape),
          .backward = tokens * (key_bytes(shape) + gradients)};
}

std::int64_t bytes_of(const HeadFields& fields, std::int64_t tokens) {
  std::size_t bytes = 0;
  for (const TokenField& field : fields.there) bytes += field.bytes(tokens);
  for (const TokenField& field : fields.back) bytes += field.bytes(tokens);
  return static_cast<std::int64_t>(bytes);
}

Traffic by_heads(const Shards& shards, const AttentionShape& shape) {
  Traffic sum;
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    const std::int64_t heads = HeadRange::of(rank, shards.ranks(), shape.kv_heads).size();
    for (std::int64_t i = 0; i < shards.pieces(); ++i) {
      if (shards.owners()[static_cast<std::size_t>(i)] == rank) continue;
      sum.forward += heads * bytes_of(forward_fields(shape), shards.piece(i).size());
      sum.backward += heads * bytes_of(backward_fields(shape), shards.piece(i).size());
    }
  }
  return sum;
}

bool heads_balance(const Shards& shards, const AttentionShape& shape,
                   const std::optional<BlockMask>& mask) {
  return shape.kv_heads % shards.ranks() == 0 && (!mask.has_value() || mask->heads() == 1);
}

}  // namespace

HeadFields forward_fields(const AttentionShape& of) {
  const std::int64_t group = of.q_heads / of.kv_heads;
  return {.there = {{of.batch, group, of.head_dim, of.q_dtype},
                    {of.kv_batch, 1, of.head_dim, of.k_dtype},
                    {of.kv_batch, 1, of.v_head_dim, of.v_dtype}},
          .back = {{of.batch, group, of.v_head_dim, of.q_dtype},
                   {of.batch, group, 1, of.compute_type()}}};
}

HeadFields backward_fields(const AttentionShape& of) {
  HeadFields made = forward_fields(of);
  const std::vector<TokenField> results = made.back;  // out and lse
  made.back = made.there;                             // gradients of q, k and v
  made.there.insert(made.there.end(), results.begin(), results.end());
  made.there.push_back(results[0]);  // d_out
  return made;
}

Exchange choose_exchange(Exchange asked, const std::optional<BlockMask>& mask, const Shards& shards,
                         const PieceMap& map, const AttentionShape& shape, Pass pass) {
  if (asked != Exchange::kLeast) return asked;
  if (!heads_balance(shards, shape, mask)) return Exchange::kKeys;
  const Traffic keys = by_keys(shards, map, shape), heads = by_heads(shards, shape);
  const bool is_less =
      pass == Pass::kForward ? heads.forward < keys.forward : heads.backward < keys.backward;
  return is_less ? Exchange::kHeads : Exchange::kKeys;
}

Traffic traffic(const Shards& shards, const std::optional<BlockMask>& mask,
                const AttentionShape& shape, Exchange exchange) {
  const FloatEnv float_env;
  const PieceMap map(mask, shards.length(), shards.piece_length());
  const auto chosen = [&](Pass pass) {
    return choose_exchange(exchange, mask, shards, map, shape, pass) == Exchange::kHeads;
  };
  const Traffic keys = by_keys(shards, map, shape), heads = by_heads(shards, shape);
  return {.forward = chosen(Pass::kForward) ? heads.forward : keys.forward,
          .backward = chosen(Pass::kBackward) ? heads.backward : keys.backward,
          .gathering = std::int64_t{shards.ranks() - 1} * shards.length() * key_bytes(shape)};
}

}  // namespace quire::context_parallel
