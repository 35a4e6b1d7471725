// JaxCall: what a program compiled by XLA hands to a function of Quire, as views and attributes.
// Python layer, but nothing here touches an object of Python.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/tensor.h"
#include "xla_ffi.h"

namespace quire::python {

/// Operands and results are row-major. Good while the frame is.
class JaxCall {
 public:
  /// Throws Error for a dtype that Quire has not.
  explicit JaxCall(const xla::CallFrame& frame);

  const std::vector<ConstTensorView>& operands() const { return operands_; }
  const std::vector<TensorView>& results() const { return results_; }

  /// Attributes by name. Throw Error for one of another type; text and integers also if there is
  /// none.
  std::string_view text(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::span<const std::int64_t> integers(std::string_view name) const;

 private:
  const void* find(std::string_view name, xla::AttributeType type) const;

  const xla::Attributes& attributes_;
  std::vector<ConstTensorView> operands_;
  std::vector<TensorView> results_;
};

/// Runs `work` for a frame as XLA expects it: answers the question for the version, and turns what
/// is thrown into an error of XLA's, which JAX raises with its text.
xla::Error* answer(const xla::CallFrame* frame, void (*work)(const JaxCall& call)) noexcept;

}  // namespace quire::python
