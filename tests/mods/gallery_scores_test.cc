// Score mods of the gallery that are in no function, each against plain arithmetic.
#include <gtest/gtest.h>

#include <cmath>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"

namespace quire::mods {
namespace {

using testing::ScoreRule;

void expect_entry(const char* name, const GallerySizes& at, double ulps, ScoreRule rule) {
  SCOPED_TRACE(name);
  testing::expect_scores(gallery_entry(name).score_mod(at),
                         {at.batch, at.heads, at.q_len, at.kv_len}, ulps, rule);
}

const GallerySizes kSmall = {.q_len = 64, .kv_len = 64, .heads = 4};
const GallerySizes kOdd = {.q_len = 113, .kv_len = 203, .heads = 3, .batch = 2};

// Where the bucket of a distance begins is a matter of exact arithmetic: 8 * 2^(k/2) <= n, not of
// rounded logarithms.
std::int64_t t5_bucket(std::int64_t distance) {
  const std::int64_t n = std::abs(distance), half = distance > 0 ? 16 : 0;
  if (n < 8) return half + n;
  std::int64_t bucket = 8;
  for (std::int64_t k = 1; k < 8; ++k)
    if (static_cast<double>(n) >= 8 * std::pow(2.0, static_cast<double>(k) / 2) - 1e-9) ++bucket;
  return half + bucket;
}

TEST(GalleryScores, T5Bias) {
  EXPECT_EQ(t5_bucket(-16), 10);  // log(16 / 8) / log(128 / 8) * 8 = 2
  EXPECT_EQ(t5_bucket(127), 16 + 15);
  EXPECT_EQ(t5_bucket(-5000), 15);
  for (const GallerySizes& at : {GallerySizes{.q_len = 256, .kv_len = 256, .heads = 2}, kOdd}) {
    const Buffer table = gallery_entry("t5_bias").buffers(at).at(0).second;
    EXPECT_EQ(table.shape(), (Shape{at.heads, 32}));
    expect_entry("t5_bias", at, 1, [&](double s, auto, auto h, auto q, auto kv) {
      return s + table.view().load_float({h, t5_bucket(kv - q)});
    });
  }
}

TEST(GalleryScores, Sandwich) {
  for (const GallerySizes& at : {kSmall, kOdd}) {
    expect_entry("sandwich", at, 128, [&](double s, auto, auto h, auto q, auto kv) {
      double sum = 0;
      for (int i = 0; i < 64; ++i)
        sum += std::cos(static_cast<double>(q - kv) / std::pow(10000.0, i / 64.0));
      return s + sum / (static_cast<double>(h + 1) * 8 / static_cast<double>(at.heads));
    });
  }
}

TEST(GalleryScores, HeadTemperature) {
  for (const GallerySizes& at : {kSmall, kOdd})
    expect_entry("head_temperature", at, 1, [](double s, auto, auto h, auto...) {
      return s / (0.5 + 0.5 * static_cast<double>(h));
    });
}

TEST(GalleryScores, LogActivation) {
  for (const GallerySizes& at : {kSmall, kOdd})
    expect_entry("log_activation", at, 2,
                 [](double s, auto...) { return s > 0 ? std::log(s) : -INFINITY; });
}

// exp(log_activation) over its sum is relu over its sum.
TEST(GalleryScores, LogActivationReplacesTheExponential) {
  const Tensor scores = testing::some_scores({1, 1, 1, 50});
  const Tensor mod = evaluate(gallery_entry("log_activation").score_mod(), scores);
  for (int kv = 0; kv < 50; ++kv) {
    const float score = scores.at<float>({0, 0, 0, kv});
    EXPECT_NEAR(std::exp(mod.at<float>({0, 0, 0, kv})), score > 0 ? score : 0, 1e-5);
  }
}

TEST(GalleryScores, LatentRope) {
  for (const GallerySizes& at : {kSmall, kOdd}) {
    expect_entry("latent_rope", at, 64, [&](double s, auto, auto h, auto q, auto kv) {
      double sum =
          0;  // a rotation by q of one vector and by kv of the other turns by the difference
      for (int pair = 0; pair < 8; ++pair)
        sum += std::cos(static_cast<double>(q - kv) * std::pow(100.0, -pair / 8.0));
      return s + sum * static_cast<double>(h + 1) * 0.125;
    });
  }
}

}  // namespace
}  // namespace quire::mods
