// The checks of a call's rope. Attention layer.
#include <cmath>

#include "attention/validate.h"
#include "plan/rope_rows.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

void validate_table(const char* where, const char* name, const Buffer& table,
                    std::int64_t positions, std::int64_t half) {
  check_float(where, name, table.dtype());
  if (!table.has_data()) fail(ErrorKind::value, where, "{} has no data", name);
  if (table.shape().rank() != 2 || table.shape()[1] != half)
    fail(ErrorKind::value, where, "{} must be [positions, {}], half the dims; got {}", name, half,
         to_string(table.shape()));
  if (table.shape()[0] < positions)
    fail(ErrorKind::value, where, "{} must have a row for each of the positions 0..{}; got {}",
         name, positions - 1, table.shape()[0]);
}

}  // namespace

void validate_rope(const char* where, const AttentionProblem& problem) {
  if (!problem.rope.has_value()) return;
  const Rope& rope = *problem.rope;
  const std::int64_t dims = rope.dims == 0 ? problem.head_dim : rope.dims;
  if (dims < 0 || dims > problem.head_dim || dims % 2 != 0)
    fail(ErrorKind::value, where,
         "rope must rotate an even number of dims, at most the head dim, {}; got {}",
         problem.head_dim, dims);
  if (rope.cos.has_value() != rope.sin.has_value())
    fail(ErrorKind::value, where, "rope needs cos and sin, or neither");
  if (!rope.cos.has_value()) {
    if (!(rope.theta > 0) || !std::isfinite(rope.theta))
      fail(ErrorKind::value, where, "theta of rope must be positive; got {}", rope.theta);
    return;
  }
  const std::int64_t positions = plan::rope_positions(problem);
  validate_table(where, "cos of rope", *rope.cos, positions, dims / 2);
  validate_table(where, "sin of rope", *rope.sin, positions, dims / 2);
}

}  // namespace quire::attention
