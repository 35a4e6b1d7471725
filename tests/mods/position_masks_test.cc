// Masks that depend on positions alone: causal, windows, sinks, chunks.
#include <gtest/gtest.h>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::expect_mask;

TEST(PositionMasks, Causal) {
  expect_mask(mods::causal(), [](auto, auto, auto q, auto kv) { return kv <= q; });
  EXPECT_EQ(mods::causal().to_string(), "q_idx >= kv_idx");
}

TEST(PositionMasks, CausalBottomRight) {
  for (const auto& [q_len, kv_len] : {std::pair{1, 257}, {113, 203}, {257, 131}, {7, 7}, {5, 0}})
    expect_mask(mods::causal_bottom_right(q_len, kv_len), {2, 1, q_len, kv_len},
                [q_len = q_len, kv_len = kv_len](auto, auto, auto q, auto kv) {
                  return kv_len - 1 - kv >= q_len - 1 - q;  // not nearer to the end than the query
                });
}

TEST(PositionMasks, CausalBottomRightErrors) {
  expect_error(ErrorKind::value, "[causal_bottom_right] q_len must be at least 0; got -1",
               [] { mods::causal_bottom_right(-1, 4); });
  expect_error(ErrorKind::value, "[causal_bottom_right] kv_len must be at least 0; got -4",
               [] { mods::causal_bottom_right(1, -4); });
}

TEST(PositionMasks, SlidingWindowOneSided) {
  for (const int size : {1, 2, 64, 300}) {
    expect_mask(mods::sliding_window(size), [size](auto, auto, auto q, auto kv) {
      for (int back = 0; back < size; ++back)
        if (q - back == kv) return true;
      return false;
    });
  }
}

TEST(PositionMasks, SlidingWindowTwoSided) {
  for (const auto& [left, right] : {std::pair{0, 0}, {3, 5}, {70, 0}, {0, 300}}) {
    expect_mask(mods::sliding_window(left, right),
                [left = left, right = right](auto, auto, auto q, auto kv) {
                  return kv < q ? q - kv <= left : kv - q <= right;
                });
  }
}

TEST(PositionMasks, SlidingWindowErrors) {
  expect_error(ErrorKind::value, "[sliding_window] size must be at least 1; got 0",
               [] { mods::sliding_window(0); });
  expect_error(ErrorKind::value, "[sliding_window] left must be at least 0; got -1",
               [] { mods::sliding_window(-1, 3); });
  expect_error(ErrorKind::value, "[sliding_window] right must be at least 0; got -1",
               [] { mods::sliding_window(3, -1); });
}

TEST(PositionMasks, AttentionSinkJoinsOthers) {
  expect_mask(mods::attention_sink(0), [](auto...) { return false; });
  expect_mask(mods::attention_sink(4) | mods::sliding_window(5, 5),
              [](auto, auto, auto q, auto kv) { return kv < 4 || (kv - q <= 5 && q - kv <= 5); });
  expect_error(ErrorKind::value, "[attention_sink] count must be at least 0; got -2",
               [] { mods::attention_sink(-2); });
}

TEST(PositionMasks, Streaming) {
  for (const auto& [sinks, window] : {std::pair{0, 1}, {4, 16}, {100, 3}}) {
    expect_mask(mods::streaming(sinks, window),
                [sinks = sinks, window = window](auto, auto, auto q, auto kv) {
                  if (kv > q) return false;
                  return kv < sinks || kv > q - window;
                });
  }
  expect_error(ErrorKind::value, "[streaming] sinks must be at least 0; got -1",
               [] { mods::streaming(-1, 4); });
  expect_error(ErrorKind::value, "[streaming] window must be at least 1; got 0",
               [] { mods::streaming(1, 0); });
}

TEST(PositionMasks, Chunked) {
  for (const int size : {1, 7, 64, 1000}) {
    const auto same = [size](auto q, auto kv) { return q / size == kv / size; };
    expect_mask(mods::chunked(size),
                [&](auto, auto, auto q, auto kv) { return same(q, kv) && kv <= q; });
    expect_mask(mods::chunked(size, false),
                [&](auto, auto, auto q, auto kv) { return same(q, kv); });
  }
  expect_error(ErrorKind::value, "[chunked] size must be at least 1; got 0",
               [] { mods::chunked(0); });
}

}  // namespace
}  // namespace quire
