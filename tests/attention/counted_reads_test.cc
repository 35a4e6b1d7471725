// Counts the pages of a pool that a call reads: every one is forbidden at first, and the first
// touch of each is seen by a signal handler, which allows it. Calls over converted masks and attend
// must read those that hold a visible key, and no other.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "quire/attend.h"
#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "quire/paged_attention.h"
#include "tests/support/attend_case.h"
#include "tests/support/jagged_case.h"

namespace quire {
namespace {

using testing::AttendHarness;
using testing::random_normal;
using testing::same_bits;

// A page and head of the pools below is one page of the system's. Tensors of 4 MiB or more begin at
// one.
constexpr std::int64_t kPage = 16, kHeads = 2, kDims = 64, kPageBytes = kPage * kDims * 4;
constexpr std::int64_t kPoolPages = 600;

// While it lives, reads of a tensor are counted by system page.
class ReadCount {
 public:
  explicit ReadCount(const ConstTensorView& view)
      : begin_(static_cast<char*>(const_cast<void*>(view.data()))),
        touched_(static_cast<std::size_t>(view.numel() * 4 / kPageBytes)) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin_) % kPageBytes, 0u);
    next_ = counts_;
    counts_ = this;
    if (next_ == nullptr) {
      struct sigaction action = {};
      action.sa_sigaction = [](int, siginfo_t* info, void*) { touch(info->si_addr); };
      action.sa_flags = SA_SIGINFO;
      EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
    }
    EXPECT_EQ(mprotect(begin_, bytes(), PROT_NONE), 0);
  }
  ~ReadCount() {
    EXPECT_EQ(mprotect(begin_, bytes(), PROT_READ | PROT_WRITE), 0);
    counts_ = next_;
    if (counts_ == nullptr) sigaction(SIGSEGV, &before_, nullptr);
  }
  ReadCount(const ReadCount&) = delete;
  ReadCount& operator=(const ReadCount&) = delete;

  // Numbers of the pages that were read, ascending.
  std::vector<std::int64_t> pages() const {
    std::vector<std::int64_t> found;
    for (std::size_t i = 0; i < touched_.size(); ++i)
      if (touched_[i].load()) found.push_back(static_cast<std::int64_t>(i));
    return found;
  }

 private:
  std::size_t bytes() const { return touched_.size() * kPageBytes; }

  // In the handler, in whichever thread. A touch of anything else ends the test as it would have.
  static void touch(void* address) {
    auto* const at = static_cast<char*>(address);
    for (ReadCount* count = counts_; count != nullptr; count = count->next_) {
      if (at < count->begin_ || at >= count->begin_ + count->bytes()) continue;
      const auto page = static_cast<std::size_t>(at - count->begin_) / kPageBytes;
      count->touched_[page].store(true);
      mprotect(count->begin_ + page * kPageBytes, kPageBytes, PROT_READ);
      return;
    }
    signal(SIGSEGV, SIG_DFL);
  }

  static inline ReadCount* counts_ = nullptr;
  static inline struct sigaction before_ = {};
  char* begin_;
  std::vector<std::atomic<bool>> touched_;
  ReadCount* next_ = nullptr;
};

bool can_count() { return sysconf(_SC_PAGESIZE) == kPageBytes; }

TEST(CountedReads, ACallOverAConvertedMaskReadsVisiblePagesOnce) {
  if (!can_count()) GTEST_SKIP() << "another size of system pages";
  const std::vector<std::int64_t> lengths{700, 21, 300};
  const MaskMod rule = [](auto b, auto, auto q, auto kv) {
    return (kv + 260 >= q) & (kv >= 20 * (b + 1)) & (kv <= q) & (floor_div(kv, 16) % 3 != 1);
  };
  std::mt19937_64 random(3);
  for (const std::int64_t q_len : {1, 33}) {
    Tensor k_cache({1, kHeads, kPoolPages * kPage, kDims}, DType::f32),
        v_cache(k_cache.shape(), DType::f32);
    PagedAttention paged(kPoolPages, kPage, 3);
    std::ranges::shuffle(paged.empty_pages(), random);
    std::set<std::int64_t> visible;  // head * pages + page
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      paged.reserve(b, length + 40);
      Tensor positions({1, length}, DType::i64);
      std::iota(positions.data_as<std::int64_t>(), positions.data_as<std::int64_t>() + length, 0);
      paged.assign({Tensor::from<std::int64_t>({b}), positions,
                    random_normal({1, kHeads, length, kDims}, DType::f32, random),
                    random_normal({1, kHeads, length, kDims}, DType::f32, random), k_cache.view(),
                    v_cache.view()});
      for (std::int64_t q = 290; q < 290 + q_len; ++q)
        for (std::int64_t kv = 0; kv < std::min(length, q + 1); ++kv)
          if (kv + 260 >= q && kv >= 20 * (b + 1) && kv / 16 % 3 != 1)
            for (std::int64_t h = 0; h < kHeads; ++h)
              visible.insert(h * kPoolPages + paged.page_table().at<std::int64_t>({b, kv / kPage}));
    }
    const Tensor q = random_normal({3, 2 * kHeads, q_len, kDims}, DType::f32, random);
    const BlockMask logical = create_block_mask(rule, 3, 1, q_len, kPoolPages * kPage,
                                                {.block_size = {16, kPage}, .q_begin = 290});
    const BlockMask physical =
        paged.convert_logical_block_mask(logical, {.kv_len = Buffer(lengths, {.name = "kv_len"})});
    AttentionPlan plan(AttentionShape::of(q, k_cache, v_cache),
                       {.block_mask = physical, .enable_gqa = true});
    Tensor out = Tensor::empty(q.shape(), DType::f32);
    const std::vector<std::int64_t> expected(visible.begin(), visible.end());
    ReadCount k_reads(k_cache), v_reads(v_cache);
    plan.run(q, k_cache, v_cache, {.out = out.view()});
    EXPECT_EQ(k_reads.pages(), expected) << q_len;
    EXPECT_EQ(v_reads.pages(), expected) << q_len;
  }
}

TEST(CountedReads, AttendReadsThePagesOfVisibleKeys) {
  if (!can_count()) GTEST_SKIP() << "another size of system pages";
  const MaskMod holes = MaskMod::parse("(kv_idx <= q_idx) & (kv_idx // 16 % 5 != b)");
  for (const std::int64_t count : {1, 5, 33}) {
    for (const std::int64_t window : {0, 40}) {
      AttendHarness harness(
          {.kv_heads = kHeads, .head_dim = kDims, .page_size = kPage, .n_pages = kPoolPages});
      const SequenceId a = harness.create(700), b = harness.cache.fork(a, 600);
      harness.append(b, 50);
      harness.create(300);  // nobody's business
      const std::vector<NewTokens> step{{a, count}, {b, count}, {harness.create(33), 1}};
      const AttendOptions options =
          window > 0 ? AttendOptions{.window = window} : AttendOptions{.mask_mod = holes};
      std::set<std::int64_t> visible;
      const KVCache& cache = harness.cache;
      for (std::size_t i = 0; i < step.size(); ++i) {
        const SequenceView view = cache.view(step[i].sequence);
        for (std::int64_t q = view.length - step[i].count; q < view.length; ++q)
          for (std::int64_t kv = window > 0 ? std::max<std::int64_t>(0, q - window + 1) : 0;
               kv <= q; ++kv)
            if (window > 0 || kv / 16 % 5 != static_cast<std::int64_t>(i))
              for (std::int64_t h = 0; h < kHeads; ++h)
                visible.insert(view.pages[static_cast<std::size_t>(kv / kPage)] * kHeads + h);
      }
      const Tensor q = random_normal({2 * count + 1, 4, kDims}, DType::f32, harness.random);
      const Tensor before = attend(cache, 0, step, q, options);
      const std::vector<std::int64_t> expected(visible.begin(), visible.end());
      ReadCount k_reads(cache.k_pages(0)), v_reads(cache.v_pages(0));
      EXPECT_TRUE(same_bits(attend(cache, 0, step, q, options), before));
      EXPECT_EQ(k_reads.pages(), expected) << count << " window " << window;
      EXPECT_EQ(v_reads.pages(), expected) << count << " window " << window;
    }
  }
}

}  // namespace
}  // namespace quire
