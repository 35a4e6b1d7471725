// Random captured buffers. Tests only.
#include "tests/support/random_buffers.h"

#include <algorithm>
#include <array>
#include <string>

#include "quire/tensor.h"

namespace quire::testing {
namespace {

using Random = std::mt19937_64;

// How elements are drawn.
enum class Content {
  kAny,      // floats in -4..4, integers in -20..20, bools
  kIds,      // ascending small integers, each repeated: documents of a packed sequence
  kOffsets,  // integers in -kv..kv
};

struct Plan {
  std::string name;
  Shape shape;
  std::vector<DType> dtypes;
  Content content = Content::kAny;
};

const std::vector<DType> kFloats = {DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16};
const std::vector<DType> kInts = {DType::i64, DType::i32, DType::i32,
                                  DType::i16, DType::i8,  DType::u8};
const std::vector<DType> kWideInts = {DType::i64, DType::i32, DType::i16};

// The buffers that mods in the wild read.
std::vector<Plan> usual_plans(const Extents& e) {
  const std::int64_t longer = std::max(e.q, e.kv);
  return {
      {"slopes", {e.h}, kFloats},
      {"doc", {longer}, kWideInts, Content::kIds},
      {"offsets", {16}, kWideInts, Content::kOffsets},
      {"lengths", {e.b}, kWideInts, Content::kOffsets},
      {"keep", {e.b, e.kv}, {DType::boolean}},
      {"bias", {e.h, 2 * longer - 1}, kFloats},
      {"relative", {2 * longer - 1}, kFloats},
      {"pairs", {e.q, e.kv}, kFloats},
      {"codes", {e.kv}, kInts},
      {"q_rope", {e.q, 4}, kFloats},
      {"k_rope", {e.kv, 4}, kFloats},
      {"gate", {}, kFloats},
      {"limit", {}, kWideInts, Content::kOffsets},
      {"map", {e.h, 7}, kInts},
      {"cube", {e.b, e.h, 5}, kFloats},
      {"box", {2, 3, 4}, kInts},
  };
}

Plan arbitrary_plan(Random& random, const RandomBufferOptions& options, std::size_t number) {
  const Extents& e = options.extents;
  const std::array<std::int64_t, 8> sizes = {1, 2, 4, 5, e.b, e.h, e.q, e.kv};
  Plan plan{.name = "x" + std::to_string(number), .shape = {}, .dtypes = kInts};
  for (std::int64_t rank = below(random, 4); rank > 0; --rank)
    plan.shape.push_back(sizes[static_cast<std::size_t>(below(random, rank > 1 ? 6 : 8))]);
  plan.dtypes.push_back(DType::boolean);
  if (options.floats) plan.dtypes.insert(plan.dtypes.end(), kFloats.begin(), kFloats.end());
  return plan;
}

Tensor filled(Random& random, const Plan& plan, DType dtype, const Extents& extents) {
  std::vector<double> values(static_cast<std::size_t>(element_count(plan.shape)));
  std::int64_t id = 0;
  for (double& value : values) {
    switch (plan.content) {
      case Content::kIds:
        id += chance(random, 8);
        value = static_cast<double>(id);
        break;
      case Content::kOffsets:
        value = static_cast<double>(below(random, 2 * extents.kv + 1) - extents.kv);
        break;
      case Content::kAny:
        value = is_floating(dtype)        ? static_cast<double>(below(random, 8001) - 4000) / 1000
                : dtype == DType::boolean ? static_cast<double>(below(random, 2))
                : dtype == DType::u8      ? static_cast<double>(below(random, 21))
                                          : static_cast<double>(below(random, 41) - 20);
        break;
    }
  }
  return Tensor::from(values, plan.shape).to(dtype);
}

Buffer make_buffer(Random& random, const Plan& plan, const RandomBufferOptions& options) {
  const DType dtype = plan.dtypes[static_cast<std::size_t>(
      below(random, static_cast<std::int64_t>(plan.dtypes.size())))];
  const BufferOptions buffer_options{
      .name = plan.name, .wants_gradient = options.wants_gradient && is_floating(dtype)};
  if (options.memory == nullptr || plan.shape.rank() == 0 || !chance(random, 50))
    return Buffer(filled(random, plan, dtype, options.extents), buffer_options);
  // Memory in the opposite order of axes, every other element, sometimes backwards or broadcast
  // along the last axis.
  Plan reversed = plan;
  std::reverse(reversed.shape.begin(), reversed.shape.end());
  for (std::int64_t& size : reversed.shape) size *= 2;
  const Tensor tensor = filled(random, reversed, dtype, options.extents);
  options.memory->push_back(tensor);
  const std::size_t rank = plan.shape.rank();
  Shape strides;
  const Shape outer = contiguous_strides(reversed.shape);
  for (std::size_t axis = 0; axis < rank; ++axis) strides.push_back(2 * outer[rank - 1 - axis]);
  if (chance(random, 25)) strides[rank - 1] = 0;
  const char* data = static_cast<const char*>(tensor.data());
  if (plan.shape[0] > 0 && chance(random, 25)) {
    data += static_cast<std::int64_t>(dtype_size(dtype)) * (plan.shape[0] - 1) * strides[0];
    strides[0] = -strides[0];
  }
  return Buffer::borrow(ConstTensorView(data, dtype, plan.shape, strides), buffer_options);
}

}  // namespace

std::vector<Buffer> random_buffers(Random& random, int count, const RandomBufferOptions& options) {
  std::vector<Plan> plans = usual_plans(options.extents);
  if (!options.floats)
    std::erase_if(plans, [](const Plan& plan) { return is_floating(plan.dtypes.front()); });
  std::vector<Buffer> buffers;
  while (static_cast<int>(buffers.size()) < count) {
    if (plans.empty() || chance(random, 30)) {
      buffers.push_back(
          make_buffer(random, arbitrary_plan(random, options, buffers.size()), options));
      continue;
    }
    const std::int64_t i = below(random, static_cast<std::int64_t>(plans.size()));
    buffers.push_back(make_buffer(random, plans[static_cast<std::size_t>(i)], options));
    plans.erase(plans.begin() + i);
  }
  return buffers;
}

IntRange element_range(const Buffer& buffer) {
  const ConstTensorView& view = buffer.view();
  if (view.numel() == 0) return {0, 0};
  const Tensor values = to(view, DType::i64);
  const std::int64_t* data = values.data_as<std::int64_t>();
  const auto [low, high] = std::minmax_element(data, data + values.numel());
  return {*low, *high};
}

}  // namespace quire::testing
