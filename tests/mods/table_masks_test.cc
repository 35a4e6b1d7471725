// Masks that read a table: documents, prefixes, padding, shared prefixes.
#include <gtest/gtest.h>

#include <vector>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::expect_mask;

// Ids of 260 positions with runs of odd lengths, padding among and behind them, and document 3
// coming back.
std::vector<std::int64_t> some_ids(std::int64_t seed = 0) {
  std::vector<std::int64_t> ids;
  for (const std::int64_t run : {37, 1, 90, 5, 64, 3, 60}) {
    const std::int64_t number = static_cast<std::int64_t>(ids.size()) * (seed + 1) % 5;
    for (std::int64_t i = 0; i < run; ++i) ids.push_back(run == 5 ? -1 : run == 3 ? 3 : number);
  }
  return ids;
}

bool same(std::int64_t a, std::int64_t b) { return a >= 0 && a == b; }

template <class T>
std::int64_t at(const std::vector<T>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

TEST(Document, Ids) {
  const std::vector<std::int64_t> ids = some_ids();
  expect_mask(mods::document(ids),
              [&](auto, auto, auto q, auto kv) { return same(at(ids, q), at(ids, kv)); });
  const std::vector<std::int8_t> narrow(ids.begin(), ids.end());
  expect_mask(mods::document(narrow),
              [&](auto, auto, auto q, auto kv) { return same(at(ids, q), at(ids, kv)); });
}

TEST(Document, IdsPerBatch) {
  const std::vector<std::int64_t> first = some_ids(), second = some_ids(1);
  std::vector<std::int64_t> both = first;
  both.insert(both.end(), second.begin(), second.end());
  const MaskMod mask = mods::document(Tensor::from(both, {2, 260}));
  expect_mask(mask, [&](auto b, auto, auto q, auto kv) {
    const auto& ids = b == 0 ? first : second;
    return same(at(ids, q), at(ids, kv));
  });
}

TEST(Document, OneBatchServesAll) {
  const std::vector<std::int64_t> ids = some_ids();
  expect_mask(mods::document(Tensor::from(ids, {1, 260})),
              [&](auto, auto, auto q, auto kv) { return same(at(ids, q), at(ids, kv)); });
}

TEST(Document, QueriesAndKeysWithIdsOfTheirOwn) {
  const std::vector<std::int64_t> q_ids = some_ids(), kv_ids = some_ids(2);
  expect_mask(mods::document(q_ids, kv_ids),
              [&](auto, auto, auto q, auto kv) { return same(at(q_ids, q), at(kv_ids, kv)); });
}

TEST(Document, TheTableIsReadInPlaceUnderItsName) {
  Tensor ids = Tensor::from(std::vector<std::int32_t>{0, 0, 1});
  const MaskMod mask = mods::document(ids);
  EXPECT_EQ(mask.to_string(), "(ids[q_idx] == ids[kv_idx]) & (ids[kv_idx] >= 0)");
  ids.at<std::int32_t>({1}) = 1;
  expect_mask(mask, {1, 1, 3, 3}, [](auto, auto, auto q, auto kv) { return (q > 0) == (kv > 0); });
  const MaskMod named = mods::document(Buffer(ids, {.name = "doc"}));
  EXPECT_EQ(named.to_string(), "(doc[q_idx] == doc[kv_idx]) & (doc[kv_idx] >= 0)");
}

// Until the error is known the last id is read, so the first element that would be visible has it.
TEST(Document, PositionsBehindTheTableAreAnError) {
  const MaskMod mask = mods::document(std::vector<std::int64_t>{0, 0, 1});
  expect_error(ErrorKind::index,
               "[formula] index 3 is outside buffer 'ids' of size 3 (axis 0) at b=0, h=0, "
               "q_idx=2, kv_idx=3",
               [&] {
                 evaluate(mask, {1, 1, 3, 4});
               });
}

TEST(Document, FromOffsets) {
  const std::vector<std::int32_t> offsets = {0, 40, 40, 41, 200, 257};
  const auto document_of = [&](std::int64_t i) {
    for (std::size_t k = 0; k + 1 < offsets.size(); ++k)
      if (i >= offsets[k] && i < offsets[k + 1]) return static_cast<std::int64_t>(k);
    return std::int64_t{-1};
  };
  const auto rule = [&](auto, auto, auto q, auto kv) {
    return same(document_of(q), document_of(kv));
  };
  expect_mask(mods::document_from_offsets(offsets), rule);
  expect_mask(mods::document_from_offsets(offsets, 300), {1, 1, 300, 300}, rule);
}

TEST(Document, FromOffsetsOfNoDocument) {
  const MaskMod mask = mods::document_from_offsets(std::vector<std::int64_t>{0}, 3);
  expect_mask(mask, {1, 1, 3, 3}, [](auto...) { return false; });
}

TEST(Document, Errors) {
  const std::vector<float> floats = {0, 1};
  expect_error(ErrorKind::type, "[document] ids must be integers; got f32",
               [&] { mods::document(floats); });
  expect_error(ErrorKind::type, "[document] kv_ids must be integers; got f32",
               [&] { mods::document(std::vector<int>{1}, floats); });
  expect_error(ErrorKind::value,
               "[document] ids must have the shape [len] or [batch, len]; got [1, 2, 3]", [] {
                 mods::document(Tensor({1, 2, 3}, DType::i32));
               });
  expect_error(ErrorKind::value,
               "[document] kv_ids must have the shape [len] or [batch, len]; got []",
               [] { mods::document(Tensor({3}, DType::i32), Tensor(Shape(), DType::i32)); });
}

TEST(Document, FromOffsetsErrors) {
  using Offsets = std::vector<std::int64_t>;
  expect_error(ErrorKind::value, "[document_from_offsets] offsets must begin with 0; got 3", [] {
    mods::document_from_offsets(Offsets{3, 4});
  });
  expect_error(ErrorKind::value,
               "[document_from_offsets] offsets must not fall; got 2 after 5 at index 2", [] {
                 mods::document_from_offsets(Offsets{0, 5, 2});
               });
  expect_error(ErrorKind::value, "[document_from_offsets] offsets must hold at least one number",
               [] { mods::document_from_offsets(Offsets{}); });
  expect_error(ErrorKind::value,
               "[document_from_offsets] length must be at least the last offset 5; got 4", [] {
                 mods::document_from_offsets(Offsets{0, 5}, 4);
               });
  expect_error(ErrorKind::type, "[document_from_offsets] offsets must be integers; got f64",
               [] { mods::document_from_offsets(std::vector<double>{0}); });
  expect_error(ErrorKind::value,
               "[document_from_offsets] offsets must have the shape [documents + 1]; got [1, 2]",
               [] {
                 mods::document_from_offsets(Tensor({1, 2}, DType::i32));
               });
  expect_error(ErrorKind::value,
               "[document_from_offsets] offsets is declared only and has no elements to read",
               [] { mods::document_from_offsets(Buffer::declare(DType::i32, {3})); });
}

TEST(PrefixLm, OneLengthAndOnePerBatch) {
  for (const int length : {0, 1, 65, 500})
    expect_mask(mods::prefix_lm(length),
                [length](auto, auto, auto q, auto kv) { return kv < length || kv <= q; });
  const std::vector<std::int64_t> lengths = {3, 100};
  expect_mask(mods::prefix_lm(lengths),
              [&](auto b, auto, auto q, auto kv) { return kv < at(lengths, b) || kv <= q; });
  expect_mask(mods::prefix_lm(std::vector<std::int64_t>{9}),  // one serves all
              [](auto, auto, auto q, auto kv) { return kv < 9 || kv <= q; });
}

TEST(PrefixLm, Errors) {
  expect_error(ErrorKind::value, "[prefix_lm] length must be at least 0; got -1",
               [] { mods::prefix_lm(-1); });
  expect_error(ErrorKind::type, "[prefix_lm] lengths must be integers; got f32",
               [] { mods::prefix_lm(std::vector<float>{1}); });
  expect_error(ErrorKind::value, "[prefix_lm] lengths must have the shape [batch]; got [2, 2]", [] {
    mods::prefix_lm(Tensor({2, 2}, DType::i32));
  });
}

TEST(Padding, OneLengthAndOnePerBatch) {
  for (const int length : {0, 1, 65, 500})
    expect_mask(mods::padding(length), [length](auto, auto, auto, auto kv) { return kv < length; });
  const std::vector<std::int32_t> lengths = {3, 100};
  expect_mask(mods::padding(lengths),
              [&](auto b, auto, auto, auto kv) { return kv < at(lengths, b); });
}

TEST(Padding, Errors) {
  expect_error(ErrorKind::value, "[padding] kv_length must be at least 0; got -1",
               [] { mods::padding(-1); });
  expect_error(ErrorKind::type, "[padding] kv_lengths must be integers; got bool",
               [] { mods::padding(Tensor({2}, DType::boolean)); });
  expect_error(ErrorKind::value, "[padding] kv_lengths must have the shape [batch]; got []",
               [] { mods::padding(Tensor(Shape(), DType::i32)); });
}

TEST(SharedPrefix, BranchesSeeThePrefixAndThemselves) {
  const std::vector<std::int64_t> ids = some_ids();
  for (const int prefix : {0, 30, 250}) {
    const auto rule = [&](auto, auto, auto q, auto kv) {
      if (kv > q) return false;
      return kv < prefix || same(at(ids, q), at(ids, kv));
    };
    expect_mask(mods::shared_prefix(prefix, ids), rule);
  }
}

TEST(SharedPrefix, Errors) {
  expect_error(ErrorKind::value, "[shared_prefix] prefix_length must be at least 0; got -3",
               [] { mods::shared_prefix(-3, std::vector<int>{0}); });
  expect_error(ErrorKind::type, "[document] ids must be integers; got f32",
               [] { mods::shared_prefix(3, std::vector<float>{0}); });
}

}  // namespace
}  // namespace quire
