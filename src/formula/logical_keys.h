// Rewrites rules that count the slots of a pool of pages as rules that count the keys of a
// sequence. A rule converted by PagedAttention computes the key from the slot with a page table:
//
//   page = table[row, kv_idx // page_size];   key = page * page_size + kv_idx % page_size
//
// The rewriting looks for these expressions anywhere in the formula (below &, |, where, other
// loads) and replaces each by the key itself. It reads graphs, never the contents of tables.
// Formula layer.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/formula.h"

namespace quire::formula {

/// How a formula translates pages.
struct PagePattern {
  Buffer table;  // integers [rows, pages]
  std::int64_t page_size = 1;
  /// The row: row_list[b], or this number, or b if neither is set.
  std::optional<Buffer> row_list = {};
  std::optional<std::int64_t> row = {};
};

/// Whether the formula reads a buffer marked with BufferOptions::is_page_table. Only looks at its
/// buffers; formulas without one need not be searched.
bool reads_page_table(const Formula& formula);

/// Marks the table of a converted rule that was written by other code (torch's PagedAttention).
/// Returns the formula itself if it converts nothing.
Formula mark_page_table(const Formula& formula);

/// The first translation of pages in a formula: preferably one that computes a key, otherwise one
/// whose page is compared with a number (page >= 0). nullopt if there is none.
std::optional<PagePattern> find_page_pattern(const Formula& formula);

/// The same rule with kv_idx as the key of the sequence, for slots of live pages (table entries >=
/// 0). nullopt if the rule uses the slot in another way.
std::optional<Formula> to_logical(const Formula& formula, const PagePattern& pattern);

/// The rule for slots of dead pages (table entries < 0), still on the slots of the pool.
Formula for_dead_pages(const Formula& formula, const PagePattern& pattern);

/// The lengths in `kv_idx < lengths[b]`, if a logical mask is false, or a logical score -inf,
/// wherever that comparison fails: keys from lengths[b] on are hidden. nullopt otherwise.
std::optional<Buffer> find_key_bound(const Formula& logical, Precision precision);

/// The same rule for keys within their bound: every `kv_idx < lengths[b]` is true.
Formula within_key_bound(const Formula& logical, const Buffer& lengths);

/// Whether two buffers read the same memory in the same way.
bool is_same_buffer(const Buffer& a, const Buffer& b);

/// Whether a rule is false, or -inf, for all arguments.
bool is_hidden(const Formula& formula, Precision precision);

}  // namespace quire::formula
