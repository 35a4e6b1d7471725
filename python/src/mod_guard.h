// ModGuard: checks, one step per value it depends on, whether a traced function would be traced to
// the same formula again. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "view.h"

namespace quire::python {

/// The tensors that a mod reads in one call, in the order of its trace.
struct ReadTensors {
  std::vector<nb::object> tensors;
  std::vector<TensorView> views;
};

/// A list of checks, made by quire/torch/trace/mod_guard.py when the function was traced. Each
/// takes one value out of another (a closure cell, a default, a global, an attribute) and checks
/// it. Holds code objects, classes and numbers, but neither functions nor tensors.
class ModGuard {
 public:
  explicit ModGuard(const nb::list& steps);

  /// Whether `mod` is unchanged; if so, `read` receives its tensors. Runs no Python code except
  /// attribute lookups made when it was traced.
  bool holds(nb::handle mod, ReadTensors& read) const;
  std::size_t tensors() const { return tensors_; }

 private:
  enum class From : std::uint8_t { kMod, kCell, kDefault, kGlobal, kAttribute };
  enum class Is : std::uint8_t { kSame, kTensor, kFunction, kInstance, kSeen };
  struct Step {
    From from = From::kMod;
    Is is = Is::kSame;
    std::size_t of = 0;      // which of the functions and instances seen so far it is taken from
    std::size_t place = 0;   // of cells and defaults
    nb::object name = {};    // of globals and attributes
    nb::object what = {};    // the value, the code of a function, or the class of an instance
    std::size_t number = 0;  // of a tensor, in the order of the trace; of a value seen
    DType dtype = DType::f32;
    Shape shape = {};
    long gradient = 0;  // of tensors: 0, or 1 + whether gradients were recorded
  };
  struct Walk;

  static Step step_of(nb::handle made);

  std::vector<Step> steps_;
  std::size_t tensors_ = 0;
};

}  // namespace quire::python
