// Shape: up to 8 numbers stored in place, without heap memory: the sizes or the strides of a
// tensor; the views decide which. Public; tensor layer.
#pragma once
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

inline constexpr size_t kMaxRank = 8;

class QUIRE_API Shape {
 public:
  Shape() = default;
  // All throw Error for more than kMaxRank numbers.
  Shape(std::initializer_list<int64_t> values);
  Shape(std::span<const int64_t> values);     // NOLINT(google-explicit-constructor)
  Shape(const std::vector<int64_t>& values);  // NOLINT(google-explicit-constructor)

  size_t rank() const noexcept { return rank_; }
  size_t size() const noexcept { return rank_; }
  bool empty() const noexcept { return rank_ == 0; }
  const int64_t* data() const noexcept { return values_.data(); }
  const int64_t* begin() const noexcept { return values_.data(); }
  const int64_t* end() const noexcept { return values_.data() + rank_; }
  int64_t* begin() noexcept { return values_.data(); }
  int64_t* end() noexcept { return values_.data() + rank_; }

  // Requires axis < rank(), checked only by an assertion.
  int64_t operator[](size_t axis) const noexcept {
    assert(axis < rank_);
    return values_[axis];
  }
  int64_t& operator[](size_t axis) noexcept {
    assert(axis < rank_);
    return values_[axis];
  }

  void push_back(int64_t value);            // throws Error beyond kMaxRank
  void insert(size_t axis, int64_t value);  // axis <= rank(); throws Error beyond kMaxRank
  void erase(size_t axis) noexcept;         // axis < rank()

  operator std::span<const int64_t>() const noexcept { return {data(), rank_}; }  // NOLINT
  friend bool operator==(const Shape& a, const Shape& b) noexcept {
    return a.rank_ == b.rank_ && a.values_ == b.values_;
  }

 private:
  std::array<int64_t, kMaxRank> values_{};  // 0 from rank_ on, so that == can compare all
  size_t rank_ = 0;
};

// "[2, 3]"; "[]" for rank 0.
QUIRE_API std::string to_string(const Shape& shape);

// The product of the sizes; 1 for rank 0. Throws Error for a negative size, and when the product of
// the non-zero sizes does not fit into 63 bits.
QUIRE_API int64_t element_count(const Shape& shape);

// Row-major strides in elements.
QUIRE_API Shape contiguous_strides(const Shape& shape);

}  // namespace quire
