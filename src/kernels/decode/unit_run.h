// Hands units of keys to a primitive of the decode kernel, in calls as long as possible: within a
// call all are found in place or all gathered, and memory for gathered units is limited. Kernels
// layer.
#pragma once
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/decode/functions.h"
#include "kernels/decode/key_units.h"

namespace quire::kernels {

/// Keys of a placed unit, one bit each, the chain of values they belong to, and which entry of
/// `ahead` the unit itself is. Two may be parts of one unit, where a chain ends within it.
struct WantedUnit {
  int place = 0;
  uint32_t keys = 0;
  int chain = 0;
  int ahead = 0;
};

/// At most this many units in a run: those of a tile, and some that are cut in two.
inline constexpr int kMostWanted = 2 * kTileUnits;

template <class T>
struct UnitRun {
  UnitRows<T>& rows;
  const PlacedUnits& placed;
  int64_t first_key = 0;               // of the tile, for rotation
  const UnitAhead* ahead = nullptr;    // as UnitScoresArgs wants it
  std::span<const WantedUnit> wanted;  // at most kMostWanted
  // Memory for all of them, if they were placed by place_list, are read in place, and have no gaps
  // in what is wanted; else null.
  DecodeUnit* lists = nullptr;
};

// The same for units that are all alike.
template <class T, class Args>
void run_lists(const UnitRun<T>& run, Args& args, void (*function)(const Args&) noexcept) noexcept {
  const auto count = static_cast<int>(run.wanted.size());
  for (int i = 0; i < count; ++i) {
    const WantedUnit& wanted = run.wanted[i];
    const char* const* const rows = run.placed.rows + wanted.place * kUnitKeys;
    run.lists[i] = {.at = rows[0],
                    .place = wanted.place,
                    .begin = std::countr_zero(wanted.keys),
                    .end = static_cast<int>(std::bit_width(wanted.keys)),
                    .begins_chain = i == 0 || run.wanted[i - 1].chain != wanted.chain,
                    .ends_chain = i + 1 == count || run.wanted[i + 1].chain != wanted.chain,
                    .rows = rows,
                    .scales = run.rows.scales_of(wanted.place)};
  }
  args.units = run.lists;
  args.unit_count = count;
  args.ahead = run.ahead;
  args.step = run.rows.step(false);
  args.kind = run.rows.kind(false);
  if (count > 0) function(args);
}

/// Args: UnitScoresArgs or UnitValuesArgs, with everything set but the units.
template <class T, class Args>
void run_units(const UnitRun<T>& run, Args& args, void (*function)(const Args&) noexcept) noexcept {
  if (run.lists != nullptr) return run_lists(run, args, function);
  DecodeUnit units[kMostWanted];
  const auto count = static_cast<int>(run.wanted.size());
  args.units = units;
  args.unit_count = 0;
  const UnitAhead* const ahead = run.ahead + run.rows.further_ahead();
  args.ahead = ahead;
  bool gathered = false;
  const auto flush = [&] {
    args.step = run.rows.step(gathered);
    args.kind = run.rows.kind(gathered);
    if (args.unit_count > 0) function(args);
    args.units += args.unit_count;
    args.unit_count = 0;
  };
  for (int i = 0; i < count; ++i) {
    const WantedUnit& wanted = run.wanted[i];
    // Written where it stays: a copy would wait for what has just been stored piece by piece.
    DecodeUnit& found = units[i];
    found.place = wanted.place;
    found.begins_chain = i == 0 || run.wanted[i - 1].chain != wanted.chain;
    found.ends_chain = i + 1 == count || run.wanted[i + 1].chain != wanted.chain;
    const bool lies = run.rows.find(run.placed, wanted.keys, found);
    if (lies == gathered || (gathered && args.unit_count == run.rows.slots())) {
      flush();
      args.ahead = ahead + wanted.ahead;
    }
    gathered = !lies;
    if (gathered) {
      run.rows.gather(run.placed, wanted.keys, args.unit_count, run.first_key, found);
    }
    ++args.unit_count;
  }
  flush();
}

}  // namespace quire::kernels
