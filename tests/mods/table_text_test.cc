// mods::read_table: what people type is read as they mean it, or not at all.
#include <gtest/gtest.h>

#include "quire/error.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"

namespace quire::mods {
namespace {

constexpr GallerySizes kSizes{.q_len = 8, .kv_len = 6, .heads = 2, .batch = 1};

TEST(ReadTable, ListsOfNumbers) {
  const auto integers = read_table(" doc = 1, 1,2 ", kSizes);
  ASSERT_TRUE(integers.has_value());
  EXPECT_EQ(integers->first, "doc");
  EXPECT_EQ(integers->second.dtype(), DType::i64);
  EXPECT_EQ(integers->second.shape(), Shape({3}));
  const auto floats = read_table("slopes=0.5,2", kSizes);
  ASSERT_TRUE(floats.has_value());
  EXPECT_EQ(floats->second.dtype(), DType::f32);
}

TEST(ReadTable, FilledByAFormula) {
  const auto table = read_table("doc = i32[kv_len]: kv_idx // 2", kSizes);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->second.shape(), Shape({6}));
  EXPECT_EQ(table->second.dtype(), DType::i32);
  EXPECT_TRUE(table->second.has_data());
  const auto* data = static_cast<const std::int32_t*>(table->second.view().data());
  EXPECT_EQ(std::vector<std::int32_t>(data, data + 6),
            (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2}));
}

TEST(ReadTable, DeclaredWithoutContents) {
  const auto table = read_table("doc=i64[2, 3]", kSizes);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->second.shape(), Shape({2, 3}));
  EXPECT_FALSE(table->second.has_data());
}

TEST(ReadTable, WhatIsNoTable) {
  for (const char* text : {"", "doc", "=1,2", "doc=", "doc=1,x", "doc=i64[2", "doc=i64]2[",
                           "doc=i64[a]", "doc=i64[2] kv_idx", "doc=i64[-1]"})
    EXPECT_FALSE(read_table(text, kSizes).has_value()) << text;
}

TEST(ReadTable, MistakesInside) {
  EXPECT_THROW(read_table("doc=i65[2]", kSizes), Error);
  EXPECT_THROW(read_table("doc=i64[kv_len]: kv_ix", kSizes), Error);
}

}  // namespace
}  // namespace quire::mods
