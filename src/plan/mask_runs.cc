// Converts runs of blocks to runs of keys; adjacent runs of one kind are joined. Plan layer.
#include "plan/mask_runs.h"

#include <algorithm>

#include "mask/block_rows.h"

namespace quire::plan {

MaskRuns::MaskRuns(const BlockMask& mask, std::int64_t kv_len) : mask_(mask), first_{0} {
  const mask::BlockRows& rows = mask_.block_rows();
  const std::int64_t size = mask_.block_size().kv;
  first_.reserve(static_cast<std::size_t>(rows.stored_rows()) + 1);
  runs_.reserve(rows.stored_runs());
  for (std::int64_t id = 0; id < rows.stored_rows(); ++id) {
    const std::int64_t begin_of_row = first_.back();
    for (const BlockRun& run : rows.stored_row(static_cast<std::uint32_t>(id))) {
      const std::int64_t begin = run.begin * size, end = std::min(run.end() * size, kv_len);
      const bool full = run.kind != BlockKind::kPartial;
      if (begin >= end) continue;
      const bool joins = static_cast<std::int64_t>(runs_.size()) > begin_of_row &&
                         runs_.back().end == begin && runs_.back().full == full;
      if (joins)
        runs_.back().end = end;
      else
        runs_.push_back({begin, end, full});
    }
    first_.push_back(static_cast<std::int64_t>(runs_.size()));
  }
}

std::uint32_t MaskRuns::id(std::int64_t plane, std::int64_t q_block) const {
  return mask_.block_rows().row_id(plane, q_block);
}

kernels::KeyRuns MaskRuns::row(std::int64_t plane, std::int64_t q_block) const {
  const std::size_t at = id(plane, q_block);
  return {runs_.data() + first_[at], first_[at + 1] - first_[at]};
}

std::int64_t MaskRuns::visible_keys(std::int64_t plane, std::int64_t q_block) const {
  const kernels::KeyRuns runs = row(plane, q_block);
  std::int64_t keys = 0;
  for (std::int64_t i = 0; i < runs.count; ++i) keys += runs.runs[i].end - runs.runs[i].begin;
  return keys;
}

}  // namespace quire::plan
