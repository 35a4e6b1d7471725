// Looks up the kernels of an ISA; the ISA is chosen in runtime/ (quire/isa.h). No SIMD. Kernels
// layer.
#pragma once
#include "kernels/kernel_table.h"

namespace quire::kernels {

// The table of an ISA from available_isas(). Throws Error for any other: this CPU cannot run its
// code.
const KernelTable& table_for(Isa isa);

// The table of current_isa(); throws as that does. Take it once per plan, not once per tile.
const KernelTable& current_table();

}  // namespace quire::kernels
