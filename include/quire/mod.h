// ScoreMod and MaskMod: the two rules a user gives to attention, written as a generic lambda, as
// text, or taken from the library. Public; formula layer.
#pragma once
#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include "quire/formula.h"
#include "quire/operations.h"

namespace quire {

namespace detail {
struct ModArguments {
  FloatExpr score;
  IntExpr b, h, q_idx, kv_idx;
};
/// The arguments of a mod, in a new graph.
QUIRE_API ModArguments mod_arguments();
/// Inserts a formula into another: its value with score, b, h, q_idx and kv_idx (in this order)
/// replaced by these, recorded in their graph. Throws Error for a float in place of an index.
QUIRE_API ExprBase apply(const Formula& formula, const std::array<ExprBase, 5>& arguments);

template <class F>
concept ScoreModFunction =
    std::invocable<F, FloatExpr, IntExpr, IntExpr, IntExpr, IntExpr> &&
    Operand<std::remove_cvref_t<
        std::invoke_result_t<F, FloatExpr, IntExpr, IntExpr, IntExpr, IntExpr>>>;
template <class F>
concept MaskModFunction =
    std::invocable<F, IntExpr, IntExpr, IntExpr, IntExpr> &&
    Operand<std::remove_cvref_t<std::invoke_result_t<F, IntExpr, IntExpr, IntExpr, IntExpr>>>;
}  // namespace detail

/// How a score is changed: score_mod(score, b, h, q_idx, kv_idx). Any numeric result is cast to
/// float.
class QUIRE_API ScoreMod {
 public:
  template <detail::ScoreModFunction F>
  ScoreMod(F&& f)  // NOLINT: a lambda is a mod
      : ScoreMod(trace(std::forward<F>(f))) {}
  explicit ScoreMod(const Formula& formula);
  static ScoreMod parse(std::string_view text, const NamedBuffers& buffers = {});

  const Formula& formula() const { return formula_; }
  std::string to_string() const { return formula_.to_string(); }

 private:
  template <class F>
  static Formula trace(F&& f) {
    const detail::ModArguments a = detail::mod_arguments();
    return Formula(detail::to_base(std::forward<F>(f)(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
  }
  Formula formula_;  // float
};

/// Which keys a query may see: mask_mod(b, h, q_idx, kv_idx). Any result counts as "is not zero";
/// the score may not be used.
class QUIRE_API MaskMod {
 public:
  template <detail::MaskModFunction F>
  MaskMod(F&& f)  // NOLINT: a lambda is a mod
      : MaskMod(trace(std::forward<F>(f))) {}
  explicit MaskMod(const Formula& formula);
  static MaskMod parse(std::string_view text, const NamedBuffers& buffers = {});

  const Formula& formula() const { return formula_; }
  std::string to_string() const { return formula_.to_string(); }

  friend QUIRE_API MaskMod operator&(const MaskMod& a, const MaskMod& b);
  friend QUIRE_API MaskMod operator|(const MaskMod& a, const MaskMod& b);
  friend QUIRE_API MaskMod operator~(const MaskMod& a);

 private:
  template <class F>
  static Formula trace(F&& f) {
    const detail::ModArguments a = detail::mod_arguments();
    return Formula(detail::to_base(std::forward<F>(f)(a.b, a.h, a.q_idx, a.kv_idx)));
  }
  Formula formula_;  // bool
};

}  // namespace quire
