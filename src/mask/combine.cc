// & | ~ of block masks. Kinds are combined run by run; a block is evaluated only if the kinds do
// not decide it: two partial blocks may have nothing in common, or together cover everything. Mask
// layer.
#include <algorithm>
#include <memory>
#include <vector>

#include "mask/block_mask_data.h"
#include "mask/block_prover.h"
#include "mask/mask_grid.h"
#include "mask/merge_runs.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

enum class Combination : std::uint8_t { kAnd, kOr };

// What follows from the kinds alone.
enum class Outcome : std::uint8_t { kEmpty, kPartial, kFull, kLook };

struct Operand {
  BlockKind kind;
  bool exact;  // partial blocks have visible and hidden elements; not true for lists chosen by data

  bool is_partial() const { return kind == BlockKind::kPartial; }
};

Outcome combine(Combination how, Operand a, Operand b) {
  const bool is_and = how == Combination::kAnd;
  // The kind that decides alone: empty for "and", full for "or".
  const auto decides = [&](BlockKind kind) {
    return is_and ? kind == BlockKind::kEmpty : is_full(kind);
  };
  if (decides(a.kind) || decides(b.kind)) return is_and ? Outcome::kEmpty : Outcome::kFull;
  if (!a.is_partial() && !b.is_partial()) return is_and ? Outcome::kFull : Outcome::kEmpty;
  if (a.is_partial() && b.is_partial()) return Outcome::kLook;
  return (a.is_partial() ? a : b).exact ? Outcome::kPartial : Outcome::kLook;
}

std::int64_t joint_size(const char* axis, std::int64_t a, std::int64_t b) {
  if (a == b || b == 1) return a;
  if (a == 1) return b;
  fail(ErrorKind::value, "BlockMask", "{} sizes {} and {} do not fit together", axis, a, b);
}

void check_same_blocks(const BlockMaskData& a, const BlockMaskData& b) {
  if (a.block_size != b.block_size) {
    fail(ErrorKind::value, "BlockMask", "block sizes must be equal; got ({}, {}) and ({}, {})",
         a.block_size.q, a.block_size.kv, b.block_size.q, b.block_size.kv);
  }
  if (a.q_len != b.q_len || a.kv_len != b.kv_len || a.q_begin != b.q_begin) {
    fail(ErrorKind::value, "BlockMask",
         "masks must be of the same queries and keys; got {} x {} from {} and {} x {} from {}",
         a.q_len, a.kv_len, a.q_begin, b.q_len, b.kv_len, b.q_begin);
  }
}

// A mask of the same sizes as `like`, with the rule `mod` for the whole mask, without blocks yet.
std::shared_ptr<BlockMaskData> without_blocks(const BlockMaskData& like, MaskMod mod,
                                              std::int64_t batch, std::int64_t heads) {
  auto data = std::make_shared<BlockMaskData>(like);
  data->shape = {batch, heads, like.q_len, like.kv_len};
  data->batch = batch;
  data->heads = heads;
  data->separate_full_blocks = true;
  data->has_q_blocks = true;
  data->chosen_by_data = false;
  data->mask_mod = std::move(mod);
  data->given.reset();
  return data;
}

// Builds the rows of blocks of the result one by one; `outcome(b, h, row, append)` visits the
// ranges of a row in order.
class Combiner {
 public:
  Combiner(const MaskMod& mod, const BlockMaskData& of, const BlockGrid& grid)
      : grid_(grid), prover_(mod, of.batch, of.heads, grid, Proof::kShapes), worker_(prover_) {}

  void append(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t begin,
              std::int64_t end, Outcome outcome) {
    switch (outcome) {
      case Outcome::kEmpty:
        return;
      case Outcome::kPartial:
        return append_run(row_, begin, end, BlockKind::kPartial);
      case Outcome::kFull:
        append_run(row_, begin, end - 1, grid_.full_kind(row, begin));
        return append_run(row_, end - 1, end, grid_.full_kind(row, end - 1));
      case Outcome::kLook:
        return prover_.prove(b, h, {row, row + 1, begin, end}, {&row_, 1}, worker_);
    }
  }

  template <class Row>
  std::shared_ptr<const BlockRows> run(std::int64_t batches, std::int64_t heads, const Row& row) {
    BlockRowsBuilder builder(batches, heads, grid_.q_blocks());
    for (std::int64_t b = 0; b < batches; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t r = 0; r < grid_.q_blocks(); ++r) {
          row_.clear();
          row(b, h, r);
          builder.add_row(row_);
        }
      }
    }
    prover_.throw_first_fault({&worker_, 1});
    return std::make_shared<const BlockRows>(builder.finish());
  }

 private:
  BlockGrid grid_;
  BlockProver prover_;
  BlockProver::Worker worker_;
  RunList row_;
};

BlockMask combine(Combination how, const BlockMask& left, const BlockMask& right) {
  const BlockMaskData &a = left.data(), &b = right.data();
  check_same_blocks(a, b);
  const BlockGrid grid = grid_of(a, "BlockMask");
  grid_of(b, "BlockMask");
  const std::int64_t batch = joint_size("batch", a.batch, b.batch);
  const std::int64_t heads = joint_size("head", a.heads, b.heads);
  const MaskMod mod = how == Combination::kAnd ? left.whole_mask_mod() & right.whole_mask_mod()
                                               : left.whole_mask_mod() | right.whole_mask_mod();
  auto data = without_blocks(a, mod, batch, heads);
  Combiner combiner(mod, *data, grid);
  data->rows = combiner.run(
      std::max(a.rows->batches(), b.rows->batches()), std::max(a.rows->heads(), b.rows->heads()),
      [&](std::int64_t at_b, std::int64_t at_h, std::int64_t row) {
        merge_runs(a.rows->row(a.rows->plane(at_b, at_h), row),
                   b.rows->row(b.rows->plane(at_b, at_h), row), grid.kv_blocks(),
                   [&](std::int64_t begin, std::int64_t end, BlockKind ka, BlockKind kb) {
                     const Outcome outcome =
                         combine(how, {ka, !a.chosen_by_data}, {kb, !b.chosen_by_data});
                     combiner.append(at_b, at_h, row, begin, end, outcome);
                   });
      });
  return BlockMask(std::move(data));
}

}  // namespace

BlockMask operator&(const BlockMask& a, const BlockMask& b) {
  const FloatEnv float_env;
  return combine(Combination::kAnd, a, b);
}

BlockMask operator|(const BlockMask& a, const BlockMask& b) {
  const FloatEnv float_env;
  return combine(Combination::kOr, a, b);
}

BlockMask operator~(const BlockMask& mask) {
  const FloatEnv float_env;
  const BlockMaskData& a = mask.data();
  const BlockGrid grid = grid_of(a, "BlockMask");
  const MaskMod mod = ~mask.whole_mask_mod();
  auto data = without_blocks(a, mod, a.batch, a.heads);
  Combiner combiner(mod, *data, grid);
  data->rows = combiner.run(
      a.rows->batches(), a.rows->heads(), [&](std::int64_t b, std::int64_t h, std::int64_t row) {
        const std::span<const BlockRun> runs = a.rows->row(a.rows->plane(b, h), row);
        merge_runs(runs, {}, grid.kv_blocks(),
                   [&](std::int64_t begin, std::int64_t end, BlockKind kind, BlockKind) {
                     const Outcome partial = a.chosen_by_data ? Outcome::kLook : Outcome::kPartial;
                     const Outcome outcome = is_full(kind)               ? Outcome::kEmpty
                                             : kind == BlockKind::kEmpty ? Outcome::kFull
                                                                         : partial;
                     combiner.append(b, h, row, begin, end, outcome);
                   });
      });
  return BlockMask(std::move(data));
}

}  // namespace quire
