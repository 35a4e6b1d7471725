// Sizes, names and classes of dtypes, and reading names back.
#include "quire/dtype.h"

#include <gtest/gtest.h>

#include <string>

#include "tensor/element.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

TEST(DType, EachIsConsistent) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(sizeof(T), dtype_size(dtype));
    });
    EXPECT_EQ(is_floating(dtype) + is_integer(dtype) + (dtype == DType::boolean), 1);
  }
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_TRUE(is_integer(DType::u8));
}

TEST(DType, ParsesNumpyNames) {
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("uint8"), DType::u8);
  EXPECT_EQ(parse_dtype("bool"), DType::boolean);
}

TEST(DType, RefusesOtherNames) {
  for (const std::string name : {"", "f8", "F32", "float", "f32 "}) {
    testing::expect_error(
        ErrorKind::type,
        "[parse_dtype] must be one of f32, f64, bf16, f16, i8, u8, i16, i32, i64, "
        "bool; got '" +
            name + "'",
        [&] { parse_dtype(name); });
  }
}

}  // namespace
}  // namespace quire
