// ISA selection: the instruction sets that this build contains and this CPU supports, which one was
// chosen and why, and how to force another. For f32 every ISA gives the same bits. Public; runtime
// layer.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/export.h"

namespace quire {

// From slow to fast; the last one that the CPU supports is the default.
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

// ISAs that are built in and supported by this CPU, slow to fast; never empty. Valid for the life
// of the process.
QUIRE_API std::span<const Isa> available_isas();

struct IsaChoice {
  Isa isa;
  std::string why;  // "fastest this CPU has", "QUIRE_ISA=avx2" or "forced by force_isa"
};

// The ISA used by calls that start now: the forced one, or the environment variable QUIRE_ISA (read
// once, at the first call), or the fastest. Throws Error when QUIRE_ISA names one that does not
// exist or that the CPU lacks; the text lists the available ones. Thread safe.
QUIRE_API Isa current_isa();
QUIRE_API IsaChoice isa_choice();

// Forces an ISA by name for the whole process; nullopt goes back to QUIRE_ISA or the fastest. For
// tests and measurements: running work keeps its ISA. Throws as current_isa does, changing
// nothing.
QUIRE_API void force_isa(std::optional<std::string_view> name);

// Forces an ISA during its lifetime, then restores what was forced before. Scopes nest; they must
// not interleave.
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
