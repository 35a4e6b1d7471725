// For tests of the prefill primitives: the functions of the ISA under test by compute type, random
// numbers, and comparison by bits.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/prefill/forward_functions.h"
#include "tests/support/attention_rules.h"

namespace quire {

template <class T>
const kernels::ForwardFunctions<T>& forward_functions() {
  if constexpr (std::is_same_v<T, float>)
    return *kernels::current_table().forward_f32;
  else
    return *kernels::current_table().forward_f64;
}

inline std::mt19937& generator() {
  static std::mt19937 engine(2024);
  return engine;
}
inline int random_int(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(generator());
}
template <class T>
std::vector<T> random_numbers(size_t n, T size = 2) {
  std::uniform_real_distribution<T> distribution(-size, size);
  std::vector<T> result(n);
  for (T& x : result) x = distribution(generator());
  return result;
}

/// Elements from the first to the last of `rows` rows of `columns`.
inline size_t span_of(int rows, ptrdiff_t step, int columns) {
  return static_cast<size_t>((rows - 1) * step + columns);
}
inline size_t scores_size(int panels, int rows) {
  return static_cast<size_t>((panels - 1) * kernels::kScorePanelStep + rows * kernels::kPanel);
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& expected,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  if (rules::same_bits(got.data(), expected.data(), got.size())) return;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(rules::same_bits(&got[i], &expected[i], 1))
        << what << ": element " << i << " is " << got[i] << ", not " << expected[i];
}

/// Suites over both compute types.
using ComputeTypes = ::testing::Types<float, double>;
struct ComputeTypeName {
  template <class T>
  static std::string GetName(int) {
    return std::is_same_v<T, float> ? "f32" : "f64";
  }
};

}  // namespace quire
