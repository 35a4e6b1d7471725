// The messages of faults. Reference layer.
#include "reference/fault.h"

#include <fmt/format.h>

namespace quire::reference {

std::string fault_text(const Fault& fault, const Point& point) {
  const std::string where = fmt::format("at b={}, h={}, q_idx={}, kv_idx={}", point.b, point.h,
                                        point.q_idx, point.kv_idx);
  if (fault.kind == FaultKind::kDivisionByZero)
    return fmt::format("[formula] integer division by zero {}", where);
  return fmt::format("[formula] index {} is outside buffer '{}' of size {} (axis {}) {}",
                     fault.index, fault.buffer, fault.size, fault.axis, where);
}

Error fault_error(const Fault& fault, const Point& point) {
  const bool index = fault.kind == FaultKind::kIndex;
  return Error(index ? ErrorKind::index : ErrorKind::value, fault_text(fault, point));
}

}  // namespace quire::reference
