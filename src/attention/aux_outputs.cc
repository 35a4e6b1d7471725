// Attention layer.
#include "attention/aux_outputs.h"

#include <fmt/format.h>

#include "attention/validate.h"
#include "quire/error.h"

namespace quire::attention {

void validate_aux(const AuxRequest& wanted, const AuxOutput* aux, const char* function) {
  if ((wanted.lse || wanted.max_scores) && aux == nullptr) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] return_aux asks for outputs, and aux, where to put them, is null",
                            function));
  }
}

void set_stats(const StatViews& given, const Shape& rows, DType type,
               plan::ForwardTensors& tensors) {
  const auto checked = [&](const char* name, const std::optional<TensorView>& view) -> void* {
    if (!view.has_value()) return nullptr;
    validate_output(name, *view, rows, type);
    validate_row_major(name, *view);
    return view->data();
  };
  tensors.lse = checked("lse", given.lse);
  tensors.max_scores = checked("max_scores", given.max_scores);
}

}  // namespace quire::attention
