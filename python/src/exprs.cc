// The classes Expr, Buffer and BufferSlice with Python's operators. Python layer.
#include "exprs.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "quire/formula.h"
#include "quire/mod.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

// An Expr, or NotImplemented, which Python takes as "ask the other operand".
using Result = nb::typed<nb::object, PyExpr>;

Result not_implemented() { return nb::borrow<Result>(Py_NotImplemented); }

// One binary operator with its reflected form; `class_` is Expr, BufferSlice or Buffer (of rank 0).
template <Op op, class Class>
void define_binary(Class& class_, const char* name, const char* reflected) {
  class_.def(
      name,
      [](nb::handle self, nb::handle other) -> Result {
        const auto a = find_operand(self), b = find_operand(other);
        if (!a.has_value() || !b.has_value()) return not_implemented();
        return nb::cast<PyExpr>(PyExpr{detail::binary(op, *a, *b)});
      },
      nb::is_operator());
  if (reflected == nullptr) return;
  class_.def(
      reflected,
      [](nb::handle self, nb::handle other) -> Result {
        const auto a = find_operand(other), b = find_operand(self);
        if (!a.has_value() || !b.has_value()) return not_implemented();
        return nb::cast<PyExpr>(PyExpr{detail::binary(op, *a, *b)});
      },
      nb::is_operator());
}

template <Op op, class Class>
void define_unary(Class& class_, const char* name) {
  class_.def(name,
             [](nb::handle self) { return PyExpr{detail::unary(op, operand(self, "Expr"))}; });
}

[[noreturn]] bool refuse_bool(nb::handle) {
  throw nb::type_error(
      "[formula] a traced value is not known yet, so `if`, `and`, `or`, `not`, chained comparisons "
      "and bool() cannot ask for it; write where(condition, a, b), `&`, `|`, `~`, to_bool(x)");
}

[[noreturn]] nb::object refuse_number(nb::handle) {
  throw nb::type_error(
      "[formula] a traced value is not known yet, so int(), float() and range() cannot ask for it; "
      "write to_int(x), to_float(x). An array is indexed by it through quire.Buffer(array)");
}

template <class Class>
void define_operators(Class& class_) {
  define_binary<Op::kAdd>(class_, "__add__", "__radd__");
  define_binary<Op::kSub>(class_, "__sub__", "__rsub__");
  define_binary<Op::kMul>(class_, "__mul__", "__rmul__");
  define_binary<Op::kDiv>(class_, "__truediv__", "__rtruediv__");
  define_binary<Op::kFloorDiv>(class_, "__floordiv__", "__rfloordiv__");
  define_binary<Op::kMod>(class_, "__mod__", "__rmod__");
  define_binary<Op::kShl>(class_, "__lshift__", "__rlshift__");
  define_binary<Op::kShr>(class_, "__rshift__", "__rrshift__");
  define_binary<Op::kBitAnd>(class_, "__and__", "__rand__");
  define_binary<Op::kBitOr>(class_, "__or__", "__ror__");
  define_binary<Op::kBitXor>(class_, "__xor__", "__rxor__");
  define_binary<Op::kLt>(class_, "__lt__", nullptr);
  define_binary<Op::kLe>(class_, "__le__", nullptr);
  define_binary<Op::kGt>(class_, "__gt__", nullptr);
  define_binary<Op::kGe>(class_, "__ge__", nullptr);
  define_binary<Op::kEq>(class_, "__eq__", nullptr);
  define_binary<Op::kNe>(class_, "__ne__", nullptr);
  define_binary<Op::kPow>(class_, "__pow__", "__rpow__");
  define_unary<Op::kNeg>(class_, "__neg__");
  define_unary<Op::kAbs>(class_, "__abs__");
  define_unary<Op::kBitNot>(class_, "__invert__");
  define_unary<Op::kRound>(class_, "__round__");
  define_unary<Op::kFloor>(class_, "__floor__");
  define_unary<Op::kCeil>(class_, "__ceil__");
  define_unary<Op::kTrunc>(class_, "__trunc__");
  class_.def("__pos__", [](nb::handle self) { return PyExpr{operand(self, "Expr")}; });
  class_.def("__bool__", &refuse_bool);
  class_.def("__int__", &refuse_number);
  class_.def("__float__", &refuse_number);
  class_.def("__index__", &refuse_number);
  class_.attr("__array_ufunc__") = nb::none();  // NumPy's numbers leave operators to us
  class_.attr("__hash__") = nb::none();         // == makes an expression
}

std::vector<ExprBase> indices_of(nb::handle index) {
  std::vector<ExprBase> indices;
  if (!PyTuple_Check(index.ptr())) return {operand(index, "Buffer")};
  for (const nb::handle one : nb::borrow<nb::tuple>(index))
    indices.push_back(operand(one, "Buffer"));
  return indices;
}

BufferSlice index_slice(const BufferSlice& slice, nb::handle index) {
  std::vector<ExprBase> all = slice.indices();
  for (ExprBase& one : indices_of(index)) all.push_back(std::move(one));
  return BufferSlice(slice.buffer(), std::move(all));
}

ExprBase int_operand(nb::handle object) {
  const long long value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred()) nb::raise_python_error();
  return ExprBase::literal(static_cast<std::int64_t>(value));
}

// NumPy's numbers, and arrays or tensors of rank 0.
bool is_scalar_array(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "item")) return false;
  if (!nb::hasattr(object, "shape")) return false;
  return nb::len(nb::object(object.attr("shape"))) == 0;
}

std::string slice_text(const BufferSlice& slice) {
  if (slice.indices().size() == slice.buffer().shape().rank())
    return Formula(detail::load(slice.buffer(), slice.indices())).to_string();
  return slice.buffer().name() + "[" + std::to_string(slice.indices().size()) + " of " +
         std::to_string(slice.buffer().shape().rank()) + " indices]";
}

}  // namespace

std::optional<ExprBase> find_operand(nb::handle object) {
  if (nb::isinstance<PyExpr>(object)) return nb::cast<const PyExpr&>(object).base;
  if (PyBool_Check(object.ptr())) return ExprBase::literal(object.ptr() == Py_True);
  if (PyLong_Check(object.ptr())) return int_operand(object);
  if (PyFloat_Check(object.ptr())) return ExprBase::literal(PyFloat_AsDouble(object.ptr()));
  if (nb::isinstance<BufferSlice>(object)) {
    const auto& slice = nb::cast<const BufferSlice&>(object);
    return detail::load(slice.buffer(), slice.indices());
  }
  if (nb::isinstance<Buffer>(object)) {
    const auto& buffer = nb::cast<const Buffer&>(object);
    if (buffer.shape().rank() == 0) return detail::load(buffer, {});
    return std::nullopt;
  }
  if (is_scalar_array(object)) return find_operand(object.attr("item")());
  return std::nullopt;
}

ExprBase operand(nb::handle object, const char* where) {
  if (auto found = find_operand(object)) return std::move(*found);
  throw nb::type_error(("[" + std::string(where) + "] an expression or a number is needed; got " +
                        name_of_type(object))
                           .c_str());
}

void register_exprs(nb::module_& module) {
  nb::class_<PyExpr> expr(
      module, "Expr",
      R"doc(A value of a formula while a mod is traced. Operators record, they do not compute.

>>> import quire
>>> def distance(score, b, h, q_idx, kv_idx):
...     print(type(kv_idx - q_idx).__name__, kv_idx - q_idx)
...     return score + 0.5 * (kv_idx - q_idx)
>>> quire.ScoreMod(distance)
Expr kv_idx - q_idx
quire.ScoreMod('score + 0.5 * (kv_idx - q_idx)'))doc");
  define_operators(expr);
  expr.def(
      "__init__", [](PyExpr* self, nb::handle value) { new (self) PyExpr{operand(value, "Expr")}; },
      nb::arg("value"));
  expr.def("__repr__", [](const PyExpr& e) { return Formula(e.base).to_string(); });

  nb::class_<BufferSlice> slice(
      module, "BufferSlice",
      R"doc(A captured buffer with some of its indices given; with all of them, an element.

>>> import numpy, quire
>>> table = quire.Buffer(numpy.ones((2, 3, 4), numpy.float32), "table")
>>> table[0]
table[1 of 3 indices]
>>> table[0][1, 2]
table[0, 1, 2])doc");
  define_operators(slice);
  slice.def("__getitem__", &index_slice);
  slice.attr("__iter__") = nb::none();
  slice.def("__repr__", &slice_text);

  nb::class_<Buffer> buffer(
      module, "Buffer",
      R"doc(A tensor that a mod reads by index: table[h, kv_idx - q_idx + 7]. Reads the array's memory in place, at each run.

>>> import numpy, quire
>>> bias = quire.Buffer(numpy.array([0.0, 1.0, 2.0], numpy.float32), "bias")
>>> bias
quire.Buffer(bias: f32 [3])
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx])
quire.ScoreMod('score + bias[kv_idx]'))doc");
  define_operators(buffer);  // of rank 0; others have to be indexed
  buffer.def(
      "__init__",
      [](Buffer* self, nb::handle array, std::string name) {
        new (self) Buffer(buffer_of(view_of(array), {.name = std::move(name)}));
      },
      nb::arg("array"), nb::arg("name") = "");
  refuse_other_arguments<Buffer>(buffer, "Buffer",
                                 "def __init__(array: object, name: str = '') -> None");
  buffer
      .def_static(
          "declare",
          [](int dtype, nb::handle shape, std::string name) {
            return Buffer::declare(dtype_of_code(dtype), shape_of(shape),
                                   {.name = std::move(name)});
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("name") = "",
          "A buffer without memory, for a mod that bind() gives memory. dtype: a value of DTYPES.")
      .def("__getitem__", [](const Buffer& self,
                             nb::handle index) { return BufferSlice(self, indices_of(index)); })
      .def_prop_ro("name", [](const Buffer& self) { return self.name(); })
      .def_prop_ro("shape", [](const Buffer& self) { return to_tuple(self.shape()); })
      .def_prop_ro("dtype", [](const Buffer& self) { return dtype_name(self.dtype()); })
      .def("numpy", [](const Buffer& self) { return to_numpy(view_of(self)); })
      .def("__repr__", [](const Buffer& self) {
        return "quire.Buffer(" + self.name() + ": " + dtype_name(self.dtype()) + " " +
               to_string(self.shape()) + ")";
      });
  buffer.attr("__iter__") = nb::none();

  module.def(
      "mod_arguments",
      [] {
        const detail::ModArguments a = detail::mod_arguments();
        return nb::make_tuple(PyExpr{a.score}, PyExpr{a.b}, PyExpr{a.h}, PyExpr{a.q_idx},
                              PyExpr{a.kv_idx});
      },
      "score, b, h, q_idx and kv_idx as Exprs, for a mod made of an Expr: ScoreMod(expr).");
}

}  // namespace quire::python
