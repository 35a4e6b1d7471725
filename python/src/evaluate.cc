// evaluate and explain: what a mod does. Python layer.
#include "quire/evaluate.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "gil.h"
#include "mods.h"
#include "quire/explain.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

Array evaluate_score(nb::handle mod, nb::handle scores, std::int64_t q_begin,
                     std::int64_t kv_begin) {
  const ScoreMod score_mod = score_mod_of(mod);
  const View view = view_of(scores);
  Tensor result;
  {
    const ReleasedGil released;
    result = evaluate(score_mod, view.tensor, {.q_begin = q_begin, .kv_begin = kv_begin});
  }
  return to_numpy(std::move(result));
}

Array evaluate_mask(nb::handle mod, nb::handle shape, std::int64_t q_begin, std::int64_t kv_begin) {
  const MaskMod mask_mod = mask_mod_of(mod);
  const Shape sizes = shape_of(shape);
  Tensor result;
  {
    const ReleasedGil released;
    result = evaluate(mask_mod, sizes, {.q_begin = q_begin, .kv_begin = kv_begin});
  }
  return to_numpy(std::move(result));
}

std::string explain_mod(nb::handle mod, nb::handle buffers, std::int64_t batch, std::int64_t heads,
                        std::int64_t q_len, std::int64_t kv_len, bool is_f64, bool is_decode) {
  const ExplainOptions options{.batch = batch,
                               .heads = heads,
                               .q_len = q_len,
                               .kv_len = kv_len,
                               .precision = is_f64 ? Precision::kF64 : Precision::kF32,
                               .decode = is_decode};
  if (nb::isinstance<ScoreMod>(mod))
    return explain(nb::cast<const ScoreMod&>(mod).formula(), options);
  if (nb::isinstance<MaskMod>(mod))
    return explain(nb::cast<const MaskMod&>(mod).formula(), options);
  if (!nb::isinstance<nb::str>(mod))
    throw nb::type_error("[explain] a ScoreMod, a MaskMod or a text is needed");
  return explain(parse_undeclared(nb::cast<std::string>(mod), named_buffers_of(buffers), options),
                 options);
}

}  // namespace

void register_evaluate(nb::module_& module) {
  module.def("evaluate_score", &evaluate_score, nb::arg("mod"), nb::arg("scores"),
             nb::arg("q_begin") = 0, nb::arg("kv_begin") = 0,
             "A score mod applied to f32 or f64 scores [B, H, q_len, kv_len].");
  module.def("evaluate_mask", &evaluate_mask, nb::arg("mod"), nb::arg("shape"),
             nb::arg("q_begin") = 0, nb::arg("kv_begin") = 0,
             "A mask mod as bools of the shape (B, H, q_len, kv_len).");
  module.def(
      "explain", &explain_mod, nb::arg("mod"), nb::arg("buffers") = nb::none(), nb::kw_only(),
      nb::arg("batch") = 1, nb::arg("heads") = 8, nb::arg("q_len") = 2048, nb::arg("kv_len") = 2048,
      nb::arg("f64") = false, nb::arg("decode") = false,
      R"doc(Everything Quire makes of a formula, as text. A text may name buffers that are not given.

>>> import quire
>>> print(quire.explain("score + slope[h]").split("buffers")[0].rstrip())
score mod
  score + slope[h]
simplified
  score + slope[h])doc");
}

}  // namespace quire::python
