// flex_attention over keys and values in pages: a page table says where the keys of each sequence
// are, in any order and anywhere in a pool. Public; attention layer.
//
//   PagedKeys keys{pages_of(k_cache, 16), pages_of(v_cache, 16), page_table, lengths};
//   Tensor out = flex_attention(q, keys, {.mask_mod = mods::causal(), .q_begin = positions});
//
// Mods and masks count keys within the sequence (kv_idx = 0, 1, 2, ...), never within the pool.
// Results have the bits of the same keys in a dense tensor, whatever the size, order and place of
// the pages. Time and memory grow with the live keys, not with the pool; slots after a sequence's
// length are never read.
#pragma once
#include <cstdint>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/tensor_view.h"

namespace quire {

/// Views a [1, kv_heads, pages * page_size, dim] cache as [pages, kv_heads, page_size, dim]. Throws
/// Error for another rank, a batch other than 1 and a length that is not a whole number of pages.
QUIRE_API ConstTensorView pages_of(const ConstTensorView& cache, std::int64_t page_size);
QUIRE_API TensorView pages_of(const TensorView& cache, std::int64_t page_size);

using PagedKeysOptions = AttentionOptions;
using PagedKeysPlan = AttentionPlan;

/// q [n, q_heads, q_len, dim]; returns [n, q_heads, q_len, v_dim] in q's dtype. A block mask is [n
/// or 1, q_heads or 1, q_len, at least the longest sequence], on the sequences' own indices. A
/// sequence without keys gives 0. Throws Error, before anything is computed, naming the sequence,
/// for lengths that are negative or exceed the page table and for pages outside the pool; otherwise
/// as flex_attention.
QUIRE_API Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                                const AttentionOptions& options = {});
/// The same for a varying number of queries: q as for flex_attention over jagged batches, one
/// sequence per row of the page table; results in q's order, holes 0. A block mask is a
/// JaggedBlockMask.
QUIRE_API Tensor flex_attention(const Jagged& q, const PagedKeys& keys,
                                const AttentionOptions& options = {});

}  // namespace quire
