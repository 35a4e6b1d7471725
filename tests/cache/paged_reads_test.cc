// A call with a converted mask touches the pages of its sequences and no other: the rest of the
// pool is memory that may not be read. Neither the plan's scratch follows the pool.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "quire/paged_attention.h"
#include "tests/support/random_tensor.h"

namespace quire {
namespace {

using testing::random_normal;

constexpr std::int64_t kPage = 16, kHeads = 2, kDims = 64;
constexpr std::int64_t kPageBytes = kPage * kDims * 4;  // 4,096: a page of the system's

// [1, kHeads, n_pages * kPage, kDims] of f32.
class GuardedCache {
 public:
  explicit GuardedCache(std::int64_t n_pages)
      : n_pages_(n_pages),
        memory_(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~GuardedCache() { munmap(memory_, bytes()); }
  GuardedCache(const GuardedCache&) = delete;
  GuardedCache& operator=(const GuardedCache&) = delete;

  TensorView view() const { return {memory_, DType::f32, {1, kHeads, n_pages_ * kPage, kDims}}; }

  void forbid(std::int64_t page) const {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      auto* const at = static_cast<char*>(memory_) + (h * n_pages_ + page) * kPageBytes;
      ASSERT_EQ(mprotect(at, kPageBytes, PROT_NONE), 0);
    }
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(kHeads * n_pages_ * kPageBytes); }

  std::int64_t n_pages_;
  void* memory_;
};

struct Outcome {
  Tensor out;
  std::size_t scratch_bytes;
};

// Sequences of 300 and 21 keys, of which the first 20 are hidden, in a pool of n_pages.
Outcome run(std::int64_t n_pages, std::int64_t q_len) {
  const std::vector<std::int64_t> lengths{300, 21};
  const Tensor k = random_normal({2, kHeads, 300, kDims}, DType::f32, 1),
               v = random_normal({2, kHeads, 300, kDims}, DType::f32, 2),
               q = random_normal({2, 2 * kHeads, q_len, kDims}, DType::f32, 3);
  GuardedCache k_cache(n_pages), v_cache(n_pages);
  PagedAttention paged(n_pages, kPage, 2);
  std::shuffle(paged.empty_pages().begin(), paged.empty_pages().end(), std::mt19937(4));
  std::vector<bool> is_live(static_cast<std::size_t>(n_pages));
  for (std::int64_t b = 0; b < 2; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    paged.reserve(b, length + 40);  // pages that are reserved and not used yet
    Tensor positions = Tensor::empty({1, length}, DType::i64);
    for (std::int64_t i = 0; i < length; ++i) positions.data_as<std::int64_t>()[i] = i;
    const Tensor at = Tensor::from<std::int64_t>({b});
    paged.assign({at, positions, k.view().slice(0, b, b + 1).slice(2, 0, length),
                  v.view().slice(0, b, b + 1).slice(2, 0, length), k_cache.view(), v_cache.view()});
    // Page 0 is hidden by the mask below.
    for (std::int64_t page = 1; page * kPage < length; ++page) {
      const std::int64_t number = paged.page_table().at<std::int64_t>({b, page});
      is_live[static_cast<std::size_t>(number)] = true;
    }
  }
  for (std::int64_t page = 0; page < n_pages; ++page) {
    if (is_live[static_cast<std::size_t>(page)]) continue;
    k_cache.forbid(page);
    v_cache.forbid(page);
  }
  const MaskMod late = [](auto, auto, auto, auto kv) { return kv >= 20; };
  const BlockMask logical = create_block_mask(late, 2, 1, q_len, 352, {.block_size = {16, kPage}});
  const BlockMask physical =
      paged.convert_logical_block_mask(logical, {.kv_len = Buffer(lengths, {.name = "kv_len"})});
  AttentionPlan plan(AttentionShape::of(q, k_cache.view(), v_cache.view()),
                     {.block_mask = physical, .enable_gqa = true});
  EXPECT_TRUE(plan.is_paged());
  Tensor out = Tensor::empty(q.shape(), DType::f32);
  plan.run(q, k_cache.view(), v_cache.view(), {.out = out.view()});
  return {out, plan.scratch_bytes()};
}

TEST(PagedReads, TouchLivePagesOnly) {
  if (sysconf(_SC_PAGESIZE) != kPageBytes) GTEST_SKIP() << "another size of system pages";
  for (const std::int64_t q_len : {1, 33}) {
    const Outcome small = run(40, q_len), large = run(64 * 40, q_len);
    EXPECT_EQ(std::memcmp(small.out.data(), large.out.data(),
                          static_cast<std::size_t>(small.out.numel()) * 4),
              0)
        << q_len;
    EXPECT_EQ(small.scratch_bytes, large.scratch_bytes);
  }
}

}  // namespace
}  // namespace quire
