// JaggedRows: which rows of a tensor belong to which sequence of a jagged batch, read from offsets
// and lengths and checked. Layout layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/tensor_view.h"

namespace quire::layout {

/// Rows begin[i] .. begin[i] + length[i] - 1 are those of sequence i.
struct JaggedRows {
  std::vector<std::int64_t> begin, length;
};

/// Offsets and lengths as in quire::Jagged, over `total` rows. Throws Error "[where] name: ...",
/// naming the sequence, for offsets that fall, are negative or end beyond the rows, lengths that
/// are negative or longer than their slot, another dtype (kind type), rank or size.
JaggedRows read_rows(const char* where, const char* name, const ConstTensorView& offsets,
                     const std::optional<ConstTensorView>& lengths, std::int64_t total);

}  // namespace quire::layout
