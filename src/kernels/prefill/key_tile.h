// A tile of keys and values in the form the prefill primitives take: in place where the layout
// allows it, else copied to scratch in compute type with hidden keys as zeros. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/coding/functions.h"
#include "kernels/forward_problem.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// Elements are of compute type; of pairs (call.pairs) keys are rows of 32-bit pairs along d, and
/// row i of values holds keys 2i and 2i + 1 interleaved (for tile registers: column i).
struct KeyTile {
  const void *keys = nullptr, *values = nullptr;
  ptrdiff_t key_step = 0, value_step = 0;  // in elements, or in pairs
  /// For pairs made of codes: the scale of each key and of each value; null: there are no scales.
  const float *key_scales = nullptr, *value_scales = nullptr;
};

/// Columns of values and outputs in scratch.
constexpr ptrdiff_t whole_panels(int columns) {
  return (ptrdiff_t{columns} + kPanel - 1) / kPanel * kPanel;
}

/// The span that holds `key`.
const KeySpan& find_span(const KeySequence& keys, int64_t key) noexcept;

template <class T>
class KeyTileLoader {
 public:
  KeyTileLoader(const ForwardCall& call, const KeySequence& keys, ScratchLayout& layout);

  /// Loads `rows` keys from `key` on, at most 256. wanted[row]: some query sees it, and it may be
  /// read; null: all are wanted. Values are loaded only `with_values`. Valid until the next call.
  KeyTile load(int64_t key, int rows, const bool* wanted, bool with_values = true) noexcept;

  /// Whether load would copy anything even if all keys were wanted.
  bool copies(int64_t key, int rows) const noexcept;

 private:
  bool keys_lie_well() const noexcept;
  bool values_lie_well() const noexcept;
  bool values_are_keys(const KeySpan& span) const noexcept;
  void copy(int64_t key, int rows, const bool* wanted, bool with_keys, bool with_values) noexcept;
  void copy_run(const KeySpan& span, int64_t key, int begin, int end, bool with_keys,
                bool with_values) noexcept;
  void write_rows(const RowCoding& coding, const RowScales& scales, const RowsView& rows,
                  int64_t scale_offset, T* to, ptrdiff_t step) noexcept;
  void write_pairs(const RowCoding& coding, const RowScales& scales, const RowsView& rows,
                   int64_t scale_offset, uint16_t* to, ptrdiff_t step, int first, float* all_scales,
                   const IntegerRules& rules) noexcept;
  void write_integers(const DecodeRowsArgs<uint16_t>& args, const IntegerRules& rules) noexcept;
  void pair_values(const RowsView& from) noexcept;
  static void copy_bf16(const RowsView& from, uint16_t* to, ptrdiff_t to_step) noexcept;

  const ForwardCall& call_;
  const KeySequence& sequence_;
  ptrdiff_t key_step_, value_step_, value_columns_;
  T *keys_, *values_;                     // [256][key_step], [256][value_columns]
  uint16_t* half_values_;                 // pairs: rows of 16 bits before they are interleaved
  float *key_scales_, *value_scales_;     // [256 and some]; null: as in KeyTile
  IntegerRules key_rules_, value_rules_;  // of codes that become integers
};

}  // namespace quire::kernels
