// Where the rows of packed sequences are.
#include "layout/jagged_layout.h"

#include <gtest/gtest.h>

namespace quire::layout {
namespace {

TEST(JaggedLayout, OneSpanPerSequence) {
  const JaggedLayout layout({.begin = {0, 5, 5}, .length = {4, 0, 3}}, {2, 9, 11});
  EXPECT_EQ(layout.max_spans(), 1);
  EXPECT_EQ(layout.length(2), 3);
  const KeyStrides strides{
      .k_batch = 1000, .k_head = 16, .k_row = 32, .v_batch = 1000, .v_head = 700, .v_row = 8};
  kernels::KeySpan span;
  EXPECT_EQ(layout.write_spans(1, 0, {0, 100}, strides, {&span, 1}), 0);
  EXPECT_EQ(layout.write_spans(2, 1, {0, 100}, strides, {&span, 1}), 1);
  EXPECT_EQ(span.begin, 0);
  EXPECT_EQ(span.end, 3);
  EXPECT_EQ(span.key_offset, 16 + 5 * 32);
  EXPECT_EQ(span.value_offset, 700 + 11 * 8);
}

TEST(JaggedQueries, KnowsLengthsAndPlaces) {
  const JaggedQueries queries({.begin = {3, 9}, .length = {4, 7}});
  EXPECT_EQ(queries.longest(), 7);
  EXPECT_EQ(queries.length(0), 4);
  EXPECT_EQ(queries.place(1).batch, 0);
  EXPECT_EQ(queries.place(1).row, 9);
  EXPECT_EQ(JaggedQueries({}).longest(), 0);
  const DenseQueries dense(12);
  EXPECT_EQ(dense.length(5), 12);
  EXPECT_EQ(dense.longest(), 12);
  EXPECT_EQ(dense.place(5).batch, 5);
  EXPECT_EQ(dense.place(5).row, 0);
}

}  // namespace
}  // namespace quire::layout
