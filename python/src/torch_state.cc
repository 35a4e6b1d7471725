// Keeps references to torch's functions and calls them. Python layer.
#include "torch_state.h"

#include <utility>
#include <vector>

#include "openmp.h"
#include "quire/executor.h"
#include "register.h"

namespace quire::python {
namespace {

struct Torch {
  nb::object tensor, parameter;
  nb::object is_neg, is_inference;  // methods of Tensor
  nb::object empty_like, is_grad_enabled, get_num_threads, forward_ad;
  std::vector<nb::object> watchers;  // functions that return 0 or None unless something is active
  nb::object requires_grad, version, level;  // names of attributes
};

const Torch* g_torch = nullptr;  // never freed, like torch itself

nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

bool is_on(const nb::object& answer) {
  if (answer.is_none() || answer.ptr() == Py_False) return false;
  return !PyLong_Check(answer.ptr()) || PyLong_AsLong(answer.ptr()) != 0;
}

nb::object attribute(nb::handle object, const nb::object& name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name.ptr());
  if (found == nullptr) nb::raise_python_error();
  return nb::steal(found);
}

bool is_true(const nb::object& object) { return object.ptr() == Py_True; }

void use_torch(const nb::object& tensor, nb::object parameter, nb::object empty_like,
               nb::object grad_enabled, nb::object get_threads, nb::object forward_ad,
               const nb::list& watchers) {
  auto* const made = new Torch{.tensor = tensor,
                               .parameter = std::move(parameter),
                               .is_neg = tensor.attr("is_neg"),
                               .is_inference = tensor.attr("is_inference"),
                               .empty_like = std::move(empty_like),
                               .is_grad_enabled = std::move(grad_enabled),
                               .get_num_threads = std::move(get_threads),
                               .forward_ad = std::move(forward_ad),
                               .watchers = {},
                               .requires_grad = interned("requires_grad"),
                               .version = interned("_version"),
                               .level = interned("_current_level")};
  for (const nb::handle one : watchers) made->watchers.push_back(nb::borrow(one));
  g_torch = made;
}

}  // namespace

bool is_torch_plain() {
  if (g_torch == nullptr) return false;
  for (const nb::object& watcher : g_torch->watchers)
    if (is_on(watcher())) return false;
  return PyLong_AsLong(attribute(g_torch->forward_ad, g_torch->level).ptr()) < 0;
}

bool is_grad_enabled() { return is_true(g_torch->is_grad_enabled()); }

int torch_threads() {
  const long threads = PyLong_AsLong(g_torch->get_num_threads().ptr());
  return threads <= get_num_threads() ? static_cast<int>(threads) : 0;
}

std::optional<TensorView> plain_tensor(nb::handle tensor) {
  const nb::handle type = tensor.type();
  if (!type.is(g_torch->tensor) && !type.is(g_torch->parameter)) return std::nullopt;
  if (is_true(g_torch->is_neg(tensor))) return std::nullopt;
  return borrow_tensor(tensor);
}

bool requires_grad(nb::handle tensor) { return is_true(attribute(tensor, g_torch->requires_grad)); }

std::optional<long> version_of(nb::handle tensor) {
  if (is_true(g_torch->is_inference(tensor))) return std::nullopt;
  return PyLong_AsLong(attribute(tensor, g_torch->version).ptr());
}

nb::object new_like(nb::handle tensor) { return g_torch->empty_like(tensor); }

nb::object attribute_or_null(nb::handle object, nb::handle name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name.ptr());
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

void register_torch_state(nb::module_& module) {
  module.def(
      "use_torch", &use_torch, nb::arg("tensor"), nb::arg("parameter"), nb::arg("empty_like"),
      nb::arg("is_grad_enabled"), nb::arg("get_num_threads"), nb::arg("forward_ad"),
      nb::arg("watchers"),
      "Names torch's classes and functions for quick_attention. watchers: functions that say "
      "something but 0, False or None while calls are looked at or changed on their way.");
}

}  // namespace quire::python
