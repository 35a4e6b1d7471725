// Tiles of which rows see only a few keys, because they chose them, set aside until there are
// enough: their keys are placed next to each other, so that units of 16 are full and a call of a
// primitive takes many. Positions within a tile, which the order of arithmetic depends on, go
// along. Says where everything is; the walk (walk.h) runs the primitives. Kernels layer.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/decode/key_units.h"
#include "kernels/decode/row_visibility.h"
#include "kernels/decode/unit_run.h"
#include "kernels/forward_problem.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// What was set aside of a tile.
struct FewPart {
  int64_t tile = 0;
  int keys = 0;
  int early = 0;                   // keys in the first half of the tile
  int score = 0;                   // place of its first key's score
  int weight = 0;                  // and of its weight, a multiple of kUnitKeys
  const int32_t* near = nullptr;   // as RowVisibility::near() was
  const uint64_t* seen = nullptr;  // as FewSoftmaxArgs wants them
  int seen_step = 0;
};

template <class T>
class FewKeys {
 public:
  /// Whether a call's keys can be set aside: rows chose them, and neither does rotation on read
  /// want them at consecutive positions, nor are values multiplied in pairs of neighbours.
  static bool suits(const ForwardCall& call, const UnitRows<T>& keys, const UnitRows<T>& values) {
    const bool are_integers =
        keys.kind() == DecodeKind::kIntegers && values.kind() == DecodeKind::kIntegers;
    return call.chooses && call.rope.half == 0 && (!call.pairs || are_integers);
  }

  FewKeys(const ForwardCall& call, UnitRows<T>& keys, UnitRows<T>& values, int row_count,
          ScratchLayout& layout);

  /// Whether the keys of the tile that `visible` shows are few: they fill at most half as many
  /// units as they lie in.
  bool are_few(const RowVisibility& visible) const noexcept;
  bool is_full() const { return part_count_ == kSplitTiles || key_count_ >= kEnoughKeys; }
  bool is_empty() const { return part_count_ == 0; }
  /// Sets the seen keys of a tile aside. Only if they are few, and it is not full.
  void add(int64_t tile, const RowVisibility& visible) noexcept;
  void clear() noexcept { part_count_ = key_count_ = value_units_ = 0; }

  int key_count() const { return key_count_; }
  std::span<const FewPart> parts() const { return {parts_, static_cast<size_t>(part_count_)}; }
  /// Where in its tile each key of a part is.
  const int16_t* places(const FewPart& part) const { return places_ + part.score; }
  int units(const FewPart& part) const { return (part.keys + kUnitKeys - 1) / kUnitKeys; }

  /// All keys, for scores.
  UnitRun<T> scored() noexcept;
  /// The values of consecutive parts.
  UnitRun<T> valued(std::span<const FewPart> parts) noexcept;

  /// Rows of kDecodeScoreStep numbers, and where those of a part begin.
  T* scores() const { return scores_; }
  T* weights() const { return weights_; }
  T* scores(const FewPart& part, int row) const {
    return scores_ + row * kDecodeScoreStep + part.score;
  }
  T* weights(const FewPart& part, int row) const {
    return weights_ + row * kDecodeScoreStep + part.weight;
  }
  /// Copies numbers of a part's keys, next to each other, to their places in a tile, and back.
  void spread(const FewPart& part, const T* from, T* tile) const noexcept {
    for (int i = 0; i < part.keys; ++i) tile[places(part)[i]] = from[i];
  }
  void collect(const FewPart& part, const T* tile, T* to) const noexcept {
    for (int i = 0; i < part.keys; ++i) to[i] = tile[places(part)[i]];
  }

 private:
  /// Enough to fill units and to amortise calls; the keys and values of 64 tokens, and as many that
  /// are on their way, stay in L2.
  static constexpr int kEnoughKeys = 64;
  static constexpr int kMostFew = kTileKeys / 2;  // of a tile

  void keep_seen(FewPart& part, const RowVisibility& visible) noexcept;

  const ForwardCall& call_;
  UnitRows<T>&keys_, &values_;
  int row_count_;
  PlacedUnits placed_keys_, placed_values_;
  FewPart parts_[kSplitTiles];
  int part_count_ = 0, key_count_ = 0, value_units_ = 0;
  int16_t places_[kEnoughKeys + kMostFew];
  uint64_t* seen_;  // [kSplitTiles][rows][kMostFew / 64]
  WantedUnit wanted_[kMostWanted];
  DecodeUnit units_[kMostWanted];
  T *scores_, *weights_;
};

}  // namespace quire::kernels
