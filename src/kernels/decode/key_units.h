// The keys of a sequence as units of 16, with their addresses: a common step inside a span, else
// one address per key. Where keys are missing or must be converted, rows are gathered into scratch,
// unwanted ones as zeros. Positions count from the sequence's first key. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/coding/functions.h"
#include "kernels/decode/functions.h"
#include "kernels/forward_problem.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// All keys of a unit.
inline constexpr uint32_t kAllKeys = (1u << kUnitKeys) - 1;

/// How a call's keys, or its values, are read in compute type T.
template <class T>
DecodeKind unit_kind(const ForwardCall& call, bool values);

/// Whether keys are rotated as scores are taken, and not when they are gathered.
bool fuses_rope(const ForwardCall& call);

/// Addresses of the units of a tile; null where the keys of a unit lie in several spans or their
/// numbers are not contiguous: then `rows` has the address of each key. (Padding rows have that of
/// the last key.) For codes also the addresses of the scales of all keys.
struct PlacedUnits {
  const char* at[kTileUnits];
  const char* rows[kTileKeys];
  const char* scales[kTileKeys];
};

/// Finds the spans of keys that are asked for in nearly ascending order.
class SpanCursor {
 public:
  explicit SpanCursor(const KeySequence& keys) : keys_(keys) {}

  /// The span that holds `key`; takes a few steps if that is near the last one.
  const KeySpan& find(int64_t key) noexcept {
    const KeySpan* const last = keys_.spans + at_;
    if (key < last->begin) return search(key);
    if (key < last->end) return *last;
    if (at_ + 1 == keys_.span_count || key >= last[1].end) return search(key);
    ++at_;
    return last[1];
  }

 private:
  const KeySpan& search(int64_t key) noexcept;

  const KeySequence& keys_;
  int64_t at_ = 0;  // where the last key was found
};

/// The keys or the values of a sequence.
template <class T>
class UnitRows {
 public:
  UnitRows(const ForwardCall& call, const KeySequence& keys, bool values, ScratchLayout& layout);

  /// The kind of units that are found in place, or of gathered ones.
  DecodeKind kind(bool gathered = false) const {
    if (!gathered) return kind_;
    if (kind_ == DecodeKind::kIntegerCodes) return DecodeKind::kIntegerRows;
    return kind_ == DecodeKind::kI8 ? DecodeKind::kOwn : kind_;
  }

  /// By which codes become integers, of the tile whose scales were loaded.
  const IntegerRules& rules() const { return rules_; }

  /// Units that can be gathered before their memory is used again. Decoded and rotated ones are
  /// used at once: at 128 dims a unit takes 8 KiB, and several would leave L1 before they are read.
  int slots() const { return converted_ ? 1 : kSlots; }

  /// How many numbers of a row are read, and kept in sums: integers made of codes are padded with
  /// zeros.
  int columns() const;

  /// How many units further than kUnitsAhead to prefetch: integers are made of codes a tile of
  /// scales at a time.
  int further_ahead() const { return is_made_ ? kTileUnits - kUnitsAhead : 0; }

  /// For codes that are read in place, or become integers: loads the scales of `keys` keys from
  /// `key` on, for find and gather. Returns null for other rows, which need none.
  const float* load_scales(int64_t key, int keys) noexcept;

  /// Prefetches the scales of codes that do not hold their own, into L2.
  void prefetch_scales(int64_t key, int keys) noexcept;

  /// The scales that find and gather use, by place in the tile.
  const float* unit_scales() const { return unit_scales_; }

  /// The units of a tile: `keys` keys from `key` on.
  void place(int64_t key, int keys, PlacedUnits& units) noexcept;

  /// Places `count` keys of a list, counted from `key`, from the place `place` of a unit on; fills
  /// up the last unit with the last key.
  void place_list(int64_t key, const int16_t* keys, int count, int place,
                  PlacedUnits& units) noexcept;
  /// Prefetches the row of a key into L2.
  void prefetch(int64_t key) noexcept;

  /// What to prefetch for a placed unit.
  UnitAhead ahead(const PlacedUnits& units, int unit) const noexcept {
    if (units.at[unit] != nullptr) return {units.at[unit], step_, lines_, nullptr};
    return {nullptr, 0, rows_.column_step == 1 ? lines_ : 1, units.rows + unit * kUnitKeys};
  }

  /// Whether units of keys that lie anywhere (place_list) are all read in place.
  bool reads_lists() const {
    return side_by_side_ && !(converted_ && !is_direct_) && !is_made_ && !call_.pairs;
  }
  const float* scales_of(int unit) const {
    return is_direct_ ? unit_scales_ + unit * kUnitKeys : nullptr;
  }

  /// Sets `unit` to a placed unit that is read in place, with the keys whose bits are set in
  /// `wanted`. Returns false if it must be gathered.
  bool find(const PlacedUnits& units, uint32_t wanted, DecodeUnit& unit) const noexcept;
  /// The same for a unit that is gathered into a slot, and rotated if need be. `first`: the tile's
  /// first key.
  void gather(const PlacedUnits& units, uint32_t wanted, int slot, int64_t first,
              DecodeUnit& unit) noexcept;

  /// Bytes from key to key of what is found or gathered.
  ptrdiff_t step(bool gathered) const { return gathered ? slot_step_ : step_; }

 private:
  static constexpr int kSlots = 4;

  size_t slot_bytes(const ForwardCall& call) const;
  const char* address(const KeySpan& span, int64_t key) const noexcept;
  void place_scales(int64_t key, int keys, const char** scales) noexcept;
  void find_integers(int64_t key, int keys) noexcept;
  void gather_integers(const PlacedUnits& units, uint32_t wanted, const DecodeUnit& unit,
                       char* to) const noexcept;
  void decode(const char* from, const char* scale, int rows, char* to) const noexcept;
  void place_rows(int64_t key, int keys, const char** rows) noexcept;
  void copy_row(const char* from, char* to) const noexcept;
  void convert(const char* from, int rows, char* to) const noexcept;

  const ForwardCall& call_;
  const ForwardTensor& rows_;
  const RowCoding& coding_;
  const RowScales& scales_;
  const char* data_;
  bool values_;
  DecodeKind kind_;
  bool rotated_;       // keys of a call with rope, when they are gathered
  bool is_direct_;     // codes of found units are read in place: kI8, kCodePairs, kIntegers
  bool is_made_;       // codes that become integers: kIntegerCodes, when gathered kIntegerRows
  bool converted_;     // gathered in compute type
  bool side_by_side_;  // the numbers of a row are contiguous
  int columns_;
  ptrdiff_t element_, step_;  // bytes of a number, from key to key
  ptrdiff_t row_bytes_;       // of its numbers, if they are side by side
  int lines_;                 // of 64 bytes in a row
  ptrdiff_t slot_step_;       // bytes from row to row of a gathered unit
  char* slots_;
  float* unit_scales_;  // [kTileUnits][16], if is_direct_ or is_made_
  IntegerRules rules_;  // of the tile, if is_made_
  SpanCursor spans_, ahead_spans_;
};

}  // namespace quire::kernels
