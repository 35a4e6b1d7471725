// Keys of a sequence as units of 16: where they lie if they lie together, else rows gathered into
// scratch, rows nobody wants as zeros. Positions count from the sequence's first key, whatever the
// spans. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/decode_functions.h"
#include "kernels/forward_functions.h"
#include "kernels/forward_problem.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// How a call's keys, or its values, are read in compute type T.
template <class T>
DecodeKind unit_kind(const ForwardCall& call, bool values);

/// Addresses of the units of a tile, null where a unit has keys in several spans, or numbers that
/// do not lie side by side.
struct PlacedUnits {
  const char* at[kTileUnits];
};

/// The keys or the values of a sequence.
template <class T>
class UnitRows {
 public:
  UnitRows(const ForwardCall& call, const KeySequence& keys, bool values, ScratchLayout& layout);

  DecodeKind kind() const { return kind_; }

  /// Units that can be gathered before their memory is used again.
  static constexpr int kSlots = 4;

  /// The units of a tile: `keys` keys from `key` on.
  void place(int64_t key, int keys, PlacedUnits& units) noexcept;

  /// Where a placed unit can be prefetched.
  UnitAhead ahead(const PlacedUnits& units, int unit) const noexcept {
    return {units.at[unit], step_, units.at[unit] == nullptr ? 0 : lines_};
  }

  /// A placed unit to be read where it lies, keys of which `wanted` has the bit; `key`: its first.
  /// False: it must be gathered.
  bool find(const PlacedUnits& units, int64_t key, uint32_t wanted, DecodeUnit& unit) noexcept;
  /// Asks for the rows of a unit that must be gathered.
  void prefetch(int64_t key, int keys) noexcept;
  /// The same, gathered into a slot.
  void gather(int64_t key, uint32_t wanted, int slot, DecodeUnit& unit) noexcept;

  /// Bytes from key to key of what is found or gathered.
  ptrdiff_t step(bool gathered) const { return gathered ? slot_step_ : step_; }

 private:
  const KeySpan& span_of(int64_t key) noexcept;
  const char* address(const KeySpan& span, int64_t key) const noexcept;
  void copy_row(const char* from, char* to) const noexcept;

  const ForwardCall& call_;
  const KeySequence& sequence_;
  const ForwardTensor& rows_;
  const char* data_;
  bool values_;
  bool converted_;  // gathered in compute type
  DecodeKind kind_;
  int columns_;
  ptrdiff_t element_, step_;  // bytes of a number, from key to key
  int lines_;                 // of 64 bytes in a row
  ptrdiff_t slot_step_;       // bytes from row to row of a gathered unit
  char* slots_;
  int64_t span_ = 0;  // where the last key was found
};

}  // namespace quire::kernels
