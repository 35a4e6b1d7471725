// What the structs of options of the C interface's attention functions have in common. C API layer.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

namespace quire::c_api {

/// score_mod, scale and enable_gqa.
template <class Options, class Given>
Options shared_options(const Given& given, const char* function) {
  Options options;
  if (given.score_mod != nullptr) options.score_mod = given.score_mod->mod;
  if (flag(given.has_scale, function, "options.has_scale")) {
    options.scale = given.scale;
  } else if (given.scale != 0) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] options.scale counts only with has_scale = 1; got {} and 0",
                            function, given.scale));
  }
  options.enable_gqa = flag(given.enable_gqa, function, "options.enable_gqa");
  return options;
}

template <class Given>
std::vector<std::int64_t> q_begin(const Given& given, const char* function) {
  if (given.q_begin_count == 0) {
    if (given.q_begin == nullptr) return {};
    throw Error(
        ErrorKind::value,
        fmt::format("[{}] options.q_begin is given, and options.q_begin_count is 0", function));
  }
  require(given.q_begin, function, "options.q_begin");
  return {given.q_begin, given.q_begin + given.q_begin_count};
}

/// Where a plan puts its results.
template <class Outputs, class Given>
Outputs outputs(const quire_tensor* out, const Given& given, const char* function) {
  return {.out = tensor(out, function, "out"),
          .lse = optional_tensor(given.lse, function, "options.lse"),
          .max_scores = optional_tensor(given.max_scores, function, "options.max_scores")};
}

}  // namespace quire::c_api
