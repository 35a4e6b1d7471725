// Checks blocks against lengths. Mask layer.
#include "mask/mask_grid.h"

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mask {

BlockGrid grid_of(const BlockMaskData& data, const char* where) {
  const BlockGrid grid{data.q_begin, data.q_len, data.kv_len, data.block_size};
  if (data.q_blocks != grid.q_blocks() || data.kv_blocks != grid.kv_blocks()) {
    fail(ErrorKind::value, where,
         "the mask has {} x {} blocks where its lengths {} x {} have {} x {}; rows(q_begin, q_end) "
         "takes part of a mask and keeps its positions",
         data.q_blocks, data.kv_blocks, data.q_len, data.kv_len, grid.q_blocks(), grid.kv_blocks());
  }
  return grid;
}

std::shared_ptr<BlockMaskData> make_data(const BlockGrid& grid, std::int64_t batch,
                                         std::int64_t heads) {
  auto data = std::make_shared<BlockMaskData>();
  data->shape = {batch, heads, grid.q_len, grid.kv_len};
  data->batch = batch;
  data->heads = heads;
  data->q_len = grid.q_len;
  data->kv_len = grid.kv_len;
  data->q_begin = grid.q_begin;
  data->block_size = grid.size;
  data->q_blocks = grid.q_blocks();
  data->kv_blocks = grid.kv_blocks();
  return data;
}

}  // namespace quire::mask
