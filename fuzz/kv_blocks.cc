// Any numbers as lists of blocks: BlockMask::from_kv_blocks refuses them with an Error, or makes a
// mask whose rows, index tensors and dense form agree.
#include <numeric>
#include <vector>

#include "fuzz/targets.h"
#include "quire/block_mask.h"
#include "quire/error.h"

namespace quire::fuzz {
namespace {

Tensor numbers(Input& input, const Shape& shape, DType dtype) {
  Tensor values(shape, DType::i64);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data_as<std::int64_t>()[i] = input.number();
  return values.to(dtype);
}

struct Lists {
  Tensor num_blocks, indices;
  Lists(Input& input, const Shape& leading, std::int64_t rows, std::int64_t columns) {
    Shape shape = leading;
    const DType dtype = input.below(2) == 0 ? DType::i32 : DType::i64;
    shape.push_back(rows);
    num_blocks = numbers(input, shape, dtype);
    shape.push_back(columns);
    indices = numbers(input, shape, dtype);
  }
  BlockLists view() const { return {num_blocks, indices}; }
};

// The runs of all rows; how many blocks they hold.
std::int64_t check_runs(const BlockMask& mask) {
  std::int64_t listed = 0;
  for (std::int64_t b = 0; b < mask.batch(); ++b)
    for (std::int64_t h = 0; h < mask.heads(); ++h)
      for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
        std::int64_t end = 0;
        for (const BlockRun& run : mask.runs(b, h, row)) {
          check(run.begin >= end && run.end() <= mask.kv_blocks(), "runs ascend inside the mask");
          end = run.end();
          listed += run.length;
        }
      }
  return listed;
}

void check_mask(const BlockMask& mask) {
  const std::int64_t listed = check_runs(mask);
  // Few blocks may stand in lengths that are huge: then tensors over all blocks are, too.
  constexpr std::int64_t kManyColumns = 1 << 20;
  if (mask.kv_blocks() > kManyColumns) return;
  const Tensor dense = mask.to_dense();
  const auto* values = dense.data_as<std::int32_t>();
  check(std::accumulate(values, values + dense.numel(), INT64_C(0)) == listed,
        "runs and the dense form agree");
  FromKvBlocksOptions options{.block_size = mask.block_size(), .seq_lengths = mask.seq_lengths()};
  const Tensor count = mask.kv_num_blocks(), which = mask.kv_indices();
  const auto full_count = mask.full_kv_num_blocks(), full_which = mask.full_kv_indices();
  if (full_count.has_value()) options.full = BlockLists{*full_count, *full_which};
  check(BlockMask::from_kv_blocks({count, which}, options).same_blocks(mask),
        "the index tensors of a mask make the same mask");
  check(mask.to_string().empty() == (mask.batch() * mask.heads() == 0), "every mask has a picture");
}

}  // namespace

void kv_blocks(Bytes bytes) {
  Input input(bytes);
  try {
    Shape leading;
    for (std::int64_t axis = input.below(4); axis > 0; --axis) leading.push_back(input.below(3));
    const std::int64_t rows = input.below(7), columns = input.below(7);
    const std::int64_t q_block = input.number(), kv_block = input.number();
    FromKvBlocksOptions options{.block_size = {q_block, kv_block}};
    const Lists lists(input, leading, rows, columns);
    if (input.below(2) == 0) options.seq_lengths = std::pair(input.number(), input.number());
    options.compute_q_blocks = input.below(2) == 0;
    // Wider or narrower than the others now and then.
    const Lists full(input, leading, rows, columns + (input.below(8) == 0 ? 1 : 0));
    if (input.below(2) == 0) options.full = full.view();
    check_mask(BlockMask::from_kv_blocks(lists.view(), options));
  } catch (const Error&) {
  }
}

}  // namespace quire::fuzz
