// flex_attention over keys and values that lie in pages: a page table says where the keys of each
// sequence are, in any order and anywhere in a pool. Public; attention layer.
//
//   PagedKeys keys{pages_of(k_cache, 16), pages_of(v_cache, 16), page_table, lengths};
//   Tensor out = flex_attention(q, keys, {.mask_mod = mods::causal(), .q_begin = positions});
//
// Mods and masks count keys as the sequence does (kv_idx = 0, 1, 2, ...), never as the pool does.
// Results have the bits of the same keys in a dense tensor, whatever the size, order and place of
// the pages. Time and memory follow the keys that are there, not the pool; slots behind a
// sequence's length are never read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/mod.h"
#include "quire/tensor_view.h"

namespace quire {

/// A view of the keys and values of n sequences. Key j of sequence i is slot j % page_size of page
/// page_table[i, j / page_size]. Sequences may share pages.
struct PagedKeys {
  ConstTensorView k, v;        // [pages, kv_heads, page_size, dim], any strides
  ConstTensorView page_table;  // i32 or i64 [n, most pages of a sequence], any strides; entries
                               // behind a sequence's last page are not read
  ConstTensorView lengths;     // i32 or i64 [n]: keys of each sequence; may be 0
};

/// A [1, kv_heads, pages * page_size, dim] cache, page after page, as [pages, kv_heads, page_size,
/// dim]. Throws Error for another rank, a batch that is not 1 and a length that is not whole pages.
QUIRE_API ConstTensorView pages_of(const ConstTensorView& cache, std::int64_t page_size);

struct PagedKeysOptions {
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};  // proved per sequence; not with block_mask
  /// [n or 1, q_heads or 1, q_len, at least the longest sequence], on the sequences' own indices.
  /// Its q_begin is that of every sequence.
  std::optional<BlockMask> block_mask = {};
  std::optional<double> scale = {};  // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;           // q_heads may be a multiple of kv_heads
  /// q_idx of the first query: one number, or one per sequence. Empty: the block mask's, or 0.
  std::vector<std::int64_t> q_begin = {};
  AuxRequest return_aux = {};
  AuxOutput* aux = nullptr;      // where to put it: [n, q_heads, q_len]
  Executor* executor = nullptr;  // default_executor() if null
};

/// q [n, q_heads, q_len, dim]; returns [n, q_heads, q_len, v_dim] in q's dtype. A sequence without
/// keys gives 0. Throws Error, before anything is computed, naming the sequence, for lengths that
/// are negative or do not fit the page table and for pages outside the pool; else as
/// flex_attention.
QUIRE_API Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                                const PagedKeysOptions& options = {});

/// What depends on page table, lengths, sizes, mods and masks alone, worked out once for every
/// layer. Page table and lengths are read when it is made. One run of a plan at a time.
class QUIRE_API PagedKeysPlan {
 public:
  /// Of q, keys.k and keys.v addresses and strides do not matter.
  PagedKeysPlan(const ConstTensorView& q, const PagedKeys& keys,
                const PagedKeysOptions& options = {});
  PagedKeysPlan(PagedKeysPlan&&) noexcept;
  PagedKeysPlan& operator=(PagedKeysPlan&&) noexcept;
  ~PagedKeysPlan();

  /// As of AttentionPlan. k and v are those of PagedKeys. Allocates nothing. Throws Error likewise.
  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           const AttentionPlan::Outputs& outputs);

  DType compute_type() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
