// LastLook: what the last tile of queries saw of a tile of keys, for the next one: heads of a short
// sequence see the same keys unless the rule asks for the head, and evaluating a rule for 16 or 32
// queries takes longer than their softmax. Belongs to a thread and to one run. Kernels layer.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/prefill/prefill.h"
#include "kernels/prefill/tile_activity.h"

namespace quire::kernels {

class LastLook {
 public:
  LastLook() = default;
  /// mask: the program that decides, or null.
  explicit LastLook(const TileProgram* mask);

  void forget() noexcept { is_set_ = false; }

  /// Whether `tile` sees of these keys what was seen last.
  bool is_of(const QueryTile& tile, int64_t key, int rows) const noexcept;

  /// Copies the words and returns the activity.
  TileActivity repeat(uint64_t* words) const noexcept {
    std::copy_n(words_, rows_, words);
    return activity_;
  }

  /// Keeps what was found, if the tile's runs of keys are few.
  void keep(const QueryTile& tile, int64_t key, int rows, const uint64_t* words,
            const TileActivity& activity) noexcept;

 private:
  static constexpr int kMostRuns = 4;
  static bool are_few(const QueryTile& tile) noexcept;

  bool is_set_ = false;
  bool asks_b_ = true, asks_h_ = true;  // the rule depends on it
  int64_t b_ = 0, h_ = 0, q_idx_ = 0, key_ = 0;
  int rows_ = 0, queries_ = 0;
  int64_t run_count_ = 0;
  KeyRun runs_[kMostRuns];
  TileActivity activity_;
  uint64_t words_[kTileKeys];
};

}  // namespace quire::kernels
