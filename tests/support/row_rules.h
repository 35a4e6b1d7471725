// One row of attention by the order of arithmetic (kernels/attention_order.h), number by number in
// plain C++: the bits every kernel must give. Written from the rules, not from the kernels; shares
// nothing with them but the constants. Tests only.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace quire::testing {

/// T is the compute type; q, keys and values are widened to it already.
template <class T>
struct RowInput {
  std::vector<T> q;
  std::int64_t keys = 0;
  int value_dims = 0;
  std::function<const T*(std::int64_t)> key, value;  // only asked for what is visible
  std::function<bool(std::int64_t)> visible;         // empty: everything
  /// The score mod over all keys of the row, in place; scores come in scaled, hidden ones as 0.
  std::function<void(std::vector<T>&)> mod;
  /// By what dropout multiplies a key's weight after the sum; empty: no dropout.
  std::function<T(std::int64_t)> kept;
  double scale = 1;
  bool pairs = false;  // products of bf16 pairs, as current_isa() has them (pair_product.h)
  bool tiles = false;  // of these, by tile registers
  /// Codes that are multiplied as integers: key and value give codes, or what became of them, these
  /// their scales; by how many bits queries and weights are shorter.
  std::function<T(std::int64_t)> key_scale, value_scale;
  int query_shift = 0, weight_shift = 0;
};

/// Numbers as integers of 16 bits less `shift`, and the power of two that takes them back: NaN if
/// one is not finite.
struct Integers {
  std::vector<std::int64_t> numbers;
  float inverse;

  explicit Integers(const std::vector<float>& from, int shift = 0);
};

template <class T>
struct RowOutput {
  std::vector<T> out;  // before it is rounded to the output's type
  T lse, max_score;
};

template <class T>
RowOutput<T> row_by_rules(const RowInput<T>& input);
}  // namespace quire::testing
