// create_mask: evaluates a mask mod to a dense tensor of bools. Mask layer.
#include <limits>

#include "formula/build.h"
#include "formula/graph.h"
#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

Tensor create_mask(const MaskMod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len, const CreateMaskOptions& options) {
  const FloatEnv float_env;
  const Shape shape{batch, heads, q_len, kv_len};
  require_memory("create_mask", "a mask of this size", element_count(shape));
  return evaluate(mod, shape, {.q_begin = options.q_begin, .executor = options.executor});
}

Tensor create_mask(const ScoreMod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len, const CreateMaskOptions& options) {
  const FloatEnv float_env;
  const Formula at_zero =
      formula::substitute(mod.formula(), Op::kScore, Formula(ExprBase::literal(0.0)));
  formula::Graph graph = at_zero.graph();
  const formula::NodeId hidden =
      formula::make_float(graph, -std::numeric_limits<double>::infinity());
  const MaskMod visible(
      Formula(graph, formula::make_binary(graph, Op::kNe, at_zero.root(), hidden)));
  return create_mask(visible, batch, heads, q_len, kv_len, options);
}

}  // namespace quire
