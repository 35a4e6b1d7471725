// The C structures of DLPack 1.3, with which array libraries exchange memory, laid out as in its
// specification. Declarations only. Python layer.
#pragma once
#include <cstdint>

namespace quire::python::dlpack {

enum class DeviceType : std::int32_t { kCpu = 1 };
enum class TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };
inline constexpr std::uint64_t kReadOnly = 1;  // a bit of ManagedVersioned::flags

struct Device {
  DeviceType type;
  std::int32_t id;
};

struct Type {
  TypeCode code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed* self);
};

struct Version {
  std::uint32_t major, minor;
};

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

// What a class offers as the capsule `__dlpack_c_exchange_api__`; its functions are called with the
// GIL. Signatures are declared only for those that are used.
struct ExchangeApi {
  Version version;
  const ExchangeApi* older;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  int (*borrow)(void* object, Tensor* out);  // -1: an exception is set. May be null
  void (*current_stream)();
};

}  // namespace quire::python::dlpack
