// q_begin and the memory of results. Python layer.
#include "arguments.h"

#include <fmt/format.h>

#include "quire/error.h"

namespace quire::python {

std::vector<std::int64_t> q_begin_of(const char* where, nb::handle q_begin) {
  if (q_begin.is_none()) return {};
  if (PyLong_Check(q_begin.ptr())) return {nb::cast<std::int64_t>(q_begin)};
  std::vector<std::int64_t> all;
  for (const nb::handle one : q_begin) all.push_back(nb::cast<std::int64_t>(one));
  if (all.empty())
    throw nb::value_error(fmt::format("[{}] q_begin may not be empty", where).c_str());
  return all;
}

TensorView writable(const char* where, const View& view, const char* name) {
  if (view.is_read_only) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] {} is read-only and cannot be written", where, name));
  }
  return view.tensor;
}

}  // namespace quire::python
