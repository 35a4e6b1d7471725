// Attention over ranks: the bits of one process, gradients, decode, and errors on every rank.
#include "quire/flex_attention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "quire/attend.h"
#include "quire/context_parallel.h"
#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/support/backward_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/rank_threads.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

namespace cp = context_parallel;

struct Sizes {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 1, length = 3000, dim = 16, v_dim = 16;
  DType dtype = DType::f32;
};

struct Whole {
  Tensor q, k, v;
  explicit Whole(const Sizes& s)
      : q(random_normal({s.batch, s.q_heads, s.length, s.dim}, s.dtype, 1)),
        k(random_normal({s.batch, s.kv_heads, s.length, s.dim}, s.dtype, 2)),
        v(random_normal({s.batch, s.kv_heads, s.length, s.v_dim}, s.dtype, 3)) {}
};

bool is_slow() { return kernels_are_slow(); }

cp::Output alone(const Whole& t, const cp::Options& options) {
  AuxOutput aux;
  AttentionOptions of{.score_mod = options.score_mod,
                      .scale = options.scale,
                      .enable_gqa = options.enable_gqa,
                      .return_aux = {.lse = true},
                      .aux = &aux};
  if (options.block_mask.has_value()) of.block_mask = *options.block_mask;
  Tensor out = quire::flex_attention(t.q, t.k, t.v, of);
  return {out, *aux.lse};
}

void expect_bits_of_one(const Sizes& sizes, cp::Options options, int ranks,
                        const std::string& what) {
  const Whole t(sizes);
  options.enable_gqa = true;
  const cp::Output want = alone(t, options);
  const cp::Shards shards = options.block_mask ? cp::plan_shards(*options.block_mask, ranks)
                                               : cp::plan_shards(sizes.length, ranks);
  on_ranks(ranks, [&](Communicator& group) {
    const int rank = group.rank();
    for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
      cp::Options mine = options;
      mine.exchange = exchange;
      const cp::Output got =
          cp::flex_attention(cp::shard(t.q, shards, rank), cp::shard(t.k, shards, rank),
                             cp::shard(t.v, shards, rank), shards, group, mine);
      const std::string where = what + " rank " + std::to_string(rank) +
                                (exchange == cp::Exchange::kKeys ? " keys" : " heads");
      EXPECT_TRUE(same_bits(got.out, cp::shard(want.out, shards, rank))) << where;
      EXPECT_TRUE(same_bits(got.lse, cp::shard(want.lse, shards, rank))) << where;
    }
  });
}

std::vector<std::pair<std::string, MaskMod>> masks(std::int64_t length) {
  Tensor ids({length}, DType::i32);
  for (std::int64_t i = 0; i < length; ++i)
    ids.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i / 700 + i / 1900);
  return {{"causal", mods::causal()},
          {"window", mods::causal() & mods::sliding_window(900)},
          {"documents", mods::causal() & mods::document(Buffer(ids))},
          {"prefix", mods::prefix_lm(1100)},
          {"sparse",
           MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx % 1500 > q_idx % 700)")}};
}

TEST(ContextParallel, HasTheBitsOfOneProcess) {
  const std::int64_t length = is_slow() ? 2100 : 2500;
  const Buffer table(random_normal({length}, DType::f32, 9), {.name = "table"});
  const ScoreMod bias =
      ScoreMod::parse("score + 0.1 * table[kv_idx] + 0.001 * (kv_idx - q_idx)", {{"table", table}});
  int ranks = 2;
  for (const auto& [name, mod] : masks(length)) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Sizes sizes{.length = length, .dtype = dtype};
      const BlockMask mask = create_block_mask(mod, 1, 1, length, length);
      expect_bits_of_one(sizes, {.block_mask = mask}, ranks, name);
      if (is_slow()) return;
      ranks = ranks == 4 ? 2 : ranks + 1;
      expect_bits_of_one(sizes, {.score_mod = bias, .block_mask = mask}, ranks, name + " bias");
    }
  }
  expect_bits_of_one({.length = length}, {}, 3, "no mask");
  expect_bits_of_one({.batch = 2, .q_heads = 6, .kv_heads = 2, .length = 2500, .v_dim = 24},
                     {.score_mod = bias, .scale = 0.3}, 4, "a batch");
  expect_bits_of_one({.length = 500}, {}, 4, "ranks without tokens");
}

TEST(ContextParallel, TheGalleryHasTheBitsOfOneProcess) {
  if (is_slow()) GTEST_SKIP() << "thousands of keys on several ranks";
  const std::int64_t length = 2111;
  int ranks = 1;
  for (const mods::GalleryEntry& entry : mods::gallery()) {
    const mods::GallerySizes sizes{.q_len = length, .kv_len = length, .heads = 2};
    cp::Options options;
    if (entry.kind == mods::GalleryEntry::Kind::kMask)
      options.block_mask = create_block_mask(entry.mask_mod(sizes), 1, 2, length, length);
    else
      options.score_mod = entry.score_mod(sizes);
    ranks = ranks == 4 ? 2 : ranks + 1;
    expect_bits_of_one({.length = length, .dim = 8, .v_dim = 8}, options, ranks, entry.name);
  }
}

// Blocks that do not divide pieces, heads with masks of their own, and blocks chosen by data.
TEST(ContextParallel, MasksOfAnyBlocks) {
  if (is_slow()) GTEST_SKIP() << "thousands of keys on several ranks";
  const std::int64_t length = 3300;
  const MaskMod by_head = MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 500 * (h + 1))");
  for (const std::int64_t block : {100, 128, 1000})
    expect_bits_of_one(
        {.q_heads = 4, .kv_heads = 2, .length = length},
        {.block_mask = create_block_mask(by_head, 1, 4, length, length, {.block_size = block})}, 3,
        "blocks of " + std::to_string(block));
  const std::int64_t blocks = (length + 127) / 128;
  Tensor count({1, 1, blocks}, DType::i32), list({1, 1, blocks, blocks}, DType::i32);
  for (std::int64_t row = 0; row < blocks; ++row) {
    for (std::int64_t i = row % 3; i < blocks; i += 3)
      list.at<std::int32_t>({0, 0, row, count.at<std::int32_t>({0, 0, row})++}) =
          static_cast<std::int32_t>(i);
  }
  const BlockMask chosen = BlockMask::from_kv_blocks(
      {count, list},
      {.mask_mod = mods::sliding_window(1500, 1500), .seq_lengths = std::pair(length, length)});
  expect_bits_of_one({.length = length}, {.block_mask = chosen}, 2, "chosen blocks");
}

// All ranks' gradients, joined; those of the buffer summed.
struct JoinedGradients {
  Tensor q, k, v, buffer;
};

struct Loss {
  Tensor out, lse, d_out, d_lse;
};

JoinedGradients over_ranks(const Whole& t, const Loss& loss, const cp::Shards& shards,
                           const cp::Options& options) {
  JoinedGradients made;
  std::mutex mutex;
  on_ranks(shards.ranks(), [&](Communicator& group) {
    const auto mine = [&](const Tensor& x) { return cp::shard(x, shards, group.rank()); };
    const Tensor q = mine(t.q), k = mine(t.k), v = mine(t.v), out = mine(loss.out),
                 lse = mine(loss.lse), d_out = mine(loss.d_out), d_lse = mine(loss.d_lse);
    const cp::Gradients got = cp::flex_attention_backward(
        {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_lse = d_lse}, shards,
        group, options);
    const Tensor all_q = cp::unshard(got.q, shards, group),
                 all_k = cp::unshard(got.k, shards, group),
                 all_v = cp::unshard(got.v, shards, group);
    const std::scoped_lock lock(mutex);
    made.q = all_q;
    made.k = all_k;
    made.v = all_v;
    if (got.buffers.empty()) return;
    if (made.buffer.numel() == 0) made.buffer = Tensor(got.buffers[0].shape(), DType::f32);
    for (std::int64_t i = 0; i < made.buffer.numel(); ++i)
      made.buffer.data_as<float>()[i] += got.buffers[0].data_as<float>()[i];
  });
  return made;
}

TEST(ContextParallel, GradientsAreThoseOfOneProcess) {
  if (is_slow()) GTEST_SKIP() << "thousands of keys on several ranks";
  const std::int64_t length = 2600;
  const Buffer table(random_normal({length}, DType::f32, 9),
                     {.name = "table", .wants_gradient = true});
  const ScoreMod bias =
      ScoreMod::parse("score + 0.1 * table[kv_idx] + 0.01 * h", {{"table", table}});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Sizes sizes{.q_heads = 4, .kv_heads = 2, .length = length, .dtype = dtype};
    const Whole t(sizes);
    cp::Options options{.score_mod = bias,
                        .block_mask = create_block_mask(mods::causal(), 1, 1, length, length),
                        .enable_gqa = true};
    const cp::Output one = alone(t, options);
    const Loss loss{one.out, one.lse, random_normal(one.out.shape(), dtype, 4),
                    random_normal(one.lse.shape(), DType::f32, 5)};
    const AttentionGradients want = quire::flex_attention_backward(
        {.q = t.q,
         .k = t.k,
         .v = t.v,
         .out = one.out,
         .lse = one.lse,
         .d_out = loss.d_out,
         .d_lse = loss.d_lse},
        {.forward = {.score_mod = bias, .block_mask = *options.block_mask, .enable_gqa = true}});
    for (const int ranks : {2, 3}) {
      const cp::Shards shards = cp::plan_shards(*options.block_mask, ranks, {.piece_length = 1024});
      const double unit = dtype == DType::bf16 ? 0x1p-7 : 0x1p-18;
      const auto close = [&](const Tensor& got, const Tensor& of, double bound) {
        EXPECT_LE(largest_error(got.to(DType::f64), of.to(DType::f64)),
                  bound * largest(of.to(DType::f64)));
      };
      options.exchange = cp::Exchange::kKeys;
      const JoinedGradients keys = over_ranks(t, loss, shards, options);
      const JoinedGradients again = over_ranks(t, loss, shards, options);
      EXPECT_TRUE(same_bits(keys.q, again.q) && same_bits(keys.k, again.k) &&
                  same_bits(keys.v, again.v));
      close(keys.q, *want.q, unit);
      close(keys.k, *want.k, unit);
      close(keys.v, *want.v, unit);
      close(keys.buffer, want.of("table"), 0x1p-16);
      options.exchange = cp::Exchange::kHeads;
      const JoinedGradients heads = over_ranks(t, loss, shards, options);
      EXPECT_TRUE(same_bits(heads.q, *want.q) && same_bits(heads.k, *want.k) &&
                  same_bits(heads.v, *want.v));
      close(heads.buffer, want.of("table"), 0x1p-16);
    }
  }
}

// The bound of one process: at most twice the error of plain f32 against f64, and a rounding.
TEST(ContextParallel, GradientsHoldTheErrorBound) {
  if (is_slow()) GTEST_SKIP() << "thousands of keys on several ranks";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    AttentionCase c{.q_heads = 2, .q_len = 2300, .kv_len = 2300};
    c.q_dtype = c.k_dtype = c.v_dtype = dtype;
    c.mask_mod = mods::causal() & mods::sliding_window(1700);
    const BackwardTensors t(c, 5);
    const GradientValues want = exact(c, t), plain = naive(c, t);
    Whole whole({.length = 0});
    whole.q = contiguous(t.forward.q);
    whole.k = contiguous(t.forward.k);
    whole.v = contiguous(t.forward.v);
    const Loss loss{t.out, t.lse, contiguous(*t.d_out), contiguous(*t.d_lse)};
    const BlockMask mask = create_block_mask(*c.mask_mod, 1, 1, c.q_len, c.kv_len);
    for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
      const JoinedGradients got =
          over_ranks(whole, loss, cp::plan_shards(mask, 3),
                     {.block_mask = mask, .enable_gqa = true, .exchange = exchange});
      const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-21;
      const auto hold = [&](const Tensor& x, const Tensor& of, const Tensor& naive_one) {
        EXPECT_LE(largest_error(x.to(DType::f64), of),
                  2 * largest_error(naive_one, of) + unit * largest(of));
      };
      hold(got.q, want.q, plain.q);
      hold(got.k, want.k, plain.k);
      hold(got.v, want.v, plain.v);
    }
  }
}

// What every rank throws.
void expect_everywhere(int ranks, const std::vector<std::string>& texts,
                       const std::function<void(Communicator&)>& body) {
  const auto thrown = run_ranks(ranks, body, {.timeout_seconds = 20});
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_NE(thrown[rank], nullptr) << rank;
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), texts[std::min<std::size_t>(rank, texts.size() - 1)]) << rank;
    }
  }
}

TEST(ContextParallel, MistakesAreErrorsOnEveryRank) {
  const Whole t({.length = 2100});
  const cp::Shards shards(2100, 3, 1024, {0, 1, 2});
  const auto call = [&](Communicator& group, const cp::Options& options, std::int64_t dim = 16) {
    const int rank = group.rank();
    const Tensor q = cp::shard(t.q, shards, rank), k = cp::shard(t.k, shards, rank),
                 v = cp::shard(t.v, shards, rank);
    cp::flex_attention(q.view().slice(3, 0, dim), k.view().slice(3, 0, dim), v, shards, group,
                       options);
  };
  const std::string where = "[context_parallel.flex_attention] ";
  expect_everywhere(
      3,
      {where + "ranks disagree about the head dim of query and key: 16 on rank 0 "
               "and 8 on rank 2"},
      [&](Communicator& group) { call(group, {.enable_gqa = true}, group.rank() == 2 ? 8 : 16); });
  const std::string own = where +
                          "query and key must have the same number of heads, or enable_gqa must be "
                          "set; got 2 and 1";
  expect_everywhere(3, {where + "rank 1: " + own, own, where + "rank 1: " + own},
                    [&](Communicator& group) { call(group, {.enable_gqa = group.rank() != 1}); });
  // Found while running: an index outside of a buffer that only the last queries use.
  const Buffer table(std::vector<float>(2000, 0.0f), {.name = "table"});
  const ScoreMod late = ScoreMod::parse("score + table[q_idx]", {{"table", table}});
  for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
    const auto thrown = run_ranks(3, [&](Communicator& group) {
      call(group, {.score_mod = late, .enable_gqa = true, .exchange = exchange});
    });
    for (const std::exception_ptr& one : thrown) EXPECT_NE(one, nullptr);
  }
}

// Lets some messages through, then throws: a rank that is lost in the middle of a call.
class Dying final : public Communicator {
 public:
  Dying(Communicator& group, int waits) : group_(group), waits_(waits) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Ticket isend(const Message& message, int to, int tag) override {
    return group_.isend(message, to, tag);
  }
  Ticket irecv(const Message& message, int from, int tag) override {
    return group_.irecv(message, from, tag);
  }
  void wait(Ticket ticket) override {
    if (--waits_ < 0) throw std::runtime_error("lost");
    group_.wait(ticket);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    group_.all_gather(mine, all);
  }

 private:
  Communicator& group_;
  int waits_;
};

TEST(ContextParallel, ARankThatDiesIsAnErrorOnTheOthers) {
  const Whole t({.kv_heads = 2, .length = 2100});
  const cp::Shards shards(2100, 3, 1024, {0, 1, 2});
  for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
    for (const int waits : {-1, 0, 1}) {  // -1: before the call
      const auto begin = std::chrono::steady_clock::now();
      const auto thrown =
          run_ranks(3,
                    [&](Communicator& group) {
                      const int rank = group.rank();
                      if (rank == 1 && waits < 0) return;
                      Dying dying(group, waits);
                      Communicator& mine = rank == 1 ? static_cast<Communicator&>(dying) : group;
                      cp::flex_attention(cp::shard(t.q, shards, rank), cp::shard(t.k, shards, rank),
                                         cp::shard(t.v, shards, rank), shards, mine,
                                         {.enable_gqa = true, .exchange = exchange});
                    },
                    {.timeout_seconds = 20});
      EXPECT_NE(thrown[0], nullptr);
      EXPECT_NE(thrown[2], nullptr);
      EXPECT_EQ(thrown[1] == nullptr, waits < 0);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    }
  }
}

// ---- decode

TEST(ContextParallelAttend, HasTheBitsOfOneProcess) {
  const std::vector<std::int64_t> lengths{5000, 1500, 2048};
  const int ranks = 3;
  constexpr std::int64_t kHeads = 2, kDim = 16, kPage = 16;
  const ScoreMod bias = ScoreMod::parse("score + 0.001 * (kv_idx - q_idx)");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Tensor> k, v;
    std::vector<cp::Shards> shards;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      k.push_back(random_normal({lengths[i], kHeads, kDim}, dtype, 10 + i));
      v.push_back(random_normal({lengths[i], kHeads, kDim}, dtype, 20 + i));
      std::vector<int> owners;
      for (std::int64_t at = 0; at < lengths[i]; at += 1024)
        owners.push_back(static_cast<int>((at / 1024 * 2 + static_cast<std::int64_t>(i)) % ranks));
      shards.push_back(cp::Shards(lengths[i], ranks, 1024, owners));
    }
    for (const std::int64_t queries : {1, 3}) {
      const Tensor q = random_normal({3, 4, queries, kDim}, dtype, 30);
      for (const bool with_mods : {false, true}) {
        cp::AttendOptions options;
        if (with_mods) {
          options.score_mod = bias;
          options.mask_mod = mods::causal() & mods::sliding_window(2500);
        }
        Tensor merged_error;
        on_ranks(ranks, [&](Communicator& group) {
          const int rank = group.rank();
          KVCache cache({.kv_heads = kHeads,
                         .head_dim = kDim,
                         .dtype = dtype,
                         .page_size = kPage,
                         .n_pages = 600});
          std::vector<SequenceId> handles;
          for (std::size_t i = 0; i < lengths.size(); ++i) {
            handles.push_back(cache.create());
            const Tensor mine_k = cp::shard(k[i], shards[i], rank, 0);
            const Tensor mine_v = cp::shard(v[i], shards[i], rank, 0);
            const NewTokens step[] = {{handles.back(), mine_k.dim(0)}};
            cache.append(step);
            cache.write(0, step, mine_k, mine_v);
          }
          cp::AttendOptions mine = options;
          const cp::Output exact = cp::attend(cache, 0, handles, q, shards, group, mine);
          mine.mode = cp::AttendMode::kMerged;
          const cp::Output merged = cp::attend(cache, 0, handles, q, shards, group, mine);
          for (std::size_t i = 0; i < lengths.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            const auto of = [](const Tensor& x) { return x.view().transpose(0, 1).unsqueeze(0); };
            AuxOutput aux;
            AttentionOptions whole{.enable_gqa = true,
                                   .q_begin = {lengths[i] - queries},
                                   .return_aux = {.lse = true},
                                   .aux = &aux};
            whole.score_mod = options.score_mod;
            whole.mask_mod = options.mask_mod;
            const Tensor want =
                quire::flex_attention(q.view().slice(0, at, at + 1), of(k[i]), of(v[i]), whole);
            EXPECT_TRUE(same_bits(exact.out.view().slice(0, at, at + 1), want)) << i;
            EXPECT_TRUE(same_bits(exact.lse.view().slice(0, at, at + 1), *aux.lse)) << i;
            EXPECT_LE(largest_error(to(merged.out.view().slice(0, at, at + 1), DType::f64),
                                    want.to(DType::f64)),
                      dtype == DType::bf16 ? 0x1p-6 : 0x1p-19);
          }
        });
        if (is_slow()) return;
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
