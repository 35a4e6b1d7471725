// q_begin and the memory of results. Python layer.
#include "arguments.h"

#include <string>

#include "quire/error.h"

namespace quire::python {

std::vector<std::int64_t> q_begin_of(nb::handle q_begin) {
  if (q_begin.is_none()) return {};
  if (PyLong_Check(q_begin.ptr())) return {nb::cast<std::int64_t>(q_begin)};
  std::vector<std::int64_t> all;
  for (const nb::handle one : q_begin) all.push_back(nb::cast<std::int64_t>(one));
  if (all.empty()) throw nb::value_error("[flex_attention] q_begin may not be empty");
  return all;
}

TensorView writable(const View& view, const char* name) {
  if (view.is_read_only) {
    throw Error(ErrorKind::value,
                std::string("[flex_attention] ") + name + " is read-only and cannot be written");
  }
  return view.tensor;
}

}  // namespace quire::python
