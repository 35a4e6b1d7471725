// Error handling of the C interface: nothing is thrown across it; the message of the last error is
// kept per thread. C API layer.
#pragma once
#include <string>
#include <string_view>

#include "quire/function_ref.h"
#include "quire/quire_c.h"

namespace quire::c_api {

/// Runs the body of an interface function; an exception becomes a status and the text of
/// quire_last_error().
quire_status guarded(FunctionRef<void()> body) noexcept;

[[noreturn]] void refuse_null(const char* function, const char* name);

/// Throws Error(value), "[function] name is null", if it is.
template <class T>
void require(T* pointer, const char* function, const char* name) {
  if (pointer == nullptr) refuse_null(function, name);
}

}  // namespace quire::c_api
