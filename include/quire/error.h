// The one exception type that Quire throws for a user's mistake (std::bad_alloc aside). Texts read
// "[where] what; got x" and are part of the contract: tests assert them. Public; runtime layer.
#pragma once
#include <stdexcept>
#include <string>

#include "quire/export.h"

namespace quire {

// What kind of mistake it was. Decides the exception type in Python.
enum class ErrorKind {
  value,            // an argument of the right type with a wrong value or shape: ValueError
  type,             // wrong dtype, or a mod whose types do not fit: TypeError
  index,            // an index outside its axis or buffer: IndexError
  not_implemented,  // correct use of something that does not exist here: NotImplementedError
  runtime,  // the environment failed: a file, an environment variable, a missing ISA: RuntimeError
};

class QUIRE_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text);
  ~Error() override;

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace quire
