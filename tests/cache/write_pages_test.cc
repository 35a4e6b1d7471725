// write_pages: every row in its slot and nothing else touched, with strides, conversions and rows
// that are left out; what is refused.
#include "quire/write_pages.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quire/error.h"
#include "quire/tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::random_normal;
using testing::same_bits;

ConstTensorView slots_of(const std::vector<std::int64_t>& slots) {
  return ConstTensorView(slots.data(), DType::i64, {std::ssize(slots)});
}

TEST(WritePages, PutsRowsIntoTheirSlots) {
  std::mt19937_64 random(3);
  for (const std::int64_t tokens : {3, 400}) {
    const std::int64_t size = 5, pages = 100, heads = 3, dim = 20;
    const Tensor rows = random_normal({tokens, heads, 2 * dim}, DType::f32, random);
    const ConstTensorView half = ConstTensorView(rows).slice(2, dim, 2 * dim);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor converted = to(half, dtype);
      Tensor to_pages({pages, heads, size, dim}, dtype);
      std::vector<std::int64_t> slots;
      for (std::int64_t i = 0; i < tokens; ++i)
        slots.push_back(i % 7 == 2 ? -1 : (i * 201 + 4) % (size * pages));
      write_pages(half, slots_of(slots), to_pages.view());
      std::vector<bool> is_written(static_cast<std::size_t>(size * pages), false);
      for (std::int64_t i = 0; i < tokens; ++i) {
        const std::int64_t slot = slots[static_cast<std::size_t>(i)];
        if (slot < 0) continue;
        is_written[static_cast<std::size_t>(slot)] = true;
        EXPECT_TRUE(same_bits(to_pages.view().select(0, slot / size).select(1, slot % size),
                              converted.view().select(0, i)))
            << i;
      }
      const Tensor zeros({heads, dim}, dtype);
      for (std::int64_t slot = 0; slot < size * pages; ++slot) {
        if (is_written[static_cast<std::size_t>(slot)]) continue;
        EXPECT_TRUE(
            same_bits(to_pages.view().select(0, slot / size).select(1, slot % size), zeros));
      }
    }
  }
}

TEST(WritePages, RefusesBeforeItWrites) {
  Tensor pages({4, 2, 8, 16}, DType::f32);
  std::mt19937_64 random(3);
  const Tensor rows = random_normal({2, 2, 16}, DType::f32, random);
  const std::vector<std::int64_t> good{0, 31}, outside{0, 32};
  expect_error(ErrorKind::index, "[write_pages] slot 32 of row 1 is outside 4 pages of 8",
               [&] { write_pages(rows, slots_of(outside), pages.view()); });
  expect_error(ErrorKind::value, "[write_pages] slots must be one for each of 2 rows; got [1]",
               [&] { write_pages(rows, slots_of({0}), pages.view()); });
  expect_error(ErrorKind::type, "[write_pages] slots must be i32 or i64; got f32", [&] {
    write_pages(rows, ConstTensorView(rows).select(0, 0).select(0, 0).slice(0, 0, 2), pages.view());
  });
  expect_error(ErrorKind::value,
               "[write_pages] rows must be [tokens, heads, dim] and pages [pages, heads, "
               "page_size, dim]; got [2, 2, 16] and [4, 2, 16]",
               [&] { write_pages(rows, slots_of(good), pages.view().select(2, 0)); });
  Tensor codes({4, 2, 8, 16}, DType::u8);
  expect_error(ErrorKind::type,
               "[write_pages] rows and pages must be floats, or of one dtype; got f32 and u8",
               [&] { write_pages(rows, slots_of(good), codes.view()); });
  EXPECT_TRUE(same_bits(pages, Tensor({4, 2, 8, 16}, DType::f32)));
}

}  // namespace
}  // namespace quire
