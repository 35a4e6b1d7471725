// PageGradients: where the gradients of paged keys and values go. Rows of a page with one user are
// written to it; rows of a page with several are added up in compute type, user after user, and
// rounded once at the end; rows that nobody uses are 0. Does not compute gradients. Plan layer.
//
// Order of a sum: chunks of keys ascending, then sequences, then keys. It depends on sequences and
// lengths alone, not on threads. Turns follow the order in which a BackwardPlan claims its items,
// so the item that others wait for is always running.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backward/turn.h"
#include "kernels/kernel_table.h"
#include "layout/key_layout.h"
#include "quire/executor.h"
#include "quire/tensor.h"

namespace quire::plan {

/// Keys of a chunk in one page whose gradients are not simply written to the page.
struct PageUse {
  std::int32_t first = 0, count = 0;  // rows of the chunk
  std::int32_t row = 0;               // of the page, where they begin
  std::int32_t sum = -1;              // number of the page's sum; -1: there is no such page
  std::int32_t turn = 0;              // of this use among the uses of the page
};

class PageGradients {
 public:
  struct Sizes {
    std::int64_t sequences = 0, kv_heads = 0, chunk_keys = 0;
    std::int64_t head_dim = 0, v_head_dim = 0;
    bool wants_k = true, wants_v = true;
    DType compute_type = DType::f32;
  };
  /// `layout` has pages.
  PageGradients(const layout::KeyLayout& layout, const Sizes& sizes);

  /// [pages, heads, page_size, dim], any strides; null where not wanted.
  struct Outputs {
    const TensorView* k = nullptr;
    const TensorView* v = nullptr;
  };
  /// Call before the first item: sums become 0, and so do unused rows of the outputs.
  void begin_run(Executor& executor, const Outputs& outputs);
  /// Call after the last item: writes the sums to their pages.
  void end_run(Executor& executor, const kernels::KernelTable& table, const Outputs& outputs);

  /// Ascending. Pages of the chunk's other keys have no other user.
  std::span<const PageUse> uses(std::int64_t sequence, std::int64_t chunk) const;

  /// The rows of a use in the sums, for one key head; null where not wanted. Add to them between
  /// turn.wait_for(use.turn) and turn.pass(use.turn).
  template <class T>
  struct Sums {
    T *k = nullptr, *v = nullptr;
    kernels::Turn* turn = nullptr;
  };
  template <class T>
  Sums<T> sums(const PageUse& use, std::int64_t kv_head);

  std::size_t bytes() const;

 private:
  struct Page {
    std::int32_t users = 0;
    std::int32_t sum = -1;
    std::int64_t rows = 0;  // that the user has, if there is one
  };

  void count_users(const layout::KeyLayout& layout);
  void list_uses(const layout::KeyLayout& layout);
  template <class T>
  void write_sum(std::int64_t sum, const kernels::KernelTable& table, const Tensor& sums,
                 const TensorView& to) const;

  Sizes sizes_;
  std::int64_t page_size_;
  std::vector<Page> pages_;           // up to the last page that is used
  std::vector<std::int32_t> shared_;  // pages that have a sum, by its number
  std::vector<PageUse> uses_;
  std::vector<std::int64_t> first_use_{0};  // of every chunk of every sequence, chunk by chunk
  std::unique_ptr<kernels::Turn[]> turns_;  // [sums][heads]
  Tensor k_sums_, v_sums_;                  // [sums, heads, page_size, whole panels of columns]
};

}  // namespace quire::plan
