// Converts rules on a sequence's keys to rules on the slots of a pool of pages. The table in them
// is marked, so that src/paged/paged_recognition.cc can convert them back. Paged layer.
#include <limits>

#include "formula/logical_keys.h"
#include "quire/error.h"
#include "quire/operations.h"
#include "quire/paged_attention.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

void check_integers(const char* name, const Buffer& buffer, std::size_t rank) {
  if (is_floating(buffer.dtype()) || buffer.dtype() == DType::boolean) {
    fail(ErrorKind::type, "PagedAttention", "{} must be integers; got {}", name,
         dtype_name(buffer.dtype()));
  }
  if (buffer.shape().rank() != rank) {
    fail(ErrorKind::value, "PagedAttention", "{} must have rank {}; got {}", name, rank,
         to_string(buffer.shape()));
  }
}

// Which key of sequence b is in a slot of the pool, if any.
struct Place {
  IntExpr kv_idx;
  BoolExpr is_live;
};

Place place_of(const IntExpr& b, const IntExpr& kv_idx, const Buffer& physical_to_logical,
               std::int64_t page_size, const std::optional<Buffer>& kv_len) {
  check_integers("physical_to_logical", physical_to_logical, 2);
  if (kv_len.has_value()) check_integers("kv_len", *kv_len, 1);
  if (page_size < 1) {
    fail(ErrorKind::value, "PagedAttention", "page_size must be at least 1; got {}", page_size);
  }
  const Buffer table = physical_to_logical.as_page_table();
  const IntExpr page(table(b, floor_div(kv_idx, page_size)).element());
  const IntExpr logical = page * page_size + kv_idx % page_size;
  BoolExpr is_live = page >= 0;
  if (kv_len.has_value()) is_live = is_live & (logical < IntExpr((*kv_len)[b].element()));
  return {logical, is_live & (logical >= 0)};
}

}  // namespace

MaskMod physical_mask_mod(const MaskMod& mask_mod, const Buffer& physical_to_logical,
                          std::int64_t page_size, const std::optional<Buffer>& kv_len) {
  const FloatEnv float_env;
  return [&](IntExpr b, IntExpr h, IntExpr q_idx, IntExpr kv_idx) {
    const auto [logical, is_live] = place_of(b, kv_idx, physical_to_logical, page_size, kv_len);
    const BoolExpr rule(
        detail::apply(mask_mod.formula(), {ExprBase::literal(0.0), b, h, q_idx, logical}));
    return where(is_live, rule, false);
  };
}

ScoreMod physical_score_mod(const ScoreMod& score_mod, const Buffer& physical_to_logical,
                            std::int64_t page_size, const std::optional<Buffer>& kv_len) {
  const FloatEnv float_env;
  return [&](FloatExpr score, IntExpr b, IntExpr h, IntExpr q_idx, IntExpr kv_idx) {
    const auto [logical, is_live] = place_of(b, kv_idx, physical_to_logical, page_size, kv_len);
    const FloatExpr changed(detail::apply(score_mod.formula(), {score, b, h, q_idx, logical}));
    return where(is_live, changed, -std::numeric_limits<double>::infinity());
  };
}

MaskMod mark_page_table(const MaskMod& mask_mod) {
  const FloatEnv float_env;
  return MaskMod(formula::mark_page_table(mask_mod.formula()));
}

ScoreMod mark_page_table(const ScoreMod& score_mod) {
  const FloatEnv float_env;
  return ScoreMod(formula::mark_page_table(score_mod.formula()));
}

}  // namespace quire
