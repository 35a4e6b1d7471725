// Paged keys = dense keys, bit for bit: any page size, order and place of pages, shared pages,
// lengths, mods, masks and dtypes, in one call and in the steps of an engine.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "quire/isa.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/attend_case.h"
#include "tests/support/jagged_case.h"
#include "tests/support/paged_pool.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

std::int64_t longest_of_isa() { return kernels_are_slow() ? 120 : 700; }

DType random_dtype(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  return kTypes[below(random, std::ssize(kTypes))];
}

std::int64_t random_page_size(std::mt19937_64& random) {
  constexpr std::int64_t kUsual[] = {1, 2, 16, 16, 64, 128, 256};
  return chance(random, 50) ? kUsual[below(random, std::ssize(kUsual))] : 1 + below(random, 300);
}

std::optional<ScoreMod> random_score_mod(std::mt19937_64& random) {
  switch (below(random, 4)) {
    case 0:
      return ScoreMod::parse("score * (1 + 0.1 * b) - 0.01 * h * (q_idx - kv_idx)");
    case 1:
      return ScoreMod::parse("where((q_idx + kv_idx + b) % 4 == 0, -inf, score)");
    default:
      return std::nullopt;
  }
}

// Sequences in a pool; with some luck all begin with keys, and pages, of the first.
struct PagedCase {
  std::int64_t q_heads, q_len;
  std::vector<std::int64_t> lengths, q_begin;
  Tensor q, k, v;  // [n, heads, length, dim]
  PoolOptions options;
  std::int64_t shared = 0;  // keys

  explicit PagedCase(std::mt19937_64& random) {
    const std::int64_t count = 1 + below(random, 4), kv_heads = 1 + below(random, 2);
    const DType dtype = random_dtype(random);
    q_heads = kv_heads * (1 + below(random, 3));
    q_len = chance(random, 50) ? 1 : 1 + below(random, 90);
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(chance(random, 10) ? 0 : 1 + below(random, longest_of_isa()));
      q_begin.push_back(below(random, lengths.back() + 1));
    }
    const std::int64_t most = std::max<std::int64_t>(1, *std::ranges::max_element(lengths));
    const std::int64_t dim = 1 + below(random, 40), v_dim = 1 + below(random, 40);
    if (chance(random, 40)) shared = below(random, most + 1);
    q = random_normal({count, q_heads, q_len, dim}, dtype, random);
    k = random_rows({count, kv_heads, most, dim}, dtype, random);
    v = random_rows({count, kv_heads, most, v_dim}, dtype, random);
    options = {.page_size = random_page_size(random),
               .spare_pages = below(random, 5),
               .flat = chance(random, 30),
               .shuffle = chance(random, 80),
               .id_dtype = DType::i64,
               .seed = random()};
  }

  Tensor random_rows(const Shape& shape, DType dtype, std::mt19937_64& random) const {
    Tensor rows = random_normal(shape, DType::f64, random);
    for (std::int64_t b = 1; b < shape[0]; ++b)
      for (std::int64_t h = 0; h < shape[1]; ++h)
        for (std::int64_t i = 0; i < shared; ++i)
          for (std::int64_t d = 0; d < shape[3]; ++d)
            rows.at<double>({b, h, i, d}) = rows.at<double>({0, h, i, d});
    return rows.to(dtype);
  }

  // Pages whose keys are all shared, in both sequences, become the first's.
  void share_pages(PagedPool& pool) const {
    for (std::size_t b = 1; b < lengths.size(); ++b) {
      const std::int64_t keys = std::min({shared, lengths[0], lengths[b]});
      for (std::int64_t page = 0; (page + 1) * options.page_size <= keys; ++page) {
        pool.page_table.at<std::int64_t>({static_cast<std::int64_t>(b), page}) =
            pool.page_table.at<std::int64_t>({0, page});
      }
    }
  }

  std::string to_string() const {
    std::string text = std::string(dtype_name(q.dtype())) + " heads " + std::to_string(q_heads) +
                       "/" + std::to_string(k.dim(1)) + " q_len " + std::to_string(q_len) +
                       " page " + std::to_string(options.page_size) + " shared " +
                       std::to_string(shared) + " lengths";
    for (const std::int64_t length : lengths) text += " " + std::to_string(length);
    return text;
  }
};

RC_GTEST_PROP(PagedKeys, AreDenseKeys, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const PagedCase c(random);
  RC_LOG() << c.to_string() << std::endl;
  PagedPool pool(c.k, c.v, c.lengths, c.options);
  c.share_pages(pool);
  const auto count = std::ssize(c.lengths);
  AuxOutput aux;
  PagedKeysOptions options{.score_mod = random_score_mod(random),
                           .enable_gqa = true,
                           .q_begin = c.q_begin,
                           .return_aux = {.lse = true, .max_scores = true},
                           .aux = &aux};
  if (chance(random, 70)) {
    const std::int64_t most = c.k.dim(2);
    options.mask_mod = random_mask_mod(random, {count, c.q_heads, most + c.q_len, most});
  }
  const Tensor out = flex_attention(c.q, pool.keys(), options);
  for (std::int64_t b = 0; b < count; ++b) {
    const auto at = static_cast<std::size_t>(b);
    // As entry b of a batch: mods may ask for b.
    const auto in_batch = [b](const ConstTensorView& view) {
      return view.slice(0, b, b + 1).expand({b + 1, view.dim(1), view.dim(2), view.dim(3)});
    };
    const auto last = [b](const ConstTensorView& view) { return view.slice(0, b, b + 1); };
    AuxOutput dense_aux;
    FlexAttentionOptions dense{.score_mod = options.score_mod,
                               .enable_gqa = true,
                               .return_aux = options.return_aux,
                               .aux = &dense_aux};
    dense.q_begin = {c.q_begin[at]};
    if (options.mask_mod.has_value()) {
      dense.block_mask = create_block_mask(*options.mask_mod, b + 1, c.q_heads, c.q_len,
                                           c.lengths[at], {.q_begin = c.q_begin[at]});
    }
    const Tensor expected = flex_attention(in_batch(c.q), in_batch(c.k).slice(2, 0, c.lengths[at]),
                                           in_batch(c.v).slice(2, 0, c.lengths[at]), dense);
    RC_ASSERT(same_bits(last(out), last(expected)));
    RC_ASSERT(same_bits(last(*aux.lse), last(*dense_aux.lse)));
    RC_ASSERT(same_bits(last(*aux.max_scores), last(*dense_aux.max_scores)));
  }
}

// Sequences come, fork, grow by one token or many, and go.
class RandomEngine {
 public:
  RandomEngine(std::mt19937_64& random, const KVCacheOptions& options)
      : random_(random), harness_(options, random()) {}

  // The tokens of the next step, appended and written.
  std::vector<NewTokens> step() {
    if (live_.empty() || chance(random_, 60))
      live_.push_back(harness_.create(below(random_, longest_of_isa() / 2)));
    if (chance(random_, 60)) {
      const SequenceId from = live_[static_cast<std::size_t>(below(random_, std::ssize(live_)))];
      live_.push_back(harness_.cache.fork(from, below(random_, harness_.cache.length(from) + 1)));
    }
    if (live_.size() > 5) {
      const auto gone = live_.begin() + below(random_, std::ssize(live_));
      harness_.cache.release(*gone);
      live_.erase(gone);
    }
    std::ranges::shuffle(live_, random_);
    std::vector<NewTokens> tokens;
    for (const SequenceId sequence : live_) {
      const std::int64_t count = chance(random_, 70)   ? 1
                                 : chance(random_, 30) ? 0
                                                       : 1 + below(random_, 40);
      harness_.append(sequence, count);
      tokens.push_back({sequence, count});
    }
    return tokens;
  }

  std::int64_t longest() const {
    std::int64_t most = 1;
    for (const SequenceId sequence : live_) most = std::max(most, harness_.cache.length(sequence));
    return most;
  }
  AttendHarness& harness() { return harness_; }

 private:
  std::mt19937_64& random_;
  AttendHarness harness_;
  std::vector<SequenceId> live_;
};

RC_GTEST_PROP(Attend, RandomStepsAreEachSequenceAlone, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const std::int64_t page_size = random_page_size(random);
  const KVCacheOptions sizes{.kv_heads = 1 + below(random, 2),
                             .head_dim = 1 + below(random, 40),
                             .v_head_dim = 1 + below(random, 40),
                             .dtype = random_dtype(random),
                             .page_size = page_size,
                             .n_pages = 8 * longest_of_isa() / page_size + 16};
  const std::int64_t q_heads = sizes.kv_heads * (1 + below(random, 4));
  RC_LOG() << dtype_name(sizes.dtype) << " page " << page_size << " q_heads " << q_heads << "\n";
  RandomEngine engine(random, sizes);
  for (int i = 0; i < 3; ++i) {
    const std::vector<NewTokens> step = engine.step();
    AttendOptions options{.score_mod = random_score_mod(random)};
    if (chance(random, 40)) {
      options.mask_mod =
          random_mask_mod(random, {std::ssize(step), q_heads, engine.longest(), engine.longest()});
    } else if (chance(random, 40)) {
      options.window = 1 + below(random, 300);
    }
    RC_ASSERT(different_from_alone(engine.harness(), step, q_heads, options) == "");
  }
}

}  // namespace
}  // namespace quire::testing
