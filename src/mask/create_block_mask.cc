// create_block_mask: checks arguments, finds the distinct planes and has each proved in bands of
// rows. Mask layer.
#include <algorithm>

#include "mask/block_prover.h"
#include "mask/mask_grid.h"
#include "mask/prove_planes.h"
#include "mask/size_limits.h"
#include "quire/block_mask.h"
#include "runtime/check_size.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

void check_arguments(std::int64_t batch, std::int64_t heads, const BlockGrid& grid,
                     const BlockMaskOptions& options) {
  check_size("create_block_mask", "batch", batch, 0, kMostBlocks);
  check_size("create_block_mask", "heads", heads, 0, kMostBlocks);
  check_size("create_block_mask", "q_len", grid.q_len, 0, kMostPosition);
  check_size("create_block_mask", "kv_len", grid.kv_len, 0, kMostPosition);
  check_size("create_block_mask", "q_begin", grid.q_begin, 0, kMostPosition);
  check_size("create_block_mask", "block_size.q", grid.size.q, 1, kMostPosition);
  check_size("create_block_mask", "block_size.kv", grid.size.kv, 1, kMostPosition);
  check_size("create_block_mask", "max_bytes", options.max_bytes, 0, INT64_MAX);
  check_size("create_block_mask", "the number of query blocks", grid.q_blocks(), 0, kMostBlocks);
  check_size("create_block_mask", "the number of key blocks", grid.kv_blocks(), 0, kMostBlocks);
}

}  // namespace

BlockMask create_block_mask(const MaskMod& mask_mod, std::int64_t batch, std::int64_t heads,
                            std::int64_t q_len, std::int64_t kv_len,
                            const BlockMaskOptions& options) {
  const FloatEnv float_env;
  const BlockGrid grid{options.q_begin, q_len, kv_len, options.block_size};
  check_arguments(batch, heads, grid, options);
  const BlockProver prover(mask_mod, batch, heads, grid);
  const std::shared_ptr<BlockMaskData> data = make_data(grid, batch, heads);
  data->separate_full_blocks = options.separate_full_blocks;
  data->mask_mod = mask_mod;
  const PlaneCounts planes{prover.depends_on_b() ? batch : std::min<std::int64_t>(batch, 1),
                           prover.depends_on_h() ? heads : std::min<std::int64_t>(heads, 1)};
  data->rows = std::make_shared<const BlockRows>(prove_planes(prover, grid, planes,
                                                              {.where = "create_block_mask",
                                                               .max_bytes = options.max_bytes,
                                                               .executor = options.executor,
                                                               .report = options.report}));
  return BlockMask(data);
}

}  // namespace quire
