// Checks and converts the structs of the C interface. C API layer.
#include "c_api/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "c_api/status.h"
#include "quire/error.h"

namespace quire::c_api {

// The C interface uses the library's numbers for dtypes.
constexpr bool is(quire_dtype number, DType dtype) { return number == static_cast<int>(dtype); }
static_assert(is(QUIRE_F32, DType::f32) && is(QUIRE_F64, DType::f64) &&
              is(QUIRE_BF16, DType::bf16));
static_assert(is(QUIRE_F16, DType::f16) && is(QUIRE_I8, DType::i8) && is(QUIRE_U8, DType::u8));
static_assert(is(QUIRE_I16, DType::i16) && is(QUIRE_I32, DType::i32) && is(QUIRE_I64, DType::i64));
static_assert(is(QUIRE_BOOL, DType::boolean) && std::size_t{QUIRE_MAX_RANK} == kMaxRank);

void copy_struct(void* to, std::size_t size, const void* from, const StructCopy& copy) {
  require(from, copy.function, copy.name);
  std::size_t given = 0;
  std::memcpy(&given, from, sizeof(given));  // every struct begins with its size
  constexpr std::size_t kMost = 65536;  // larger values are taken for a size that was never set
  if (given < copy.least || given > kMost) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] {}.size must be the size of its struct, at least {}; got {}",
                            copy.function, copy.name, copy.least, given));
  }
  std::memcpy(to, from, std::min(given, size));
  if (given <= size) return;
  const auto* rest = static_cast<const unsigned char*>(from);
  if (std::any_of(rest + size, rest + given, [](unsigned char c) { return c != 0; })) {
    throw Error(ErrorKind::not_implemented,
                fmt::format("[{}] {} sets fields that this version of the library does not know",
                            copy.function, copy.name));
  }
}

DType dtype(quire_dtype given, const char* function, const char* name) {
  if (given < 0 || given >= kDTypeCount)
    throw Error(ErrorKind::type, fmt::format("[{}] {}.dtype must be in 0..{}; got {}", function,
                                             name, kDTypeCount - 1, given));
  return static_cast<DType>(given);
}

namespace {

// Turns "[TensorView] what" into "[function] name: what", to say which tensor is meant.
template <class Make>
auto named(const char* function, const char* name, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    throw Error(error.kind(),
                fmt::format("[{}] {}: {}", function, name, text.substr(text.find("] ") + 2)));
  }
}

void check_aligned(const void* data, DType dtype, const char* function, const char* name) {
  const std::size_t size = dtype_size(dtype);
  if (reinterpret_cast<std::uintptr_t>(data) % size != 0)
    throw Error(ErrorKind::value,
                fmt::format("[{}] {}.data must be aligned for {}, a multiple of {} bytes", function,
                            name, dtype_name(dtype), size));
}

}  // namespace

TensorView tensor(const quire_tensor* given, const char* function, const char* name) {
  const quire_tensor copy = versioned(given, function, name);
  if (copy.rank < 0 || copy.rank > QUIRE_MAX_RANK)
    throw Error(ErrorKind::value, fmt::format("[{}] {}.rank must be in 0..{}; got {}", function,
                                              name, int{QUIRE_MAX_RANK}, copy.rank));
  const std::size_t rank = copy.rank;
  const DType type = dtype(copy.dtype, function, name);
  check_aligned(copy.data, type, function, name);
  return named(function, name, [&] {
    return TensorView(copy.data, type, Shape(std::span<const std::int64_t>(copy.shape, rank)),
                      Shape(std::span<const std::int64_t>(copy.strides, rank)));
  });
}

std::optional<TensorView> optional_tensor(const quire_tensor* given, const char* function,
                                          const char* name) {
  if (given == nullptr) return std::nullopt;
  return tensor(given, function, name);
}

Jagged jagged(const quire_jagged* given, const char* function, const char* name) {
  const quire_jagged copy = versioned(given, function, name);
  if (copy.order != QUIRE_JAGGED_TOKENS && copy.order != QUIRE_JAGGED_HEADS)
    throw Error(ErrorKind::value,
                fmt::format("[{}] {}.order must be 0 or 1; got {}", function, name, copy.order));
  Jagged result{.values = tensor(copy.values, function, fmt::format("{}.values", name).c_str()),
                .offsets = tensor(copy.offsets, function, fmt::format("{}.offsets", name).c_str())};
  if (copy.lengths != nullptr)
    result.lengths = tensor(copy.lengths, function, fmt::format("{}.lengths", name).c_str());
  if (copy.order == QUIRE_JAGGED_HEADS) result.order = JaggedOrder::kHeads;
  return result;
}

bool flag(std::int32_t given, const char* function, const char* name) {
  if (given != 0 && given != 1)
    throw Error(ErrorKind::value,
                fmt::format("[{}] {} must be 0 or 1; got {}", function, name, given));
  return given == 1;
}

AttentionOutputs outputs(const quire_attention_outputs* given, const char* function) {
  const auto to = versioned(given, function, "outputs");
  return {.out = tensor(to.out, function, "out"),
          .lse = optional_tensor(to.lse, function, "outputs.lse"),
          .max_scores = optional_tensor(to.max_scores, function, "outputs.max_scores")};
}

SequenceId sequence(const quire_sequence& given) {
  return {.cache = given.cache, .slot = given.slot, .generation = given.generation};
}

quire_sequence sequence(SequenceId given) { return {given.cache, given.slot, given.generation}; }

void check_count(std::size_t count, const char* function, const char* name) {
  if (count > std::size_t{1} << 40) refuse(function, "{} is too large; got {}", name, count);
}

std::vector<NewTokens> step(const quire_step* given, const char* function) {
  const auto of = versioned(given, function, "step");
  std::vector<NewTokens> tokens;
  check_count(of.sequence_count, function, "step.sequence_count");
  if (of.sequence_count == 0) return tokens;
  require(of.sequences, function, "step.sequences");
  require(of.counts, function, "step.counts");
  for (std::size_t i = 0; i < of.sequence_count; ++i) {
    NewTokens& to = tokens.emplace_back();
    to.sequence = sequence(of.sequences[i]);
    to.count = of.counts[i];
    if (of.ids != nullptr && of.ids[i] != nullptr && to.count > 0)
      to.ids = {of.ids[i], static_cast<std::size_t>(to.count)};
    if (of.drafts != nullptr) to.draft = flag(of.drafts[i], function, "one of step.drafts");
  }
  return tokens;
}

}  // namespace quire::c_api

quire_status quire_tensor_init(quire_tensor* tensor, void* data, quire_dtype dtype, int32_t rank,
                               const int64_t* shape) {
  using namespace quire;
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_tensor_init";
    c_api::require(tensor, kName, "tensor");
    if (rank < 0 || rank > QUIRE_MAX_RANK)
      throw Error(ErrorKind::value, fmt::format("[{}] rank must be in 0..{}; got {}", kName,
                                                int{QUIRE_MAX_RANK}, rank));
    if (rank > 0) c_api::require(shape, kName, "shape");
    const std::size_t axes = rank;
    const DType type = c_api::dtype(dtype, kName, "tensor");
    c_api::check_aligned(data, type, kName, "tensor");
    const TensorView view = c_api::named(kName, "tensor", [&] {
      return TensorView(data, type, Shape(std::span<const std::int64_t>(shape, axes)));
    });
    quire_tensor result{};
    result.size = sizeof(quire_tensor);
    result.data = data;
    result.dtype = dtype;
    result.rank = rank;
    std::copy(view.shape().begin(), view.shape().end(), result.shape);
    std::copy(view.strides().begin(), view.strides().end(), result.strides);
    *tensor = result;
  });
}
