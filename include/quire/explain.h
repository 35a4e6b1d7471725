// explain: what Quire makes of a formula, as readable text: the simplified form, derivatives, what
// each value varies with, and the tile program. Public; formula layer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/export.h"
#include "quire/formula.h"

namespace quire {

struct ExplainOptions {
  // Sizes the indices run over; integer widths and index proofs depend on them.
  std::int64_t batch = 1, heads = 8, q_len = 2048, kv_len = 2048;
  Precision precision = Precision::kF32;
  bool decode = false;  // keys across the lanes, not queries
};

/// A score mod if the formula is a number, a mask mod if it is a bool. Buffers may be declared
/// without data.
QUIRE_API std::string explain(const Formula& formula, const ExplainOptions& options = {});

/// Parses a text whose buffers need not all be known: a name that is indexed but not in `buffers`
/// is declared, as i64 inside another buffer's index and as f32 elsewhere, with the size that the
/// indices over these sizes need.
QUIRE_API Formula parse_undeclared(std::string_view text, const NamedBuffers& buffers,
                                   const ExplainOptions& options = {});

}  // namespace quire
