// The class View, and views as NumPy arrays and DLPack capsules. Python layer.
#include "view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dlpack.h"
#include "owner.h"
#include "quire/error.h"
#include "register.h"

namespace quire::python {
namespace {

const char* array_interface_type(DType dtype) {
  constexpr const char* kTypes[kDTypeCount] = {"<f4", "<f8", "|V2", "<f2", "|i1",
                                               "|u1", "<i2", "<i4", "<i8", "|b1"};
  return kTypes[static_cast<std::size_t>(dtype)];
}

nb::dict array_interface(const View& view) {
  nb::list strides;
  for (const std::int64_t stride : view.tensor.strides())
    strides.append(stride * static_cast<std::int64_t>(dtype_size(view.tensor.dtype())));
  nb::dict dict;
  dict["version"] = 3;
  dict["typestr"] = array_interface_type(view.tensor.dtype());
  dict["shape"] = to_tuple(view.tensor.shape());
  dict["strides"] = nb::tuple(strides);
  dict["data"] =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(view.tensor.data()), view.is_read_only);
  return dict;
}

dlpack::Type dlpack_type(DType dtype) {
  using dlpack::TypeCode;
  const auto bits = static_cast<std::uint8_t>(8 * dtype_size(dtype));
  if (dtype == DType::bf16) return {TypeCode::kBfloat, bits, 1};
  if (dtype == DType::boolean) return {TypeCode::kBool, bits, 1};
  if (dtype == DType::u8) return {TypeCode::kUInt, bits, 1};
  return {is_floating(dtype) ? TypeCode::kFloat : TypeCode::kInt, bits, 1};
}

// What an exported capsule points to, with the memory of its shape.
template <class Managed>
struct Exported {
  Managed managed = {};
  Shape shape, strides;
  std::shared_ptr<const void> owner;
};

template <class Managed>
nb::object export_view(const View& view, const nb::object& self, const char* name) {
  auto own = std::make_unique<Exported<Managed>>();
  own->shape = view.tensor.shape();
  own->strides = view.tensor.strides();
  own->owner = hold(self);
  Managed& managed = own->managed;
  managed.tensor = {.data = view.tensor.data(),
                    .device = {dlpack::DeviceType::kCpu, 0},
                    .rank = static_cast<std::int32_t>(view.tensor.rank()),
                    .type = dlpack_type(view.tensor.dtype()),
                    .shape = own->shape.begin(),
                    .strides = own->strides.begin(),
                    .byte_offset = 0};
  managed.context = own.get();
  managed.deleter = [](Managed* to) { delete static_cast<Exported<Managed>*>(to->context); };
  if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>) {
    managed.version = {1, 0};
    managed.flags = view.is_read_only ? dlpack::kReadOnly : 0;
  }
  PyObject* const capsule = PyCapsule_New(&managed, name, [](PyObject* object) {
    // A capsule that was consumed has another name, and its consumer frees it.
    const char* const now = PyCapsule_GetName(object);
    if (now == nullptr || std::string_view(now).starts_with("used")) return;
    auto* const unused = static_cast<Managed*>(PyCapsule_GetPointer(object, now));
    if (unused != nullptr) unused->deleter(unused);
  });
  if (capsule == nullptr) nb::raise_python_error();
  own.release();  // NOLINT: the capsule's from here on
  return nb::steal(capsule);
}

nb::object to_dlpack(const nb::object& self, const nb::object& /*stream*/,
                     const nb::object& max_version, const nb::object& /*dl_device*/,
                     const nb::object& copy) {
  const View& view = nb::cast<const View&>(self);
  if (!copy.is_none() && nb::cast<bool>(copy))
    throw nb::buffer_error("[View] hands out its memory, never a copy");
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1)
    return export_view<dlpack::ManagedVersioned>(view, self, "dltensor_versioned");
  if (view.is_read_only)
    throw nb::buffer_error("[View] a read-only array needs a reader of DLPack 1.0");
  return export_view<dlpack::Managed>(view, self, "dltensor");
}

std::string repr(const View& view) {
  return std::string("quire.View(") + dtype_name(view.tensor.dtype()) + ", shape " +
         to_string(view.tensor.shape()) + ", strides " + to_string(view.tensor.strides()) + ")";
}

void init_view(View* self, std::uintptr_t data, int dtype, nb::handle shape, nb::handle strides,
               nb::object owner) {
  new (self) View{TensorView(reinterpret_cast<void*>(data), dtype_of_code(dtype), shape_of(shape),
                             shape_of(strides)),
                  std::move(owner), false};
}

}  // namespace

DType dtype_of_code(int code) {
  if (code < 0 || code >= kDTypeCount) throw nb::value_error("[View] unknown dtype code");
  return static_cast<DType>(code);
}

nb::tuple to_tuple(const Shape& shape) {
  nb::list numbers;
  for (const std::int64_t number : shape) numbers.append(number);
  return nb::tuple(numbers);
}

Shape shape_of(nb::handle numbers) {
  Shape shape;
  const auto push = [&](PyObject* item) {
    const long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred()) nb::raise_python_error();
    shape.push_back(value);
  };
  if (PyTuple_Check(numbers.ptr())) {
    const Py_ssize_t size = PyTuple_Size(numbers.ptr());
    for (Py_ssize_t i = 0; i < size; ++i) push(PyTuple_GetItem(numbers.ptr(), i));
  } else {
    for (const nb::handle item : numbers) push(item.ptr());
  }
  return shape;
}

View view_of(Tensor tensor) {
  const TensorView view = tensor.view();
  nb::capsule owner(new Tensor(std::move(tensor)),
                    [](void* pointer) noexcept { delete static_cast<Tensor*>(pointer); });
  return {view, std::move(owner), false};
}

nb::object optional_view(std::optional<Tensor> tensor) {
  return tensor.has_value() ? nb::cast(view_of(std::move(*tensor))) : nb::none();
}

View view_of(const Buffer& buffer) {
  const ConstTensorView& view = buffer.view();
  nb::capsule owner(new Buffer(buffer),
                    [](void* pointer) noexcept { delete static_cast<Buffer*>(pointer); });
  return {TensorView(const_cast<void*>(view.data()), view.dtype(), view.shape(), view.strides()),
          std::move(owner), true};
}

Buffer buffer_of(const View& view, BufferOptions options) {
  return Buffer::share(view.tensor, hold(view.owner), std::move(options));
}

Array to_numpy(View view) {
  const bool is_bf16 = view.tensor.dtype() == DType::bf16;
  // Looked up once; never freed, like NumPy itself. Not a static initialiser: an import may release
  // the GIL, and a thread that acquires it would wait for the initialiser while holding it.
  static const nb::object* asarray = nullptr;
  if (asarray == nullptr) asarray = new nb::object(nb::module_::import_("numpy").attr("asarray"));
  nb::object array = (*asarray)(nb::cast(std::move(view)));
  if (is_bf16) {
    try {
      array = array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_ImportError)) throw;
    }
  }
  return nb::borrow<Array>(array);
}

void register_views(nb::module_& module) {
  nb::dict codes;
  for (int code = 0; code < kDTypeCount; ++code) codes[dtype_name(static_cast<DType>(code))] = code;
  module.attr("DTYPES") = codes;

  nb::class_<View>(
      module, "View",
      R"doc(A tensor that another object owns: address, dtype, shape and strides in elements. Keeps `owner` alive.

>>> import numpy, quire
>>> from quire import _core
>>> array = numpy.arange(6, dtype=numpy.float32)
>>> column = quire.View(array.ctypes.data, _core.DTYPES["f32"], (2, 1), (3, 1), owner=array)
>>> column
quire.View(f32, shape [2, 1], strides [3, 1])
>>> column.numpy().ravel()
array([0., 3.], dtype=float32))doc")
      .def("__init__", &init_view, nb::arg("data_ptr"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("strides"), nb::arg("owner") = nb::none())
      .def_prop_ro(
          "data_ptr",
          [](const View& v) { return reinterpret_cast<std::uintptr_t>(v.tensor.data()); },
          "The address of the element at index 0 of every axis.")
      .def_prop_ro(
          "dtype", [](const View& v) { return static_cast<int>(v.tensor.dtype()); },
          "One of the values of DTYPES.")
      .def_prop_ro(
          "dtype_name", [](const View& v) { return dtype_name(v.tensor.dtype()); },
          "One of the keys of DTYPES.")
      .def_prop_ro("shape", [](const View& v) { return to_tuple(v.tensor.shape()); })
      .def_prop_ro("strides", [](const View& v) { return to_tuple(v.tensor.strides()); })
      .def_prop_ro("owner", [](const View& v) { return v.owner; })
      .def_prop_ro("is_read_only", [](const View& v) { return v.is_read_only; })
      .def_prop_ro("__array_interface__", &array_interface)
      .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
           nb::arg("copy") = nb::none())
      .def("__dlpack_device__", [](const View&) { return nb::make_tuple(1, 0); })
      .def(
          "numpy", [](const View& v) { return to_numpy(v); },
          "The same memory as a NumPy array; bf16 needs ml_dtypes.")
      .def("__repr__", [](const View& view) { return repr(view); });

  module.def(
      "view", [](nb::handle array) { return view_of(array); }, nb::arg("array"),
      "A View of any array on the CPU: NumPy (ml_dtypes' bfloat16 too), DLPack, or what numpy."
      "asarray takes. Its elements are not copied.");
  module.def(
      "empty",
      [](nb::handle shape, int dtype) {
        return view_of(Tensor::empty(shape_of(shape), dtype_of_code(dtype)));
      },
      nb::arg("shape"), nb::arg("dtype"),
      "A View of new memory, row-major, aligned to 64 bytes, elements not set.");
}

}  // namespace quire::python
