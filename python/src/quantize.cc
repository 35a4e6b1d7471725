// KVFormat, quantize and dequantize, and views of codes. Python layer.
#include "quire/quantize.h"

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>

#include "arguments.h"
#include "gil.h"
#include "openmp.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

View coded_view(View codes, const View* scales, const KVFormat& format) {
  codes.format = format;
  if (scales != nullptr) {
    codes.scales = scales->tensor;
    codes.scales_owner = scales->owner;
  }
  return codes;
}

nb::tuple quantize_view(const View& x, const KVFormat& format, const View* scales, int head_axis,
                        int openmp_threads) {
  QuantizedTensor made;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    QuantizeOptions options{.head_axis = head_axis, .executor = executor.get()};
    if (scales != nullptr) options.scales = scales->tensor;
    made = quantize(x.tensor, format, options);
  }
  std::optional<Tensor> found;
  if (format.has_scales()) found = std::move(made.scales);
  return nb::make_tuple(view_of(std::move(made.codes)), optional_view(std::move(found)));
}

View dequantize_view(const View& x, nb::handle dtype, int head_axis, int openmp_threads) {
  const DType to = dtype_of_name(dtype);
  Tensor made;
  {
    const ReleasedGil released;
    const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    made = dequantize(x.keys(), to, head_axis, executor.get());
  }
  return view_of(std::move(made));
}

}  // namespace

void register_quantize(nb::module_& module) {
  nb::class_<KVFormat>(
      module, "KVFormat",
      "How keys or values are stored as codes: one of names(), rotated before coding or not.\n\n"
      ">>> import quire\n"
      ">>> quire.KVFormat(\"int4\", hadamard=True)\n"
      "quire.KVFormat('int4', hadamard=True)\n"
      ">>> quire.KVFormat(\"q8_0\").code_bytes(128)\n"
      "136")
      .def(
          "__init__",
          [](KVFormat* self, const std::string& name, bool hadamard) {
            new (self) KVFormat(KVFormat::of(name, hadamard));
          },
          nb::arg("name"), nb::arg("hadamard") = false)
      .def_static(
          "names", [] { return KVFormat::names(); }, "The names there are.")
      .def_prop_ro(
          "name",
          [](const KVFormat& self) {
            KVFormat plain = self;
            plain.hadamard = false;
            return plain.name();
          },
          "Without the rotation.")
      .def_ro("hadamard", &KVFormat::hadamard)
      .def_prop_ro("has_scales", &KVFormat::has_scales, "Whether there is an array of scales.")
      .def("code_bytes", &KVFormat::code_bytes, nb::arg("head_dim"), "Bytes of a row of codes.")
      .def("scale_count", &KVFormat::scale_count, nb::arg("head_dim"),
           "Scales, zero points and minima that belong to a row.")
      .def(nb::self == nb::self)
      .def("__hash__", [](const KVFormat& self) { return nb::hash(nb::cast(self.name())); })
      .def("__repr__",
           [](const KVFormat& self) {
             KVFormat plain = self;
             plain.hadamard = false;
             return "quire.KVFormat('" + plain.name() +
                    (self.hadamard ? "', hadamard=True)" : "')");
           })
      .def("__reduce__", [](const KVFormat& self) {
        KVFormat plain = self;
        plain.hadamard = false;
        return nb::make_tuple(nb::type<KVFormat>(), nb::make_tuple(plain.name(), self.hadamard));
      });
  module.def("coded_view", &coded_view, nb::arg("codes"), nb::arg("scales").none(),
             nb::arg("format"), "Codes with their scales, as attention takes keys or values.");
  module.def(
      "coded_shape", [](const View& view) { return to_tuple(view.keys().shape()); },
      nb::arg("view"), "The shape of the numbers of a view of codes.");
  module.def("quantize", &quantize_view, nb::arg("x"), nb::arg("format"),
             nb::arg("scales").none() = nb::none(), nb::arg("head_axis") = 1,
             nb::arg("openmp_threads") = 0, "(codes, scales) as Views; scales may be None.");
  module.def("dequantize", &dequantize_view, nb::arg("x"), nb::arg("dtype"),
             nb::arg("head_axis") = 1, nb::arg("openmp_threads") = 0, "Numbers as a View.");
}

}  // namespace quire::python
