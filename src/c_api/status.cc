// Converts exceptions to status codes and messages. C API layer.
#include "c_api/status.h"

#include <fmt/format.h>

#include <exception>
#include <new>

#include "quire/error.h"
#include "runtime/float_env.h"

namespace quire::c_api {
namespace {

thread_local std::string last_text;
thread_local const char* last_error = "";

quire_status fail(quire_status status, const char* text) noexcept {
  try {
    last_text = text;
    last_error = last_text.c_str();
  } catch (...) {
    last_error = "out of memory, and none for the text of the error";
  }
  return status;
}

quire_status status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::value:
      return QUIRE_ERROR_VALUE;
    case ErrorKind::type:
      return QUIRE_ERROR_TYPE;
    case ErrorKind::index:
      return QUIRE_ERROR_INDEX;
    case ErrorKind::not_implemented:
      return QUIRE_ERROR_NOT_IMPLEMENTED;
    case ErrorKind::runtime:
      return QUIRE_ERROR_RUNTIME;
  }
  return QUIRE_ERROR_INTERNAL;
}

}  // namespace

quire_status guarded(FunctionRef<void()> body) noexcept {
  const FloatEnv float_env;
  try {
    body();
    return QUIRE_OK;
  } catch (const Error& error) {
    return fail(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(QUIRE_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(QUIRE_ERROR_INTERNAL, error.what());
  } catch (...) {
    return fail(QUIRE_ERROR_INTERNAL, "unknown error");
  }
}

void refuse_null(const char* function, const char* name) {
  throw Error(ErrorKind::value, fmt::format("[{}] {} is null", function, name));
}

}  // namespace quire::c_api

const char* quire_last_error(void) { return quire::c_api::last_error; }
