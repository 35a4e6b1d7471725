// forward: attention into memory of the caller's. evaluate and explain: what a mod does. Python
// layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "mods.h"
#include "openmp.h"
#include "quire/error.h"
#include "quire/evaluate.h"
#include "quire/explain.h"
#include "quire/flex_attention.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

void forward(const View& q, const View& k, const View& v, const View& out, const View* lse,
             const View* max_scores, const ScoreMod* score_mod, const BlockMask* block_mask,
             std::optional<double> scale, bool enable_gqa, nb::handle q_begin, int openmp_threads) {
  FlexAttentionOptions options{
      .scale = scale, .enable_gqa = enable_gqa, .q_begin = q_begin_of("flex_attention", q_begin)};
  if (score_mod != nullptr) options.score_mod = *score_mod;
  if (block_mask != nullptr) options.block_mask = *block_mask;
  AttentionPlan::Outputs outputs{.out = writable("flex_attention", out, "out")};
  if (lse != nullptr) outputs.lse = writable("flex_attention", *lse, "lse");
  if (max_scores != nullptr)
    outputs.max_scores = writable("flex_attention", *max_scores, "max_scores");
  const ReleasedGil released;
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  options.executor = executor.get();
  AttentionPlan plan(AttentionShape::of(q.tensor, k.tensor, v.tensor), options);
  plan.run(q.tensor, k.tensor, v.tensor, outputs);
}

// Memory for the output, [B, Hq, L, Ev] in q's dtype. Of inputs that have no axes for it anything:
// forward refuses them.
View empty_output(const View& q, const View& v) {
  if (q.tensor.rank() != 4 || v.tensor.rank() != 4)
    return view_of(Tensor::empty({0}, q.tensor.dtype()));
  Shape shape = q.tensor.shape();
  shape[3] = v.tensor.shape()[3];
  return view_of(Tensor::empty(shape, q.tensor.dtype()));
}

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

void register_attention(nb::module_& module) {
  module.def(
      "forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
      nb::arg("lse").none() = nb::none(), nb::arg("max_scores").none() = nb::none(),
      nb::arg("score_mod").none() = nb::none(), nb::arg("block_mask").none() = nb::none(),
      nb::arg("scale").none() = nb::none(), nb::arg("enable_gqa") = false,
      nb::arg("q_begin").none() = nb::none(), nb::arg("openmp_threads") = 0,
      "softmax(mod(q k^T * scale)) v into `out`, without the GIL. q [B, Hq, L, E], k [Bkv, "
      "Hkv, S, E], v [Bkv, Hkv, S, Ev], out [B, Hq, L, Ev] in q's dtype; lse and max_scores "
      "[B, Hq, L], row-major, f32 (f64 if computed in f64). Unless openmp_threads is 0 and if "
      "there is one (use_openmp), on that many threads of the OpenMP runtime.");
  module.def("empty_output", &empty_output, nb::arg("q"), nb::arg("v"),
             "A View of new memory for forward's `out`.");
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
