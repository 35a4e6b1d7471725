// Compiles a score mod to a gradient program: the value, the slope and the reads of buffers that
// want a gradient in one tile program, plus a summation pattern for each read. Formula layer.
#pragma once
#include <vector>

#include "formula/compile/compile.h"
#include "kernels/backward/gradient_program.h"
#include "quire/formula.h"

namespace quire::formula {

/// Whether the program has sites for buffers, or only value and slope.
enum class GradientSites : std::uint8_t { kNone, kMarkedBuffers };

struct CompiledGradient {
  kernels::GradientProgram program;
  std::vector<Buffer> targets;  // those that want a gradient and are read, by target number
};

/// For prefill's tiles: options.vary and options.groups have their defaults. Throws Error for a
/// buffer without data and for a formula whose derivatives are too large.
CompiledGradient compile_gradient(const Formula& score_mod, const CompileOptions& options,
                                  GradientSites sites = GradientSites::kMarkedBuffers);

}  // namespace quire::formula
