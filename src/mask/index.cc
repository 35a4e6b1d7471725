// BlockMask::index: selects batches, heads and query blocks. Mask layer.
#include <algorithm>
#include <cstring>
#include <vector>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

using namespace mask;

namespace {

constexpr const char* kIndex = "BlockMask::index";

// The positions selected along one axis.
struct Taken {
  std::vector<std::int64_t> positions;
  bool all = false;  // the whole axis

  std::int64_t count() const { return static_cast<std::int64_t>(positions.size()); }
};

std::int64_t checked(std::int64_t position, std::int64_t size, const char* axis) {
  if (position < -size || position >= size) {
    fail(ErrorKind::index, kIndex, "{} {} is outside an axis of {}", axis, position, size);
  }
  return position < 0 ? position + size : position;
}

// Python's slices: negative ends count from the end, and ends outside are clamped.
std::vector<std::int64_t> slice_positions(const BlockSlice& slice, std::int64_t size,
                                          const char* axis) {
  if (slice.step < 1) {
    fail(ErrorKind::value, kIndex, "the step of a slice must be at least 1; got {} for {}",
         slice.step, axis);
  }
  const auto clamped = [&](std::int64_t end) {
    return std::clamp<std::int64_t>(end < 0 ? end + size : end, 0, size);
  };
  const std::int64_t start = clamped(slice.start.value_or(0));
  const std::int64_t stop = clamped(slice.stop.value_or(size));
  std::vector<std::int64_t> positions;
  for (std::int64_t p = start; p < stop; p += slice.step) {
    positions.push_back(p);
    if (slice.step > size) break;  // also keeps p + step from overflowing
  }
  return positions;
}

Taken take(const BlockIndex& index, std::int64_t size, const char* axis) {
  Taken taken;
  if (const auto* slice = std::get_if<BlockSlice>(&index)) {
    taken.positions = slice_positions(*slice, size, axis);
    taken.all = taken.count() == size;
  } else if (const auto* position = std::get_if<std::int64_t>(&index)) {
    taken.positions = {checked(*position, size, axis)};
    taken.all = size == 1;
  } else {
    for (const std::int64_t one : std::get<std::vector<std::int64_t>>(index))
      taken.positions.push_back(checked(one, size, axis));
  }
  return taken;
}

struct TakenAxes {
  Taken b, h, q_block;
};

// An axis that is stored once stays so: all its positions are equal.
Taken stored_positions(const Taken& taken, std::int64_t stored) {
  if (stored != 1 || taken.positions.empty()) return taken;
  return {{0}, true};
}

std::shared_ptr<const BlockRows> take_rows(const std::shared_ptr<const BlockRows>& rows,
                                           const TakenAxes& taken) {
  const Taken b = stored_positions(taken.b, rows->batches());
  const Taken h = stored_positions(taken.h, rows->heads());
  if (b.all && h.all && taken.q_block.all) return rows;
  BlockRowsBuilder builder(b.count(), h.count(), taken.q_block.count());
  RunList runs;
  for (const std::int64_t batch : b.positions) {
    for (const std::int64_t head : h.positions) {
      const std::int64_t plane = rows->plane(batch, head);
      for (const std::int64_t row : taken.q_block.positions) {
        const std::span<const BlockRun> all = rows->row(plane, row);
        if (taken.q_block.all) {
          builder.add_row(all);
          continue;
        }
        // In its new place a row may be cut off differently, or not at all.
        runs.clear();
        for (const BlockRun& run : all) {
          append_run(runs, run.begin, run.end(),
                     run.kind == BlockKind::kFullToEdge ? BlockKind::kPartial : run.kind);
        }
        builder.add_row(runs);
      }
    }
  }
  return std::make_shared<const BlockRows>(builder.finish());
}

// From a tensor [batch, heads, q_blocks, ...] (leading axes of size 1 may be missing).
Tensor take_tensor(const Tensor& from, const BlockMaskData& data, const TakenAxes& taken,
                   bool has_width) {
  const std::int64_t width = has_width ? from.dim(-1) : 1;
  const std::size_t row_bytes = width * dtype_size(from.dtype());
  Shape shape{taken.b.count(), taken.h.count(), taken.q_block.count()};
  std::int64_t bytes = row_bytes;
  for (const std::int64_t size : shape) bytes = saturating_product(bytes, size);
  require_memory(kIndex, "the lists of blocks", bytes);
  if (has_width) shape.push_back(width);
  Tensor result = Tensor::empty(shape, from.dtype());
  auto* out = static_cast<std::byte*>(result.data());
  for (const std::int64_t b : taken.b.positions) {
    for (const std::int64_t h : taken.h.positions) {
      for (const std::int64_t row : taken.q_block.positions) {
        const std::int64_t at = (b * data.heads + h) * data.q_blocks + row;
        std::memcpy(out, static_cast<const std::byte*>(from.data()) + std::size_t(at) * row_bytes,
                    row_bytes);
        out += row_bytes;
      }
    }
  }
  return result;
}

GivenLists take_given(const BlockMaskData& data, const TakenAxes& taken) {
  const GivenLists& given = *data.given;
  GivenLists result{take_tensor(given.kv_num_blocks, data, taken, false),
                    take_tensor(given.kv_indices, data, taken, true),
                    {},
                    {},
                    given.are_padded};
  if (given.full_kv_num_blocks.has_value()) {
    result.full_kv_num_blocks = take_tensor(*given.full_kv_num_blocks, data, taken, false);
    result.full_kv_indices = take_tensor(*given.full_kv_indices, data, taken, true);
  }
  return result;
}

}  // namespace

BlockMask BlockMask::index(const BlockIndex& b, const BlockIndex& h,
                           const BlockIndex& q_block) const {
  const FloatEnv float_env;
  const TakenAxes taken{take(b, data_->batch, "batch"), take(h, data_->heads, "head"),
                        take(q_block, data_->q_blocks, "query block")};
  auto data = std::make_shared<BlockMaskData>(*data_);
  data->batch = taken.b.count();
  data->heads = taken.h.count();
  data->q_blocks = taken.q_block.count();
  data->shape = {data->batch, data->heads, data->q_len, data->kv_len};
  data->mask_mod.reset();
  data->chosen_by_data = true;  // no rule says any longer which blocks there are
  data->rows = take_rows(data_->rows, taken);
  if (data_->given.has_value()) data->given = take_given(*data_, taken);
  return BlockMask(std::move(data));
}

}  // namespace quire
