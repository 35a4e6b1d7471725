// GroupRows: the memory of the keys and values of a group of layers, in pages, and the ways rows
// get into it, move inside it and come out. Knows nothing of who holds pages. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/function_ref.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Rows from a slot of a page on.
struct RowPlace {
  std::int32_t page = kNoPage;
  std::int64_t slot = 0;
};

// Some rows of a step.
struct StepRows {
  const ConstTensorView &k, &v;  // [tokens, kv_heads, dim], any strides
  std::int64_t first = 0, n = 0;
};

// Bytes a token takes in all layers of a group; the largest number where that does not fit.
std::int64_t token_bytes(const KVLayerGroup& group);

class GroupRows {
 public:
  GroupRows(const KVLayerGroup& group, std::int64_t page_size, std::int64_t n_pages);

  std::size_t layers() const noexcept { return k_.size(); }
  // Of a layer, counted in the group: [n_pages, kv_heads, page_size, dim].
  Tensor& k(std::size_t layer) noexcept { return k_[layer]; }
  Tensor& v(std::size_t layer) noexcept { return v_[layer]; }
  const Tensor& k(std::size_t layer) const noexcept { return k_[layer]; }
  const Tensor& v(std::size_t layer) const noexcept { return v_[layer]; }

  // Copies n rows inside a page to another place, in all layers; the places may overlap.
  void copy(RowPlace from, RowPlace to, std::int64_t n) noexcept;

  // Stores rows in slots of a page that follow each other, rounded to the group's dtype.
  void write(std::size_t layer, RowPlace to, const StepRows& rows) noexcept;

 private:
  std::vector<Tensor> k_, v_;
};

// Where the rows of a page and head begin.
std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept;
const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept;

}  // namespace quire::cache
