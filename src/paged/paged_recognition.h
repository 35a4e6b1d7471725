// Turns a call over a whole pool of pages, with a mask or score mod converted by PagedAttention,
// back into a call over the pages of its sequences. Converted rules are identified by the mark on
// their page table (BufferOptions::is_page_table); other calls are not searched. Paged layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/attention_problem.h"

namespace quire::paged {

/// An entry of a page table and the value that was read.
struct PageEntry {
  std::int64_t row, page, value;
};

/// A call over the pages of its sequences.
struct PagedCall {
  AttentionProblem given;    // over the whole pool
  AttentionProblem problem;  // the same over the sequences' own keys: layout, mask and score mod
  std::int64_t page_size = 1;
  // What the conversion depends on; if it changes, the call must be converted again.
  Buffer table;
  std::vector<PageEntry> entries = {};
  std::vector<std::int64_t> rows = {};  // the table's row of each sequence
  std::optional<Buffer> row_list = {}, bounds = {};
  std::vector<std::int64_t> bound = {};  // bounds[b] of each sequence

  /// Whether tables and lengths still have the values that were read.
  bool is_unchanged() const;
};

/// nullopt if the call has no pages, or if results might differ (in more than the order of sums): a
/// mod uses the slot in the pool in another way, blocks are not whole pages, or a visible page is
/// missing from the table or listed twice. Such calls run over the whole pool. The problem must be
/// checked and its mask proved.
std::optional<PagedCall> recognise_paged(const AttentionProblem& problem);

}  // namespace quire::paged
