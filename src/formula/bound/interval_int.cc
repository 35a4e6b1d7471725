// Interval rules for integer operations; int64 wraps. Formula layer.
#include <array>
#include <bit>
#include <cstdint>

#include "formula/bound/integers.h"
#include "formula/bound/interval_rules.h"

namespace quire::formula {
namespace {

Interval single(std::int64_t x) { return Interval::ints(x, x); }

std::int64_t sign_of(std::int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

Interval add(const Interval& a, const Interval& b) {
  std::int64_t lo, hi;
  if (__builtin_add_overflow(a.int_lo, b.int_lo, &lo) ||
      __builtin_add_overflow(a.int_hi, b.int_hi, &hi))
    return Interval::any_int();
  return Interval::ints(lo, hi);
}

Interval sub(const Interval& a, const Interval& b) {
  std::int64_t lo, hi;
  if (__builtin_sub_overflow(a.int_lo, b.int_hi, &lo) ||
      __builtin_sub_overflow(a.int_hi, b.int_lo, &hi))
    return Interval::any_int();
  return Interval::ints(lo, hi);
}

Interval square(const Interval& a) {
  std::int64_t x, y;
  if (__builtin_mul_overflow(a.int_lo, a.int_lo, &x) ||
      __builtin_mul_overflow(a.int_hi, a.int_hi, &y))
    return Interval::any_int();
  return Interval::ints(a.contains_int(0) ? 0 : std::min(x, y), std::max(x, y));
}

Interval mul(const Interval& a, const Interval& b) {
  std::array<std::int64_t, 4> p;
  bool overflows = __builtin_mul_overflow(a.int_lo, b.int_lo, &p[0]);
  overflows |= __builtin_mul_overflow(a.int_lo, b.int_hi, &p[1]);
  overflows |= __builtin_mul_overflow(a.int_hi, b.int_lo, &p[2]);
  overflows |= __builtin_mul_overflow(a.int_hi, b.int_hi, &p[3]);
  if (overflows) return Interval::any_int();
  const auto [lo, hi] = std::minmax_element(p.begin(), p.end());
  return Interval::ints(*lo, *hi);
}

std::int64_t floor_remainder(std::int64_t x, std::int64_t y) {
  const std::int64_t r = x % y;
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

// Joins the results for the negative, zero and positive divisors in `b`. Division by zero gives 0.
template <class ForNegative, class ForPositive>
Interval by_sign_of_divisor(const Interval& b, ForNegative for_negative, ForPositive for_positive) {
  Interval result = single(0);
  bool known = b.contains_int(0);
  const auto join = [&](const Interval& part) {
    result = known ? hull(result, part) : part;
    known = true;
  };
  if (b.int_lo < 0) join(for_negative(b.int_lo, std::min<std::int64_t>(b.int_hi, -1)));
  if (b.int_hi > 0) join(for_positive(std::max<std::int64_t>(b.int_lo, 1), b.int_hi));
  return result;
}

// The quotient is monotone in each argument while the divisor keeps its sign, so two of the four
// corners bound it; which two depends on the sign of the dividend's ends.
Interval floor_div(const Interval& a, const Interval& b) {
  const auto for_positive = [&](std::int64_t lo, std::int64_t hi) {
    return Interval::ints(floor_quotient(a.int_lo, a.int_lo >= 0 ? hi : lo),
                          floor_quotient(a.int_hi, a.int_hi >= 0 ? lo : hi));
  };
  const auto for_negative = [&](std::int64_t lo, std::int64_t hi) {
    if (a.int_lo == kMinInt && hi == -1) return Interval::any_int();  // this quotient wraps
    return Interval::ints(floor_quotient(a.int_hi, a.int_hi >= 0 ? hi : lo),
                          floor_quotient(a.int_lo, a.int_lo >= 0 ? lo : hi));
  };
  return by_sign_of_divisor(b, for_negative, for_positive);
}

// Exact if the dividend stays within one period of a known divisor.
Interval mod(const Interval& a, const Interval& b) {
  const auto one_period = [&](std::int64_t y) {
    return floor_quotient(a.int_lo, y) == floor_quotient(a.int_hi, y);
  };
  const auto within = [&](std::int64_t y) {
    return Interval::ints(floor_remainder(a.int_lo, y), floor_remainder(a.int_hi, y));
  };
  const auto for_positive = [&](std::int64_t lo, std::int64_t hi) {
    if (a.int_lo >= 0 && a.int_hi < lo) return a;
    if (lo == hi && one_period(lo)) return within(lo);
    return Interval::ints(0, a.int_lo >= 0 ? std::min(hi - 1, a.int_hi) : hi - 1);
  };
  const auto for_negative = [&](std::int64_t lo, std::int64_t hi) {
    if (a.int_hi <= 0 && a.int_lo > hi) return a;
    if (lo == -1) return single(0);
    if (lo == hi && one_period(lo)) return within(lo);
    return Interval::ints(a.int_hi <= 0 ? std::max(lo + 1, a.int_lo) : lo + 1, 0);
  };
  return by_sign_of_divisor(b, for_negative, for_positive);
}

// Computes x to the power n >= 0; returns whether it overflowed.
bool power_overflows(std::int64_t x, std::int64_t n, std::int64_t& result) {
  bool overflows = false;
  result = 1;
  for (std::int64_t square = x; n != 0;) {  // the builtins wrap, as the language does
    if (n & 1) overflows |= __builtin_mul_overflow(result, square, &result);
    n >>= 1;
    if (n != 0) overflows |= __builtin_mul_overflow(square, square, &square);
  }
  return overflows;
}

Interval pow(const Interval& a, const Interval& b) {
  std::int64_t value = 0;
  if (a.is_single_int() && b.is_single_int() && b.int_lo >= 0) {
    power_overflows(a.int_lo, b.int_lo, value);
    return single(value);
  }
  // Negative exponents give 0, or 1 and -1 for these bases.
  Interval result = Interval::ints(a.contains_int(-1) ? -1 : 0, a.contains_int(1) ? 1 : 0);
  if (a.contains_int(-1)) result.int_hi = 1;
  if (b.int_hi < 0) return result;
  const std::int64_t least = std::max<std::int64_t>(b.int_lo, 0);
  if (a.int_lo == kMinInt) return Interval::any_int();
  const std::int64_t magnitude =
      std::max(a.int_lo < 0 ? -a.int_lo : a.int_lo, a.int_hi < 0 ? -a.int_hi : a.int_hi);
  std::int64_t hi = 0, lo = 0;
  if (power_overflows(magnitude, b.int_hi, hi)) return Interval::any_int();
  hi = std::max<std::int64_t>(hi, least == 0);
  if (a.int_lo >= 1) {
    power_overflows(a.int_lo, least, lo);  // not above `hi`, so it cannot overflow
  } else if (a.int_lo < 0) {
    lo = -hi;
  }
  const Interval part = Interval::ints(lo, hi);
  return b.int_lo < 0 ? hull(result, part) : part;
}

bool shl_overflows(std::int64_t x, int count, std::int64_t& result) {
  result = static_cast<std::int64_t>(static_cast<std::uint64_t>(x) << count);
  return (result >> count) != x;
}

Interval shl(const Interval& a, const Interval& b) {
  if (b.int_hi < 0 || b.int_lo > 63) return single(0);
  const int least = static_cast<int>(std::max<std::int64_t>(b.int_lo, 0));
  const int most = static_cast<int>(std::min<std::int64_t>(b.int_hi, 63));
  std::int64_t lo, hi;
  bool overflows = shl_overflows(a.int_lo, a.int_lo < 0 ? most : least, lo);
  overflows |= shl_overflows(a.int_hi, a.int_hi < 0 ? least : most, hi);
  // A single value that wraps is still a single value.
  if (overflows && !(a.is_single_int() && least == most)) return Interval::any_int();
  const Interval part = Interval::ints(lo, hi);
  return b.int_lo < 0 || b.int_hi > 63 ? hull(part, single(0)) : part;
}

// A count outside 0..63 acts like 63: gives 0, or -1 for a negative value.
Interval shr(const Interval& a, const Interval& b) {
  const bool outside = b.int_lo < 0 || b.int_hi > 63;
  const bool inside = b.int_hi >= 0 && b.int_lo <= 63;
  const std::int64_t least = inside ? std::max<std::int64_t>(b.int_lo, 0) : 63;
  const std::int64_t most = outside ? 63 : b.int_hi;
  return Interval::ints(a.int_lo >> (a.int_lo < 0 ? least : most),
                        a.int_hi >> (a.int_hi < 0 ? most : least));
}

// The bits that all ints of an interval share: those above the highest bit in which its ends
// differ.
struct KnownBits {
  std::uint64_t ones, zeros;

  explicit KnownBits(const Interval& a) {
    const auto lo = static_cast<std::uint64_t>(a.int_lo), hi = static_cast<std::uint64_t>(a.int_hi);
    const int free = std::bit_width(lo ^ hi);
    const std::uint64_t known = free == 64 ? 0 : ~std::uint64_t{0} << free;
    ones = lo & known;
    zeros = ~lo & known;
  }
};

Interval from_bits(std::uint64_t ones, std::uint64_t zeros) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  const bool sign_free = ((ones | zeros) & kSign) == 0;
  const std::uint64_t lo = sign_free ? ones | kSign : ones;
  const std::uint64_t hi = sign_free ? ~zeros & ~kSign : ~zeros;
  return Interval::ints(static_cast<std::int64_t>(lo), static_cast<std::int64_t>(hi));
}

Interval bits(Op op, const Interval& a, const Interval& b) {
  const KnownBits x(a), y(b);
  if (op == Op::kBitXor) {
    return from_bits((x.ones & y.zeros) | (x.zeros & y.ones),
                     (x.ones & y.ones) | (x.zeros & y.zeros));
  }
  if (op == Op::kBitAnd) {
    Interval r = from_bits(x.ones & y.ones, x.zeros | y.zeros);
    if (a.int_lo >= 0) r.int_hi = std::min(r.int_hi, a.int_hi);  // clears bits of a
    if (b.int_lo >= 0) r.int_hi = std::min(r.int_hi, b.int_hi);
    return r;
  }
  Interval r = from_bits(x.ones | y.ones, x.zeros & y.zeros);
  if (a.int_lo >= 0 && b.int_lo >= 0) r.int_lo = std::max({r.int_lo, a.int_lo, b.int_lo});
  return r;
}

}  // namespace

Interval bound_int_unary(Op op, const Interval& a) {
  switch (op) {
    case Op::kNeg:
      return a.is_single_int() && a.int_lo == kMinInt ? a : sub(single(0), a);
    case Op::kAbs:
      if (a.int_lo >= 0) return a;
      if (a.int_lo == kMinInt) return a.is_single_int() ? a : Interval::any_int();
      return a.int_hi <= 0 ? Interval::ints(-a.int_hi, -a.int_lo)
                           : Interval::ints(0, std::max(-a.int_lo, a.int_hi));
    case Op::kSign:
      return Interval::ints(sign_of(a.int_lo), sign_of(a.int_hi));
    case Op::kBitNot:
      return Interval::ints(~a.int_hi, ~a.int_lo);
    default:
      return Interval::any_int();
  }
}

Interval bound_int_binary(Op op, const Interval& a, const Interval& b, bool same) {
  switch (op) {
    case Op::kAdd:
      return add(a, b);
    case Op::kSub:
      return same ? single(0) : sub(a, b);
    case Op::kMul:
      return same ? square(a) : mul(a, b);
    case Op::kFloorDiv:
      return floor_div(a, b);
    case Op::kMod:
      return same ? single(0) : mod(a, b);
    case Op::kPow:
      return pow(a, b);
    case Op::kMin:
      return Interval::ints(std::min(a.int_lo, b.int_lo), std::min(a.int_hi, b.int_hi));
    case Op::kMax:
      return Interval::ints(std::max(a.int_lo, b.int_lo), std::max(a.int_hi, b.int_hi));
    case Op::kShl:
      return shl(a, b);
    case Op::kShr:
      return shr(a, b);
    case Op::kBitAnd:
    case Op::kBitOr:
      return same ? a : bits(op, a, b);
    case Op::kBitXor:
      return same ? single(0) : bits(op, a, b);
    default:
      return Interval::any_int();
  }
}

}  // namespace quire::formula
