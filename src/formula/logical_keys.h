// Knows a formula again that counts keys in a pool of pages and turns them into the keys of a
// sequence by a table, as PagedAttention's mods do:
//
//   page = table[row, kv_idx // page_size];   logical = page * page_size + kv_idx % page_size
//
// and writes it as a formula of the logical index. Looks at the graph only: who wrote it, and what
// is around it (and, or, where, other buffers), does not matter. Formula layer.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/formula.h"

namespace quire::formula {

/// How pages are translated.
struct PagePattern {
  Buffer table;  // integers [rows, pages]
  std::int64_t page_size = 1;
  /// The row: b, or row_list[b], or this number.
  std::optional<Buffer> row_list = {};
  std::optional<std::int64_t> row = {};
};

/// Whether they read the same memory in the same way.
bool is_same(const PagePattern& a, const PagePattern& b);

/// Nothing if there is no logical index in it, nor a question about a page (page >= 0).
std::optional<PagePattern> find_page_pattern(const Formula& formula);

/// The same rule where kv_idx is the logical index, for pages that the table has (entries >= 0).
/// Nothing if it depends on the place in the pool in another way.
std::optional<Formula> to_logical(const Formula& formula, const PagePattern& pattern);

/// Numbers lengths[b] such that the rule hides every key from them on: the comparison
/// `kv_idx < lengths[b]` without which a logical mask is false, or a logical score -inf. Nothing if
/// there is none of this form.
std::optional<Buffer> find_key_bound(const Formula& logical, Precision precision);

/// The same rule for keys before their bound: `kv_idx < lengths[b]` is true wherever it stands.
Formula within_key_bound(const Formula& logical, const Buffer& lengths);

/// What is left of it for pages that the table has not (entries < 0), still on the pool's index.
Formula for_dead_pages(const Formula& formula, const PagePattern& pattern);

/// Whether two buffers are the same memory, read in the same way.
bool is_same_buffer(const Buffer& a, const Buffer& b);

/// Whether it is false, or -inf, whatever its arguments.
bool is_hidden(const Formula& formula, Precision precision);

}  // namespace quire::formula
