// The C interface of quantised keys and values: codes, numbers and attention as C++ gives them, and
// what is refused.
#include <gtest/gtest.h>

#include "quire/flex_attention.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

TEST(CApiQuantise, CodesNumbersAndAttentionAreThoseOfCpp) {
  const Tensor q = numbers({1, 4, 3, 64}, 1), x = numbers({1, 2, 50, 64}, 2);
  for (const char* name : {"int8", "u8", "int4+hadamard", "q8_0", "fp8_e4m3"}) {
    const QuantizedTensor wanted = quantize(x, KVFormat::of(name));
    Tensor codes(wanted.codes.shape(), wanted.codes.dtype());
    Tensor scales(wanted.scales.shape(), wanted.scales.dtype());
    const quire_tensor c_q = c_tensor(q), c_x = c_tensor(x), c_codes = c_tensor(codes),
                       c_scales = c_tensor(scales);
    const quire_tensor* const some = wanted.format.has_scales() ? &c_scales : nullptr;
    ASSERT_EQ(quire_quantize(&c_x, name, 0, &c_codes, some), QUIRE_OK) << quire_last_error();
    expect_same_bits(codes, wanted.codes);
    expect_same_bits(scales, wanted.scales);
    Tensor back(x.shape(), DType::f32), out(q.shape(), DType::f32);
    const quire_tensor c_back = c_tensor(back), c_out = c_tensor(out);
    ASSERT_EQ(quire_dequantize(&c_codes, some, name, &c_back), QUIRE_OK) << quire_last_error();
    expect_same_bits(back, dequantize(wanted));
    auto problem = sized<quire_attention_problem>();
    problem.q = &c_q;
    problem.k = problem.v = &c_codes;
    problem.k_format = problem.v_format = name;
    problem.k_scales = problem.v_scales = some;
    problem.enable_gqa = 1;
    auto outputs = sized<quire_attention_outputs>();
    outputs.out = &c_out;
    ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK) << quire_last_error();
    expect_same_bits(out, flex_attention(q, wanted, wanted, {.enable_gqa = true}));
  }
}

TEST(CApiQuantise, WhatIsRefused) {
  std::int64_t bytes = 0, scales = 0;
  ASSERT_EQ(quire_kv_format_sizes("int4", 128, &bytes, &scales), QUIRE_OK);
  EXPECT_EQ(bytes, 64);
  EXPECT_EQ(scales, 8);
  ASSERT_EQ(quire_kv_format_sizes("q8_0", 128, &bytes, nullptr), QUIRE_OK);
  EXPECT_EQ(bytes, 136);
  EXPECT_NE(quire_kv_format_sizes("int4", 80, &bytes, nullptr), QUIRE_OK);
  EXPECT_NE(quire_kv_format_sizes("int3", 64, &bytes, nullptr), QUIRE_OK);
  const Tensor x = numbers({1, 1, 2, 32}, 3);
  Tensor codes({1, 1, 2, 31}, DType::i8), room({1, 1, 2}, DType::f32);
  const quire_tensor c_x = c_tensor(x), c_codes = c_tensor(codes), c_room = c_tensor(room);
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_quantize] codes must be row-major i8 [1, 1, 2, 32]; got i8 [1, 1, 2, 31]",
                quire_quantize(&c_x, "int8", 0, &c_codes, &c_room));
}

}  // namespace
}  // namespace quire
