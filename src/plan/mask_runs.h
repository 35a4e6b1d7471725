// MaskRuns: a block mask's runs of blocks as runs of keys, in the form the kernels walk. Every
// stored row is translated once, however many planes and rows share it. Plan layer.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/forward_problem.h"
#include "quire/block_mask.h"

namespace quire::plan {

class MaskRuns {
 public:
  /// Keys from kv_len on do not exist.
  MaskRuns(const BlockMask& mask, std::int64_t kv_len);

  /// What the queries of a row of blocks may see.
  kernels::KeyRuns row(std::int64_t plane, std::int64_t q_block) const;
  /// Keys in its runs.
  std::int64_t visible_keys(std::int64_t plane, std::int64_t q_block) const;

 private:
  std::uint32_t id(std::int64_t plane, std::int64_t q_block) const;

  BlockMask mask_;
  std::vector<std::int64_t> first_;  // [stored rows + 1], into runs_
  std::vector<kernels::KeyRun> runs_;
};

}  // namespace quire::plan
