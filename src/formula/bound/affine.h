// Finds integer values that are affine in the positions, a_b*b + a_h*h + a_q*q_idx + a_kv*kv_idx +
// c, and the wider a_q*q_idx + a_kv*kv_idx + (anything that depends on neither position nor score),
// e.g. kv_idx - q_idx + offset[b]; also the exact range of a form over a rectangle. Coefficients
// and values are modulo 2^64, so a form is exact even if an intermediate result wraps. Formula
// layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "formula/bound/bound.h"
#include "formula/bound/interval.h"
#include "formula/graph.h"

namespace quire::formula {

struct AffineForm {
  enum class Kind : std::uint8_t {
    kNone,     // nothing known; all coefficients are 0
    kUniform,  // q*q_idx + kv*kv_idx + some uniform value; b, h and c are 0. A float or bool:
               // uniform, q = kv = 0
    kExact,    // b*b + h*h + q*q_idx + kv*kv_idx + c; integers only
  };

  Kind kind = Kind::kNone;
  std::int64_t b = 0, h = 0, q = 0, kv = 0, c = 0;

  /// Affine in q_idx and kv_idx, with a uniform remainder.
  bool is_affine() const { return kind != Kind::kNone; }
  /// All coefficients known.
  bool is_exact() const { return kind == Kind::kExact; }
  bool is_constant() const { return is_exact() && b == 0 && h == 0 && q == 0 && kv == 0; }
  /// Varies with neither q_idx, kv_idx nor score.
  bool is_uniform() const { return is_affine() && q == 0 && kv == 0; }
  /// Varies with q_idx and kv_idx only through kv_idx - q_idx.
  bool is_diagonal() const {
    return is_affine() && kv != 0 &&
           static_cast<std::uint64_t>(q) + static_cast<std::uint64_t>(kv) == 0;
  }

  friend bool operator==(const AffineForm&, const AffineForm&) = default;
};

/// a - b; kNone if either is.
AffineForm difference(const AffineForm& a, const AffineForm& b);

/// The forms of all nodes of the graph, by id.
std::vector<AffineForm> affine_forms(const Graph& graph);

/// The same for a graph that is growing: `forms` holds those of the first nodes and is extended to
/// all.
void extend_affine_forms(const Graph& graph, std::vector<AffineForm>& forms);

/// All values of an exact form; "any int" if computing it overflows. If not, the node
/// with this form does not wrap in the rectangle (or wraps back), and both ends are
/// attained.
Interval affine_range(const AffineForm& form, const Rectangle& rectangle);

/// a - b as integers, not modulo 2^64; nothing if a coefficient overflows.
std::optional<AffineForm> exact_difference(const AffineForm& a, const AffineForm& b);

/// Whether both vary with the same coordinate, so that comparing them as if they were independent
/// would lose precision.
bool share_coordinate(const AffineForm& a, const AffineForm& b);

}  // namespace quire::formula
