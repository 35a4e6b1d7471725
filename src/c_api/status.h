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

/// Throws Error(value), "[function] name is null", if it is.
void require(const void* pointer, const char* function, const char* name);

}  // namespace quire::c_api
