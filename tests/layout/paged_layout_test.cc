// Spans of paged sequences: merged where pages follow each other, and only those of the range.
#include "layout/paged_layout.h"

#include <gtest/gtest.h>

namespace quire::layout {
namespace {

// Pages of 4 keys; keys 8 elements apart, heads 100, pages as given.
KeyStrides strides(std::int64_t page_step) {
  return {.k_batch = page_step,
          .k_head = 100,
          .k_row = 8,
          .v_batch = page_step,
          .v_head = 200,
          .v_row = 8};
}

TEST(PagedLayout, PagesThatFollowEachOtherAreOneSpan) {
  const PagedLayout layout(4, {3, 4, 5, 1, 9, 10}, {15, 7});
  EXPECT_EQ(layout.length(0), 15);
  EXPECT_EQ(layout.length(1), 7);
  EXPECT_EQ(layout.max_spans(), 4);
  kernels::KeySpan spans[4];
  ASSERT_EQ(layout.write_spans(0, 2, {0, 15}, strides(32), spans), 2);
  EXPECT_EQ(spans[0].begin, 0);
  EXPECT_EQ(spans[0].end, 12);
  EXPECT_EQ(spans[0].key_offset, 3 * 32 + 2 * 100);
  EXPECT_EQ(spans[0].value_offset, 3 * 32 + 2 * 200);
  EXPECT_EQ(spans[1].begin, 12);
  EXPECT_EQ(spans[1].end, 15);
  EXPECT_EQ(spans[1].key_offset, 32 + 2 * 100);
  // The same pages with other heads between them.
  ASSERT_EQ(layout.write_spans(0, 0, {0, 15}, strides(64), spans), 4);
  EXPECT_EQ(spans[1].begin, 4);
  EXPECT_EQ(spans[1].end, 8);
  EXPECT_EQ(spans[1].key_offset, 4 * 64);
}

TEST(PagedLayout, OnlyPagesOfTheRangeAreTouched) {
  const std::int32_t pages[] = {7, 99, 2, 99, 0, 99, 5};
  const PagedLayout layout(4, false, {{.pages = pages, .step = 2, .length = 16}});
  kernels::KeySpan spans[4];
  ASSERT_EQ(layout.write_spans(0, 0, {6, 9}, strides(64), spans), 2);
  EXPECT_EQ(spans[0].begin, 4);
  EXPECT_EQ(spans[0].end, 8);
  EXPECT_EQ(spans[0].key_offset, 2 * 64);
  EXPECT_EQ(spans[1].begin, 8);
  EXPECT_EQ(spans[1].end, 12);
  EXPECT_EQ(spans[1].key_offset, 0);
  EXPECT_EQ(layout.write_spans(0, 0, {16, 40}, strides(64), spans), 0);
  EXPECT_EQ(layout.write_spans(0, 0, {3, 3}, strides(64), spans), 0);
}

TEST(PagedLayout, PagesThatAreNotThereGetAnAddressOfTheirOwn) {
  const PagedLayout layout(4, {-1, -1, 1, 2}, {16});
  kernels::KeySpan spans[4];
  ASSERT_EQ(layout.write_spans(0, 0, {0, 16}, strides(32), spans), 3);
  EXPECT_EQ(spans[0].key_offset, 0);
  EXPECT_EQ(spans[1].key_offset, 0);
  EXPECT_EQ(spans[2].begin, 8);
  EXPECT_EQ(spans[2].end, 16);
  EXPECT_EQ(spans[2].key_offset, 32);
}

TEST(PagedLayout, SharedKeysAreWholeEqualPagesFromTheStart) {
  std::vector<std::int64_t> pages;
  for (std::int64_t i = 0; i < 40; ++i) pages.push_back(i);                 // 0: 160 keys
  for (std::int64_t i = 0; i < 33; ++i) pages.push_back(i);                 // 1: as 0, 130 keys
  for (std::int64_t i = 0; i < 40; ++i) pages.push_back(i == 35 ? 99 : i);  // 2
  pages.push_back(5);                                                       // 3
  const PagedLayout layout(4, pages, {160, 130, 160, 3, 0});
  EXPECT_EQ(layout.shared_keys(0, 1), 130);
  EXPECT_EQ(layout.shared_keys(0, 2), 140);
  EXPECT_EQ(layout.shared_keys(2, 1), 130);
  EXPECT_EQ(layout.shared_keys(0, 3), 0);
  EXPECT_EQ(layout.shared_keys(0, 4), 0);
  EXPECT_EQ(DenseLayout(1, 10).shared_keys(0, 1), 0);
}

}  // namespace
}  // namespace quire::layout
