// A call over a whole pool of pages whose mask or score mod turns the pool's indices into those of
// sequences (PagedAttention's, or formulas of the same form) is a call over the pages of these
// sequences: this finds out, and says which. Paged layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/attention_problem.h"

namespace quire::paged {

/// An entry of a table of pages that was read.
struct PageEntry {
  std::int64_t row, page, value;
};

/// The same call on the sequences' own indices.
struct PagedCall {
  AttentionOptions options;  // score mod and block mask are logical
  std::int64_t page_size = 1;
  std::vector<std::int64_t> pages = {};    // of each sequence in order, -1 where none is visible
  std::vector<std::int64_t> lengths = {};  // keys of each sequence, whole pages
  std::int64_t longest = 0;
  // What it rests on: if the table says something else now, so does the call.
  Buffer table;
  std::vector<PageEntry> entries = {};
  std::vector<std::int64_t> rows = {};  // of the table, for each sequence
  std::optional<Buffer> row_list = {}, bounds = {};
  std::vector<std::int64_t> bound = {};  // of each sequence, if there are bounds

  bool is_unchanged() const;
};

/// Nothing where it cannot be proved that the results are those of the call as it is (but for the
/// order of sums): a mod that uses the place in the pool in another way, blocks that are not whole
/// pages, a visible page that the table does not have or has twice. `shape` and `options` are
/// valid.
std::optional<PagedCall> recognise_paged(const AttentionShape& shape,
                                         const AttentionOptions& options);

}  // namespace quire::paged
