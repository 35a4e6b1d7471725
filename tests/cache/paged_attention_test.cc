// PagedAttention: tables, the order of pages, errors that change nothing; calls with converted
// masks against the same keys in a dense tensor, bit by bit.
#include "quire/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire {
namespace {

std::vector<std::int64_t> values(const TensorView& view) {
  const auto* data = static_cast<const std::int64_t*>(view.data());
  return {data, data + view.numel()};
}

using testing::expect_error;
using testing::random_normal;
using testing::same_bits;
using Ints = std::vector<std::int64_t>;

TEST(PagedAttention, ReservesPagesFromTheEndOfTheList) {
  PagedAttention paged(4, 3, 2);
  EXPECT_EQ(paged.empty_pages(), (Ints{3, 2, 1, 0}));
  paged.reserve(1, 4);  // two pages, in the order of the list
  EXPECT_EQ(values(paged.page_table()), (Ints{-1, -1, -1, -1, 1, 0, -1, -1}));
  EXPECT_EQ(values(paged.physical_to_logical()), (Ints{-1, -1, -1, -1, 1, 0, -1, -1}));
  EXPECT_EQ(values(paged.capacity()), (Ints{0, 6}));
  paged.reserve(1, 6);  // fits
  paged.reserve(0, 1);
  paged.reserve(1, 7);
  EXPECT_EQ(values(paged.page_table()), (Ints{2, -1, -1, -1, 1, 0, 3, -1}));
  EXPECT_TRUE(paged.empty_pages().empty());
  paged.erase(-1);
  EXPECT_EQ(paged.empty_pages(), (Ints{1, 0, 3}));
  EXPECT_EQ(values(paged.page_table()), (Ints{2, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(paged.physical_to_logical()), (Ints{-1, -1, 0, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(paged.capacity()), (Ints{3, 0}));
  std::swap(paged.empty_pages()[0], paged.empty_pages()[2]);
  paged.reserve(1, 2);
  EXPECT_EQ(values(paged.page_table())[4], 1);
}

TEST(PagedAttention, ErasesSeveralSequencesOrNone) {
  PagedAttention paged(5, 3, 3);
  for (const std::int64_t b : {0, 1, 2}) paged.reserve(b, 3);
  const Ints table = values(paged.page_table()), empty = paged.empty_pages();
  expect_error(ErrorKind::index, "[erase] batch_idx must be in -3..2; got 3", [&] {
    paged.erase(Ints{0, 3});
  });
  static_cast<std::int64_t*>(paged.page_table().data())[6] = 7;  // of sequence 1
  expect_error(ErrorKind::index, "[erase] page_table must be in -1..4; got 7", [&] {
    paged.erase(Ints{0, 1});
  });
  static_cast<std::int64_t*>(paged.page_table().data())[6] = -1;
  EXPECT_EQ(values(paged.page_table()), table);
  EXPECT_EQ(paged.empty_pages(), empty);
  paged.erase(Ints{-1, 0, 2});  // the last one twice
  EXPECT_EQ(paged.empty_pages(), (Ints{4, 3, 2, 0}));
  EXPECT_EQ(values(paged.capacity()), (Ints{0, 3, 0}));
}

TEST(PagedAttention, RefusesTablesThatDoNotFit) {
  Tensor table({2, 4}, DType::i64), capacity({2}, DType::i64), inverse({2, 4}, DType::i64);
  Tensor ints({2, 4}, DType::i32), flat({8}, DType::i64), three({3}, DType::i64);
  const auto make = [](Tensor& t, Tensor& c, Tensor& i) {
    return [&] { PageTables(t.view(), c.view(), i.view(), 16); };
  };
  expect_error(ErrorKind::value,
               "[PagedAttention] page_table must be [max_batch_size, n_pages]; got [8]",
               make(flat, capacity, inverse));
  expect_error(ErrorKind::type, "[PagedAttention] page_table must be i64; got i32",
               make(ints, capacity, inverse));
  expect_error(ErrorKind::value, "[PagedAttention] capacity must have shape [2]; got [3]",
               make(table, three, inverse));
  expect_error(ErrorKind::value,
               "[PagedAttention] physical_to_logical must have shape [2, 4]; got [8]",
               make(table, capacity, flat));
  expect_error(ErrorKind::value, "[PagedAttention] page_size must be at least 1; got 0",
               [&] { PageTables(table.view(), capacity.view(), inverse.view(), 0); });
  table.data_as<std::int64_t>()[1] = 9;  // page 0, then one that is not there
  PageTables tables(table.view(), capacity.view(), inverse.view(), 16);
  expect_error(ErrorKind::index, "[erase] page_table must be in -1..3; got 9",
               [&] { tables.remove_pages(Ints{0}); });
  EXPECT_EQ(table.data_as<std::int64_t>()[1], 9);
}

TEST(PagedAttention, RefusesBeforeItChangesAnything) {
  PagedAttention paged(4, 3, 2);
  paged.reserve(0, 3);
  const Ints table = values(paged.page_table()), empty = paged.empty_pages();
  expect_error(ErrorKind::value, "[reserve] requested 4 pages but there are only 3 empty pages",
               [&] { paged.reserve(1, 10); });
  expect_error(ErrorKind::index, "[reserve] batch_idx must be in -2..1; got 2",
               [&] { paged.reserve(2, 1); });
  expect_error(ErrorKind::index, "[erase] batch_idx must be in -2..1; got -3",
               [&] { paged.erase(-3); });
  paged.empty_pages() = {9};
  expect_error(ErrorKind::index, "[reserve] empty_pages must be in 0..3; got 9",
               [&] { paged.reserve(1, 1); });
  EXPECT_EQ(paged.empty_pages(), (Ints{9}));
  paged.empty_pages() = {0, 1, 2, 3};
  expect_error(ErrorKind::value, "[reserve] 4 pages after the first 1 do not fit a table of 4",
               [&] { paged.reserve(0, 13); });
  EXPECT_EQ(values(paged.page_table()), table);
  EXPECT_EQ(values(paged.capacity()), (Ints{3, 0}));
  EXPECT_EQ(empty.size(), 3U);
  expect_error(ErrorKind::value, "[PagedAttention] page_size must be at least 1; got 0",
               [] { PagedAttention(1, 0, 1); });
  expect_error(ErrorKind::value, "[PagedAttention] n_pages must be at least 0; got -1",
               [] { PagedAttention(-1, 1, 1); });
}

Tensor filled(const Shape& shape, float value) {
  Tensor tensor = Tensor::empty(shape, DType::f32);
  std::fill_n(tensor.data_as<float>(), tensor.numel(), value);
  return tensor;
}

Tensor counted(std::int64_t batch, std::int64_t count) {
  Tensor tensor = Tensor::empty({batch, count}, DType::i64);
  for (std::int64_t i = 0; i < batch * count; ++i)
    tensor.data_as<std::int64_t>()[i] = i % std::max<std::int64_t>(count, 1);
  return tensor;
}

// Sequences in a pool full of NaN, their pages in random order.
struct Pool {
  Pool(std::int64_t page, std::int64_t n_pages, Ints lengths, std::uint64_t seed)
      : paged(n_pages, page, std::ssize(lengths)),
        lengths(std::move(lengths)),
        longest(*std::max_element(this->lengths.begin(), this->lengths.end())),
        k(random_normal({batch(), 2, longest, 8}, DType::f32, seed)),
        v(random_normal({batch(), 2, longest, 5}, DType::f32, seed + 1)),
        k_cache(filled({1, 2, n_pages * page, 8}, NAN)),
        v_cache(filled({1, 2, n_pages * page, 5}, NAN)) {
    std::shuffle(paged.empty_pages().begin(), paged.empty_pages().end(), std::mt19937(seed));
    for (std::int64_t b = 0; b < batch(); ++b) {
      const std::int64_t length = this->lengths[static_cast<std::size_t>(b)];
      paged.reserve(b, length);
      const Tensor at = Tensor::from<std::int64_t>({b}), positions = counted(1, length);
      paged.assign({at, positions, k.view().slice(0, b, b + 1).slice(2, 0, length),
                    v.view().slice(0, b, b + 1).slice(2, 0, length), k_cache.view(),
                    v_cache.view()});
    }
  }

  std::int64_t batch() const { return std::ssize(lengths); }
  Buffer kv_len() const { return Buffer(lengths, {.name = "kv_len"}); }

  PagedAttention paged;
  Ints lengths;
  std::int64_t longest;
  Tensor k, v, k_cache, v_cache;
};

// Keys behind a sequence's length are hidden; `rule` says the rest.
MaskMod within(const Pool& pool, const MaskMod& rule) {
  const Buffer lengths = pool.kv_len();
  const MaskMod inside = [&](auto b, auto, auto, auto kv) { return kv < lengths[b]; };
  return rule & inside;
}

class PagedCalls : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PagedCalls, HaveTheBitsOfDenseCalls) {
  const std::int64_t page = GetParam();
  Pool pool(page, 700 / page + 9, {130, 1, 257}, 3);
  const ScoreMod distance = [](auto score, auto, auto h, auto q, auto kv) {
    return score - 0.01 * (h + 1) * abs(q + 100 - kv);
  };
  const MaskMod odd = [](auto, auto h, auto q, auto kv) { return (kv + h * q) % 5 != 3; };
  for (const std::int64_t q_len : {1, 3, 40}) {
    const Tensor q = random_normal({3, 4, q_len, 8}, DType::f32, 7);
    const MaskMod rule = within(pool, odd);
    const BlockMask dense = create_block_mask(rule, 3, 4, q_len, pool.longest, {.block_size = 32});
    const Tensor expected = flex_attention(
        q, pool.k, pool.v, {.score_mod = distance, .block_mask = dense, .enable_gqa = true});
    const BlockMask logical =
        create_block_mask(odd, 3, 4, q_len, pool.longest, {.block_size = {16, page}});
    const BlockMask physical =
        pool.paged.convert_logical_block_mask(logical, {.kv_len = pool.kv_len()});
    const FlexAttentionOptions options{.score_mod = pool.paged.get_score_mod(distance),
                                       .block_mask = physical,
                                       .enable_gqa = true};
    EXPECT_TRUE(
        AttentionPlan(AttentionShape::of(q, pool.k_cache, pool.v_cache), options).is_paged());
    EXPECT_TRUE(same_bits(flex_attention(q, pool.k_cache, pool.v_cache, options), expected))
        << page << " " << q_len;
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, PagedCalls, ::testing::Values(1, 2, 7, 16, 64, 100, 300));

TEST(PagedCall, IsRecognisedInsideOtherRules) {
  Pool pool(16, 40, {100, 37}, 5);
  const Tensor q = random_normal({2, 2, 1, 8}, DType::f32, 9);
  const MaskMod near = [](auto, auto, auto, auto kv) { return kv >= 20; };
  const BlockMask logical = create_block_mask(
      noop_mask(), 2, 1, 1, pool.longest, {.block_size = {1, 16}, .separate_full_blocks = false});
  BlockMask physical = pool.paged.convert_logical_block_mask(logical);
  const auto shape = AttentionShape::of(q, pool.k_cache, pool.v_cache);
  const MaskMod a = pool.paged.get_mask_mod(near), b = pool.paged.get_mask_mod({}, pool.kv_len());
  const MaskMod head = [](auto, auto h, auto, auto) { return h == 0; };
  physical.set_mask_mod((a & b) & (head | b));
  AttentionPlan plan(shape, {.block_mask = physical});
  EXPECT_TRUE(plan.is_paged());
  const BlockMask dense = create_block_mask(within(pool, near), 2, 1, 1, pool.longest);
  EXPECT_TRUE(same_bits(flex_attention(q, pool.k_cache, pool.v_cache, {.block_mask = physical}),
                        flex_attention(q, pool.k, pool.v, {.block_mask = dense})));
  // The place in the pool itself is no index of a sequence.
  const MaskMod place = [](auto, auto, auto, auto kv) { return kv != 5; };
  physical.set_mask_mod(a & b & place);
  EXPECT_FALSE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
  // Shown, though the table does not have it.
  physical.set_mask_mod(~a);
  EXPECT_TRUE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
  pool.paged.physical_to_logical().at<std::int64_t>(
      {0, pool.paged.page_table().at<std::int64_t>({0, 2})}) = -1;
  EXPECT_FALSE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
}

// Formulas are not searched unless a table in them is marked.
TEST(PagedCall, NeedsAMarkedTable) {
  Pool pool(16, 40, {100, 37}, 5);
  const Tensor q = random_normal({2, 2, 1, 8}, DType::f32, 9);
  const auto shape = AttentionShape::of(q, pool.k_cache, pool.v_cache);
  BlockMask physical = pool.paged.convert_logical_block_mask(create_block_mask(
      noop_mask(), 2, 1, 1, pool.longest, {.block_size = {1, 16}, .separate_full_blocks = false}));
  EXPECT_TRUE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
  const Buffer table = Buffer::borrow(pool.paged.physical_to_logical());
  const MaskMod written = MaskMod::parse(
      "p = table[b, kv_idx // 16]; where(p >= 0, p * 16 + kv_idx % 16 < len[b], False)",
      {{"table", table}, {"len", pool.kv_len()}});
  physical.set_mask_mod(written);
  EXPECT_FALSE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
  physical.set_mask_mod(mark_page_table(written));
  EXPECT_TRUE(AttentionPlan(shape, {.block_mask = physical}).is_paged());
  const BlockMask dense = create_block_mask(within(pool, noop_mask()), 2, 1, 1, pool.longest);
  EXPECT_TRUE(same_bits(flex_attention(q, pool.k_cache, pool.v_cache, {.block_mask = physical}),
                        flex_attention(q, pool.k, pool.v, {.block_mask = dense})));
  const MaskMod other = MaskMod::parse("table[b, kv_idx // 16] > h", {{"table", table}});
  EXPECT_TRUE(mark_page_table(other).formula() == other.formula());
}

TEST(PagedCall, AScoreModAloneIsEnough) {
  Pool pool(7, 60, {150}, 6);
  const Tensor q = random_normal({1, 2, 2, 8}, DType::f32, 9);
  const FlexAttentionOptions options{.score_mod = pool.paged.get_score_mod({}, pool.kv_len())};
  EXPECT_TRUE(AttentionPlan(AttentionShape::of(q, pool.k_cache, pool.v_cache), options).is_paged());
  // What it says of lengths becomes a part of the mask, so nothing is left of it.
  EXPECT_TRUE(same_bits(flex_attention(q, pool.k_cache, pool.v_cache, options),
                        flex_attention(q, pool.k, pool.v)));
}

TEST(PagedCall, APlanFollowsPagesThatMove) {
  Pool pool(4, 40, {60, 20}, 8);
  const Tensor q = random_normal({2, 2, 1, 8}, DType::f32, 9);
  const BlockMask logical =
      create_block_mask(noop_mask(), 2, 1, 1, pool.longest, {.block_size = {1, 4}});
  const BlockMask physical =
      pool.paged.convert_logical_block_mask(logical, {.kv_len = pool.kv_len()});
  AttentionPlan plan(AttentionShape::of(q, pool.k_cache, pool.v_cache), {.block_mask = physical});
  Tensor out = Tensor::empty({2, 2, 1, 5}, DType::f32);
  plan.run(q, pool.k_cache, pool.v_cache, {.out = out.view()});
  const BlockMask dense = create_block_mask(within(pool, noop_mask()), 2, 1, 1, pool.longest);
  EXPECT_TRUE(same_bits(out, flex_attention(q, pool.k, pool.v, {.block_mask = dense})));
  // Two pages of sequence 0 change places: the keys stay, so their order is another.
  auto table = pool.paged.physical_to_logical();
  std::swap(table.at<std::int64_t>({0, pool.paged.page_table().at<std::int64_t>({0, 1})}),
            table.at<std::int64_t>({0, pool.paged.page_table().at<std::int64_t>({0, 3})}));
  plan.run(q, pool.k_cache, pool.v_cache, {.out = out.view()});
  Tensor k = pool.k.clone(), v = pool.v.clone();
  for (Tensor* tensor : {&k, &v}) {
    const std::int64_t dims = tensor->dim(3);
    for (std::int64_t h = 0; h < 2; ++h) {
      float* const head = tensor->data_as<float>() + h * pool.longest * dims;
      std::swap_ranges(head + 4 * dims, head + 8 * dims, head + 12 * dims);
    }
  }
  EXPECT_TRUE(same_bits(out, flex_attention(q, k, v, {.block_mask = dense})));
}

TEST(PagedAttention, ConvertsListsAsTorchDoes) {
  PagedAttention paged(6, 4, 2);
  paged.empty_pages() = {0, 1, 2, 3, 4, 5};
  paged.reserve(0, 8);  // pages 4, 5
  paged.reserve(1, 4);  // page 3
  const BlockMask logical = create_block_mask(mods::causal(), 2, 1, 8, 12, {.block_size = {4, 4}});
  const BlockMask physical = paged.convert_logical_block_mask(logical);
  EXPECT_EQ(physical.shape(), (Shape{2, 1, 8, 24}));
  const auto list = [](const Tensor& tensor) {
    const auto* data = tensor.data_as<std::int32_t>();
    return std::vector<std::int32_t>(data, data + tensor.numel());
  };
  using List = std::vector<std::int32_t>;
  EXPECT_EQ(physical.kv_indices().shape(), (Shape{2, 1, 2, 6}));
  EXPECT_EQ(list(physical.kv_num_blocks()), (List{1, 1, 1, 1}));
  EXPECT_EQ(list(physical.kv_indices()), (List{4, 5,  -1, 0, 0, 0, 5,  4, -1, 0, 0, 0,  //
                                               3, -1, -1, 0, 0, 0, -1, 3, -1, 0, 0, 0}));
  EXPECT_EQ(list(*physical.full_kv_num_blocks()), (List{0, 1, 0, 1}));
  EXPECT_EQ(physical.kind(0, 0, 1, 4), BlockKind::kFull);
  EXPECT_EQ(physical.kind(1, 0, 1, 3), BlockKind::kFull);
  EXPECT_EQ(physical.runs(1, 0, 1).size(), 1U);  // the page that is not reserved is left out
  const BlockMask one = paged.convert_logical_block_mask(logical, {.batch_idx = {1, 0}});
  EXPECT_EQ(one.kind(0, 0, 0, 3), BlockKind::kPartial);
  expect_error(ErrorKind::value,
               "[convert_logical_block_mask] the mask's blocks of keys must be pages; got blocks "
               "of 8 and pages of 4",
               [&] {
                 paged.convert_logical_block_mask(
                     create_block_mask(mods::causal(), 1, 1, 8, 8, {.block_size = 8}));
               });
  expect_error(ErrorKind::value,
               "[convert_logical_block_mask] the mask has 7 blocks of keys where there are 6 pages",
               [&] {
                 paged.convert_logical_block_mask(
                     create_block_mask(mods::causal(), 1, 1, 8, 28, {.block_size = {4, 4}}));
               });
  expect_error(
      ErrorKind::value,
      "[convert_logical_block_mask] batch_idx must have an entry for each of 2 batch entries; "
      "got 1",
      [&] { paged.convert_logical_block_mask(logical, {.batch_idx = {1}}); });
}

TEST(PagedAttention, AssignsAnyStridesAndRefusesPlacesThatAreNotThere) {
  PagedAttention paged(5, 3, 2);
  paged.reserve(0, 5);
  paged.reserve(1, 3);
  Tensor k_cache = filled({15, 4, 2, 1}, 0), v_cache = filled({1, 2, 15, 3}, 0);
  // Heads and dims the other way round in memory.
  const TensorView k_view = k_cache.view().permute({3, 2, 0, 1});
  const Tensor k_val = random_normal({2, 2, 2, 8}, DType::f32, 1),
               v_val = random_normal({2, 2, 2, 3}, DType::f32, 2);
  const ConstTensorView every_second = k_val.view().slice(3, 0, 8, 2);
  const Tensor batch = Tensor::from<std::int32_t>({1, 0});
  const Tensor positions = Tensor::from<std::int64_t>({2, 0, 4, 3}, {2, 2});
  paged.assign({batch, positions, every_second, v_val, k_view, v_cache.view()});
  const auto place = [&](std::int64_t b, std::int64_t position) {
    return paged.page_table().at<std::int64_t>({b, position / 3}) * 3 + position % 3;
  };
  const std::int64_t where[] = {place(1, 2), place(1, 0), place(0, 4), place(0, 3)};
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t d = 0; d < 4; ++d)
        EXPECT_EQ(k_view.at<float>({0, h, where[i], d}), k_val.at<float>({i / 2, h, i % 2, 2 * d}));
      for (std::int64_t d = 0; d < 3; ++d)
        EXPECT_EQ(v_cache.at<float>({0, h, where[i], d}), v_val.at<float>({i / 2, h, i % 2, d}));
    }
  }
  const Tensor before = v_cache.clone();
  const auto refuse = [&](ErrorKind kind, const char* text, const Tensor& at,
                          const Tensor& positions_of, const TensorView& v_to) {
    expect_error(kind, text, [&] {
      paged.assign({at, positions_of, every_second, v_val, k_view, v_to});
    });
  };
  const Tensor beyond = Tensor::from<std::int64_t>({2, 0, 4, 6}, {2, 2});
  refuse(ErrorKind::value, "[assign] position 6 of batch entry 0 has no page: reserve it first",
         batch, beyond, v_cache.view());
  const Tensor negative = Tensor::from<std::int64_t>({2, 0, -1, 0}, {2, 2});
  refuse(ErrorKind::value, "[assign] position -1 of batch entry 0 has no page: reserve it first",
         batch, negative, v_cache.view());
  refuse(ErrorKind::index, "[assign] batch_idx must be in -2..1; got 2",
         Tensor::from<std::int64_t>({0, 2}), positions, v_cache.view());
  refuse(ErrorKind::value,
         "[assign] the batch sizes of k_val and batch_idx must be equal; got 2 "
         "and 3",
         Tensor::from<std::int64_t>({0, 1, 0}), positions, v_cache.view());
  refuse(ErrorKind::index, "[assign] page 2 lies outside a cache of 6 keys", batch, positions,
         v_cache.view().slice(2, 0, 6));
  // Less than a page: the first one lies outside as well.
  refuse(ErrorKind::index, "[assign] page 0 lies outside a cache of 1 keys",
         Tensor::from<std::int64_t>({0, 1}), Tensor::from<std::int64_t>({4, 3, 2, 0}, {2, 2}),
         v_cache.view().slice(2, 0, 1));
  refuse(ErrorKind::value, "[assign] the dims of v_val and v_cache must be equal; got 3 and 2",
         batch, positions, v_cache.view().slice(3, 0, 2));
  EXPECT_TRUE(same_bits(v_cache, before));
}

}  // namespace
}  // namespace quire
