// Random formulas for property tests: mixtures of what mods are made of (affine index expressions,
// windows, document ids, tables, nested loads, choices, bits, float functions) of a wanted type and
// about a wanted size. The same state of the random generator gives the same formula on every
// machine. Tests only.
//
//   std::mt19937_64 random(seed);
//   const RandomFormula f = random_formula(random, ValueType::kFloat, {.nodes = 20});
#pragma once
#include <random>
#include <vector>

#include "quire/buffer.h"
#include "quire/formula.h"
#include "tests/support/random_buffers.h"

namespace quire::testing {

struct RandomFormulaOptions {
  // About how many operations. Leaves, casts and guards come on top: formula.size() is up to some
  // three times this.
  int nodes = 12;
  // No element of b, h, q_idx, kv_idx within these ranges faults, unless `faults` is set.
  Extents extents = {};
  bool faults = false;         // some indices leave their axis, some integer divisors are 0
  bool floats = true;          // float values; if not, even a float root is a converted integer
  bool score = true;           // may use the score; set to false for a mask
  bool transcendental = true;  // exp, tanh, ... and float powers (sqrt stays)
  bool discontinuous = true;  // on floats: comparisons, floor, round, sign, //, %, and float to int
  bool kinks = true;          // on floats: abs, relu, minimum, maximum, clamp
  bool bits = true;           // & | ^ ~ << >> on integers
  bool reductions = true;     // sum and dot
  bool extremes = false;      // constants like INT64_MIN, 2**53 + 1, inf, nan, -0.0, subnormals
  bool wants_gradient = false;       // float buffers do
  bool strided = false;              // some buffers are views with odd strides
  std::vector<Op> without = {};      // operations not to be chosen (guards may still use them)
  int buffer_count = 4;              // how many buffers to choose from
  std::vector<Buffer> buffers = {};  // if not empty: read these instead of random ones
};

struct RandomFormula {
  Formula formula;
  std::vector<Buffer> buffers;      // those it reads, in the order of formula.buffers()
  std::vector<Tensor> memory = {};  // keeps alive what strided buffers borrow
};

/// A formula of type `root`. Throws only what build.h throws by mistake.
RandomFormula random_formula(std::mt19937_64& random, ValueType root,
                             const RandomFormulaOptions& options = {});

}  // namespace quire::testing
