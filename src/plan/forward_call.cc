// Plan layer.
#include "plan/forward_call.h"

#include <algorithm>

#include "formula/simplify/simplify.h"
#include "kernels/attention_order.h"
#include "kernels/kernel_table.h"

namespace quire::plan {

kernels::ForwardCall call_of(const ForwardRequest& request, const kernels::KernelTable& table) {
  kernels::ForwardCall call;
  call.table = &table;
  call.dims = static_cast<int>(request.head_dim);
  call.value_dims = static_cast<int>(request.v_head_dim);
  call.scale = request.factor;
  call.f64 = request.is_f64();
  call.natural = request.score.has_value() || !kernels::is_scaled(request.factor);
  call.pairs = request.q_dtype == DType::bf16 && request.k_dtype == DType::bf16 &&
               request.v_dtype == DType::bf16 && table.pairs != nullptr;
  call.dropout = {.p = request.dropout_p, .seed = request.seed};
  call.q_rows.dtype = call.out_rows.dtype = request.q_dtype;
  call.k_rows.dtype = request.k_dtype;
  call.v_rows.dtype = request.v_dtype;
  return call;
}

kernels::ForwardTensor steps_of(const ConstTensorView& view) {
  return {.dtype = view.dtype(), .row_step = view.strides()[2], .column_step = view.strides()[3]};
}

formula::CompileOptions compile_options(const ForwardRequest& request, int max_rows) {
  const auto [least, most] = std::minmax_element(request.q_begin.begin(), request.q_begin.end());
  const auto last = [](std::int64_t size) { return std::max<std::int64_t>(size, 1) - 1; };
  return {.precision = request.is_f64() ? Precision::kF64 : Precision::kF32,
          .extents = {{0, last(request.b_end())},
                      {0, last(request.q_heads)},
                      {*least, *most + last(request.q_len)},
                      {0, last(request.kv_len)}},
          .max_rows = max_rows};
}

std::optional<Formula> rule_to_evaluate(const MaskMod& rule) {
  Formula simple = formula::simplify(rule.formula(), Precision::kF32);
  const formula::Node& root = simple.graph()[simple.root()];
  if (root.op == Op::kBoolConst && root.bits != 0) return std::nullopt;
  return simple;
}

}  // namespace quire::plan
