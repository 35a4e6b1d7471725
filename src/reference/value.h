// The input of a formula (a point) and the result of each of its nodes (a value). Reference layer.
#pragma once
#include <cstdint>

#include "quire/op.h"

namespace quire::reference {

/// The arguments of a mod at one element of the attention matrix.
struct Point {
  std::int64_t b = 0, h = 0, q_idx = 0, kv_idx = 0;
  double score = 0;
};

/// The value of one node. Only the member of its type is used.
struct Value {
  ValueType type = ValueType::kInt;
  std::int64_t i = 0;  // kInt; kBool as 0 or 1
  double f = 0;        // kFloat

  static Value of_int(std::int64_t i) { return {ValueType::kInt, i, 0}; }
  static Value of_float(double f) { return {ValueType::kFloat, 0, f}; }
  static Value of_bool(bool b) { return {ValueType::kBool, b ? 1 : 0, 0}; }

  /// "Is not zero"; a NaN is not zero.
  bool truth() const { return type == ValueType::kFloat ? f != 0 : i != 0; }
  /// As a float: an integer is rounded to nearest.
  double number() const { return type == ValueType::kFloat ? f : static_cast<double>(i); }
};

}  // namespace quire::reference
