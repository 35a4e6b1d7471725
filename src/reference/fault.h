// Faults: errors that an element of a formula can cause at run time, as data. Whether a fault
// becomes an Error depends on whether the element is visible, which only the caller knows.
// Reference layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "formula/graph.h"
#include "quire/error.h"
#include "reference/value.h"

namespace quire::reference {

enum class FaultKind : std::uint8_t {
  kIndex,           // an index outside -size..size-1 of its axis
  kDivisionByZero,  // integer // or % by 0
};

struct Fault {
  FaultKind kind = FaultKind::kIndex;
  formula::NodeId node = formula::kNoNode;
  // Only for kIndex:
  std::string buffer = {};  // its name
  std::size_t axis = 0;
  std::int64_t index = 0;  // as the formula gave it, before any wrapping
  std::int64_t size = 0;   // of the axis
};

/// "[formula] index 12 is outside buffer 'slopes' of size 8 (axis 0) at b=0, h=3, q_idx=5,
/// kv_idx=7" or
/// "[formula] integer division by zero at b=0, h=3, q_idx=5, kv_idx=7".
std::string fault_text(const Fault& fault, const Point& point);

/// The error to throw for a fault of a visible element.
Error fault_error(const Fault& fault, const Point& point);

}  // namespace quire::reference
