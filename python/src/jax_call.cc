// Reads the frame of a call from XLA. Python layer.
#include "jax_call.h"

#include <cstring>
#include <exception>
#include <new>

#include "quire/error.h"

namespace quire::python {
namespace {

DType dtype_of_xla(xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::kBool:
      return DType::boolean;
    case xla::DataType::kI8:
      return DType::i8;
    case xla::DataType::kI16:
      return DType::i16;
    case xla::DataType::kI32:
    case xla::DataType::kU32:  // words of a seed: the same bits
      return DType::i32;
    case xla::DataType::kI64:
      return DType::i64;
    case xla::DataType::kU8:
      return DType::u8;
    case xla::DataType::kF16:
      return DType::f16;
    case xla::DataType::kF32:
      return DType::f32;
    case xla::DataType::kF64:
      return DType::f64;
    case xla::DataType::kBf16:
      return DType::bf16;
  }
  throw Error(ErrorKind::type, "[quire.jax] an array has a dtype that Quire has not: XLA's " +
                                   std::to_string(static_cast<int>(dtype)));
}

std::vector<TensorView> views_of(const xla::Values& values) {
  std::vector<TensorView> views;
  for (std::int64_t i = 0; i < values.size; ++i) {
    const auto& buffer = *static_cast<const xla::Buffer*>(values.values[i]);
    const std::span<const std::int64_t> dims(buffer.dims, buffer.rank);
    views.emplace_back(buffer.data, dtype_of_xla(buffer.dtype), Shape(dims));
  }
  return views;
}

// Answers a frame that only asks for the version; returns whether it did.
bool tell_version(const xla::CallFrame& frame) {
  for (xla::Extension* one = frame.extensions; one != nullptr; one = one->next) {
    if (one->type != xla::ExtensionType::kMetadata) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(one)->metadata;
    metadata.api_version.major_version = xla::kMajorVersion;
    metadata.api_version.minor_version = xla::kMinorVersion;
    metadata.traits = 0;
    return true;
  }
  return false;
}

xla::Error* error_of(const xla::CallFrame& frame, const char* text, xla::ErrorCode code) {
  xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, text, code};
  return frame.api->create_error(&arguments);
}

}  // namespace

JaxCall::JaxCall(const xla::CallFrame& frame)
    : attributes_(frame.attributes), results_(views_of(frame.results)) {
  for (const TensorView& one : views_of(frame.arguments)) operands_.emplace_back(one);
}

const void* JaxCall::find(std::string_view name, xla::AttributeType type) const {
  for (std::int64_t i = 0; i < attributes_.size; ++i) {
    if (std::string_view(attributes_.names[i]->data, attributes_.names[i]->size) != name) continue;
    if (attributes_.types[i] == type) return attributes_.values[i];
    throw Error(ErrorKind::type,
                "[quire.jax] the attribute '" + std::string(name) + "' has another type");
  }
  return nullptr;
}

std::string_view JaxCall::text(std::string_view name) const {
  const void* const found = find(name, xla::AttributeType::kString);
  if (found == nullptr)
    throw Error(ErrorKind::value, "[quire.jax] there is no text '" + std::string(name) + "'");
  const auto& span = *static_cast<const xla::ByteSpan*>(found);
  return {span.data, span.size};
}

std::optional<double> JaxCall::number(std::string_view name) const {
  const void* const found = find(name, xla::AttributeType::kScalar);
  if (found == nullptr) return std::nullopt;
  const auto& scalar = *static_cast<const xla::Scalar*>(found);
  if (scalar.dtype != xla::DataType::kF64)
    throw Error(ErrorKind::type, "[quire.jax] '" + std::string(name) + "' must be a float");
  double value = 0;
  std::memcpy(&value, scalar.value, sizeof value);
  return value;
}

std::span<const std::int64_t> JaxCall::integers(std::string_view name) const {
  const void* const found = find(name, xla::AttributeType::kArray);
  const auto* const array = static_cast<const xla::Array*>(found);
  if (array == nullptr || array->dtype != xla::DataType::kI64)
    throw Error(ErrorKind::value, "[quire.jax] there are no integers '" + std::string(name) + "'");
  return {static_cast<const std::int64_t*>(array->data), array->size};
}

xla::Error* answer(const xla::CallFrame* frame, void (*work)(const JaxCall& call)) noexcept {
  if (tell_version(*frame)) return nullptr;
  if (frame->stage != xla::Stage::kExecute) return nullptr;
  try {
    work(JaxCall(*frame));
    return nullptr;
  } catch (const Error& error) {
    return error_of(*frame, error.what(), xla::ErrorCode::kInvalidArgument);
  } catch (const std::bad_alloc&) {
    return error_of(*frame, "[quire.jax] out of memory", xla::ErrorCode::kInternal);
  } catch (const std::exception& error) {
    return error_of(*frame, error.what(), xla::ErrorCode::kInternal);
  }
}

}  // namespace quire::python
