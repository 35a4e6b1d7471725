// Parses the names of dtypes. Tensor layer.
#include "quire/dtype.h"

#include <array>
#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, kDTypeCount> kNumpyNames = {{
    {"float32", DType::f32},
    {"float64", DType::f64},
    {"bfloat16", DType::bf16},
    {"float16", DType::f16},
    {"int8", DType::i8},
    {"uint8", DType::u8},
    {"int16", DType::i16},
    {"int32", DType::i32},
    {"int64", DType::i64},
    {"bool", DType::boolean},
}};

}  // namespace

DType parse_dtype(std::string_view name) {
  for (const auto& [numpy_name, dtype] : kNumpyNames) {
    if (name == numpy_name || name == dtype_name(dtype)) return dtype;
  }
  fail(ErrorKind::type, "parse_dtype",
       "must be one of f32, f64, bf16, f16, i8, u8, i16, i32, i64, bool; got '{}'", name);
}

}  // namespace quire
