// Collects the tables of all ISAs that were built. Compiled with baseline flags and holds no SIMD.
// Kernels layer.
#include "kernels/dispatch.h"

#include "isa_list.h"
#include "runtime/isa_choice.h"

namespace quire::kernels {

// One declaration per isa/*.cc. A table is made of baseline code and may be fetched on any CPU.
#define X(name)                        \
  namespace name {                     \
  const KernelTable& table() noexcept; \
  }
QUIRE_FOR_EACH_ISA(X)
#undef X

const KernelTable& table_for(Isa isa) {
  // Throws and lists the available ISAs if this CPU cannot run `isa`.
  switch (find_isa("kernels", isa_name(isa), available_isas())) {
#define X(name)   \
  case Isa::name: \
    return name::table();
    QUIRE_FOR_EACH_ISA(X)
#undef X
    default:
      break;
  }
  return scalar::table();  // not reached: available_isas() comes from the same list
}

const KernelTable& current_table() { return table_for(current_isa()); }

}  // namespace quire::kernels
