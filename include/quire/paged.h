// flex_attention over keys and values that lie in pages: a page table says where the keys of each
// sequence are, in any order and anywhere in a pool. Public; attention layer.
//
//   PagedKeys keys{pages_of(k_cache, 16), pages_of(v_cache, 16), page_table, lengths};
//   Tensor out = flex_attention(q, keys, {.mask_mod = mods::causal(), .q_begin = positions});
//
// Mods and masks count keys as the sequence does (kv_idx = 0, 1, 2, ...), never as the pool does.
// Results have the bits of the same keys in a dense tensor, whatever the size, order and place of
// the pages. Time and memory follow the keys that are there, not the pool; slots after a sequence's
// length are never read.
#pragma once
#include <cstdint>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/tensor_view.h"

namespace quire {

/// A [1, kv_heads, pages * page_size, dim] cache, page after page, as [pages, kv_heads, page_size,
/// dim]. Throws Error for another rank, a batch that is not 1 and a length that is not whole pages.
QUIRE_API ConstTensorView pages_of(const ConstTensorView& cache, std::int64_t page_size);
QUIRE_API TensorView pages_of(const TensorView& cache, std::int64_t page_size);

using PagedKeysOptions = AttentionOptions;
using PagedKeysPlan = AttentionPlan;

/// q [n, q_heads, q_len, dim]; returns [n, q_heads, q_len, v_dim] in q's dtype. A block mask is [n
/// or 1, q_heads or 1, q_len, at least the longest sequence], on the sequences' own indices. A
/// sequence without keys gives 0. Throws Error, before anything is computed, naming the sequence,
/// for lengths that are negative or do not fit the page table and for pages outside the pool; else
/// as flex_attention.
QUIRE_API Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                                const AttentionOptions& options = {});
/// The same for queries of different numbers: q as of flex_attention over jagged batches, a
/// sequence for each row of the page table; results in q's order, holes 0. A block mask is a
/// JaggedBlockMask.
QUIRE_API Tensor flex_attention(const Jagged& q, const PagedKeys& keys,
                                const AttentionOptions& options = {});

}  // namespace quire
