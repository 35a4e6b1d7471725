// key_indices of quire_attention_problem: bits of the C++ function, what is refused, and structs of
// the first published size.
#include <gtest/gtest.h>

#include <cstddef>

#include "quire/flex_attention.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

TEST(CApiChosenKeys, HaveTheBitsOfCpp) {
  const Tensor q = numbers({1, 2, 3, 16}, 1), k = numbers({1, 2, 40, 16}, 2),
               v = numbers({1, 2, 40, 8}, 3);
  Tensor lists = Tensor::from<std::int32_t>({0, 7, -1, 39, 3, 2, 11, -1, -1}, {1, 3, 3});
  FlexAttentionOptions options;
  options.key_indices = lists;
  const Tensor wanted = flex_attention(q, k, v, options), all = flex_attention(q, k, v);
  Tensor out({1, 2, 3, 8}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v),
                     c_lists = c_tensor(lists), c_out = c_tensor(out);
  auto problem = sized<quire_attention_problem>();
  problem.q = &c_q;
  problem.k = &c_k;
  problem.v = &c_v;
  problem.key_indices = &c_lists;
  auto outputs = sized<quire_attention_outputs>();
  outputs.out = &c_out;
  ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK) << quire_last_error();
  expect_same_bits(out, wanted);
  lists.at<std::int32_t>({0, 1, 2}) = 3;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_attention] key_indices of batch entry 0, query 1 list key 3 twice",
                quire_attention(&problem, &outputs));
  // A caller that does not know the field yet.
  problem.size = offsetof(quire_attention_problem, key_indices);
  ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK) << quire_last_error();
  expect_same_bits(out, all);
}

}  // namespace
}  // namespace quire
