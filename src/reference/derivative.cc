// Derivatives of operations on two and three floats; float_functions.cc has those of one. Reference
// layer.
#include "reference/derivative.h"

#include <cassert>
#include <cmath>
#include <numbers>

#include "reference/arithmetic.h"

namespace quire::reference {
namespace {

// By the base: 0 for the exponent 0, where b * a^(b-1) could be 0 * inf. By the exponent: 0 for 0^b
// with b >= 0, where the limit of a^b * log(a) is 0 but for b = 0.
std::array<double, 2> power_derivatives(double a, double b, double y) {
  return {b == 0 ? 0 : b * std::pow(a, b - 1), a == 0 && b >= 0 ? 0 : y * std::log(a)};
}

}  // namespace

std::array<double, 2> binary_derivatives(Op op, double a, double b, double y) {
  switch (op) {
    case Op::kAdd:
      return {1, 1};
    case Op::kSub:
      return {1, -1};
    case Op::kMul:
      return {b, a};
    case Op::kDiv:
      return {1 / b, -y / b};
    case Op::kFloorDiv:
      return {0, 0};
    case Op::kMod:
      return {1, -float_binary(Op::kFloorDiv, a, b)};
    case Op::kPow:
      return power_derivatives(a, b, y);
    case Op::kMin:
      return a == b ? std::array{0.5, 0.5} : std::array{a > b ? 0. : 1., a < b ? 0. : 1.};
    case Op::kMax:
      return a == b ? std::array{0.5, 0.5} : std::array{a < b ? 0. : 1., a > b ? 0. : 1.};
    default:
      break;
  }
  assert(false && "not an operation on two floats");
  return {0, 0};
}

std::array<double, 3> clamp_derivatives(double x, double low, double high) {
  const bool inside = low <= x && x <= high;
  const bool at_low = x < low && low < high;
  const bool at_high = x > high || high < low;
  return {inside ? 1. : 0., at_low ? 1. : 0., at_high ? 1. : 0.};
}

}  // namespace quire::reference
