// Structs of the C interface as checked C++ values: their versions (told by size), tensors, options
// shared by several functions. C API layer.
#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "quire/attention.h"
#include "quire/error.h"
#include "quire/kv_cache.h"
#include "quire/quire_c.h"
#include "quire/tensor_view.h"

namespace quire::c_api {

/// Throws an Error about an argument of a function.
template <class... Args>
[[noreturn]] void refuse(const char* function, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::value,
              fmt::format("[{}] {}", function, fmt::format(text, std::forward<Args>(args)...)));
}

/// Throws Error for a count larger than any list in memory can have.
void check_count(std::size_t count, const char* function, const char* name);

/// Copies `given` bytes of a struct and leaves the rest 0. Fields that a newer caller has beyond
/// this version must be 0, so that no request is silently ignored. Throws Error(value) for a size
/// below `least` and for non-zero unknown fields.
struct StructCopy {
  const char* function;
  const char* name;   // of the argument
  std::size_t least;  // size of the first version that was published
};
void copy_struct(void* to, std::size_t size, const void* from, const StructCopy& copy);

/// The argument with all fields of this version. `first` is sizeof of the first published version.
template <class Struct>
Struct versioned(const Struct* given, const char* function, const char* name,
                 std::size_t first = sizeof(Struct)) {
  Struct result{};
  copy_struct(&result, sizeof(Struct), given, {function, name, first});
  return result;
}

/// The same, or all 0 if it is null.
template <class Struct>
Struct versioned_or_default(const Struct* given, const char* function, const char* name,
                            std::size_t first = sizeof(Struct)) {
  return given == nullptr ? Struct{} : versioned(given, function, name, first);
}

/// Throw Error for null, for a dtype or rank that does not exist, for data that is not aligned, and
/// as TensorView does, naming the function and the argument.
TensorView tensor(const quire_tensor* given, const char* function, const char* name);
std::optional<TensorView> optional_tensor(const quire_tensor* given, const char* function,
                                          const char* name);
DType dtype(quire_dtype given, const char* function, const char* name);
Jagged jagged(const quire_jagged* given, const char* function, const char* name);
/// For a run of a plan; error texts call the struct "outputs".
AttentionOutputs outputs(const quire_attention_outputs* given, const char* function);

/// What append, write and attend take; refers to the caller's memory.
std::vector<NewTokens> step(const quire_step* given, const char* function);
SequenceId sequence(const quire_sequence& given);
quire_sequence sequence(SequenceId given);

/// From 0 or 1. Throws Error for other numbers, which may get a meaning later.
bool flag(std::int32_t given, const char* function, const char* name);

}  // namespace quire::c_api
