// Integer operations of tile programs, lane by lane. Everything wraps (unsigned arithmetic inside),
// nothing traps: lanes beyond a tile's edge hold garbage. Kernels layer.
#pragma once
#include <limits>
#include <type_traits>

#include "kernels/tile/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

struct IntNeg {
  template <class T>
  static HWY_INLINE T apply(T a) {
    return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  }
};
struct IntAbs {
  template <class T>
  static HWY_INLINE T apply(T a) {
    return a < 0 ? IntNeg::apply(a) : a;
  }
};
struct IntSign {
  template <class T>
  static HWY_INLINE T apply(T a) {
    return static_cast<T>((a > 0) - (a < 0));
  }
};
struct IntNot {
  template <class T>
  static HWY_INLINE T apply(T a) {
    return static_cast<T>(~a);
  }
};
struct IntAdd {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct IntSub {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct IntMul {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  }
};
struct IntMin {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return a < b ? a : b;
  }
};
struct IntMax {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return a > b ? a : b;
  }
};
struct IntAnd {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct IntOr {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct IntXor {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// The quotient rounded down; 0 for a divisor of 0. int32 divides in doubles, where the quotient of
// two int32 truncates exactly (a quotient that is no integer differs from one by 2^-31 of itself,
// far above 2^-53) and 8 divide at a time.
struct IntFloorDiv {
  static HWY_INLINE int32_t apply(int32_t a, int32_t b) {
    const int32_t divisor = b == 0 ? 1 : b;
    const double quotient = static_cast<double>(a) / static_cast<double>(divisor);
    // INT32_MIN / -1 is proved not to occur where it counts; beyond a tile's edge it only must not
    // be undefined.
    const int32_t q = static_cast<int32_t>(quotient > 2147483647.0 ? 2147483647.0 : quotient);
    const int32_t rest = IntSub::apply(a, IntMul::apply(q, divisor));
    const int32_t floor =
        IntSub::apply(q, static_cast<int32_t>((rest != 0) & ((rest ^ divisor) < 0)));
    return b == 0 ? 0 : floor;
  }
  static HWY_INLINE int64_t apply(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return IntNeg::apply(a);  // the one quotient that can overflow
    const int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
  }
};
// Sign of the divisor; 0 for a divisor of 0.
struct IntMod {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    const T q = IntFloorDiv::apply(a, b);
    return b == 0 ? T{0} : IntSub::apply(a, IntMul::apply(q, b));
  }
};
struct IntShl {
  static HWY_INLINE int64_t apply(int64_t a, int64_t count) {
    return count < 0 || count > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << count);
  }
};
struct IntShr {
  static HWY_INLINE int64_t apply(int64_t a, int64_t count) {
    return count < 0 || count > 63 ? (a < 0 ? -1 : 0) : a >> count;
  }
};
// A negative exponent gives 0, but 1 or -1 for those bases.
struct IntPow {
  static HWY_INLINE int64_t apply(int64_t a, int64_t n) {
    if (n < 0) return a == 1 ? 1 : a != -1 ? 0 : (n & 1) ? -1 : 1;
    uint64_t result = 1, square = static_cast<uint64_t>(a);
    for (; n != 0; n >>= 1, square *= square)
      if (n & 1) result *= square;
    return static_cast<int64_t>(result);
  }
};

// Conversions.
template <class To>
struct ConvertTo {
  template <class From>
  static HWY_INLINE To apply(From a) {
    return static_cast<To>(a);
  }
};
// Truncates and saturates; NaN gives 0.
struct FloatToInt64 {
  template <class T>
  static HWY_INLINE int64_t apply(T a) {
    constexpr T kLimit = static_cast<T>(9223372036854775808.0);
    if (!(a == a)) return 0;
    if (a >= kLimit) return std::numeric_limits<int64_t>::max();
    if (a < -kLimit) return std::numeric_limits<int64_t>::min();
    return static_cast<int64_t>(a);
  }
};

// Number of existing lanes in one panel of a function row.
HWY_INLINE size_t valid_lanes(const TileArgs& args, int panel, int64_t row) {
  const int64_t left = args.valid - row * args.valid_step - panel * kPanelLanes;
  return left < 0 ? 0 : left > kPanelLanes ? kPanelLanes : static_cast<size_t>(left);
}

#if HWY_TARGET != HWY_SCALAR
// The rule of check_index for a whole panel of int32, by vectors; returns whether any is outside.
template <class A>
HWY_INLINE bool check_panel(const char* from, int32_t size, char* out) {
  const VI zero = hn::Zero(kI32), sizes = hn::Set(kI32, size);
  const VI last = hn::Set(kI32, size == 0 ? 0 : size - 1);
  const VU end = hn::Set(kU32, static_cast<uint32_t>(size));
  auto inside = hn::Eq(end, end);
  QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) {
    const VI index = hn::BitCast(kI32, A::vector(from, v));
    const VI wrapped = hn::Add(index, hn::IfThenElseZero(hn::Lt(index, zero), sizes));
    inside = hn::And(inside, hn::Lt(hn::BitCast(kU32, wrapped), end));
    hn::StoreU(hn::Min(hn::Max(wrapped, zero), last), kI32,
               reinterpret_cast<int32_t*>(out) + v * kLanes);
  }
  return !hn::AllTrue(kU32, inside);
}
#endif

// An index, negative ones wrapped once, clamped to 0..imm-1 (0 if imm is 0); reports those outside
// -imm..imm-1.
template <class T, class A>
void check_index(const TileArgs& args) noexcept {
  const T size = static_cast<T>(args.instruction->imm);
  const T last = size == 0 ? 0 : size - 1;
  bool outside = false;
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      const size_t valid = valid_lanes(args, panel, r);
#if HWY_TARGET != HWY_SCALAR
      if constexpr (std::is_same_v<T, int32_t>) {
        if (HWY_LIKELY(valid == kPanelLanes)) {
          outside |= check_panel<A>(at.a, size, at.out);
          continue;
        }
      }
#endif
      T result[kPanelLanes];
      T bad = 0;
      for (size_t j = 0; j < kPanelLanes; ++j) {
        const T index = A::template lane<T>(at.a, j);
        const T wrapped = index < 0 ? IntAdd::apply(index, size) : index;
        bad |= static_cast<T>((wrapped < 0 || wrapped >= size) && j < valid);
        result[j] = wrapped < 0 ? 0 : wrapped > last ? last : wrapped;
      }
      outside |= bad != 0;
      store_panel(at.out, result);
    }
  }
  if (outside) *args.suspect = true;
}

// Reports divisors of 0 and writes nothing.
template <class T, class A>
void check_divisor(const TileArgs& args) noexcept {
  bool zero = false;
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      const size_t valid = valid_lanes(args, panel, r);
      for (size_t j = 0; j < valid; ++j) zero |= A::template lane<T>(at.a, j) == 0;
    }
  }
  if (zero) *args.suspect = true;
}

// *a + first + row * row_step + lane * lane_step; wraps.
template <class T>
void iota(const TileArgs& args) noexcept {
  const uint64_t base = static_cast<uint64_t>(*reinterpret_cast<const int64_t*>(args.a)) +
                        static_cast<uint64_t>(args.first);
  const uint64_t step = static_cast<uint64_t>(args.lane_step);
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      const uint64_t start = base +
                             static_cast<uint64_t>(r) * static_cast<uint64_t>(args.row_step) +
                             static_cast<uint64_t>(panel * kPanelLanes) * step;
      T result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j)
        result[j] = static_cast<T>(static_cast<Unsigned<T>>(start) +
                                   static_cast<Unsigned<T>>(j) * static_cast<Unsigned<T>>(step));
      store_panel(at.out, result);
    }
  }
}

// One number per existing lane from a list; the rest 0.
inline void copy_list(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      const size_t valid = valid_lanes(args, panel, r);
      int64_t result[kPanelLanes] = {};
      for (size_t j = 0; j < valid; ++j)
        result[j] = args.list[r * kGroupLanes + panel * kPanelLanes + static_cast<int>(j)];
      store_panel(at.out, result);
    }
  }
}

// The constant `imm` (its bits) in every lane.
template <class T>
void constant(const TileArgs& args) noexcept {
  T value;
  std::memcpy(&value, &args.instruction->imm, sizeof(T));
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      T result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j) result[j] = value;
      store_panel(at.out, result);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
