// PagedAttention: page tables over a [1, heads, n_pages * page_size, dim] cache, like
// torch.nn.attention.experimental's: they map the pages of sequences to pages of the pool, and
// convert masks and mods that count keys in sequences to ones that count keys in the pool.
// Converted rules are marked (BufferOptions::is_page_table), so that flex_attention and its
// backward pass walk only the sequences' pages. The caller owns the cache itself. Public; paged
// layer.
//
//   PagedAttention paged(n_pages, 16, max_batch_size);
//   paged.reserve(0, 100);
//   paged.assign({batch_idx, input_pos, k_val, v_val, k_cache.view(), v_cache.view()});
//   BlockMask physical = paged.convert_logical_block_mask(mask);
//   Tensor out = flex_attention(q, k_cache, v_cache, {.block_mask = physical});
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/block_mask.h"
#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/page_tables.h"
#include "quire/tensor.h"

namespace quire {

/// Converts a rule on a sequence's keys to one on the keys of the pool, which hides pages that do
/// not belong to batch entry b and keys from kv_len[b] on. `physical_to_logical` [batch, pages] of
/// integers, < 0 for unused pages; `kv_len` [batch] of integers. Throws Error for other buffers and
/// for a page size below 1.
QUIRE_API MaskMod physical_mask_mod(const MaskMod& mask_mod, const Buffer& physical_to_logical,
                                    std::int64_t page_size,
                                    const std::optional<Buffer>& kv_len = {});
/// The same for a score mod: gives -inf where the mask mod would hide.
QUIRE_API ScoreMod physical_score_mod(const ScoreMod& score_mod, const Buffer& physical_to_logical,
                                      std::int64_t page_size,
                                      const std::optional<Buffer>& kv_len = {});

/// Marks the page table of a rule that other code converted with formulas like those of torch's
/// PagedAttention. A rule that is not a conversion is returned unchanged.
QUIRE_API MaskMod mark_page_table(const MaskMod& mask_mod);
QUIRE_API ScoreMod mark_page_table(const ScoreMod& score_mod);

/// The mask with its key blocks moved to where their pages are: [B, H, q_len, n_pages * page_size],
/// with the given rule. Blocks whose page is not reserved are left out (-1 in the index tensors).
/// `batch_idx`: the table row of each batch entry of the mask, at least as many; empty: 0, 1, 2,
/// ... Throws Error unless blocks are pages.
QUIRE_API BlockMask physical_block_mask(const BlockMask& logical, const PageTables& tables,
                                        std::span<const std::int64_t> batch_idx,
                                        const MaskMod& physical_rule);

/// Owns its tables. Not thread safe for writing.
class QUIRE_API PagedAttention {
 public:
  /// Throws Error for a negative number of pages or sequences and a page size below 1.
  PagedAttention(std::int64_t n_pages, std::int64_t page_size, std::int64_t max_batch_size);
  PagedAttention(const PagedAttention&) = delete;
  PagedAttention& operator=(const PagedAttention&) = delete;
  PagedAttention(PagedAttention&&) noexcept = default;
  PagedAttention& operator=(PagedAttention&&) noexcept = default;

  std::int64_t n_pages() const { return page_table_.dim(1); }
  std::int64_t page_size() const { return page_size_; }
  std::int64_t max_batch_size() const { return page_table_.dim(0); }

  // The tables may be written to; later calls use what they then hold.
  TensorView page_table() { return page_table_.view(); }  // i64 [max_batch_size, n_pages], or -1
  TensorView capacity() { return capacity_.view(); }      // i64 [max_batch_size], in tokens
  TensorView physical_to_logical() { return physical_to_logical_.view(); }  // i64, as page_table
  /// Pages are taken from the end. May be reordered.
  std::vector<std::int64_t>& empty_pages() { return empty_pages_; }
  const std::vector<std::int64_t>& empty_pages() const { return empty_pages_; }

  /// Makes room for seq_len tokens, in whole pages. Throws Error if there are too few.
  void reserve(std::int64_t batch_idx, std::int64_t seq_len);
  /// Gives back the pages of one sequence or of several: all of them or, if it throws, none.
  void erase(std::int64_t batch_idx) { erase(std::span(&batch_idx, 1)); }
  void erase(std::span<const std::int64_t> batch_idx);
  /// See PageTables::assign.
  void assign(const PagedAssignment& assignment);

  struct ConvertOptions {
    std::vector<std::int64_t> batch_idx = {};  // see physical_block_mask
    std::optional<Buffer> kv_len = {};         // per batch entry; keys from it on are hidden
  };
  /// See physical_block_mask. The rule reads the tables at the b of the call, as torch's does: with
  /// a batch_idx in another order, give a `mask_mod` that maps b.
  BlockMask convert_logical_block_mask(const BlockMask& logical, const ConvertOptions& options);
  BlockMask convert_logical_block_mask(const BlockMask& logical) {
    return convert_logical_block_mask(logical, {});
  }
  MaskMod get_mask_mod(const std::optional<MaskMod>& mask_mod = {},
                       const std::optional<Buffer>& kv_len = {}) const;
  ScoreMod get_score_mod(const std::optional<ScoreMod>& score_mod = {},
                         const std::optional<Buffer>& kv_len = {}) const;

  /// A view of the current tables.
  PageTables tables();

 private:
  std::int64_t page_size_;
  Tensor page_table_, capacity_, physical_to_logical_;
  std::vector<std::int64_t> empty_pages_;
};

}  // namespace quire
