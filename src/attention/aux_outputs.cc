// Attention layer.
#include "attention/aux_outputs.h"

#include "attention/validate.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {

void validate_aux(const char* where, const AuxRequest& wanted, const AuxOutput* aux) {
  if ((wanted.lse || wanted.max_scores) && aux == nullptr) {
    fail(ErrorKind::value, where,
         "return_aux asks for outputs, and aux, where to put them, is null");
  }
}

void set_stats(const char* where, const StatViews& given, const Shape& rows, DType type,
               plan::ForwardTensors& tensors) {
  const auto checked = [&](const char* name, const std::optional<TensorView>& view) -> void* {
    if (!view.has_value()) return nullptr;
    validate_tensor(where, name, *view, rows, type);
    if (!view->is_contiguous()) fail(ErrorKind::value, where, "{} must be row-major", name);
    return view->data();
  };
  tensors.lse = checked("lse", given.lse);
  tensors.max_scores = checked("max_scores", given.max_scores);
}

}  // namespace quire::attention
