// Checks a call and cuts it into attention over pieces. Context_parallel layer.
#include "context_parallel/call.h"

#include <bit>
#include <cmath>

#include "attention/validate.h"
#include "mask/rectangle.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::context_parallel {
namespace {

void check_group(const char* where, const Shards& shards, const Communicator& group) {
  if (shards.ranks() != group.size())
    fail(ErrorKind::value, where, "the shards are for {} ranks and the group has {}",
         shards.ranks(), group.size());
}

void check_mask(const char* where, const Shards& shards, const AttentionShape& shape,
                const BlockMask& mask) {
  const auto [q_len, kv_len] = mask.seq_lengths();
  if (q_len != shards.length() || kv_len != shards.length() || mask.q_begin() != 0)
    fail(ErrorKind::value, where,
         "the block mask must be of the whole sequence of {} tokens with itself; got {} queries "
         "from {} on and {} keys",
         shards.length(), q_len, mask.q_begin(), kv_len);
  const auto fits = [](std::int64_t of_mask, std::int64_t needed) {
    return of_mask == 1 || of_mask >= needed;
  };
  if (!fits(mask.batch(), shape.batch) || !fits(mask.heads(), shape.q_heads))
    fail(ErrorKind::value, where,
         "the block mask must have a batch of 1 or {} and 1 or {} heads; got {} and {}",
         shape.batch, shape.q_heads, mask.batch(), mask.heads());
  mask.mask_mod();  // throws for one that was taken away
}

// A hash of the mask's blocks and rule.
std::int64_t mask_hash(const std::optional<BlockMask>& mask, const PieceMap& map) {
  if (!mask.has_value()) return 0;
  std::int64_t hash = hash_bytes(nullptr, 0);
  const auto add = [&](std::int64_t value) {
    hash = hash_bytes(&value, sizeof(value), static_cast<std::uint64_t>(hash));
  };
  for (std::int64_t i = 0; i < map.pieces(); ++i) {
    std::int64_t seen = 0;
    for (std::int64_t j = 0; j < map.pieces(); ++j) seen += map.sees(i, j) ? 1 : 0;
    add(std::bit_cast<std::int64_t>(map.pairs(i)));
    add(seen);
  }
  const std::string rule = mask->mask_mod().to_string();
  return hash_bytes(rule.data(), rule.size(), static_cast<std::uint64_t>(hash));
}

}  // namespace

Call::Call(const char* where, const ConstTensorView& q, const ConstTensorView& k,
           const ConstTensorView& v, const Shards& shards, Communicator& group,
           const Options& options)
    : shards_(shards), group_(group), options_(options), agreement_(where, group) {
  agreement_.check([&] {
    check_group(where, shards, group);
    shape_ = attention::shape_of(where, q, k, v);
    if (shape_.q_len != shards.tokens(rank()) || shape_.kv_len != shards.tokens(rank()))
      fail(ErrorKind::value, where, "rank {} holds {} of {} tokens; got {} queries and {} keys",
           rank(), shards.tokens(rank()), shards.length(), shape_.q_len, shape_.kv_len);
    if (options.block_mask.has_value()) check_mask(where, shards, shape_, *options.block_mask);
    AttentionProblem alone = AttentionProblem::dense(
        shape_,
        {.score_mod = options.score_mod, .scale = options.scale, .enable_gqa = options.enable_gqa},
        where);
    attention::validate(alone, where);
    map_.emplace(options.block_mask, shards.length(), shards.piece_length());
    agreement_.add("the batch size", shape_.batch);
    agreement_.add("the number of query heads", shape_.q_heads);
    agreement_.add("the number of key heads", shape_.kv_heads);
    agreement_.add("the batch size of keys", shape_.kv_batch);
    agreement_.add("the head dim of query and key", shape_.head_dim);
    agreement_.add("the head dim of value", shape_.v_head_dim);
    agreement_.add("the dtype of query", static_cast<std::int64_t>(shape_.q_dtype));
    agreement_.add("the dtype of key", static_cast<std::int64_t>(shape_.k_dtype));
    agreement_.add("the dtype of value", static_cast<std::int64_t>(shape_.v_dtype));
    agreement_.add("the length of the sequence", shards.length());
    agreement_.add("the length of pieces", shards.piece_length());
    agreement_.add("the owners of pieces",
                   hash_bytes(shards.owners().data(), shards.owners().size() * sizeof(int)));
    agreement_.add("the scale", options.scale ? std::bit_cast<std::int64_t>(*options.scale) : 0);
    agreement_.add("the exchange", static_cast<std::int64_t>(options.exchange));
    agreement_.add("the score mod", options.score_mod ? options.score_mod->to_string() : "");
    agreement_.add("the block mask", mask_hash(options.block_mask, *map_));
  });
  needs_ = map_->needs(shards);
  for (std::int64_t i = 0; i < shards.pieces(); ++i)
    if (is_mine(i)) mine_.push_back(i);
}

std::int64_t Call::keys_end(std::int64_t piece) const {
  std::int64_t end = map_->pieces();
  while (end > 0 && !map_->sees(piece, end - 1)) --end;
  return end;
}

std::vector<LocalRange> Call::queries_of(std::int64_t piece) const {
  std::vector<LocalRange> found;
  std::int64_t last = -2;    // piece of queries that the open range ends with
  std::int64_t joined = -2;  // the last of this rank's pieces so far
  for (const std::int64_t mine : mine_) {
    const bool follows = joined == mine - 1;
    joined = mine;
    if (!follows) last = -2;
    if (!map_->sees(mine, piece)) continue;
    if (last >= 0) {  // no gap in the tokens since: the pieces in between join the range
      found.back().range.end = shards_.piece(mine).end;
    } else {
      found.push_back({shards_.piece(mine), shards_.place(mine)});
    }
    last = mine;
  }
  return found;
}

AttentionProblem Call::problem(const LocalRange& queries, std::int64_t piece) const {
  const Range keys = shards_.piece(piece);
  AttentionShape shape = shape_;
  shape.q_len = queries.range.size();
  shape.kv_len = keys.size();
  AttentionOptions options{
      .scale = options_.scale, .enable_gqa = options_.enable_gqa, .executor = options_.executor};
  if (options_.score_mod.has_value())
    options.score_mod = mask::shift_keys(*options_.score_mod, keys.begin);
  if (options_.block_mask.has_value())
    options.block_mask = mask::cut_rectangle(*options_.block_mask,
                                             {.q_begin = queries.range.begin,
                                              .q_end = queries.range.end,
                                              .kv_begin = keys.begin,
                                              .kv_end = keys.end},
                                             options_.executor);
  else
    options.q_begin = {queries.range.begin};
  return AttentionProblem::dense(shape, options, "context_parallel.flex_attention");
}

}  // namespace quire::context_parallel
