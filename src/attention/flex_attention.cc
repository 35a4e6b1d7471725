// flex_attention: validate, plan, run. Attention layer.
#include "quire/flex_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "attention/validate.h"
#include "formula/simplify.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "runtime/memory.h"

namespace quire {
namespace {

// A caller's executor, which outlives the plan, or a share in the default one.
std::shared_ptr<Executor> executor_of(Executor* given) {
  if (given == nullptr) return default_executor();
  return std::shared_ptr<Executor>(given, [](Executor*) {});
}

// Nothing if the mod gives the score back.
std::optional<Formula> score_formula(const std::optional<ScoreMod>& mod, Precision precision) {
  if (!mod.has_value()) return std::nullopt;
  Formula simple = formula::simplify(mod->formula(), precision);
  if (simple.graph()[simple.root()].op == Op::kScore) return std::nullopt;
  return simple;
}

plan::ForwardRequest request_of(const AttentionShape& shape, const FlexAttentionOptions& options) {
  attention::validate(shape, options);
  const bool is_f64 = attention::compute_type(shape) == DType::f64;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  plan::ForwardRequest request;
  request.batch = shape.batch;
  request.q_heads = shape.q_heads;
  request.kv_heads = shape.kv_heads;
  request.q_len = shape.q_len;
  request.head_dim = shape.head_dim;
  request.v_head_dim = shape.v_head_dim;
  request.q_dtype = shape.q_dtype;
  request.k_dtype = shape.k_dtype;
  request.v_dtype = shape.v_dtype;
  request.scale = is_f64 ? scale : static_cast<double>(static_cast<float>(scale));
  request.score_mod = score_formula(options.score_mod, is_f64 ? Precision::kF64 : Precision::kF32);
  request.block_mask = options.block_mask;
  request.q_begin = options.q_begin;
  if (request.q_begin.empty())
    request.q_begin = {options.block_mask ? options.block_mask->q_begin() : 0};
  request.layout = std::make_shared<layout::DenseLayout>(shape.kv_batch, shape.kv_len);
  request.longest_kv = shape.kv_len;
  request.executor = executor_of(options.executor);
  return request;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, const FlexAttentionOptions& options)
    : shape_(shape), plan_(std::make_unique<plan::ForwardPlan>(request_of(shape, options))) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

DType AttentionPlan::compute_type() const { return plan_->compute_type(); }
std::size_t AttentionPlan::scratch_bytes() const { return plan_->scratch_bytes(); }

void AttentionPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const Outputs& outputs) {
  attention::validate_run(shape_, AttentionShape::of(q, k, v));
  attention::validate_output("out", outputs.out, attention::output_shape(shape_), shape_.q_dtype);
  plan::ForwardTensors tensors{.q = q, .k = k, .v = v, .out = outputs.out};
  const Shape rows{shape_.batch, shape_.q_heads, shape_.q_len};
  const auto stat = [&](const char* name, const std::optional<TensorView>& view) -> void* {
    if (!view.has_value()) return nullptr;
    attention::validate_output(name, *view, rows, compute_type());
    attention::validate_row_major(name, *view);
    return view->data();
  };
  tensors.lse = stat("lse", outputs.lse);
  tensors.max_scores = stat("max_scores", outputs.max_scores);
  plan_->run(tensors);
}

Tensor flex_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const FlexAttentionOptions& options) {
  const AttentionShape shape = AttentionShape::of(q, k, v);
  if ((options.return_aux.lse || options.return_aux.max_scores) && options.aux == nullptr) {
    throw Error(ErrorKind::value,
                "[flex_attention] return_aux asks for outputs, and aux, where "
                "to put them, is null");
  }
  AttentionPlan plan(shape, options);
  Tensor out = Tensor::empty(attention::output_shape(shape), shape.q_dtype);
  AuxOutput aux;
  AttentionPlan::Outputs outputs{.out = out.view()};
  const Shape rows{shape.batch, shape.q_heads, shape.q_len};
  if (options.return_aux.lse) {
    aux.lse = Tensor::empty(rows, plan.compute_type());
    outputs.lse = aux.lse->view();
  }
  if (options.return_aux.max_scores) {
    aux.max_scores = Tensor::empty(rows, plan.compute_type());
    outputs.max_scores = aux.max_scores->view();
  }
  plan.run(q, k, v, outputs);
  if (options.aux != nullptr) *options.aux = std::move(aux);
  return out;
}

}  // namespace quire
