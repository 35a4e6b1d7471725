// How a forced ISA, QUIRE_ISA and the CPU determine the ISA, as pure functions for tests. The
// process-wide state is in isa.cc. Runtime layer.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "quire/isa.h"

namespace quire {

// The ISA called `name` out of `available`. Throws Error beginning with "[where]" that lists the
// available ones; it distinguishes a name that does not exist from an ISA that this CPU or this
// build lacks.
Isa find_isa(std::string_view where, std::string_view name, std::span<const Isa> available);

// `forced` wins over `environment` (the value of QUIRE_ISA; null or empty = not set), which wins
// over the fastest. `available` is ordered slow to fast and not empty.
IsaChoice choose_isa(std::optional<Isa> forced, const char* environment,
                     std::span<const Isa> available);

}  // namespace quire
