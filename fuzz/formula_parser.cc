// Any bytes as the text of a formula: it is refused with an Error, or prints as a text that reads
// as an equal formula, and can be explained.
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/targets.h"
#include "quire/error.h"
#include "quire/explain.h"
#include "quire/formula.h"

namespace quire::fuzz {
namespace {

const NamedBuffers& buffers() {
  static const NamedBuffers all = {
      {"slopes", Buffer(std::vector<float>(8, 0.5f), {.name = "slopes"})},
      {"doc", Buffer(std::vector<std::int32_t>(64, 3), {.name = "doc"})},
      {"table", Buffer(Tensor({4, 16}, DType::f64), {.name = "table"})},
      {"flags", Buffer(Tensor({2, 3, 5}, DType::boolean), {.name = "flags"})},
  };
  return all;
}

}  // namespace

void formula_parser(Bytes bytes) {
  constexpr std::size_t kLongest = 4096;
  const std::string text(reinterpret_cast<const char*>(bytes.data()),
                         bytes.size() < kLongest ? bytes.size() : kLongest);
  try {
    const Formula formula = Formula::parse(text, buffers());
    const Formula again = Formula::parse(formula.to_string(), formula.named_buffers());
    check(again == formula, "the text of a formula reads as an equal formula");
    if (formula.size() < 100) check(!explain(formula).empty(), "every formula can be explained");
  } catch (const Error& error) {
    check(std::string_view(error.what()).starts_with('['), "an error says where it comes from");
  }
}

}  // namespace quire::fuzz
