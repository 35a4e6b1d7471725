// How the prefill primitives read and write tensors: queries and rows of every float type and any
// steps widened exactly, outputs rounded as quire/float16.h does it, rows that are not finite told,
// nothing written outside. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quire/float16.h"
#include "tests/support/forward_functions.h"

namespace quire {
namespace {

using namespace kernels;

// Finite numbers of every size the type has, subnormals and both zeros among them.
template <class E>
E random_element() {
  if constexpr (sizeof(E) == 2) {
    for (;;) {
      const E x = E::from_bits(static_cast<uint16_t>(generator()()));
      if (std::isfinite(static_cast<float>(x))) return x;
    }
  } else {
    return static_cast<E>(std::ldexp(std::uniform_real_distribution<double>(-2, 2)(generator()),
                                     random_int(-130, 100)));
  }
}

// A matrix somewhere in memory; the vector ends with its last element.
template <class E>
struct Rows {
  std::vector<E> data;
  RowsView view;

  Rows(int rows, int columns, bool columns_outside, int gap) {
    view.rows = rows;
    view.columns = columns;
    view.dtype = dtype_of<E>;
    view.row_step = columns_outside ? 1 + gap : columns + gap;
    view.column_step = columns_outside ? (1 + gap) * rows : 1;
    data.resize(1 + (rows - 1) * view.row_step + (columns - 1) * view.column_step + 1);
    for (E& x : data) x = random_element<E>();
    view.data = data.data() + 1;  // not aligned to more than an element
  }
  E at(int row, int column) const {
    return data[1 + row * view.row_step + column * view.column_step];
  }
};

template <class T, class E>
void check_load_queries(int rows, int columns, bool columns_outside) {
  const Rows<E> from(rows, columns, columns_outside, 3);
  const int panels = (rows + kPanel - 1) / kPanel;
  std::vector<T> got((columns - 1) * kQueryTile + panels * kPanel, T{-5}), expected = got;
  for (int c = 0; c < columns; ++c)
    for (int lane = 0; lane < panels * kPanel; ++lane)
      expected[c * kQueryTile + lane] = lane < rows ? static_cast<T>(from.at(lane, c)) : T{0};
  forward_functions<T>().load_queries({.from = from.view, .panels = panels, .out = got.data()});
  EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size()))
      << dtype_name(dtype_of<E>) << " " << rows << " x " << columns;
}

template <class T, class E>
void check_copy_rows(int rows, int columns, bool columns_outside) {
  const Rows<E> from(rows, columns, columns_outside, 1);
  const int out_columns = columns + random_int(0, 20), step = out_columns + random_int(0, 3);
  std::vector<T> got((rows - 1) * step + out_columns, T{-5}), expected = got;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < out_columns; ++c)
      expected[r * step + c] = c < columns ? static_cast<T>(from.at(r, c)) : T{0};
  forward_functions<T>().copy_rows(
      {.from = from.view, .out = got.data(), .out_step = step, .out_columns = out_columns});
  EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size()))
      << dtype_name(dtype_of<E>) << " " << rows << " x " << columns;
}

template <class T, class E>
void check_reading() {
  for (const int columns : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 40, 64, 65, 100, 130}) {
    for (const bool columns_outside : {false, true}) {
      for (const int rows : {1, 3, 15, 16, 17, 48, 61, 64})
        check_load_queries<T, E>(rows, columns, columns_outside);
      for (const int rows : {1, 2, 7}) check_copy_rows<T, E>(rows, columns, columns_outside);
    }
  }
}

TEST(ForwardRows, ReadF32) { check_reading<float, float>(); }
TEST(ForwardRows, ReadBf16) { check_reading<float, BFloat16>(); }
TEST(ForwardRows, ReadF16) { check_reading<float, Float16>(); }
TEST(ForwardRows, ReadF64RoundedToF32) { check_reading<float, double>(); }
TEST(ForwardRows, ReadF32AsF64) { check_reading<double, float>(); }
TEST(ForwardRows, ReadF64) { check_reading<double, double>(); }
TEST(ForwardRows, ReadBf16AsF64) { check_reading<double, BFloat16>(); }
TEST(ForwardRows, ReadF16AsF64) { check_reading<double, Float16>(); }

TEST(ForwardRows, ReadInfinitiesAndNan) {
  const std::vector<Float16> f16{Float16::from_bits(0x7c00), Float16::from_bits(0xfc00),
                                 Float16::from_bits(0x7e01)};
  const std::vector<BFloat16> bf16{BFloat16::from_bits(0x7f80), BFloat16::from_bits(0xff80),
                                   BFloat16::from_bits(0x7fc1)};
  std::vector<float> out(3);
  for (const auto& [data, dtype] : {std::pair<const void*, DType>{f16.data(), DType::f16},
                                    std::pair<const void*, DType>{bf16.data(), DType::bf16}}) {
    forward_functions<float>().copy_rows(
        {.from = {.data = data, .dtype = dtype, .row_step = 3, .rows = 1, .columns = 3},
         .out = out.data(),
         .out_step = 3,
         .out_columns = 3});
    EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
    EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(out[2]));
  }
}

// --- Finish.

template <class T, class E>
void check_finish(int queries, int columns, bool columns_outside) {
  const ptrdiff_t step = columns + random_int(0, 16);
  std::vector<T> o((queries - 1) * step + columns), l(queries);
  for (T& x : o) x = static_cast<T>(random_element<float>());
  for (T& x : l) x = std::uniform_real_distribution<T>(0.5, 200)(generator());
  uint64_t bad = 0;
  for (int q = 0; q < queries; ++q) {
    const int kind = random_int(0, 6);
    T& x = o[q * step + random_int(0, columns - 1)];
    if (kind == 0 || kind == 2) x = std::numeric_limits<T>::infinity();
    if (kind == 1) x = std::numeric_limits<T>::quiet_NaN();
    if (kind == 2) l[q] = 0;
    if (kind < 2) bad |= uint64_t{1} << q;
    if (kind == 3) x = T{-0.0};
  }
  Rows<E> out(queries, columns, columns_outside, 2);
  std::vector<E> expected = out.data;
  for (int q = 0; q < queries; ++q)
    for (int c = 0; c < columns; ++c)
      expected[1 + q * out.view.row_step + c * out.view.column_step] =
          l[q] == 0 ? E(T{0}) : E(std::fma(o[q * step + c], T{1} / l[q], T{0}));
  EXPECT_EQ(forward_functions<T>().finish({.l = l.data(),
                                           .o = o.data(),
                                           .step = step,
                                           .queries = queries,
                                           .columns = columns,
                                           .out = out.data.data() + 1,
                                           .dtype = dtype_of<E>,
                                           .row_step = out.view.row_step,
                                           .column_step = out.view.column_step}),
            bad);
  const std::string what = std::string(dtype_name(dtype_of<E>)) + " " + std::to_string(queries) +
                           " x " + std::to_string(columns);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double x = static_cast<double>(expected[i]);
    if (std::isnan(x))
      ASSERT_TRUE(std::isnan(static_cast<double>(out.data[i]))) << what;
    else
      ASSERT_TRUE(rules::same_bits(&out.data[i], &expected[i], 1))
          << what << ": " << static_cast<double>(out.data[i]) << ", not " << x;
  }
}

template <class T, class E>
void check_writing() {
  for (const int columns : {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 100})
    for (const int queries : {1, 5, 64})
      for (const bool columns_outside : {false, true})
        check_finish<T, E>(queries, columns, columns_outside);
}

TEST(ForwardRows, WriteF32) { check_writing<float, float>(); }
TEST(ForwardRows, WriteBf16) { check_writing<float, BFloat16>(); }
TEST(ForwardRows, WriteF16) { check_writing<float, Float16>(); }
TEST(ForwardRows, WriteF32AsF64) { check_writing<float, double>(); }
TEST(ForwardRows, WriteF64) { check_writing<double, double>(); }
TEST(ForwardRows, WriteF64AsF32) { check_writing<double, float>(); }
TEST(ForwardRows, WriteF64AsBf16) { check_writing<double, BFloat16>(); }
TEST(ForwardRows, WriteF64AsF16) { check_writing<double, Float16>(); }

// Numbers halfway between two 16-bit floats, and a little to either side of that.
template <class T, class E>
void check_rounding() {
  std::vector<T> values;
  for (uint32_t bits = 0; bits < 0x8000; bits += 7) {
    const double low = static_cast<float>(E::from_bits(static_cast<uint16_t>(bits)));
    const double high = static_cast<float>(E::from_bits(static_cast<uint16_t>(bits + 1)));
    if (!std::isfinite(high)) continue;
    const T middle = static_cast<T>((low + high) / 2);
    for (const T x : {middle, std::nextafter(middle, T{0}), std::nextafter(middle, T{1e38f})}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  const int columns = static_cast<int>(values.size());
  const T l = 1;
  std::vector<E> out(values.size());
  forward_functions<T>().finish({.l = &l,
                                 .o = values.data(),
                                 .step = columns,
                                 .queries = 1,
                                 .columns = columns,
                                 .out = out.data(),
                                 .dtype = dtype_of<E>,
                                 .row_step = columns});
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(out[i].bits, E(values[i] == 0 ? T{0} : values[i]).bits) << values[i];
}

TEST(ForwardRows, RoundToNearestEven) {
  check_rounding<float, BFloat16>();
  check_rounding<float, Float16>();
  check_rounding<double, BFloat16>();
  check_rounding<double, Float16>();
}

}  // namespace
}  // namespace quire
