// Dropout of the reference: its share, its counters, and gradients through it against differences.
#include "reference/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/attention.h"
#include "tests/support/attention_backward.h"

namespace quire::reference {
namespace {

TEST(Dropout, Share) {
  for (const double p : {0.01, 0.3, 0.9}) {
    const auto factors = dropout_factors({p, 3}, {1, 2, 3}, 100000);
    double dropped = 0;
    for (const double factor : factors) {
      dropped += factor == 0;
      EXPECT_TRUE(factor == 0 || factor == 1 / (1 - p));
    }
    EXPECT_NEAR(dropped, 1e5 * p, 5 * std::sqrt(1e5 * p * (1 - p)));
  }
  for (const double factor : dropout_factors({0, 3}, {}, 100)) EXPECT_EQ(factor, 1);
  for (const double factor : dropout_factors({1, 3}, {}, 100)) EXPECT_EQ(factor, 0);
}

// Key 85 = 64 + 16 + 5: word 1 of counter 16 + 5.
TEST(Dropout, Counters) {
  const auto words = philox({21, 7, 5, 3}, 11);
  const double p = words[1] / 4294967296.0;
  EXPECT_EQ(dropout_factors({p, 11}, {3, 5, 7}, 86)[85], 1 / (1 - p));  // kept at word = p * 2^32
  EXPECT_EQ(dropout_factors({p + 0x1p-32, 11}, {3, 5, 7}, 86)[85], 0);
}

Tensor numbers(const Shape& shape, double first) {
  Tensor tensor(shape, DType::f64);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data_as<double>()[i] = std::sin(first + 1.7 * static_cast<double>(i));
  return tensor;
}

TEST(Dropout, Gradients) {
  Tensor q = numbers({1, 2, 3, 4}, 1), k = numbers({1, 1, 9, 4}, 2), v = numbers({1, 1, 9, 5}, 3);
  const Tensor d_out = numbers({1, 2, 3, 5}, 4);
  const AttentionOptions options{.b_begin = 2, .dropout = {0.4, 17}};
  const AttentionGradients gradients = attention_backward({q, k, v}, options, {.out = d_out});
  const auto loss = [&] {
    const Tensor out = attention({q, k, v}, options).out;
    double sum = 0;
    for (std::int64_t i = 0; i < out.numel(); ++i)
      sum += out.data_as<double>()[i] * d_out.data_as<double>()[i];
    return sum;
  };
  for (const auto& [tensor, gradient] :
       {std::pair{&q, &gradients.q}, std::pair{&k, &gradients.k}, std::pair{&v, &gradients.v}}) {
    for (std::int64_t i = 0; i < tensor->numel(); ++i) {
      double& x = tensor->data_as<double>()[i];
      const double middle = x;
      x = middle + 1e-5;
      const double above = loss();
      x = middle - 1e-5;
      const double below = loss();
      x = middle;
      EXPECT_NEAR(gradient->data_as<double>()[i], (above - below) / 2e-5, 1e-8);
    }
  }
}

}  // namespace
}  // namespace quire::reference
