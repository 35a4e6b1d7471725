// GroupRows: the memory of the keys and values of a group of layers, in pages: how rows are
// written, moved and read. Does not know who holds pages. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/row_store.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Some rows of a step, [tokens, kv_heads, dim] each, any strides; no values if keys hold them.
struct StepRows {
  const ConstTensorView& k;
  const ConstTensorView* v = nullptr;
  std::int64_t first = 0, n = 0;
};

// Bytes per token in all layers of a group; the largest int64 if that overflows.
std::int64_t token_bytes(const KVLayerGroup& group);

class GroupRows {
 public:
  GroupRows(const KVLayerGroup& group, std::int64_t page_size, std::int64_t n_pages);

  std::size_t layers() const noexcept { return k_.size(); }
  // The store of a layer, counted within the group. With v_in_k both are the keys' store.
  RowStore& k(std::size_t layer) noexcept { return k_[layer]; }
  RowStore& v(std::size_t layer) noexcept { return v_.empty() ? k_[layer] : v_[layer]; }
  const RowStore& k(std::size_t layer) const noexcept { return k_[layer]; }
  const RowStore& v(std::size_t layer) const noexcept { return v_.empty() ? k_[layer] : v_[layer]; }
  bool v_in_k() const noexcept { return v_.empty(); }

  // Calls visit(tensor) for those tensors of a layer that have a row per token: keys, their scales,
  // values, their scales, where they exist.
  template <class Visit>
  void visit_stored(std::size_t layer, const Visit& visit) {
    visit_stored_in(*this, layer, visit);
  }
  template <class Visit>
  void visit_stored(std::size_t layer, const Visit& visit) const {
    visit_stored_in(*this, layer, visit);
  }

  // Copies n rows inside a page to another slot, in all layers; source and destination may overlap.
  void copy(RowPlace from, RowPlace to, std::int64_t n) noexcept;

  // Stores rows in consecutive slots of a page, rounded to the group's dtype or coded; returns what
  // RowStore::write returns.
  std::int64_t write(std::size_t layer, RowPlace to, const StepRows& rows) noexcept;

 private:
  template <class Self, class Visit>
  static void visit_stored_in(Self& self, std::size_t layer, const Visit& visit) {
    const auto visit_store = [&](auto& store) {
      visit(store.rows());
      if (auto* const scales = store.row_scales()) visit(*scales);
    };
    visit_store(self.k_[layer]);
    if (!self.v_in_k()) visit_store(self.v_[layer]);
  }

  std::vector<RowStore> k_, v_;
};

}  // namespace quire::cache
