// A list of levels; each entry covers 16 entries of the level below. Formula layer.
#include "formula/bound/minmax_tree.h"

#include <cassert>
#include <limits>
#include <type_traits>
#include <vector>

#include "tensor/convert.h"

namespace quire::formula {

class MinMaxTree::Levels {
 public:
  virtual ~Levels() = default;
  virtual Interval query(std::int64_t first, std::int64_t last) const = 0;
};

namespace {

// 16 entries of a level are one or two cache lines, and 1M elements need five levels.
constexpr std::int64_t kBranch = 16;

template <class T>
struct Extent {
  // The identity of min and max; also the value of a block of NaNs.
  T lo = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                              : std::numeric_limits<T>::max();
  T hi = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                              : std::numeric_limits<T>::lowest();
  bool nan = false;
};

template <class T>
class TypedLevels final : public MinMaxTree::Levels {
 public:
  TypedLevels(std::unique_ptr<T[]> elements, std::int64_t size) : elements_(std::move(elements)) {
    for (std::int64_t below = size; below > kBranch;) {
      const bool first = levels_.empty();
      const std::int64_t count = (below + kBranch - 1) / kBranch;
      Level level;
      level.lo.resize(count);
      level.hi.resize(count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = i * kBranch, end = std::min(begin + kBranch, below);
        Extent<T> extent;
        if (!first)
          scan_level(levels_.back(), begin, end, extent);
        else if (end - begin == kBranch)
          scan_whole(begin, extent);
        else
          scan_elements(begin, end, extent);
        level.lo[i] = extent.lo;
        level.hi[i] = extent.hi;
        if (std::is_floating_point_v<T>) level.nan.push_back(extent.nan);
      }
      levels_.push_back(std::move(level));
      below = count;
    }
  }

  Interval query(std::int64_t first, std::int64_t last) const override {
    std::int64_t begin = first, end = last + 1;
    Extent<T> extent;
    // Climbs as long as whole entries of the level above fit between the ends.
    for (std::size_t height = 0;; ++height) {
      const std::int64_t inner = (begin + kBranch - 1) / kBranch, outer = end / kBranch;
      if (height == levels_.size() || inner >= outer) {
        scan(height, begin, end, extent);
        return to_interval(extent);
      }
      scan(height, begin, inner * kBranch, extent);
      scan(height, outer * kBranch, end, extent);
      begin = inner;
      end = outer;
    }
  }

 private:
  struct Level {
    std::vector<T> lo, hi;
    std::vector<std::uint8_t> nan;  // floats only
  };

  void scan(std::size_t height, std::int64_t begin, std::int64_t end, Extent<T>& extent) const {
    height == 0 ? scan_elements(begin, end, extent)
                : scan_level(levels_[height - 1], begin, end, extent);
  }

  // kBranch elements from `begin` on: a fixed number, so that compilers emit a few vector
  // instructions. A dense mask is read entirely this way.
  void scan_whole(std::int64_t begin, Extent<T>& extent) const {
    const T* data = elements_.get() + begin;
    T lo = extent.lo, hi = extent.hi;
    bool nan = false;
    for (std::int64_t i = 0; i < kBranch; ++i) {
      lo = data[i] < lo ? data[i] : lo;
      hi = data[i] > hi ? data[i] : hi;
      if constexpr (std::is_floating_point_v<T>) nan |= data[i] != data[i];
    }
    extent = {lo, hi, nan};
  }

  // Comparisons with NaN are false, so NaNs do not affect the ends.
  void scan_elements(std::int64_t begin, std::int64_t end, Extent<T>& extent) const {
    const T* data = elements_.get();
    for (std::int64_t i = begin; i < end; ++i) {
      extent.lo = data[i] < extent.lo ? data[i] : extent.lo;
      extent.hi = data[i] > extent.hi ? data[i] : extent.hi;
      if constexpr (std::is_floating_point_v<T>) extent.nan |= data[i] != data[i];
    }
  }

  static void scan_level(const Level& level, std::int64_t begin, std::int64_t end,
                         Extent<T>& extent) {
    const T *lo = level.lo.data(), *hi = level.hi.data();
    for (std::int64_t i = begin; i < end; ++i) {
      extent.lo = lo[i] < extent.lo ? lo[i] : extent.lo;
      extent.hi = hi[i] > extent.hi ? hi[i] : extent.hi;
      if constexpr (std::is_floating_point_v<T>) extent.nan |= level.nan[i] != 0;
    }
  }

  static Interval to_interval(const Extent<T>& extent) {
    if constexpr (std::is_floating_point_v<T>) {
      if (extent.lo > extent.hi) return Interval::any_float();  // only NaNs
      return Interval::floats(extent.lo, extent.hi, extent.nan);
    } else {
      return Interval::ints(extent.lo, extent.hi);
    }
  }

  std::unique_ptr<T[]> elements_;
  std::vector<Level> levels_;
};

template <class T>
std::unique_ptr<const MinMaxTree::Levels> make_levels(const ConstTensorView& view) {
  auto elements = std::make_unique_for_overwrite<T[]>(view.numel());
  copy_elements(view, dtype_of<T>, elements.get());
  return std::make_unique<TypedLevels<T>>(std::move(elements), view.numel());
}

std::unique_ptr<const MinMaxTree::Levels> make_levels(const ConstTensorView& view,
                                                      Precision precision) {
  switch (view.dtype()) {
    case DType::f64:
      if (precision == Precision::kF64) return make_levels<double>(view);
      break;
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      break;
    case DType::i8:
      return make_levels<std::int8_t>(view);
    case DType::boolean:
    case DType::u8:
      return make_levels<std::uint8_t>(view);
    case DType::i16:
      return make_levels<std::int16_t>(view);
    case DType::i32:
      return make_levels<std::int32_t>(view);
    case DType::i64:
      return make_levels<std::int64_t>(view);
  }
  return make_levels<float>(view);
}

}  // namespace

MinMaxTree::MinMaxTree(const ConstTensorView& view, Precision precision)
    : levels_(make_levels(view, precision)), size_(view.numel()) {}
MinMaxTree::MinMaxTree(MinMaxTree&&) noexcept = default;
MinMaxTree& MinMaxTree::operator=(MinMaxTree&&) noexcept = default;
MinMaxTree::~MinMaxTree() = default;

Interval MinMaxTree::query(std::int64_t first, std::int64_t last) const {
  assert(0 <= first && first <= last && last < size_);
  return levels_->query(first, last);
}

}  // namespace quire::formula
