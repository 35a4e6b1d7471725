// GroupRows: the memory of the keys and values of a group of layers, in pages, and the ways rows
// get into it, move inside it and come out. Knows nothing of who holds pages. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/row_store.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Some rows of a step, [tokens, kv_heads, dim] each, any strides; no values where keys hold them.
struct StepRows {
  const ConstTensorView& k;
  const ConstTensorView* v = nullptr;
  std::int64_t first = 0, n = 0;
};

// Bytes a token takes in all layers of a group; the largest number where that does not fit.
std::int64_t token_bytes(const KVLayerGroup& group);

class GroupRows {
 public:
  GroupRows(const KVLayerGroup& group, std::int64_t page_size, std::int64_t n_pages);

  std::size_t layers() const noexcept { return k_.size(); }
  // Of a layer, counted in the group. With v_in_k both are the keys' store.
  RowStore& k(std::size_t layer) noexcept { return k_[layer]; }
  RowStore& v(std::size_t layer) noexcept { return v_.empty() ? k_[layer] : v_[layer]; }
  const RowStore& k(std::size_t layer) const noexcept { return k_[layer]; }
  const RowStore& v(std::size_t layer) const noexcept { return v_.empty() ? k_[layer] : v_[layer]; }
  bool v_in_k() const noexcept { return v_.empty(); }

  // Calls visit(tensor) for those of a layer that have a row for every token: keys, their scales,
  // values, their scales, as far as they are there.
  template <class Visit>
  void visit_stored(std::size_t layer, const Visit& visit) {
    visit_stored_in(*this, layer, visit);
  }
  template <class Visit>
  void visit_stored(std::size_t layer, const Visit& visit) const {
    visit_stored_in(*this, layer, visit);
  }

  // Copies n rows inside a page to another place, in all layers; the places may overlap.
  void copy(RowPlace from, RowPlace to, std::int64_t n) noexcept;

  // Stores rows in slots of a page that follow each other, rounded to the group's dtype, or coded;
  // returns as RowStore::write does.
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
