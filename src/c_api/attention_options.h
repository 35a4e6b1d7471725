// What the structs of options of the C interface's attention functions have in common. C API layer.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <utility>
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

/// `q` says how many there may be: one for each batch entry. The count is compared before anything
/// is read: the end of an array of 2^61 numbers has the address of its beginning.
template <class Given>
std::vector<std::int64_t> q_begin(const Given& given, const ConstTensorView& q,
                                  const char* function) {
  if (given.q_begin_count == 0) {
    if (given.q_begin == nullptr) return {};
    throw Error(
        ErrorKind::value,
        fmt::format("[{}] options.q_begin is given, and options.q_begin_count is 0", function));
  }
  require(given.q_begin, function, "options.q_begin");
  const std::int64_t batch = q.rank() == 0 ? 1 : q.shape()[0];
  if (given.q_begin_count != 1 && std::cmp_not_equal(given.q_begin_count, batch)) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] options.q_begin_count must be 1, for all batch entries, or {}, "
                            "one for each; got {}",
                            function, batch, given.q_begin_count));
  }
  return {given.q_begin, given.q_begin + given.q_begin_count};
}

/// Where a plan puts its results.
template <class Outputs, class Given>
Outputs outputs(const quire_tensor* out, const Given& given, const char* function) {
  return {.out = tensor(out, function, "out"),
          .lse = optional_tensor(given.lse, function, "options.lse"),
          .max_scores = optional_tensor(given.max_scores, function, "options.max_scores")};
}

/// "[where] name must have shape ..." unless it is `wanted`. Results are compared with the call
/// before a plan is made of it: one of absurd sizes would take all memory to find out.
inline void check_shape(const char* where, const char* name, const ConstTensorView& given,
                        const Shape& wanted) {
  if (given.shape() == wanted) return;
  throw Error(ErrorKind::value, fmt::format("[{}] {} must have shape {}; got {}", where, name,
                                            to_string(wanted), to_string(given.shape())));
}

/// Of rows of queries, [..., q_len, dim] or [tokens, heads, dim]: what their outputs must be.
struct RowShapes {
  RowShapes(const ConstTensorView& q, const ConstTensorView& v) : stats(q.shape()) {
    if (q.rank() == 0 || v.rank() == 0) return;  // refused by who reads it as rows
    stats.erase(q.rank() - 1);
    out = stats;
    out.push_back(v.shape()[v.rank() - 1]);
  }
  Shape stats, out;
};

/// Of a forward call.
template <class Outputs>
void check_outputs(const Outputs& to, const ConstTensorView& q, const ConstTensorView& v) {
  const RowShapes shapes(q, v);
  constexpr const char* kWhere = "flex_attention";
  check_shape(kWhere, "out", to.out, shapes.out);
  if (to.lse.has_value()) check_shape(kWhere, "lse", *to.lse, shapes.stats);
  if (to.max_scores.has_value()) check_shape(kWhere, "max_scores", *to.max_scores, shapes.stats);
}

}  // namespace quire::c_api
