// Names of ISAs and their order of preference. Runtime layer.
#include "runtime/isa_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {
namespace {

constexpr std::array kAllIsas = {Isa::scalar, Isa::neon,        Isa::neon_bf16, Isa::avx2,
                                 Isa::avx512, Isa::avx512_bf16, Isa::amx};

std::string join_names(std::span<const Isa> isas) {
  std::string names;
  for (const Isa isa : isas) {
    if (!names.empty()) names += ", ";
    names += isa_name(isa);
  }
  return names;
}

}  // namespace

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::neon:
      return "neon";
    case Isa::neon_bf16:
      return "neon_bf16";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx:
      return "amx";
  }
  return "unknown";
}

Isa find_isa(std::string_view where, std::string_view name, std::span<const Isa> available) {
  const auto is_named = [name](Isa isa) { return name == isa_name(isa); };
  const auto found = std::find_if(available.begin(), available.end(), is_named);
  if (found != available.end()) return *found;
  const bool exists = std::any_of(kAllIsas.begin(), kAllIsas.end(), is_named);
  fail(exists ? ErrorKind::runtime : ErrorKind::value, where, "{}; got '{}', available: {}",
       exists ? "this CPU or this build lacks the ISA" : "no ISA has this name", name,
       join_names(available));
}

IsaChoice choose_isa(std::optional<Isa> forced, const char* environment,
                     std::span<const Isa> available) {
  if (forced) return {*forced, "forced by force_isa"};
  if (environment != nullptr && *environment != '\0') {
    return {find_isa("QUIRE_ISA", environment, available),
            fmt::format("QUIRE_ISA={}", environment)};
  }
  return {available.back(), "fastest this CPU has"};
}

}  // namespace quire
