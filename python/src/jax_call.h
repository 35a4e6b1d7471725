// JaxCall: what a program compiled by XLA passes to a function of Quire, as views and attributes.
// Python layer, but nothing here touches Python objects.
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

/// Operands and results are row-major. Valid as long as the frame.
class JaxCall {
 public:
  /// Throws Error for a dtype that Quire does not have.
  explicit JaxCall(const xla::CallFrame& frame);

  const std::vector<ConstTensorView>& operands() const { return operands_; }
  const std::vector<TensorView>& results() const { return results_; }

  /// Attributes by name. Throw Error for one of another type; text and integers also if it is
  /// missing.
  std::string_view text(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::span<const std::int64_t> integers(std::string_view name) const;

 private:
  const void* find(std::string_view name, xla::AttributeType type) const;

  const xla::Attributes& attributes_;
  std::vector<ConstTensorView> operands_;
  std::vector<TensorView> results_;
};

/// Runs `work` for a frame as XLA expects: answers the request for the version, and turns
/// exceptions into XLA errors, which JAX raises with the same text.
xla::Error* answer(const xla::CallFrame* frame, void (*work)(const JaxCall& call)) noexcept;

}  // namespace quire::python
