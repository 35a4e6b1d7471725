// Converts single elements and iterates over strided views. Plain scalar code. Tensor layer.
#include "tensor/convert.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/element.h"

namespace quire {
namespace {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// An integer of more than 53 bits does not fit a double exactly; rounding it twice, to double and
// then to 16 bits, could go the wrong way at a tie. So the low 11 bits are folded into one sticky
// bit that means "more than a tie".
double sticky_double(int64_t value) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (value >= -kExact && value <= kExact) return static_cast<double>(value);
  const int64_t low = value & 0x7ff;
  return static_cast<double>((value & ~int64_t{0x7ff}) | (low != 0 ? int64_t{0x800} : 0));
}

template <class To>
To saturate(double value) {
  if (std::isnan(value)) return 0;
  // Both bounds are powers of two (or 0), hence exact doubles; the upper one is one past the
  // largest To.
  constexpr double kLow = static_cast<double>(std::numeric_limits<To>::min());
  constexpr To kHalfPastHigh = std::numeric_limits<To>::max() / 2 + 1;
  constexpr double kPastHigh = 2.0 * static_cast<double>(kHalfPastHigh);
  const double whole = std::trunc(value);
  if (whole < kLow) return std::numeric_limits<To>::min();
  if (whole >= kPastHigh) return std::numeric_limits<To>::max();
  return static_cast<To>(whole);
}

template <Element To, Element From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (kIsHalf<To> && std::is_integral_v<From>) {
    return To(sticky_double(static_cast<int64_t>(value)));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<double>(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return saturate<To>(static_cast<double>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Row-major order: the last axis is the inner loop, the others count like an odometer.
template <Element To, Element From>
void copy_converted(const ConstTensorView& view, To* destination) {
  const size_t outer_axes = view.rank() == 0 ? 0 : view.rank() - 1;
  const int64_t inner = view.rank() == 0 ? 1 : view.shape()[outer_axes];
  const int64_t inner_stride = view.rank() == 0 ? 0 : view.strides()[outer_axes];
  const int64_t rows = view.numel() / inner;
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (inner_stride == 1) {  // a separate loop, which compilers vectorise
      To* __restrict__ to = destination;
      const void* const from = view.data();
      for (int64_t i = 0; i < inner; ++i) to[i] = convert<To>(load_element<From>(from, offset + i));
    } else {
      for (int64_t i = 0; i < inner; ++i)
        destination[i] = convert<To>(load_element<From>(view.data(), offset + i * inner_stride));
    }
    destination += inner;
    for (size_t axis = outer_axes; axis-- > 0;) {
      offset += view.strides()[axis];
      if (++index[axis] < view.shape()[axis]) break;
      offset -= view.strides()[axis] * view.shape()[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

void copy_elements(const ConstTensorView& view, DType dtype, void* destination) {
  if (view.numel() == 0) return;
  // Booleans are not copied as bytes: foreign memory may hold values other than 0 and 1.
  if (view.dtype() == dtype && dtype != DType::boolean && view.is_contiguous()) {
    std::memcpy(destination, view.data(), view.numel() * dtype_size(dtype));
    return;
  }
  visit_dtype(view.dtype(), [&]<class From>(std::type_identity<From>) {
    visit_dtype(dtype, [&]<class To>(std::type_identity<To>) {
      copy_converted<To, From>(view, static_cast<To*>(destination));
    });
  });
}

}  // namespace quire
