// The C structures of XLA's foreign function interface, version 0.3, with which a program compiled
// by JAX calls a function of another library, laid out as in its header; only what is used.
// Declarations only, so that building needs no jaxlib; tests/python/jax_arrays compares them with
// the header of the installed jaxlib. Python layer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::python::xla {

inline constexpr int kMajorVersion = 0, kMinorVersion = 3;

enum class ExtensionType : std::int32_t { kMetadata = 1 };
enum class DataType : std::int32_t {
  kBool = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU8 = 6,
  kU32 = 8,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBf16 = 16,
};
enum class AttributeType : std::int32_t { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };
enum class Stage : std::int32_t { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };
enum class ErrorCode : std::int32_t { kInvalidArgument = 3, kInternal = 13 };

struct Extension {
  std::size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major_version, minor_version;
};

struct Metadata {
  std::size_t struct_size;
  Version api_version;
  std::uint32_t traits;
  std::int64_t state_type;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;

struct ErrorArguments {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments* arguments);
};

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Array {
  DataType dtype;
  std::size_t size;
  void* data;
};

struct Values {  // arguments and results: all of them buffers
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* types;
  void** values;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  AttributeType* types;
  ByteSpan** names;
  void** values;
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Values arguments;
  Values results;
  Attributes attributes;
};

}  // namespace quire::python::xla
