// What each row of a decode item may see of a tile of keys: a bit per key, from the rows' lists of
// runs and, where these leave it open, the mask program. Kernels layer.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/attention_order.h"
#include "kernels/decode/decode.h"
#include "kernels/forward_problem.h"
#include "kernels/scratch_layout.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// list.from(key), found in a few steps if it is not far after `near`, a place in the list.
const int32_t* first_from(const KeyList& list, int64_t key, const int32_t* near) noexcept;

/// A place in the list of each row; where rows share one, only the first row's counts.
struct ListPlaces {
  const int32_t* of[kManyDecodeRows] = {};
};

class RowVisibility {
 public:
  RowVisibility(const ForwardCall& call, const QueryRow* rows, int row_count,
                ScratchLayout& layout);

  /// Goes on with other rows, as many as before. behind: what behind() was when they were last
  /// looked at.
  void turn_to(const QueryRow* rows, const ListPlaces& behind) noexcept;

  /// The first tile from `tile` on in which some run of some row lies; the largest number if none.
  int64_t next_tile(int64_t tile) const noexcept;

  /// Fills in what follows for the `keys` keys of a tile. Returns whether any row sees any.
  bool look(int64_t tile, int keys) noexcept;
  /// Writes the words and bits of a tile that look() left out because shared_keys() says it all.
  void fill() noexcept;

  bool all() const { return all_; }          // every row sees every key
  bool are_alike() const { return alike_; }  // all rows see the same keys
  /// A word per 64 keys of the tile; not filled in if all().
  const uint64_t* words(int row) const { return words_ + row * groups_; }
  bool sees(int row) const { return sees_ >> row & 1; }  // anything
  /// Keys that some row sees: of 64 of the tile, and of a unit.
  uint64_t any(int word) const { return any_[word]; }
  uint32_t unit(int unit) const {
    return static_cast<uint32_t>(any_[unit / 4] >> (unit % 4 * 16)) & 0xffffu;
  }

  /// A place near this tile in the list of the first row that chose.
  const int32_t* near() const { return near_; }
  /// Places of all rows, not far from the next tile.
  const ListPlaces& behind() const { return behind_; }
  /// How many keys of that list are in this tile, if these are all that any row sees and all rows
  /// see them; they begin at near(). Else negative.
  int shared_keys() const { return shared_keys_; }
  /// How many units they lie in.
  int shared_units() const { return shared_units_; }

  /// Of the mask program.
  const TileFault* fault() const { return runner_ ? &runner_->fault() : nullptr; }

 private:
  void learn_choices() noexcept;
  void keep_chosen(int64_t key, int keys) noexcept;
  bool look_at_shared(int64_t key, int keys) noexcept;
  void add_runs(int row, int64_t key, int keys) noexcept;
  void ask_mask(int64_t key, int keys) noexcept;

  const QueryRow* rows_;
  int row_count_;
  int groups_ = 0;
  bool everything_ = true;  // no row has a list
  bool chooses_ = false;    // some row made a choice
  bool shares_ = false;     // all rows made the same one, and nothing else hides keys
  // Where the last tile began in the first row's list. Tiles come in order, and rows mostly share
  // one list: a binary search for each would take longer than a tile's few keys.
  const int32_t* near_ = nullptr;
  ListPlaces behind_;
  int shared_keys_ = -1, shared_units_ = 0;
  bool all_ = false, alike_ = false;
  uint32_t sees_ = 0;
  uint64_t *words_, *asked_, *answers_;   // [rows][groups]
  int64_t *batches_, *heads_, *queries_;  // of the rows that ask
  uint64_t any_[kTileKeys / 64] = {};
  std::optional<TileRunner> runner_;
};

}  // namespace quire::kernels
