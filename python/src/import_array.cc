// Python arrays as views: by the buffer protocol (NumPy and the standard library), by DLPack
// (torch, jax, ...), otherwise through numpy.asarray. Python layer.
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dlpack.h"
#include "quire/error.h"
#include "view.h"

namespace quire::python {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw nb::type_error(("[quire] " + what).c_str());
}

// The dtype of an item format of the struct module; nullopt for another byte order or structure.
std::optional<DType> parse_format(const char* format, Py_ssize_t size) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<')) text.remove_prefix(1);
  if (text.size() != 1) return std::nullopt;
  switch (text[0]) {
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case 'e':
      return DType::f16;
    case '?':
      return DType::boolean;
    case 'B':
      return DType::u8;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      break;
    default:
      return std::nullopt;
  }
  switch (size) {
    case 1:
      return DType::i8;
    case 2:
      return DType::i16;
    case 4:
      return DType::i32;
    case 8:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

// Strides in elements, if they are whole numbers.
std::optional<Shape> element_strides(const Py_buffer& buffer) {
  if (buffer.strides == nullptr) return std::nullopt;
  Shape strides;
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.strides[i] % buffer.itemsize != 0) return std::nullopt;
    strides.push_back(buffer.strides[i] / buffer.itemsize);
  }
  return strides;
}

// nullopt if the object has no buffer protocol, or one that does not tell its dtype.
std::optional<View> from_buffer(nb::handle array) {
  if (!PyObject_CheckBuffer(array.ptr())) return std::nullopt;
  auto* const buffer = new Py_buffer;
  if (PyObject_GetBuffer(array.ptr(), buffer, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();  // ml_dtypes: a dtype without a format
    delete buffer;
    return std::nullopt;
  }
  // Locks the exporter's memory (a bytearray may not be resized meanwhile).
  nb::capsule owner(buffer, [](void* pointer) noexcept {
    PyBuffer_Release(static_cast<Py_buffer*>(pointer));
    delete static_cast<Py_buffer*>(pointer);
  });
  const auto dtype = parse_format(buffer->format, buffer->itemsize);
  if (!dtype.has_value()) return std::nullopt;
  if (buffer->ndim > static_cast<int>(kMaxRank)) {
    throw nb::value_error("[quire] an array may have at most 8 axes");
  }
  Shape shape;
  for (int i = 0; i < buffer->ndim; ++i) shape.push_back(buffer->shape[i]);
  const auto strides = element_strides(*buffer);
  if (buffer->strides != nullptr && !strides.has_value()) return std::nullopt;
  const bool is_read_only = buffer->readonly != 0;
  return View{
      TensorView(buffer->buf, *dtype, shape, strides ? *strides : contiguous_strides(shape)),
      std::move(owner), is_read_only};
}

std::optional<DType> parse_type(const dlpack::Type& type) {
  using dlpack::TypeCode;
  if (type.lanes != 1) return std::nullopt;
  switch (type.code) {
    case TypeCode::kFloat:
      if (type.bits == 32) return DType::f32;
      if (type.bits == 64) return DType::f64;
      if (type.bits == 16) return DType::f16;
      return std::nullopt;
    case TypeCode::kBfloat:
      return type.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
    case TypeCode::kBool:
      return type.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
    case TypeCode::kUInt:
      return type.bits == 8 ? std::optional(DType::u8) : std::nullopt;
    case TypeCode::kInt:
      if (type.bits == 8) return DType::i8;
      if (type.bits == 16) return DType::i16;
      if (type.bits == 32) return DType::i32;
      if (type.bits == 64) return DType::i64;
      return std::nullopt;
  }
  return std::nullopt;
}

TensorView tensor_view(const dlpack::Tensor& tensor, DType dtype) {
  const std::size_t rank = tensor.rank;
  const Shape shape(std::span<const std::int64_t>(tensor.shape, rank));
  const Shape strides = tensor.strides == nullptr
                            ? contiguous_strides(shape)
                            : Shape(std::span<const std::int64_t>(tensor.strides, rank));
  return {static_cast<std::uint8_t*>(tensor.data) + tensor.byte_offset, dtype, shape, strides};
}

View from_dl_tensor(const dlpack::Tensor& tensor, nb::object owner, bool is_read_only) {
  if (tensor.device.type != dlpack::DeviceType::kCpu) {
    throw nb::buffer_error("[quire] an array must be in the memory of the CPU");
  }
  const auto dtype = parse_type(tensor.type);
  if (!dtype.has_value()) {
    refuse("an array has a dtype that Quire has not: DLPack code " +
           std::to_string(static_cast<int>(tensor.type.code)) + " with " +
           std::to_string(tensor.type.bits) + " bits");
  }
  return {tensor_view(tensor, *dtype), std::move(owner), is_read_only};
}

// The functions of a class, or null. Remembers those of the last class.
const dlpack::ExchangeApi* exchange_api(nb::handle type) {
  static auto* const last = new nb::object();  // never freed: its class may be gone at the end
  static const dlpack::ExchangeApi* api = nullptr;
  if (last->is(type)) return api;
  api = nullptr;
  *last = nb::borrow(type);
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* found = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (found != nullptr && found->version.major != 1) found = found->older;
  return api = found;
}

// Takes over the contents of a capsule: the view's owner frees them.
template <class Managed>
View take(PyObject* capsule, const char* name, const char* used_name) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed == nullptr || PyCapsule_SetName(capsule, used_name) != 0) nb::raise_python_error();
  nb::capsule owner(managed, [](void* pointer) noexcept {
    auto* const own = static_cast<Managed*>(pointer);
    if (own->deleter != nullptr) own->deleter(own);
  });
  bool is_read_only = false;
  if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>)
    is_read_only = (managed->flags & dlpack::kReadOnly) != 0;
  return from_dl_tensor(managed->tensor, std::move(owner), is_read_only);
}

nb::object call_dlpack(nb::handle array) {
  const nb::object method = array.attr("__dlpack__");
  try {
    return method(nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // an exporter without version support
  }
  return method();
}

View from_dlpack(nb::handle array) {
  if (nb::hasattr(array, "__dlpack_device__")) {
    const nb::object device = array.attr("__dlpack_device__")();
    if (nb::cast<int>(device[0]) != static_cast<int>(dlpack::DeviceType::kCpu)) {
      throw nb::buffer_error("[quire] an array must be in the memory of the CPU");
    }
  }
  const nb::object capsule = call_dlpack(array);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    return take<dlpack::ManagedVersioned>(capsule.ptr(), "dltensor_versioned",
                                          "used_dltensor_versioned");
  }
  return take<dlpack::Managed>(capsule.ptr(), "dltensor", "used_dltensor");
}

// ml_dtypes' bfloat16, through its bits.
View from_bfloat16(nb::handle array) {
  auto view = from_buffer(array.attr("view")("int16"));
  if (!view.has_value()) refuse("a bfloat16 array has no memory of its own");
  view->tensor =
      TensorView(view->tensor.data(), DType::bf16, view->tensor.shape(), view->tensor.strides());
  return std::move(*view);
}

View from_numpy(nb::handle array) {
  if (auto view = from_buffer(array)) return std::move(*view);
  const std::string dtype = nb::cast<std::string>(nb::str(nb::object(array.attr("dtype"))));
  if (dtype == "bfloat16") return from_bfloat16(array);
  refuse("an array has a dtype that Quire has not, or strides that are no multiples of it: " +
         dtype);
}

bool is_numpy(nb::handle array) {
  return nb::hasattr(array, "__array_interface__") && nb::hasattr(array, "dtype");
}

View import_array(nb::handle array) {
  if (auto view = from_buffer(array)) return std::move(*view);
  if (is_numpy(array)) return from_numpy(array);
  if (nb::hasattr(array, "__dlpack__")) return from_dlpack(array);
  const bool is_plain = PyList_Check(array.ptr()) || PyTuple_Check(array.ptr()) ||
                        PyLong_Check(array.ptr()) || PyFloat_Check(array.ptr());
  if (!is_plain && !nb::hasattr(array, "__array__")) {
    refuse("an array is needed (NumPy, DLPack, ...); got " + name_of_type(array));
  }
  return from_numpy(nb::module_::import_("numpy").attr("asarray")(array));
}

// Rejects memory that begins in the middle of an element, as a slice of bytes may.
View aligned(View view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.tensor.data());
  if (address % dtype_size(view.tensor.dtype()) != 0 && view.tensor.numel() != 0)
    throw nb::value_error("[quire] an array must be aligned to the size of its elements");
  return view;
}

}  // namespace

std::optional<TensorView> borrow_tensor(nb::handle tensor) {
  const dlpack::ExchangeApi* const api = exchange_api(tensor.type());
  if (api == nullptr || api->borrow == nullptr) return std::nullopt;
  dlpack::Tensor found = {};
  if (api->borrow(tensor.ptr(), &found) != 0) {
    PyErr_Clear();  // no such dtype in DLPack, or no memory
    return std::nullopt;
  }
  const auto dtype = parse_type(found.type);
  if (found.device.type != dlpack::DeviceType::kCpu || !dtype.has_value() ||
      found.rank > static_cast<std::int32_t>(kMaxRank))
    return std::nullopt;
  return tensor_view(found, *dtype);
}

std::string name_of_type(nb::handle object) {
  return nb::cast<std::string>(object.type().attr("__name__"));
}

View view_of(nb::handle array) {
  if (nb::isinstance<View>(array)) return nb::cast<View>(array);
  return aligned(import_array(array));
}

}  // namespace quire::python
