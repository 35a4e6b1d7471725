// The choice of machine code: the ISAs that this build contains and this CPU supports, which one
// was chosen and why, and how to force another. For f32 every ISA gives the same bits. Public;
// runtime layer.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/export.h"

namespace quire {

// Ordered from slow to fast; the last one that the CPU has is the default.
enum class Isa {
  scalar,       // any CPU: one lane, the reference for the bits
  neon,         // AArch64: 4 floats
  neon_bf16,    // the same with products of bf16 pairs (Neoverse V1, N2)
  avx2,         // x86 with AVX2, FMA, BMI2, F16C: 8 floats
  avx512,       // x86 with AVX-512 F, BW, CD, DQ, VL: 16 floats
  avx512_bf16,  // the same with products of bf16 pairs (Zen 4, Cooper Lake, Sapphire Rapids)
  amx,          // the same with tile registers for bf16 (Sapphire Rapids and later, on Linux)
};

// As QUIRE_ISA spells it: "avx2". A string literal.
QUIRE_API const char* isa_name(Isa isa) noexcept;

// ISAs that were built and that this CPU has, slow to fast; never empty. Valid for the life of the
// process.
QUIRE_API std::span<const Isa> available_isas();

struct IsaChoice {
  Isa isa;
  std::string why;  // "fastest this CPU has", "QUIRE_ISA=avx2" or "forced by force_isa"
};

// The ISA that calls started from now on use: the forced one, else the environment variable
// QUIRE_ISA (read once, at the first call), else the fastest. Throws Error when QUIRE_ISA names one
// that does not exist or that the CPU lacks; the text lists those it has. Thread safe.
QUIRE_API Isa current_isa();
QUIRE_API IsaChoice isa_choice();

// Forces an ISA by name for the whole process, or with nullopt goes back to QUIRE_ISA or the
// fastest. For tests and measurements: work that is under way keeps the ISA it began with. Throws
// as current_isa does, changing nothing.
QUIRE_API void force_isa(std::optional<std::string_view> name);

// Forces an ISA while it lives, then puts back what was forced before. Scopes nest; they do not
// interleave.
class QUIRE_API ScopedIsa {
 public:
  explicit ScopedIsa(std::string_view name);
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int previous_;
};

}  // namespace quire
