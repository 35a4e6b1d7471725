// PageTables: which page of a pool holds which page of a sequence, in tables that the caller owns.
// PagedAttention (paged_attention.h) is built on it; use it directly to keep the tables yourself.
// Public; cache layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quire/executor.h"
#include "quire/export.h"
#include "quire/tensor_view.h"

namespace quire {

/// What assign copies, and where to.
struct PagedAssignment {
  ConstTensorView batch_idx;     // integers [B]
  ConstTensorView input_pos;     // integers [B, S]: positions in the sequence
  ConstTensorView k_val, v_val;  // [B, H, S, D] and [B, H, S, Dv], any strides
  TensorView k_cache, v_cache;   // [n, H, at least n_pages * page_size, D or Dv], any strides
  Executor* executor = nullptr;  // default_executor() if null
};

/// The tables of a PagedAttention in the caller's memory: i64, any strides. A view: the
/// memory must outlive it. Functions read the current contents and throw Error before they
/// change anything; a negative batch index counts from the end. Not thread safe for
/// writing.
class QUIRE_API PageTables {
 public:
  /// page_table and physical_to_logical [max_batch_size, n_pages], -1 for unused entries; capacity
  /// [max_batch_size]. Throws Error for other shapes and dtypes.
  PageTables(const TensorView& page_table, const TensorView& capacity,
             const TensorView& physical_to_logical, std::int64_t page_size);

  std::int64_t n_pages() const { return page_table_.dim(1); }
  std::int64_t max_batch_size() const { return page_table_.dim(0); }
  std::int64_t page_size() const { return page_size_; }
  ConstTensorView page_table() const { return page_table_; }

  /// How many more pages the sequence needs for a capacity of seq_len.
  std::int64_t pages_wanted(std::int64_t batch_idx, std::int64_t seq_len) const;
  /// Appends these pages to those of the sequence. O(pages).
  void add_pages(std::int64_t batch_idx, std::span<const std::int64_t> pages);
  /// Removes all pages of these sequences and returns them, sequence by sequence in order. A
  /// sequence named twice gives its pages once. Throws Error before anything has changed.
  std::vector<std::int64_t> remove_pages(std::span<const std::int64_t> batch_idx);

  /// Copies keys and values to their slots. Values and caches must have the same dtypes. Throws
  /// Error for mismatched sizes, positions without a page and slots outside the caches. Parallel;
  /// of two values for one slot the later in [B, S] order wins.
  void assign(const PagedAssignment& assignment) const;

 private:
  std::int64_t checked_batch(const char* where, std::int64_t batch_idx) const;
  std::int64_t* row(const TensorView& table, std::int64_t batch_idx) const;
  // The number of pages of a sequence. Throws Error for a page number outside the pool.
  std::int64_t page_count(const char* where, std::int64_t batch_idx) const;

  TensorView page_table_, capacity_, physical_to_logical_;
  std::int64_t page_size_;
};

}  // namespace quire
