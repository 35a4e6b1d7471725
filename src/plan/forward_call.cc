// Fills in the kernels' call from a request. Plan layer.
#include "plan/forward_call.h"

#include <algorithm>
#include <utility>

#include "formula/simplify/simplify.h"
#include "kernels/attention_order.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"
#include "quant/row_coding.h"

namespace quire::plan {

kernels::WeightRule weight_rule_of(const ForwardRequest& request) {
  using kernels::WeightRule;
  if (!request.weight_mod.has_value()) return WeightRule::kSoftmax;
  return request.normalize == Normalize::kSum ? WeightRule::kFormulaSum : WeightRule::kFormula;
}

namespace {

// Whether keys, or values, can be factors of bf16 products: bf16 numbers, or codes that are exact
// in bf16. Tile registers read rows in place, so codes would have to be written out for them.
bool are_bf16(DType dtype, const kernels::RowCoding& coding, const kernels::PairFunctions& pairs) {
  if (!is_coded(coding)) return dtype == DType::bf16;
  return are_bf16_codes(coding) && pairs.tiles == nullptr;
}

// Queries that were rotated are not bf16 any more; pairs of codes begin at even dims.
bool multiplies_pairs(const ForwardRequest& request, const kernels::ForwardCall& call) {
  const kernels::PairFunctions* const pairs = call.table->pairs;
  if (pairs == nullptr || request.q_dtype != DType::bf16) return false;
  if (request.rope.has_value() || call.k_coding.rotation > 1) return false;
  if (is_coded(call.k_coding) && call.dims % 2 != 0) return false;
  return are_bf16(request.k_dtype, call.k_coding, *pairs) &&
         are_bf16(request.v_dtype, call.v_coding, *pairs);
}

// Queries of bf16 over codes that are integers, or become them; those of f16, whose outputs have
// three more digits, only if nothing is lost over codes.
bool multiplies_integers(const ForwardRequest& request, const kernels::ForwardCall& call) {
  if (request.q_dtype != DType::bf16 && request.q_dtype != DType::f16) return false;
  if (request.rope.has_value() || call.dims % 2 != 0) return false;
  const bool exact_keys = are_exact_integers(call.k_coding);
  const bool exact_values = are_exact_integers(call.v_coding);
  if (call.dims > (exact_keys ? kernels::kMostIntegerDims : kernels::kMostRowDims)) return false;
  if (request.q_dtype == DType::f16) return exact_keys && exact_values;
  return (exact_keys || become_integers(call.k_coding)) &&
         (exact_values || become_integers(call.v_coding));
}

}  // namespace

kernels::ForwardCall call_of(const ForwardRequest& request, const kernels::KernelTable& table) {
  kernels::ForwardCall call;
  call.table = &table;
  call.dims = static_cast<int>(request.head_dim);
  call.value_dims = static_cast<int>(request.v_head_dim);
  call.scale = request.factor;
  call.f64 = request.is_f64();
  call.weights = weight_rule_of(request);
  call.natural = request.score.has_value() || !kernels::is_scaled(request.factor) ||
                 request.weight_mod.has_value();
  call.chooses = request.chosen != nullptr;
  call.dropout = {.p = request.dropout_p, .seed = request.seed};
  call.lse_with_sinks = request.lse_with_sinks;
  call.k_coding = quant::row_coding(request.k_format, request.head_dim);
  call.v_coding = quant::row_coding(request.v_format, request.v_head_dim);
  call.integers = multiplies_integers(request, call);
  call.pairs = call.integers || multiplies_pairs(request, call);
  if (request.rope.has_value()) std::swap(call.k_mixed, call.k_coding.rotation);
  call.q_rows.dtype = call.out_rows.dtype = request.q_dtype;
  call.k_rows.dtype = request.k_dtype;
  call.v_rows.dtype = request.v_dtype;
  return call;
}

void read_sinks(const ForwardRequest& request, Tensor& to) {
  if (!request.sinks.has_value()) return;
  if (to.numel() != request.q_heads) to = Tensor::empty({request.q_heads}, request.compute_type());
  const ConstTensorView& from = request.sinks->view();
  for (std::int64_t h = 0; h < request.q_heads; ++h) {
    if (request.is_f64())
      to.data_as<double>()[h] = from.load_float({h});
    else
      to.data_as<float>()[h] = static_cast<float>(from.load_float({h}));
  }
}

kernels::ForwardTensor steps_of(const ConstTensorView& view) {
  return {.dtype = view.dtype(), .row_step = view.strides()[2], .column_step = view.strides()[3]};
}

kernels::RowScales scale_rows(const ConstTensorView& scales) {
  if (scales.rank() != 4) return {};
  return {.data = scales.data(), .row_step = scales.strides()[2]};
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
