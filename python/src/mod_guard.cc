// Runs the checks one after the other over the values seen so far. Python layer.
#include "mod_guard.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "register.h"
#include "torch_state.h"

namespace quire::python {
namespace {

// Names of a function's and a cell's attributes, made once.
struct Names {
  static nb::object of(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
  nb::object code = of("__code__"), closure = of("__closure__"), defaults = of("__defaults__");
  nb::object keyword_defaults = of("__kwdefaults__"), dict = of("__dict__");
  nb::object globals = of("__globals__"), contents = of("cell_contents");
};

const Names& names() {
  static const auto* const made = new Names();  // never freed: Python may be gone by then
  return *made;
}

bool is_empty(const nb::object& given) {
  if (!given.is_valid()) return false;
  return given.is_none() || (PyDict_Check(given.ptr()) && PyDict_Size(given.ptr()) == 0);
}

// An item of a tuple; null if there is none.
nb::object item_of(const nb::object& tuple, std::size_t place) {
  if (!tuple.is_valid() || !PyTuple_Check(tuple.ptr())) return {};
  const auto at = static_cast<Py_ssize_t>(place);
  return at < PyTuple_Size(tuple.ptr()) ? nb::borrow(PyTuple_GetItem(tuple.ptr(), at))
                                        : nb::object();
}

// Numbers and texts are the same if they are equal: a program may have computed them again. 0.0 and
// -0.0 are equal but not the same.
bool is_same(nb::handle value, nb::handle expected) {
  if (value.is(expected)) return true;
  if (!value.type().is(expected.type())) return false;
  if (PyFloat_CheckExact(value.ptr())) {
    const auto bits = [](nb::handle number) {
      return std::bit_cast<std::uint64_t>(PyFloat_AsDouble(number.ptr()));
    };
    return bits(value) == bits(expected);
  }
  if (!PyLong_CheckExact(value.ptr()) && !PyUnicode_CheckExact(value.ptr())) return false;
  return PyObject_RichCompareBool(value.ptr(), expected.ptr(), Py_EQ) == 1;
}

}  // namespace

// One run over the steps.
struct ModGuard::Walk {
  struct Met {
    nb::object value, closure, defaults, globals;  // parts of functions, fetched when first needed
  };
  nb::handle mod;
  ReadTensors& read;
  std::vector<Met> met = {};

  nb::object value_of(const Step& step);
  bool fits(const Step& step, const nb::object& value);
  bool is_tensor(const Step& step, const nb::object& value);
};

nb::object ModGuard::Walk::value_of(const Step& step) {
  if (step.from == From::kMod) return nb::borrow(mod);
  Met& of = met[step.of];
  switch (step.from) {
    case From::kCell: {
      if (!of.closure.is_valid()) of.closure = attribute_or_null(of.value, names().closure);
      const nb::object cell = item_of(of.closure, step.place);
      return cell.is_valid() ? attribute_or_null(cell, names().contents) : cell;
    }
    case From::kDefault:
      if (!of.defaults.is_valid()) of.defaults = attribute_or_null(of.value, names().defaults);
      return item_of(of.defaults, step.place);
    case From::kGlobal: {
      if (!of.globals.is_valid()) of.globals = attribute_or_null(of.value, names().globals);
      PyObject* found = PyDict_GetItemWithError(of.globals.ptr(), step.name.ptr());
      if (found == nullptr) found = PyDict_GetItemWithError(PyEval_GetBuiltins(), step.name.ptr());
      return found == nullptr ? nb::object() : nb::borrow(found);
    }
    default:
      return attribute_or_null(of.value, step.name);
  }
}

bool ModGuard::Walk::is_tensor(const Step& step, const nb::object& value) {
  nb::object& known = read.tensors[step.number];
  if (known.is_valid()) return known.is(value);  // the same tensor was used in two places
  const std::optional<TensorView> view = plain_tensor(value);
  if (!view.has_value() || view->dtype() != step.dtype || view->shape() != step.shape) return false;
  const long gradient = requires_grad(value) ? 1 + static_cast<long>(is_grad_enabled()) : 0;
  if (gradient != step.gradient) return false;
  known = value;
  read.views[step.number] = *view;
  return true;
}

bool ModGuard::Walk::fits(const Step& step, const nb::object& value) {
  switch (step.is) {
    case Is::kSame:
      return is_same(value, step.what);
    case Is::kTensor:
      return is_tensor(step, value);
    case Is::kSeen:
      return value.is(met[step.number].value);
    case Is::kInstance:
      met.push_back({value, {}, {}, {}});
      return value.type().is(step.what);
    case Is::kFunction:
      met.push_back({value, {}, {}, {}});
      return attribute_or_null(value, names().code).is(step.what) &&
             is_empty(attribute_or_null(value, names().keyword_defaults)) &&
             is_empty(attribute_or_null(value, names().dict));
  }
  return false;
}

ModGuard::Step ModGuard::step_of(nb::handle made) {
  const auto part = [&](std::size_t i) { return nb::object(made[i]); };
  Step step{.from = static_cast<From>(nb::cast<int>(part(0))),
            .is = static_cast<Is>(nb::cast<int>(part(3))),
            .of = nb::cast<std::size_t>(part(1))};
  if (step.from == From::kCell || step.from == From::kDefault)
    step.place = nb::cast<std::size_t>(part(2));
  else
    step.name = part(2);
  const nb::object what = part(4);
  if (step.is == Is::kTensor) {
    step.number = nb::cast<std::size_t>(what[0]);
    step.dtype = dtype_of_code(nb::cast<int>(what[1]));
    step.shape = shape_of(what[2]);
    step.gradient = nb::cast<long>(what[3]);
  } else if (step.is == Is::kSeen) {
    step.number = nb::cast<std::size_t>(what);
  } else {
    step.what = what;
  }
  return step;
}

ModGuard::ModGuard(const nb::list& steps) {
  for (const nb::handle one : steps) {
    steps_.push_back(step_of(one));
    if (steps_.back().is == Is::kTensor) tensors_ = std::max(tensors_, steps_.back().number + 1);
  }
}

bool ModGuard::holds(nb::handle mod, ReadTensors& read) const {
  read.tensors.assign(tensors_, {});
  read.views.assign(tensors_, {});
  Walk walk{mod, read};
  for (const Step& step : steps_) {
    const nb::object value = walk.value_of(step);
    if (!value.is_valid() || !walk.fits(step, value)) return false;
  }
  return true;
}

}  // namespace quire::python
